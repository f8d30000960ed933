/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses the installed library as a stranger would: one operator's CPU reference, compared with what
 * the header says it computes.
 */
#include <stdio.h>
#include <steptape/kernels.h>

int main(void) {
    enum { TOKENS = 3, WIDTH = 2, RATIO = 128, BLOCK = 8 };
    const float kv[TOKENS * WIDTH] = {1, 2, 3, 4, 5, 6};
    const float score[TOKENS * WIDTH] = {10, 20, 30, 40, 50, 60};
    float ape[RATIO * WIDTH] = {0};
    const int64_t positions[TOKENS] = {126, 127, 128};
    const int64_t slots[TOKENS] = {6, -1, 8};
    float state[2 * BLOCK * 2 * WIDTH] = {0};
    ape[126 * WIDTH] = 0.5f;
    struct steptape_save_partial_states_args args = {
        .kv = kv,
        .score = score,
        .ape = ape,
        .positions = positions,
        .slot_mapping = slots,
        .state_cache = state,
        .kv_stride = WIDTH,
        .score_stride = WIDTH,
        .ape_stride = WIDTH,
        .state_page_stride = BLOCK * 2 * WIDTH,
        .state_row_stride = 2 * WIDTH,
        .num_tokens = TOKENS,
        .width = WIDTH,
        .ratio = RATIO,
        .block_size = BLOCK,
    };
    int rc = steptape_save_partial_states_ref(&args);
    if (rc != STEPTAPE_OK) {
        fprintf(stderr, "consumer: %s\n", steptape_status_name(rc));
        return 1;
    }
    const float *first = state + 6 * 2 * WIDTH, *skipped = state + 7 * 2 * WIDTH;
    if (first[0] != 1 || first[1] != 2 || first[2] != 10.5f || first[3] != 20 || skipped[0] != 0) {
        fprintf(stderr, "consumer: %g %g %g %g, 1 2 10.5 20 expected\n", (double)first[0],
                (double)first[1], (double)first[2], (double)first[3]);
        return 1;
    }
    printf("consumer: states saved; launchers %s\n",
           steptape_kernels_have_cuda() ? "built" : "not built");
    return 0;
}
