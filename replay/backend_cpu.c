/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu backend: the references of kernels/, on ordinary memory.
 *
 * Invariants
 *  1. verify: every launch of the plan is executed for the layers that have a buffer of their own
 *     (ordinal < buffer_count).  A layer that shares a buffer would write the same bits again, so
 *     it is not executed; the run says how many buffers there were.
 *  2. count: launches are issued and counted, nothing is computed: no device could disagree.
 *  3. Caches are reserved address space; pages of it become memory when a block is first used, and
 *     go back when the input says `forget`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "replay/backend.h"
#include "replay/digest.h"
#include "replay/reference.h"
#include "steptape/kernels.h"

enum { DIM = 512, DEFAULT_BUFFERS = 2, MAX_BUFFERS = 64 };

/* Caches of one policy and buffer. */
struct cache_set {
    float *state;
    uint8_t *kv;
    uint8_t *seen; /* [num_blocks] bit 0: state block poisoned or used; bit 1: kv block */
};

/* What one policy's launches of this step left beside the caches. */
struct step_output {
    int64_t *kv_slot_c128, *kv_slot_c4; /* [slot_capacity] */
    float *pooled;                      /* [max_tokens, 512] */
};

struct st_backend {
    const struct st_model *model;
    enum st_pass pass;
    bool poison;
    unsigned ops_mask;
    int32_t policy_count, buffer_count;
    int32_t max_tokens, slot_capacity;
    int64_t num_blocks;
    uint64_t state_bytes, kv_bytes;
    struct st_layer_parameters *layer; /* [buffer_count] */
    struct cache_set set[ST_MAX_POLICIES][MAX_BUFFERS];
    struct step_output output[ST_MAX_POLICIES];
    float *kv_score; /* [buffer_count][max_tokens][1024] */
    float *cos_sin;  /* [max_seq_len][64], rows of 128 filled */
    uint64_t cos_sin_bytes;
    struct st_step_input input;
    struct st_step_result result;
    struct st_backend_counters counters;
};

static int probe(struct st_error *err) {
    (void)err;
    return 0;
}

/* ---- opening */

static int reserve(uint64_t bytes, void **out, struct st_error *err) {
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return ST_FAIL(err, ST_ERR_NOMEM, "backend cpu: no address space for %llu bytes",
                       (unsigned long long)bytes);
    *out = memory;
    return 0;
}

static void device_name(char *out, size_t size) {
    snprintf(out, size, "cpu");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "cpu:%s", colon + 1);
        break;
    }
    fclose(file);
}

static int open_set(struct st_backend *b, struct cache_set *set, struct st_error *err) {
    void *memory = NULL;
    ST_TRY(reserve(b->state_bytes, &memory, err));
    set->state = memory;
    ST_TRY(reserve(b->kv_bytes, &memory, err));
    set->kv = memory;
    set->seen = calloc((size_t)b->num_blocks, 1);
    return set->seen ? 0 : ST_FAIL_NOMEM(err);
}

static int open_output(struct st_backend *b, struct step_output *output, struct st_error *err) {
    output->kv_slot_c128 = calloc((size_t)b->slot_capacity, sizeof(int64_t));
    output->kv_slot_c4 = calloc((size_t)b->slot_capacity, sizeof(int64_t));
    output->pooled = calloc((size_t)b->max_tokens * DIM, sizeof(float));
    if (!output->kv_slot_c128 || !output->kv_slot_c4 || !output->pooled)
        return ST_FAIL_NOMEM(err);
    if (b->poison)
        memset(output->pooled, 0xff, (size_t)b->max_tokens * DIM * sizeof(float));
    return 0;
}

static int open_angles(struct st_backend *b, int64_t max_seq_len, struct st_error *err) {
    void *memory = NULL;
    b->cos_sin_bytes = (uint64_t)max_seq_len * 64 * sizeof(float);
    ST_TRY(reserve(b->cos_sin_bytes, &memory, err));
    b->cos_sin = memory;
    for (int64_t position = 0; position < max_seq_len; position += 128)
        st_model_cos_sin(b->model, position, 1, b->cos_sin + position * 64);
    return 0;
}

static int open_memory(struct st_backend *b, const struct st_backend_config *config,
                       struct st_error *err) {
    b->state_bytes = (uint64_t)b->num_blocks * (uint64_t)b->model->state_c128.page_bytes;
    b->kv_bytes = (uint64_t)b->num_blocks * (uint64_t)b->model->kv_c128.page_bytes;
    b->layer = calloc((size_t)b->buffer_count + 1, sizeof *b->layer);
    b->kv_score =
        calloc((size_t)b->buffer_count * (size_t)b->max_tokens * 2 * DIM + 1, sizeof *b->kv_score);
    if (!b->layer || !b->kv_score)
        return ST_FAIL_NOMEM(err);
    for (int32_t i = 0; i < b->buffer_count; i++)
        st_layer_parameters_fill(&b->layer[i], i);
    for (int32_t p = 0; p < b->policy_count; p++) {
        ST_TRY(open_output(b, &b->output[p], err));
        for (int32_t i = 0; i < b->buffer_count; i++)
            ST_TRY(open_set(b, &b->set[p][i], err));
    }
    return open_angles(b, config->max_seq_len, err);
}

static void close_backend(struct st_backend *b) {
    if (!b)
        return;
    for (int32_t p = 0; p < ST_MAX_POLICIES; p++) {
        for (int32_t i = 0; i < MAX_BUFFERS; i++) {
            if (b->set[p][i].state)
                munmap(b->set[p][i].state, b->state_bytes ? b->state_bytes : 1);
            if (b->set[p][i].kv)
                munmap(b->set[p][i].kv, b->kv_bytes ? b->kv_bytes : 1);
            free(b->set[p][i].seen);
        }
        free(b->output[p].kv_slot_c128);
        free(b->output[p].kv_slot_c4);
        free(b->output[p].pooled);
    }
    if (b->cos_sin)
        munmap(b->cos_sin, b->cos_sin_bytes ? b->cos_sin_bytes : 1);
    free(b->kv_score);
    free(b->layer);
    free(b);
}

static int open_backend(const struct st_backend_config *config, struct st_backend **out,
                        struct st_backend_info *info, struct st_error *err) {
    struct st_backend *b = calloc(1, sizeof *b);
    if (!b)
        return ST_FAIL_NOMEM(err);
    b->model = config->model;
    b->pass = config->pass;
    b->poison = config->poison;
    b->ops_mask = config->ops_mask;
    b->policy_count = config->policy_count;
    b->max_tokens = config->max_tokens > 0 ? config->max_tokens : 1;
    b->slot_capacity = (int32_t)config->model->max_num_batched_tokens;
    if (b->slot_capacity < b->max_tokens)
        b->slot_capacity = b->max_tokens;
    b->num_blocks = config->num_blocks;
    int32_t layers = config->model->c128_layer_count;
    b->buffer_count = config->buffer_count > 0 ? config->buffer_count : DEFAULT_BUFFERS;
    if (b->buffer_count > layers)
        b->buffer_count = layers;
    if (b->buffer_count > MAX_BUFFERS)
        b->buffer_count = MAX_BUFFERS;
    int rc = b->pass == ST_PASS_VERIFY ? open_memory(b, config, err) : 0;
    if (rc != 0) {
        close_backend(b);
        return rc;
    }
    memset(info, 0, sizeof *info);
    device_name(info->device, sizeof info->device);
    info->buffer_count = b->buffer_count;
    *out = b;
    return 0;
}

/* ---- a step's inputs */

static void forget_caches(struct st_backend *b) {
    for (int32_t p = 0; p < b->policy_count; p++) {
        for (int32_t i = 0; i < b->buffer_count; i++) {
            madvise(b->set[p][i].state, b->state_bytes, MADV_DONTNEED);
            madvise(b->set[p][i].kv, b->kv_bytes, MADV_DONTNEED);
            memset(b->set[p][i].seen, 0, (size_t)b->num_blocks);
        }
    }
}

/* NaN in every block that this step can reach and nothing has been written to yet. */
static void poison_table(struct st_backend *b, const struct st_block_table *table,
                         int32_t block_size, bool is_state) {
    for (int32_t row = 0; row < b->input.shape.request_count; row++) {
        int32_t last = (b->input.seq_len[row] + block_size - 1) / block_size;
        for (int32_t column = table->first_column[row]; column < last; column++) {
            int64_t id = table->block_id[(int64_t)row * table->stride + column];
            for (int32_t p = 0; p < b->policy_count; p++) {
                for (int32_t i = 0; i < b->buffer_count; i++) {
                    struct cache_set *set = &b->set[p][i];
                    uint8_t bit = is_state ? 1 : 2;
                    if (set->seen[id] & bit)
                        continue;
                    set->seen[id] |= bit;
                    int64_t page =
                        is_state ? b->model->state_c128.page_bytes : b->model->kv_c128.page_bytes;
                    uint8_t *base = is_state ? (uint8_t *)set->state : set->kv;
                    memset(base + id * page, 0xff, (size_t)page);
                }
            }
        }
    }
}

static float *state_row(const struct st_backend *b, const struct cache_set *set, int64_t slot) {
    const struct st_model_cache *cache = &b->model->state_c128;
    return set->state + slot / cache->block_size * (cache->page_bytes / 4) +
           slot % cache->block_size * 2 * DIM;
}

static void rebuild(struct st_backend *b) {
    const struct st_step_input *in = &b->input;
    float row[2 * DIM];
    for (int32_t i = 0; i < b->buffer_count; i++) {
        for (int32_t r = 0; r < in->rebuild_count; r++) {
            st_reference_state_row(&b->layer[i], in->rebuild_request_id[r], in->rebuild_position[r],
                                   row);
            for (int32_t p = 0; p < b->policy_count; p++)
                memcpy(state_row(b, &b->set[p][i], in->rebuild_slot[r]), row, sizeof row);
        }
    }
}

static void generate(struct st_backend *b) {
    const struct st_step_input *in = &b->input;
    for (int32_t i = 0; i < b->buffer_count; i++) {
        float *rows = b->kv_score + (int64_t)i * b->max_tokens * 2 * DIM;
        for (int32_t t = 0; t < in->shape.token_count; t++)
            st_reference_kv_score(i, in->request_id[in->token_to_request[t]], in->position[t],
                                  rows + (int64_t)t * 2 * DIM);
        int32_t padding = in->shape.padded_token_count - in->shape.token_count;
        memset(rows + (int64_t)in->shape.token_count * 2 * DIM, b->poison ? 0xff : 0,
               (size_t)padding * 2 * DIM * sizeof(float));
    }
}

/* ---- launches */

static int run_slot_mapping(struct st_backend *b, const struct st_launch *launch, int32_t policy) {
    const struct st_step_input *in = &b->input;
    bool c128 = launch->ratio == 128;
    const struct st_block_table *table = c128 ? &in->kv_c128 : &in->kv_c4;
    struct steptape_compressed_slot_mapping_args args = {
        .out = c128 ? b->output[policy].kv_slot_c128 : b->output[policy].kv_slot_c4,
        .query_start_loc = in->query_start_loc,
        .seq_lens = in->seq_len,
        .block_table = table->block_id,
        .block_table_stride = table->stride,
        .out_len = b->slot_capacity,
        .num_reqs = in->shape.padded_request_count,
        .ratio = launch->ratio,
        .block_size = c128 ? b->model->kv_c128.entries : b->model->kv_c4.entries,
    };
    return steptape_compressed_slot_mapping_ref(&args);
}

static int run_save(struct st_backend *b, int32_t buffer, int32_t policy) {
    const struct st_step_input *in = &b->input;
    const float *rows = b->kv_score + (int64_t)buffer * b->max_tokens * 2 * DIM;
    struct steptape_save_partial_states_args args = {
        .kv = rows,
        .score = rows + DIM,
        .ape = b->layer[buffer].ape,
        .positions = in->position,
        .slot_mapping = in->state_slot,
        .state_cache = b->set[policy][buffer].state,
        .kv_stride = 2 * DIM,
        .score_stride = 2 * DIM,
        .ape_stride = DIM,
        .state_page_stride = b->model->state_c128.page_bytes / 4,
        .state_row_stride = 2 * DIM,
        .num_tokens = in->shape.padded_token_count,
        .width = DIM,
        .ratio = 128,
        .block_size = b->model->state_c128.block_size,
    };
    return steptape_save_partial_states_ref(&args);
}

static int run_pool(struct st_backend *b, int32_t buffer, int32_t policy) {
    const struct st_step_input *in = &b->input;
    struct steptape_compress_pool_args args = {
        .state_cache = b->set[policy][buffer].state,
        .positions = in->position,
        .slot_mapping = in->state_slot,
        .kv_slot_mapping = b->output[policy].kv_slot_c128,
        .token_to_req = in->token_to_request,
        .block_table = in->state_c128.block_id,
        .pooled = b->output[policy].pooled,
        .state_page_stride = b->model->state_c128.page_bytes / 4,
        .state_row_stride = 2 * DIM,
        .block_table_stride = in->state_c128.stride,
        .pooled_stride = DIM,
        .num_tokens = in->shape.padded_token_count,
        .head_dim = DIM,
        .ratio = 128,
        .block_size = b->model->state_c128.block_size,
    };
    return steptape_compress_pool_ref(&args);
}

static int run_store(struct st_backend *b, int32_t buffer, int32_t policy) {
    const struct st_step_input *in = &b->input;
    struct steptape_compress_norm_rope_store_args args = {
        .pooled = b->output[policy].pooled,
        .positions = in->position,
        .slot_mapping = in->state_slot,
        .kv_slot_mapping = b->output[policy].kv_slot_c128,
        .weight = b->layer[buffer].rms_weight,
        .cos_sin_cache = b->cos_sin,
        .kv_cache = b->set[policy][buffer].kv,
        .pooled_stride = DIM,
        .cos_sin_stride = 64,
        .values_stride = DIM,
        .kv_page_stride_bytes = b->model->kv_c128.page_bytes,
        .num_tokens = in->shape.padded_token_count,
        .head_dim = DIM,
        .rope_dim = 64,
        .ratio = 128,
        .kv_block_size = b->model->kv_c128.entries,
        .weight_dtype = STEPTAPE_FP32,
        .eps = (float)b->model->rms_eps,
    };
    return steptape_compress_norm_rope_store_ref(&args);
}

static int run(struct st_backend *b, const struct st_launch *launch, int32_t policy) {
    if (launch->op == ST_OP_COMPRESSED_SLOT_MAPPING)
        return run_slot_mapping(b, launch, policy);
    if (launch->ordinal >= b->buffer_count)
        return 0;
    switch ((enum st_operator)launch->op) {
    case ST_OP_SAVE_PARTIAL_STATES:
        return run_save(b, launch->ordinal, policy);
    case ST_OP_COMPRESS_POOL:
        return run_pool(b, launch->ordinal, policy);
    default:
        return run_store(b, launch->ordinal, policy);
    }
}

/* Operators that --ops leaves out still give the others their inputs: they run here, as
 * preparation. */
static int run_left_out(struct st_backend *b) {
    static const struct st_launch mapping[] = {
        {.op = ST_OP_COMPRESSED_SLOT_MAPPING, .ratio = 128},
        {.op = ST_OP_COMPRESSED_SLOT_MAPPING, .ratio = 4},
    };
    int rc = 0;
    for (int32_t p = 0; p < b->policy_count; p++) {
        if (!st_operator_wanted(b->ops_mask, ST_OP_COMPRESSED_SLOT_MAPPING)) {
            if (b->model->has_c128 && rc == 0)
                rc = run_slot_mapping(b, &mapping[0], p);
            if (b->model->has_c4 && rc == 0)
                rc = run_slot_mapping(b, &mapping[1], p);
        }
        for (int32_t i = 0; i < b->buffer_count && rc == 0; i++)
            if (!st_operator_wanted(b->ops_mask, ST_OP_SAVE_PARTIAL_STATES))
                rc = run_save(b, i, p);
    }
    return rc;
}

static int prepare(struct st_backend *b, const struct st_step_input *input, struct st_error *err) {
    b->input = *input;
    if (b->pass != ST_PASS_VERIFY)
        return 0;
    if (input->forget)
        forget_caches(b);
    if (b->poison && b->buffer_count > 0) {
        poison_table(b, &input->state_c128, b->model->state_c128.block_size, true);
        poison_table(b, &input->kv_c128, b->model->kv_c128.block_size, false);
    }
    rebuild(b);
    generate(b);
    int rc = run_left_out(b);
    if (rc != 0)
        return ST_FAIL(err, ST_ERR_NATIVE, "backend cpu: step %lld: preparing: %s",
                       (long long)input->step_id, steptape_status_name(rc));
    return 0;
}

static int launch_plan(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                       struct st_error *err) {
    memset(&b->result, 0, sizeof b->result);
    b->result.step_ns = b->result.kernel_ns = ST_UNKNOWN;
    for (int i = 0; i < ST_OP_COUNT; i++)
        b->result.op_kernel_ns[i] = ST_UNKNOWN;
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        int rc = b->pass == ST_PASS_VERIFY ? run(b, launch, policy) : 0;
        if (rc != 0)
            return ST_FAIL(err, ST_ERR_NATIVE, "backend cpu: step %lld: %s: %s",
                           (long long)b->input.step_id, st_operator_name(launch->op),
                           steptape_status_name(rc));
        b->result.launches[launch->op]++;
        b->counters.launches++;
    }
    return 0;
}

static int sync_backend(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    (void)err;
    *result = b->result;
    return 0;
}

/* ---- outputs */

static const void *row_bytes(const struct st_backend *b, const struct st_output_rows *rows,
                             int32_t i, uint8_t *scratch) {
    int64_t slot = rows->slot[i];
    if (rows->op == ST_OP_COMPRESSED_SLOT_MAPPING) {
        const struct step_output *output = &b->output[rows->policy];
        return (rows->ordinal == 128 ? output->kv_slot_c128 : output->kv_slot_c4) + slot;
    }
    const struct cache_set *set = &b->set[rows->policy][rows->ordinal % b->buffer_count];
    if (rows->op == ST_OP_SAVE_PARTIAL_STATES)
        return state_row(b, set, slot);
    const struct st_model_cache *cache = &b->model->kv_c128;
    const uint8_t *page = set->kv + slot / cache->entries * cache->page_bytes;
    int64_t entry = slot % cache->entries;
    memcpy(scratch, page + entry * 576, 576);
    memcpy(scratch + 576, page + cache->entries * 576 + entry * 8, 8);
    return scratch;
}

static int hash_rows(struct st_backend *b, const struct st_output_rows *rows, uint64_t *hash,
                     struct st_error *err) {
    (void)err;
    _Alignas(8) uint8_t scratch[584];
    uint32_t words = (uint32_t)st_output_row_bytes(rows->op) / 4;
    for (int32_t i = 0; i < rows->count; i++)
        hash[i] = st_digest_row(row_bytes(b, rows, i, scratch), words);
    return 0;
}

static int read_rows(struct st_backend *b, const struct st_output_rows *rows, void *bytes,
                     struct st_error *err) {
    (void)err;
    _Alignas(8) uint8_t scratch[584];
    size_t size = (size_t)st_output_row_bytes(rows->op);
    for (int32_t i = 0; i < rows->count; i++)
        memcpy((uint8_t *)bytes + (size_t)i * size, row_bytes(b, rows, i, scratch), size);
    return 0;
}

static void counters(const struct st_backend *b, struct st_backend_counters *out) {
    *out = b->counters;
}

const struct st_backend_ops st_backend_cpu = {
    .name = "cpu",
    .summary = "the references, on this machine's processor",
    .pass_mask = 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .default_pass_mask = 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .probe = probe,
    .open = open_backend,
    .prepare = prepare,
    .launch = launch_plan,
    .sync = sync_backend,
    .hash_rows = hash_rows,
    .read_rows = read_rows,
    .counters = counters,
    .close = close_backend,
    .forget_bytes = (int64_t)1 << 30,
    .needs_blocks = true,
};
