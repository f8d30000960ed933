/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the importer: the input is a file in the interchange format, plain or gzip.  Whatever it
 * holds, reading ends in steps or in one line of error.
 */
#include <stdlib.h>
#include <string.h>

#include "traces/interchange/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads every element, so that a sanitizer sees a pointer or a count that is wrong. */
static uint64_t sum_step(const struct st_step *step, const char *check_json) {
    uint64_t sum = check_json ? strlen(check_json) : 0;
    for (int32_t i = 0; i < step->request_count; i++)
        sum += (uint64_t)step->request_id[i] + (uint64_t)step->query_len[i] +
               (uint64_t)step->num_computed_tokens[i] +
               (uint64_t)(step->draft ? step->draft[i] : 0);
    for (int32_t i = 0; i < step->new_requests.count; i++)
        sum += (uint64_t)step->new_prompt_len[i];
    for (int32_t g = 0; g < step->group_count; g++)
        for (int32_t i = 0; i < step->blocks[g].offset[step->request_count]; i++)
            sum += (uint64_t)step->blocks[g].block_id[i];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_interchange_options options = {.max_line_bytes = 1 << 20};
    struct st_interchange *in = NULL;
    const struct st_step *step;
    const char *check_json;
    struct st_error err = {0};
    volatile uint64_t sum = 0;
    /* The options are part of what is fuzzed, told by the length so that inputs stay readable. */
    options.ignore_unknown = size & 1;
    options.no_check = size & 2;
    int rc = st_interchange_open_memory("fuzz", data, size, &options, &in, &err);
    while (rc == 0 && (rc = st_interchange_next(in, &step, &check_json, &err)) == 0)
        sum += sum_step(step, check_json);
    if (rc < 0 && (err.msg[0] == 0 || strchr(err.msg, '\n')))
        abort(); /* an error is one line */
    st_interchange_close(in);
    return 0;
}
