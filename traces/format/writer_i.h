/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that the writer chooses; readers follow whatever a tape has. */
#ifndef ST_FORMAT_WRITER_I_H
#define ST_FORMAT_WRITER_I_H

#include "traces/format/step.h"

/* A test builds the writer with tiny ones. */
#ifndef ST_BLOCK_STEPS
#define ST_BLOCK_STEPS 128 /* steps a block; fewer when batches are large or take many ids */
#endif
#define ST_BLOCK_ROWS 65536
#define ST_BLOCK_IDS 100000
/* Ids between keyframes, which is what a seek decodes at most: so many, and more when a keyframe is
 * large, so that keyframes stay below a twelfth of a byte an id. */
#ifndef ST_KEYFRAME_IDS
#define ST_KEYFRAME_IDS 150000
#define ST_KEYFRAME_IDS_PER_BYTE 12
#endif
#ifndef ST_TRIAL_BLOCKS
#define ST_TRIAL_BLOCKS 16 /* blocks over which variants of the model compete */
#endif
#define ST_TRIAL_IDS 20000 /* ids that end the competition early */

/* The columns of table `step` that follow from the arrays. */
struct st_step_summary {
    int64_t token_count;
    int32_t decode_count;
    int64_t prefill_token_count;
    int32_t max_query_len;
    int32_t max_seq_len;
};

/* Needs step->prompt_len. */
void st_step_summarize(const struct st_step *step, struct st_step_summary *summary);

#endif
