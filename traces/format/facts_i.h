/* SPDX-License-Identifier: Apache-2.0 */
/* The flags byte of a step in the facts of a block: shared by encoder and decoder. */
#ifndef ST_FORMAT_FACTS_I_H
#define ST_FORMAT_FACTS_I_H

enum {
    ST_FACTS_BATCH_CHANGED = 1,
    ST_FACTS_QUERY_LEN_EXCEPTIONS = 2,
    ST_FACTS_START_EXCEPTIONS = 4,
    ST_FACTS_DRAFT_PRESENT = 8,
    ST_FACTS_EVENTS_PRESENT = 16,
    ST_FACTS_ZEROED_PRESENT = 32,
    ST_FACTS_CPU_STARTS_SHIFT = 6 /* two bits: 0 key absent, 1 true, 2 false */
};

#endif
