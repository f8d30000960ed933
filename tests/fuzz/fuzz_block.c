/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the codec behind SQLite and zlib, which would catch most changes before it sees them: the
 * input is what one block of steps inflates to.
 *
 *     u32 size, facts columns; u32 size, block id columns; the rest: keyframe (little endian)
 */
#include <stdlib.h>
#include <string.h>

#include "traces/format/blocks.h"
#include "traces/format/facts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_STEPS = 64 };

static const struct st_member swa = {ST_MEMBER_SWA, 4, 1, 128, -1};
static const struct st_member kv = {ST_MEMBER_KV, 2, 128, -1, -1};
static const struct st_member state = {ST_MEMBER_STATE, 2, 128, 128, -1};
static const struct st_group groups[] = {{0, 64, 1, &swa}, {1, 256, 1, &kv}, {2, 8, 1, &state}};
static const struct st_header header = {.num_blocks = 400, .group_count = 3, .groups = groups};

/* The next part of the input, as the tape would hold it. */
static int take_packed(const uint8_t **data, size_t *size, struct st_bytes *packed) {
    if (*size < 4)
        return 1;
    size_t part = (size_t)(*data)[0] | (size_t)(*data)[1] << 8 | (size_t)(*data)[2] << 16;
    *data += 4;
    *size -= 4;
    if (part > *size)
        part = *size;
    int rc = st_bytes_deflate(packed, *data, part, NULL);
    *data += part;
    *size -= part;
    return rc;
}

static void decode(struct st_facts_decoder *facts, struct st_blocks_model *model,
                   struct st_requests *requests, struct st_bytes_reader *column) {
    struct st_step step = {0};
    struct st_error err = {0};
    int rc = 0;
    for (int i = 0; rc == 0 && i < MAX_STEPS; i++) {
        step.step_id = i;
        step.blocks = NULL;
        step.group_count = 0;
        rc = st_facts_decode(facts, requests, &step, &err);
        if (rc == 0)
            rc = st_blocks_decode(model, requests, &step, column, &err);
        if (rc == 0)
            st_requests_advance(requests, &step);
    }
    if (rc < 0 && (err.msg[0] == 0 || strchr(err.msg, '\n')))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_bytes facts_packed = {0}, ids_packed = {0}, ids = {0};
    struct st_bytes_reader column[ST_BLOCKS_COLUMNS];
    struct st_facts_decoder facts = {0};
    struct st_blocks_model model = {0};
    struct st_requests requests;
    unsigned kind = size % ST_MODEL_COUNT;
    st_requests_init(&requests, header.group_count);
    if (st_blocks_model_init(&model, &header, kind, NULL) == 0 &&
        take_packed(&data, &size, &facts_packed) == 0 &&
        take_packed(&data, &size, &ids_packed) == 0 &&
        st_facts_decoder_begin(&facts, facts_packed.data, facts_packed.size, NULL) == 0 &&
        st_facts_decode_snapshot(&facts, &requests, NULL) == 0 &&
        st_columns_unpack(ids_packed.data, ids_packed.size, &ids, column, ST_BLOCKS_COLUMNS,
                          NULL) == 0) {
        st_blocks_begin(&model);
        /* Fewer bytes than any keyframe has: the queue as it is at first. */
        if (size < 4 || st_blocks_get_keyframe(&model, &requests, data, size, NULL) == 0)
            decode(&facts, &model, &requests, column);
    }
    st_facts_decoder_fini(&facts);
    st_blocks_model_fini(&model);
    st_requests_fini(&requests);
    st_bytes_fini(&facts_packed);
    st_bytes_fini(&ids_packed);
    st_bytes_fini(&ids);
    return 0;
}
