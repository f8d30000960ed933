/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu backend: the references of kernels/, on ordinary memory.  Invariants: backend_cpu_i.h.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "replay/backend_cpu_i.h"
#include "replay/digest.h"
#include "traces/base/log.h"

enum { DEFAULT_LAYER_BUFFERS = 2, DEFAULT_SAMPLE = 8, MAX_THREADS = 64 };

static int probe(struct st_error *err) {
    (void)err;
    return 0;
}

/* ---- opening */

static int reserve(struct st_backend *b, enum st_buffer_id id, struct st_error *err) {
    int64_t one = b->buffers.bytes[id], copies = st_buffer_copies(&b->buffers, id, b->sets), bytes;
    if (one <= 0)
        return 0;
    if (b->poison)
        b->band[id] = st_guard_band(b->model, &b->buffers, id);
    if (b->band[id] > 0)
        one = (one + ST_GUARD_ALIGNMENT - 1) / ST_GUARD_ALIGNMENT * ST_GUARD_ALIGNMENT +
              2 * b->band[id];
    b->stride[id] = one;
    void *memory = MAP_FAILED;
    if (!__builtin_mul_overflow(one, copies, &bytes))
        memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return ST_FAIL(err, ST_ERR_NOMEM,
                       "backend cpu: no address space for %lld times %lld bytes of %s",
                       (long long)copies, (long long)one, st_buffer_name(id));
    b->memory[id] = memory;
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

static int open_memory(struct st_backend *b, struct st_error *err) {
    for (int id = 0; id < ST_BUF_COUNT; id++)
        if (st_buffer_scope((enum st_buffer_id)id) != ST_SCOPE_INPUT)
            ST_TRY(reserve(b, (enum st_buffer_id)id, err));
    b->sample = calloc((size_t)b->sample_wanted, sizeof *b->sample);
    b->sample_shifted = calloc((size_t)b->sample_wanted, sizeof *b->sample_shifted);
    b->sample_token = calloc((size_t)b->sample_wanted, sizeof *b->sample_token);
    if (!b->sample || !b->sample_shifted || !b->sample_token)
        return ST_FAIL_NOMEM(err);
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        if (!st_model_has(b->model, (enum st_cache_id)c))
            continue;
        b->seen[c] = calloc((size_t)b->buffers.layer_buffers, (size_t)b->model->num_blocks);
        if (!b->seen[c])
            return ST_FAIL_NOMEM(err);
    }
    return st_cpu_fill_constants(b, err);
}

static void close_backend(struct st_backend *b) {
    if (!b)
        return;
    for (int id = 0; id < ST_BUF_COUNT; id++) {
        int64_t copies = st_buffer_copies(&b->buffers, (enum st_buffer_id)id, b->sets);
        if (b->memory[id])
            munmap(b->memory[id], (size_t)(copies * b->stride[id]));
    }
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        free(b->seen[c]);
    for (int p = 0; p < ST_MAX_POLICIES; p++) {
        free(b->observed[p].observation);
        free(b->observed[p].kept);
        free(b->observed[p].hash);
        free(b->observed[p].bytes);
    }
    free(b->sample);
    free(b->sample_shifted);
    free(b->sample_token);
    free(b->layer);
    free(b);
}

static int32_t layer_buffers(const struct st_backend_config *config) {
    int32_t most = 1, wanted = config->layer_buffers;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        most = config->model->kind_count[k] > most ? config->model->kind_count[k] : most;
    wanted = wanted > 0 ? wanted : DEFAULT_LAYER_BUFFERS;
    most = most < ST_CPU_MAX_LAYER_BUFFERS ? most : ST_CPU_MAX_LAYER_BUFFERS;
    return wanted < most ? wanted : most;
}

/* Reserved for one policy; what is never touched takes no memory. */
static int64_t set_bytes(const struct st_buffers *buffers) {
    int64_t total = 0;
    for (int id = 0; id < ST_BUF_COUNT; id++) {
        enum st_scope scope = st_buffer_scope((enum st_buffer_id)id);
        if (scope == ST_SCOPE_SET || scope == ST_SCOPE_CACHE)
            total += buffers->bytes[id] * st_buffer_copies(buffers, (enum st_buffer_id)id, 1);
    }
    return total;
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
    b->sets = config->policy_count;
    b->sample_wanted = config->sample_tokens > 0 ? config->sample_tokens : DEFAULT_SAMPLE;
    st_buffers_make(config->model, &config->limits, layer_buffers(config), &b->buffers);
    if (b->sample_wanted > b->buffers.max_tokens)
        b->sample_wanted = b->buffers.max_tokens;
    int rc = b->pass == ST_PASS_VERIFY ? open_memory(b, err) : 0;
    if (rc != 0) {
        close_backend(b);
        return rc;
    }
    memset(info, 0, sizeof *info);
    device_name(info->device, sizeof info->device);
    info->buffers = b->buffers;
    info->set_bytes = b->pass == ST_PASS_VERIFY ? set_bytes(&b->buffers) : 0;
    *out = b;
    return 0;
}

/* ---- the sample */

static void add_token(struct st_backend *b, int64_t token) {
    int32_t at = b->sample_count;
    if (token < 0 || token >= b->input.shape.token_count || at == b->sample_wanted)
        return;
    while (at > 0 && b->sample[at - 1] >= token)
        at--;
    if (at < b->sample_count && b->sample[at] == token)
        return;
    memmove(b->sample + at + 1, b->sample + at, (size_t)(b->sample_count - at) * sizeof *b->sample);
    b->sample[at] = token;
    b->sample_count++;
}

/* Where lists begin and end, then others by a hash, so that no position is favoured. */
static void choose_sample(struct st_backend *b) {
    const struct st_step_shape *shape = &b->input.shape;
    int64_t tokens = shape->token_count, decodes = shape->decode_token_count;
    decodes = decodes < tokens ? decodes : tokens;
    b->sample_count = 0;
    for (int64_t t = 0; tokens <= b->sample_wanted && t < tokens; t++)
        add_token(b, t);
    add_token(b, 0);
    add_token(b, 1);
    add_token(b, decodes - 1);
    add_token(b, decodes);
    add_token(b, tokens - 1);
    for (uint64_t k = 0; tokens > b->sample_wanted && b->sample_count < b->sample_wanted; k++)
        add_token(b,
                  (int64_t)(st_gen_mix((uint64_t)b->input.step_id * 65536 + k) % (uint64_t)tokens));
    for (int32_t i = 0; i < b->sample_count; i++)
        b->sample_token[i] = (int32_t)b->sample[i];
}

const int64_t *st_cpu_sampled_rows(struct st_backend *b, int32_t first, int32_t count, int32_t *n) {
    *n = 0;
    for (int32_t i = 0; i < b->sample_count; i++)
        if (b->sample[i] >= first && b->sample[i] < (int64_t)first + count)
            b->sample_shifted[(*n)++] = b->sample[i] - first;
    return b->sample_shifted;
}

static const int32_t *sampled_tokens(const struct st_backend *b, int32_t *count) {
    *count = b->sample_count;
    return b->sample_token;
}

static int prepare(struct st_backend *b, const struct st_step_input *input, struct st_error *err) {
    (void)err;
    b->input = *input;
    if (b->pass != ST_PASS_VERIFY)
        return 0;
    if (input->forget)
        st_cpu_forget(b);
    choose_sample(b);
    st_cpu_fill_step(b);
    return 0;
}

/* ---- what was observed */

static void *room_for(void *array, size_t *room, size_t wanted, size_t size) {
    if (wanted <= *room && array)
        return array;
    size_t more = wanted + wanted / 2 + 64;
    void *grown = realloc(array, more * size);
    if (grown)
        *room = more;
    return grown;
}

/* Grows `array` of o to hold `more` elements; false: no memory, and it is as it was. */
#define GROW(o, array, count, room, more)                                                          \
    __extension__({                                                                                \
        void *grown =                                                                              \
            room_for((o)->array, &(o)->room, (o)->count + (size_t)(more), sizeof *(o)->array);     \
        if (grown)                                                                                 \
            (o)->array = grown;                                                                    \
        grown != NULL;                                                                             \
    })

/* Only the rows of sampled tokens exist of these. */
static bool is_sampled(enum st_operator op) {
    switch (op) {
    case ST_OP_FILL:
    case ST_OP_TOPK_PER_ROW:
    case ST_OP_GLOBAL_TOPK_INDICES:
    case ST_OP_SPARSE_MLA_DECODE:
    case ST_OP_COMBINE_TOPK_SWA_INDICES:
    case ST_OP_SPARSE_MLA_PREFILL:
        return true;
    default:
        return false;
    }
}

/* Words of row i, in two runs, as digest.h says; false: no row. */
struct row_words {
    const uint32_t *data, *tail;
    uint32_t data_count, tail_count;
    bool has_length;
};

static bool row_words(const struct st_rows *rows, int32_t i, struct row_words *out) {
    uint32_t words = (uint32_t)rows->data_bytes / 4;
    memset(out, 0, sizeof *out);
    out->data_count = words;
    if (rows->slot) {
        if (rows->slot[i] < 0)
            return false;
        int64_t entry = rows->slot[i] % rows->entries;
        const uint8_t *page = rows->base + rows->slot[i] / rows->entries * rows->page_bytes;
        out->data = (const uint32_t *)(const void *)(page + entry * rows->data_bytes);
        out->tail =
            (const uint32_t *)(const void *)(page + (int64_t)rows->entries * rows->data_bytes +
                                             entry * rows->tail_bytes);
        out->tail_count = (uint32_t)rows->tail_bytes / 4;
        return true;
    }
    out->data = (const uint32_t *)(const void *)(rows->base + i * rows->stride_bytes);
    if (rows->lens) {
        out->has_length = true;
        out->data_count = rows->lens[i] < 0                 ? 0
                          : (uint32_t)rows->lens[i] < words ? (uint32_t)rows->lens[i]
                                                            : words;
    }
    return true;
}

static uint64_t hash_row(const struct st_rows *rows, int32_t i) {
    struct row_words row;
    if (!row_words(rows, i, &row))
        return 0;
    uint64_t hash = st_digest_row(row.data, row.data_count);
    for (uint32_t w = 0; w < row.tail_count; w++)
        hash += st_digest_word(row.tail[w], row.data_count + w);
    if (row.has_length)
        hash += st_digest_word(row.data_count, ST_DIGEST_LENGTH);
    return hash;
}

/* Bytes of a row; at most size of them are written, all are counted. */
static int32_t copy_row(const struct st_rows *rows, int32_t i, uint8_t *out, int32_t size) {
    struct row_words row;
    if (!row_words(rows, i, &row))
        return 0;
    int32_t data = (int32_t)row.data_count * 4, tail = (int32_t)row.tail_count * 4;
    int32_t length = data + tail + (row.has_length ? 4 : 0);
    if (length > size)
        return length;
    memcpy(out, row.data, (size_t)data);
    if (tail > 0)
        memcpy(out + data, row.tail, (size_t)tail);
    if (row.has_length)
        memcpy(out + data, &row.data_count, 4);
    return length;
}

static bool keep_row(struct st_cpu_observed *o, const struct st_rows *rows, int32_t i) {
    int32_t length = copy_row(rows, i, NULL, -1);
    if (!GROW(o, kept, kept_count, kept_room, 1) || !GROW(o, bytes, byte_count, byte_room, length))
        return false;
    (void)copy_row(rows, i, o->bytes + o->byte_count, length);
    o->kept[o->kept_count++] = (struct st_cpu_kept_row){i, length, o->byte_count};
    o->byte_count += (size_t)length;
    return true;
}

static void frame_of(const struct st_backend *b, int32_t policy, int32_t ordinal,
                     struct st_frame *frame) {
    int32_t buffer = ordinal < 0 ? 0 : ordinal % b->buffers.layer_buffers;
    for (int id = 0; id < ST_BUF_COUNT; id++)
        frame->at[id] = st_cpu_buffer(b, (enum st_buffer_id)id, policy, buffer);
}

/* Layers that share a buffer were not computed: all their rows are 0. */
static int observe(struct st_backend *b, const struct st_plan *plan, const struct st_launch *launch,
                   int32_t policy, struct st_error *err) {
    struct st_cpu_observed *o = &b->observed[policy];
    struct st_frame frame;
    struct st_rows rows;
    frame_of(b, policy, launch->ordinal, &frame);
    st_bind_view(b->model, &b->buffers, &frame, plan, launch, &rows);
    if (!GROW(o, observation, observation_count, observation_room, 1) ||
        !GROW(o, hash, hash_count, hash_room, rows.count))
        return ST_FAIL_NOMEM(err);
    struct st_cpu_observation *made = &o->observation[o->observation_count++];
    *made = (struct st_cpu_observation){o->hash_count, o->kept_count, rows.count, 0};
    uint64_t *hash = o->hash + o->hash_count;
    o->hash_count += (size_t)rows.count;
    memset(hash, 0, (size_t)rows.count * sizeof *hash);
    if (launch->ordinal >= b->buffers.layer_buffers)
        return 0;
    if (!is_sampled((enum st_operator)launch->observed)) {
        for (int32_t i = 0; i < rows.count; i++)
            hash[i] = hash_row(&rows, i);
        return 0;
    }
    int32_t n;
    const int64_t *row = st_cpu_sampled_rows(b, launch->first_token, rows.count, &n);
    for (int32_t k = 0; k < n; k++) {
        hash[row[k]] = hash_row(&rows, (int32_t)row[k]);
        if (!keep_row(o, &rows, (int32_t)row[k]))
            return ST_FAIL_NOMEM(err);
    }
    made->kept_count = (int32_t)(o->kept_count - made->kept_offset);
    return 0;
}

static int hashes(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                  int32_t observation, int32_t count, uint64_t *hash, struct st_error *err) {
    (void)plan;
    const struct st_cpu_observed *o = &b->observed[policy];
    if (observation < 0 || (size_t)observation >= o->observation_count ||
        o->observation[observation].count != count)
        return ST_FAIL(err, ST_ERR_USAGE, "backend cpu: there is no observation %d of %d rows",
                       observation, count);
    memcpy(hash, o->hash + o->observation[observation].hash_offset, (size_t)count * sizeof *hash);
    return 0;
}

static const struct st_launch *find_observation(const struct st_plan *plan, int32_t observation) {
    for (int32_t i = 0; i < plan->launch_count; i++)
        if (plan->launch[i].op == ST_OP_OBSERVE && observation-- == 0)
            return &plan->launch[i];
    return NULL;
}

/* Scratch that layers take turns in was kept when it was seen; the rest is still where it was: each
 * policy has buffers of its own, and nothing in a step writes a row twice. */
static int read_row(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                    int32_t observation, int32_t row, void *bytes, int32_t size, int32_t *length,
                    struct st_error *err) {
    const struct st_cpu_observed *o = &b->observed[policy];
    const struct st_launch *launch = find_observation(plan, observation);
    if (!launch || (size_t)observation >= o->observation_count)
        return ST_FAIL(err, ST_ERR_USAGE, "backend cpu: there is no observation %d", observation);
    const struct st_cpu_observation *seen = &o->observation[observation];
    *length = 0;
    if (is_sampled((enum st_operator)launch->observed)) {
        for (int32_t k = 0; k < seen->kept_count; k++) {
            const struct st_cpu_kept_row *kept = &o->kept[seen->kept_offset + (size_t)k];
            if (kept->row != row)
                continue;
            *length = kept->length;
            if (kept->length <= size)
                memcpy(bytes, o->bytes + kept->offset, (size_t)kept->length);
        }
    } else {
        struct st_frame frame;
        struct st_rows rows;
        frame_of(b, policy, launch->ordinal, &frame);
        st_bind_view(b->model, &b->buffers, &frame, plan, launch, &rows);
        if (row >= 0 && row < rows.count)
            *length = copy_row(&rows, row, bytes, size);
    }
    if (*length > size)
        return ST_FAIL(err, ST_ERR_USAGE, "backend cpu: a row has %d bytes, there is room for %d",
                       *length, size);
    return 0;
}

/* ---- launches */

/* Nobody looks at what attention gives, so that it can be left out of a replay of others. */
static bool is_unwanted(const struct st_backend *b, enum st_operator op) {
    bool prefill = st_operator_wanted(b->ops_mask, ST_OP_SPARSE_MLA_PREFILL);
    return (op == ST_OP_SPARSE_MLA_PREFILL && !prefill) ||
           (op == ST_OP_DEQUANTIZE_AND_GATHER && !prefill) ||
           (op == ST_OP_SPARSE_MLA_DECODE &&
            !st_operator_wanted(b->ops_mask, ST_OP_SPARSE_MLA_DECODE));
}

static bool computes_nothing(const struct st_backend *b, const struct st_launch *launch) {
    enum st_operator op = (enum st_operator)launch->op;
    if (launch->disabled || launch->ordinal >= b->buffers.layer_buffers || is_unwanted(b, op))
        return true;
    /* A reference has no partial results: the last phase is all of it. */
    return op == ST_OP_GRAPH_CONDITION || (op == ST_OP_SPARSE_MLA_DECODE && launch->phases != 0 &&
                                           !(launch->phases & STEPTAPE_DECODE_COMBINE));
}

/* Whether this is the first gather of a chunk in a layer. */
static bool begins_chunk(const struct st_plan *plan, int32_t i) {
    const struct st_launch *launch = &plan->launch[i];
    if (launch->op != ST_OP_DEQUANTIZE_AND_GATHER)
        return false;
    const struct st_launch *before = i > 0 ? launch - 1 : NULL;
    return !before || before->op != launch->op || before->layer != launch->layer ||
           before->chunk != launch->chunk;
}

/* A row of attention is millions of operations, and rows are independent. */
struct share {
    const struct st_kernel *kernel;
    const union st_args *args;
    const int64_t *rows;
    int32_t count, first, step; /* of rows: first, first + step, ... */
    int rc;
};

static void *run_share(void *user) {
    struct share *s = user;
    for (int32_t i = s->first; i < s->count && s->rc == 0; i += s->step)
        s->rc = s->kernel->ref_rows(s->args, &s->rows[i], 1);
    return NULL;
}

static int run_rows(const struct st_kernel *kernel, const union st_args *args, const int64_t *rows,
                    int32_t count) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t threads = count < MAX_THREADS ? count : MAX_THREADS;
    threads = processors < 1 ? 1 : processors < threads ? (int32_t)processors : threads;
    struct share share[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    for (int32_t i = 0; i < threads; i++) {
        share[i] = (struct share){kernel, args, rows, count, i, threads, 0};
        started[i] = i > 0 && pthread_create(&thread[i], NULL, run_share, &share[i]) == 0;
    }
    int rc = 0;
    for (int32_t i = 0; i < threads; i++) {
        if (started[i])
            (void)pthread_join(thread[i], NULL);
        else
            (void)run_share(&share[i]);
        rc = rc == 0 ? share[i].rc : rc;
    }
    return rc;
}

static bool is_attention(const struct st_launch *launch) {
    return launch->op == ST_OP_SPARSE_MLA_DECODE || launch->op == ST_OP_SPARSE_MLA_PREFILL;
}

/* Rows of a selection that are no token's: all of them. */
static int run_padding(const struct st_kernel *kernel, const union st_args *args, int64_t first) {
    int rc = 0;
    for (int64_t row = first; row < args->topk_per_row.num_rows && rc == 0; row++)
        rc = kernel->ref_rows(args, &row, 1);
    return rc;
}

static int run(struct st_backend *b, const struct st_plan *plan, const struct st_launch *launch,
               int32_t policy) {
    const struct st_kernel *kernel = st_operator_kernel((enum st_operator)launch->op);
    struct st_frame frame;
    union st_args args;
    if (!kernel)
        return STEPTAPE_ERR_UNSUPPORTED;
    frame_of(b, policy, launch->ordinal, &frame);
    st_bind(b->model, &b->buffers, &frame, plan, launch, &args);
    if (launch->op == ST_OP_TOPK_PER_ROW)
        st_cpu_fill_logits(b, launch, &args.topk_per_row);
    if (launch->op == ST_OP_SPARSE_MLA_DECODE)
        args.sparse_mla_decode.phases = 0;
    if (!is_sampled((enum st_operator)launch->op))
        return kernel->ref(&args);
    int32_t n;
    if (launch->op == ST_OP_TOPK_PER_ROW) {
        int rc = run_padding(kernel, &args, launch->token_count);
        if (rc != 0)
            return rc;
    }
    const int64_t *rows = st_cpu_sampled_rows(b, launch->first_token, launch->token_count, &n);
    if (n == 0)
        return 0;
    return is_attention(launch) ? run_rows(kernel, &args, rows, n)
                                : kernel->ref_rows(&args, rows, n);
}

static int execute(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   struct st_error *err) {
    struct st_cpu_observed *o = &b->observed[policy];
    o->observation_count = o->kept_count = o->hash_count = o->byte_count = 0;
    if (b->poison)
        st_cpu_poison(b, plan, policy);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (st_interrupted()) /* a step of long contexts takes many seconds */
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no run was stored");
        if (launch->op == ST_OP_OBSERVE) {
            ST_TRY(observe(b, plan, launch, policy, err));
            continue;
        }
        if (computes_nothing(b, launch))
            continue;
        if (b->poison && begins_chunk(plan, i))
            st_cpu_poison_workspace(b, plan, policy);
        int rc = run(b, plan, launch, policy);
        if (rc != 0)
            return ST_FAIL(
                err, ST_ERR_NATIVE, "backend cpu: step %lld: %s: %s", (long long)b->input.step_id,
                st_operator_name((enum st_operator)launch->op), steptape_status_name(rc));
        if (b->poison)
            st_cpu_check_guards(b, launch, policy);
    }
    if (b->poison)
        st_cpu_check_all_guards(b, policy);
    return 0;
}

static int launch_plan(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                       struct st_error *err) {
    memset(&b->result, 0, sizeof b->result);
    b->result.step_ns = b->result.host_ns = b->result.kernel_ns = ST_UNKNOWN;
    for (int i = 0; i < ST_OP_COUNT; i++)
        b->result.op_kernel_ns[i] = ST_UNKNOWN;
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op == ST_OP_OBSERVE || launch->disabled)
            continue;
        b->result.launches[launch->op] += (int32_t)launch->launch_count;
        b->counters.launches += launch->launch_count;
    }
    return b->pass == ST_PASS_VERIFY ? execute(b, plan, policy, err) : 0;
}

static int sync_backend(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    (void)err;
    *result = b->result;
    return 0;
}

static int32_t damages(struct st_backend *b, int32_t policy, const struct st_guard_damage **damage,
                       int64_t *lost) {
    (void)policy; /* that of the last launch() */
    *damage = b->damage;
    *lost = b->damage_lost;
    return b->damage_count;
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
    .hashes = hashes,
    .read_row = read_row,
    .damages = damages,
    .sampled_tokens = sampled_tokens,
    .counters = counters,
    .close = close_backend,
    .forget_bytes = (int64_t)1 << 30,
    .needs_blocks = true,
};
