/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record X.tape: an engine of one request that records itself with the installed library.
 */
#include <stdio.h>
#include <steptape/capture.h>

static const char header[] =
    "{\"kind\":\"steps\",\"version\":1,\"engine\":\"example\",\"device\":\"none\",\"num_blocks\":"
    "100,"
    "\"groups\":[{\"id\":0,\"block_size\":16,\"members\":[{\"kind\":\"attention\",\"layers\":2,"
    "\"ratio\":1}]}]}";

int main(int argc, char **argv) {
    struct steptape_recorder *recorder;
    char message[512];
    if (argc != 2)
        return 2;
    if (steptape_recorder_open(argv[1], header, NULL, &recorder, message, sizeof message)) {
        fprintf(stderr, "record: %s\n", message);
        return 1;
    }
    const int64_t request = 7;
    const int32_t prompt = 20;
    int32_t tokens = 0;
    for (int i = 0; i < 50; i++) {
        const int32_t query = i == 0 ? prompt : 1;
        int32_t cells[8], used = (tokens + query + 15) / 16;
        for (int32_t k = 0; k < used; k++)
            cells[k] = k + 1;
        const struct steptape_step_blocks blocks = {
            .table = cells, .row_stride = 8, .row_cell_count = &used, .cells_per_block = 1};
        const struct steptape_step step = {
            .struct_size = sizeof step,
            .graph_mode = 0,
            .cpu_starts = 1,
            .request_count = 1,
            .start_ns = STEPTAPE_UNKNOWN,
            .duration_ns = STEPTAPE_UNKNOWN,
            .padded_token_count = STEPTAPE_UNKNOWN,
            .padded_request_count = STEPTAPE_UNKNOWN,
            .zeroed_count = STEPTAPE_UNKNOWN,
            .request_id = &request,
            .query_len = &query,
            .num_computed_tokens = &tokens,
            .new_count = i == 0,
            .new_request = &request,
            .new_prompt_len = &prompt,
            .replaced_count = -1,
            .group_count = 1,
            .blocks = &blocks,
        };
        if (steptape_recorder_record_step(recorder, &step) < 0)
            break;
        tokens += query;
    }
    int rc = steptape_recorder_close(recorder, message, sizeof message);
    fprintf(rc ? stderr : stdout, "record: %s\n", message);
    return rc != 0;
}
