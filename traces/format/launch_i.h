/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the coder of launches and its decoder. */
#ifndef ST_FORMAT_LAUNCH_I_H
#define ST_FORMAT_LAUNCH_I_H

#include <stdint.h>

enum st_launch_column {
    ST_LAUNCH_SITE,     /* exceptions: site */
    ST_LAUNCH_CALL,     /* exceptions: correlation id */
    ST_LAUNCH_SEQUENCE, /* exceptions: step */
    ST_LAUNCH_BYTES,    /* exceptions: bytes of a copy or memory set */
    ST_LAUNCH_NO_TIME,  /* exceptions: the launch is not timed; no value */
    ST_LAUNCH_GAP,      /* each timed launch */
    ST_LAUNCH_DURATION, /* each timed launch */
    ST_LAUNCH_COLUMNS,
    ST_LAUNCH_EXCEPTIONS = ST_LAUNCH_GAP /* columns before this one hold exceptions */
};

/* What a site predicts of its next launch. */
struct st_launch_memory {
    uint32_t epoch;           /* block in which this was learned; another: nothing is known */
    uint32_t successor_epoch; /* the same of the successor; 0: never */
    int32_t successor;
    uint32_t call_delta;
    int64_t gap_ns, duration_ns, bytes;
};

/* Running state, moved on by each launch alike in coder and decoder. */
struct st_launch_state {
    int64_t sequence, end_ns;
    int32_t site;
    uint32_t correlation_id, call_delta;
};

#endif
