/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step may say after those before it: docs/interchange.md, "Rules between steps".
 *
 * One place for all that makes steps: `import` asks it of every line, the recorder's writer thread
 * and `recover` of every step.  So what is recorded can be dumped and imported again.
 */
#ifndef ST_INTERCHANGE_RULES_H
#define ST_INTERCHANGE_RULES_H

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"
#include "traces/interchange/known.h"

struct st_rules {
    struct st_known known;
    int64_t gap_step;                  /* the last step that dropped ones came before; 0: none */
    int64_t num_blocks, max_model_len; /* of the header; ST_UNKNOWN and below 0: not known */
};

struct st_rules_fault {
    char place[64]; /* "req[3]", "blocks[1][0][7]" */
    char what[160]; /* is wrong there */
};

/* Rows that are odd but allowed. */
struct st_rules_odd {
    int32_t start_below; /* a start below the last start + qlen, without drafts */
    int32_t beyond_model_len;
};

void st_rules_init(struct st_rules *rules, const struct st_header *header);
void st_rules_fini(struct st_rules *rules);

/* 0; ST_ERR_INPUT and *fault; or ST_ERR_NOMEM.  After an error only _fini is allowed.  The numbers
 * of a step are in range already: what a caller's types cannot hold. */
int st_rules_step(struct st_rules *rules, const struct st_step *step, struct st_rules_odd *odd,
                  struct st_rules_fault *fault);

#endif
