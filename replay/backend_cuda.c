/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend: plans on a GPU.
 *
 * Invariants
 *  1. Everything a launch reads or writes lies at a fixed address with a fixed stride for the whole
 *     pass.  A step changes contents only, so a graph captured once stays right, as in an engine.
 *  2. Nothing but the plan's launches runs between the two events of a measurement, and nothing
 *     else but kernels named st_cuda_... runs on the device in a count pass.
 *  3. Inputs come from the generator, on the device; state that earlier steps would have left is
 *     rebuilt from it in every cache set.
 *
 * Files: this one opens, prepares and reads back; backend_cuda_launch.c launches and measures;
 * backend_cuda_count.c reads CUPTI's records; backend_cuda.cu holds the device code.
 */
#include "replay/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "steptape/kernels.h"
#include "traces/base/log.h"

enum {
    RATIO = 128,
    MEMORY_PERCENT = 90,    /* of what is free, for caches and inputs */
    MIN_CACHE_L2 = 4,       /* shared buffers: at least so many L2 sizes in all */
    EVICT_L2 = 2,           /* L2 sizes written to evict it */
    WARM_UP_NS = 300000000, /* until the clocks are up */
    ENTRY_DATA_WORDS = STEPTAPE_KV_ENTRY_DATA_BYTES / 4,
    ENTRY_SCALE_WORDS = STEPTAPE_KV_ENTRY_SCALE_BYTES / 4,
};

int st_cuda_fail(struct st_error *err, int code, const char *call, const char *file, int line) {
    int length = (int)strcspn(call, "(");
    return st_error_set(err, ST_ERR_NATIVE, code, file, line, "CUDA: %.*s failed: %s (%d)", length,
                        call, cudaGetErrorString((cudaError_t)code), code);
}

static int probe(struct st_error *err) {
    int count = 0;
    cudaError_t rc = cudaGetDeviceCount(&count);
    if (rc == cudaErrorInsufficientDriver)
        return ST_FAIL_NATIVE(err, ST_ERR_UNAVAILABLE, (int)rc,
                              "backend cuda: no usable NVIDIA driver: none is installed, or it is "
                              "older than CUDA %d.%d",
                              CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (rc != cudaSuccess || count == 0)
        return ST_FAIL_NATIVE(err, ST_ERR_UNAVAILABLE, (int)rc, "backend cuda: no NVIDIA GPU: %s",
                              rc != cudaSuccess ? cudaGetErrorString(rc) : "the driver lists none");
    return 0;
}

int st_cuda_alloc(struct st_backend *b, void **pointer, int64_t bytes, const char *what,
                  struct st_error *err) {
    *pointer = NULL;
    if (bytes <= 0)
        return 0;
    if (b->allocation_count == ST_CUDA_MAX_ALLOCATIONS)
        return ST_FAIL_NOMEM(err);
    cudaError_t rc = cudaMalloc(pointer, (size_t)bytes);
    if (rc != cudaSuccess)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, (int)rc,
                              "CUDA: cannot allocate %lld bytes of GPU memory for %s: %s",
                              (long long)bytes, what, cudaGetErrorString(rc));
    b->d_allocation[b->allocation_count++] = *pointer;
    return 0;
}

static int alloc_pinned(struct st_backend *b, void **pointer, int64_t bytes, struct st_error *err) {
    if (b->h_allocation_count == ST_CUDA_MAX_ALLOCATIONS)
        return ST_FAIL_NOMEM(err);
    ST_CUDA(err, cudaHostAlloc(pointer, (size_t)bytes, cudaHostAllocMapped));
    b->h_allocation[b->h_allocation_count++] = *pointer;
    return 0;
}

static void backend_close(struct st_backend *b) {
    if (!b)
        return;
    if (b->stream)
        cudaStreamSynchronize(b->stream);
    st_collector_close(b->collector);
    st_cuda_free_graphs(b);
    for (int32_t i = 0; i < b->allocation_count; i++)
        cudaFree(b->d_allocation[i]);
    for (int32_t i = 0; i < b->h_allocation_count; i++)
        cudaFreeHost(b->h_allocation[i]);
    if (b->begin)
        cudaEventDestroy(b->begin);
    if (b->end)
        cudaEventDestroy(b->end);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    free(b);
}

/* "580.95.05" out of the kernel module's own line; "" when it cannot be read. */
static void driver_release(char *text, size_t size) {
    text[0] = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (!f)
        return;
    char line[256];
    if (fgets(line, sizeof line, f)) {
        for (char *save = NULL, *word = strtok_r(line, " ", &save); word;
             word = strtok_r(NULL, " ", &save)) {
            if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
                snprintf(text, size, "%s", word);
                break;
            }
        }
    }
    fclose(f);
}

static int pick_device(const char *wanted, struct cudaDeviceProp *prop,
                       struct st_backend_info *info, struct st_error *err) {
    int count = 0, driver = 0, runtime = 0;
    ST_CUDA(err, cudaGetDeviceCount(&count));
    long number = 0;
    if (wanted) {
        char *end;
        number = strtol(wanted, &end, 10);
        if (*wanted == 0 || *end || number < 0 || number >= count)
            return ST_FAIL(err, ST_ERR_USAGE,
                           "--device %s: the number of a GPU is expected, below %d", wanted, count);
    }
    ST_CUDA(err, cudaSetDevice((int)number));
    ST_CUDA(err, cudaGetDeviceProperties(prop, (int)number));
    ST_CUDA(err, cudaDriverGetVersion(&driver));
    ST_CUDA(err, cudaRuntimeGetVersion(&runtime));
    char release[32];
    driver_release(release, sizeof release);
    snprintf(info->device, sizeof info->device,
             "%.40s (%u SMs, %u MiB L2, driver %s%sCUDA %u.%u, runtime %u.%u)", prop->name,
             (unsigned)prop->multiProcessorCount & 0xFFFF, (unsigned)(prop->l2CacheSize >> 20),
             release, release[0] ? " " : "", (unsigned)driver / 1000 % 100,
             (unsigned)driver % 1000 / 10, (unsigned)runtime / 1000 % 100,
             (unsigned)runtime % 1000 / 10);
    return 0;
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* The columns of a table at its fixed stride: an engine captures at max_model_len. */
static int open_table(struct st_backend *b, const struct st_backend_config *config,
                      const struct st_model_cache *cache, struct st_cuda_table *table,
                      struct st_error *err) {
    int64_t full = b->model.max_model_len / cache->block_size + 1;
    table->stride = config->max_blocks_per_row;
    if (config->uses_full && full > table->stride)
        table->stride = full;
    if (table->stride < 1)
        table->stride = 1;
    /* A row needs the columns from the group of 128 in which its step starts: first column, offset
     * and ids of every row. */
    table->block_size = cache->block_size;
    table->packed_count = 2 * (int64_t)b->max_requests + 1 + b->max_tokens / cache->block_size +
                          (int64_t)b->max_requests * (RATIO / cache->block_size + 3);
    int64_t bytes = (int64_t)b->max_requests * table->stride * 4;
    ST_TRY(st_cuda_alloc(b, (void **)&table->d_block_id, bytes, "a block table", err));
    ST_CUDA(err, cudaMemsetAsync(table->d_block_id, 0, (size_t)bytes, b->stream));
    ST_TRY(
        st_cuda_alloc(b, (void **)&table->d_packed, table->packed_count * 4, "a block table", err));
    return alloc_pinned(b, (void **)&table->h_packed, table->packed_count * 4, err);
}

static int open_metadata(struct st_backend *b, const struct st_backend_config *config,
                         struct st_error *err) {
    int64_t tokens = b->max_tokens, requests = b->max_requests;
    b->slot_count =
        b->model.max_num_batched_tokens > tokens ? b->model.max_num_batched_tokens : tokens;
    const struct {
        void *pointer;
        int64_t bytes;
    } array[] = {
        {&b->d_position, tokens * 8},
        {&b->d_state_slot, tokens * 8},
        {&b->d_token_to_request, tokens * 4},
        {&b->d_request_id, requests * 8},
        {&b->d_query_start_loc, (requests + 1) * 4},
        {&b->d_seq_len, requests * 4},
        {&b->d_rebuild, (int64_t)b->max_rebuild * 3 * 8},
        {&b->d_slot_c128, b->model.has_c128 ? b->sets * b->slot_count * 8 : 0},
        {&b->d_slot_c4, b->model.has_c4 ? b->sets * b->slot_count * 8 : 0},
    };
    for (size_t i = 0; i < sizeof array / sizeof array[0]; i++) {
        void *p;
        ST_TRY(st_cuda_alloc(b, &p, array[i].bytes, "step metadata", err));
        memcpy(array[i].pointer, &p, sizeof p);
        if (p)
            ST_CUDA(err, cudaMemsetAsync(p, 0, (size_t)array[i].bytes, b->stream));
    }
    if (b->model.has_c128) {
        ST_TRY(open_table(b, config, &b->model.state_c128, &b->state_table, err));
        ST_TRY(open_table(b, config, &b->model.kv_c128, &b->kv_c128_table, err));
    }
    if (b->model.has_c4)
        ST_TRY(open_table(b, config, &b->model.kv_c4, &b->kv_c4_table, err));
    return 0;
}

/* Only rows that start a group of 128 are ever read; the others stay 0, or NaN when poisoned. */
static int open_cos_sin(struct st_backend *b, int64_t max_seq_len, struct st_error *err) {
    int64_t row_bytes = b->model.rope_dim * (int64_t)sizeof(float);
    int64_t rows = ceil_div(max_seq_len > 0 ? max_seq_len : 1, RATIO);
    int64_t bytes = rows * RATIO * row_bytes;
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_cos_sin, bytes, "the cos/sin cache", err));
    ST_CUDA(err, cudaMemset(b->d_cos_sin, b->poison ? 0xFF : 0, (size_t)bytes));
    float *host = malloc((size_t)(rows * row_bytes));
    if (!host)
        return ST_FAIL_NOMEM(err);
    for (int64_t i = 0; i < rows; i++)
        st_model_cos_sin(&b->model, i * RATIO, 1, host + i * b->model.rope_dim);
    cudaError_t rc =
        cudaMemcpy2D(b->d_cos_sin, (size_t)(RATIO * row_bytes), host, (size_t)row_bytes,
                     (size_t)row_bytes, (size_t)rows, cudaMemcpyHostToDevice);
    free(host);
    ST_CUDA(err, rc);
    return 0;
}

/* How many buffers: one a layer when they fit. */
static int size_caches(struct st_backend *b, const struct st_backend_config *config,
                       const struct cudaDeviceProp *prop, struct st_error *err) {
    int64_t width = b->model.head_dim;
    b->state_bytes = config->num_blocks * b->model.state_c128.page_bytes;
    b->kv_bytes = config->num_blocks * b->model.kv_c128.page_bytes;
    int64_t inputs = (int64_t)b->max_tokens * 2 * width * 4 + (RATIO + 1) * width * 4;
    int64_t one = b->sets * (b->state_bytes + b->kv_bytes) + inputs;
    size_t free_bytes, total_bytes;
    ST_CUDA(err, cudaMemGetInfo(&free_bytes, &total_bytes));
    int64_t fit = (int64_t)free_bytes / 100 * MEMORY_PERCENT / one;
    int32_t layers = b->model.c128_layer_count;
    b->buffers = fit < layers ? (int32_t)fit : layers;
    if (config->buffer_count > 0 && config->buffer_count < b->buffers)
        b->buffers = config->buffer_count;
    if (b->buffers < 1)
        return ST_FAIL(
            err, ST_ERR_UNAVAILABLE,
            "%s: %lld MiB of GPU memory are free, the caches of one layer (%d policies) take %lld",
            prop->name, (long long)(free_bytes >> 20), b->sets, (long long)(one >> 20));
    int64_t all = b->buffers * (b->state_bytes + b->kv_bytes);
    if (b->buffers < layers && all < (int64_t)MIN_CACHE_L2 * prop->l2CacheSize)
        st_log(ST_LOG_WARN,
               "%d layers share %d buffers of %lld MiB in all, less than %d times the L2 cache: it "
               "may flatter the times",
               layers, b->buffers, (long long)(all >> 20), MIN_CACHE_L2);
    return 0;
}

static int open_caches(struct st_backend *b, const struct st_backend_config *config,
                       const struct cudaDeviceProp *prop, struct st_error *err) {
    int64_t width = b->model.head_dim, tokens = b->max_tokens;
    int fill = b->poison ? 0xFF : 0; /* 0xFFFFFFFF is a NaN */
    ST_TRY(size_caches(b, config, prop, err));
    int64_t state = b->sets * b->buffers * b->state_bytes, kv = b->sets * b->buffers * b->kv_bytes;
    int64_t input = b->buffers * tokens * 2 * width * 4;
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_state, state, "the state caches", err));
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_kv, kv, "the c128 caches", err));
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_kv_score, input, "the inputs", err));
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_pooled, b->sets * tokens * width * 4, "scratch", err));
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_ape, b->buffers * RATIO * width * 4, "constants", err));
    ST_TRY(st_cuda_alloc(b, (void **)&b->d_weight, b->buffers * width * 4, "constants", err));
    ST_CUDA(err, cudaMemsetAsync(b->d_state, fill, (size_t)state, b->stream));
    ST_CUDA(err, cudaMemsetAsync(b->d_kv, fill, (size_t)kv, b->stream));
    ST_CUDA(err, cudaMemsetAsync(b->d_kv_score, fill, (size_t)input, b->stream));
    ST_CUDA(err,
            cudaMemsetAsync(b->d_pooled, fill, (size_t)(b->sets * tokens * width * 4), b->stream));
    ST_CUDA(err, st_cuda_fill_constants(b->d_ape, b->d_weight, b->buffers, RATIO, (int32_t)width,
                                        b->stream));
    return open_cos_sin(b, config->max_seq_len, err);
}

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Events, gate and eviction; then work until the clocks are up. */
static int open_time(struct st_backend *b, const struct cudaDeviceProp *prop,
                     struct st_error *err) {
    ST_TRY(alloc_pinned(b, (void **)&b->h_gate, sizeof *b->h_gate, err));
    *b->h_gate = 0;
    b->evict_bytes = (int64_t)EVICT_L2 * prop->l2CacheSize;
    ST_TRY(st_cuda_alloc(b, &b->d_evict, b->evict_bytes, "evicting the L2 cache", err));
    int64_t until_ns = now_ns() + WARM_UP_NS;
    while (now_ns() < until_ns) {
        for (int i = 0; i < 32; i++)
            ST_CUDA(err, st_cuda_evict(b->d_evict, b->evict_bytes, b->stream));
        ST_CUDA(err, cudaStreamSynchronize(b->stream));
    }
    return 0;
}

/* Without CUPTI the pass runs all the same and its figures are unknown: said once, aloud. */
static void open_count(struct st_backend *b, const struct st_backend_config *config) {
    struct st_error why;
    int rc = st_collector_open(config->cupti_path, config->cuda_home, &b->collector, &why);
    if (rc == 0)
        rc = st_collector_start(b->collector, &why);
    if (rc == 0) {
        st_log(ST_LOG_DEBUG, "count: CUPTI %u (%s)", st_collector_version(b->collector),
               st_collector_library(b->collector));
        return;
    }
    st_collector_close(b->collector);
    b->collector = NULL;
    st_log(ST_LOG_WARN, "count: launches and kernel times are not measured (NULL): %s", why.msg);
}

static int backend_open(const struct st_backend_config *config, struct st_backend **backend,
                        struct st_backend_info *info, struct st_error *err) {
    struct cudaDeviceProp prop;
    memset(info, 0, sizeof *info);
    ST_TRY(pick_device(config->device, &prop, info, err));
    struct st_backend *b = calloc(1, sizeof *b);
    if (!b)
        return ST_FAIL_NOMEM(err);
    int rc;
    b->model = *config->model;
    b->pass = config->pass;
    b->ops_mask = config->ops_mask;
    b->poison = config->poison;
    b->max_tokens = config->max_tokens;
    b->max_requests = config->max_requests;
    b->max_rebuild = (int32_t)config->max_rebuild;
    b->sets = config->pass == ST_PASS_VERIFY ? config->policy_count : 1;
    cudaError_t made = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (made == cudaSuccess)
        made = cudaEventCreate(&b->begin);
    if (made == cudaSuccess)
        made = cudaEventCreate(&b->end);
    if (made != cudaSuccess) {
        rc = st_cuda_fail(err, (int)made, "cudaStreamCreate", __FILE__, __LINE__);
        goto out;
    }
    ST_TRY_OUT(open_metadata(b, config, err));
    if (b->model.has_c128)
        ST_TRY_OUT(open_caches(b, config, &prop, err));
    if (b->pass == ST_PASS_TIME)
        ST_TRY_OUT(open_time(b, &prop, err));
    ST_TRY_OUT(st_cuda_launch_nothing(b, err));
    /* After the launches above, which belong to no step; before any graph. */
    if (b->pass == ST_PASS_COUNT)
        open_count(b, config);
    info->buffer_count = b->buffers;
    *backend = b;
    return 0;
out:
    backend_close(b);
    return rc;
}

static int upload(struct st_backend *b, void *device, const void *host, int64_t bytes,
                  struct st_error *err) {
    if (bytes > 0)
        ST_CUDA(err,
                cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, b->stream));
    return 0;
}

/* Only the columns that this step can read travel; a kernel puts them where the fixed stride has
 * them. */
static int upload_table(struct st_backend *b, struct st_cuda_table *table,
                        const struct st_block_table *from, const struct st_step_input *in,
                        struct st_error *err) {
    if (table->stride == 0 || from->stride == 0)
        return 0;
    int32_t rows = in->shape.request_count;
    int32_t *first = table->h_packed, *offset = first + rows, *id = offset + rows + 1;
    int64_t room = table->packed_count - (2 * (int64_t)rows + 1), used = 0;
    for (int32_t r = 0; r < rows; r++) {
        int32_t begin = from->first_column[r];
        int64_t end = ceil_div(in->seq_len[r], table->block_size);
        if (end > table->stride || end > from->stride || used + (end - begin) > room)
            return ST_FAIL(err, ST_ERR_USAGE, "step %lld: a block table is larger than announced",
                           (long long)in->step_id);
        first[r] = begin;
        offset[r] = (int32_t)used;
        for (int64_t column = begin; column < end; column++)
            id[used++] = from->block_id[(int64_t)r * from->stride + column];
    }
    offset[rows] = (int32_t)used;
    ST_TRY(upload(b, table->d_packed, table->h_packed, (2 * (int64_t)rows + 1 + used) * 4, err));
    ST_CUDA(err, st_cuda_scatter_table(table->d_block_id, table->stride, table->d_packed, rows,
                                       b->stream));
    return 0;
}

static int rebuild(struct st_backend *b, const struct st_step_input *in, struct st_error *err) {
    int64_t bytes = (int64_t)in->rebuild_count * 8;
    if (bytes == 0 || !b->d_state)
        return 0;
    int64_t *request = b->d_rebuild;
    int64_t *position = request + b->max_rebuild, *slot = position + b->max_rebuild;
    ST_TRY(upload(b, request, in->rebuild_request_id, bytes, err));
    ST_TRY(upload(b, position, in->rebuild_position, bytes, err));
    ST_TRY(upload(b, slot, in->rebuild_slot, bytes, err));
    for (int32_t set = 0; set < b->sets; set++) {
        struct st_cuda_rebuild args = {
            .state = b->d_state + (int64_t)set * b->buffers * b->state_bytes,
            .buffer_bytes = b->state_bytes,
            .page_bytes = b->model.state_c128.page_bytes,
            .block_size = b->model.state_c128.block_size,
            .ape = b->d_ape,
            .request = request,
            .position = position,
            .slot = slot,
            .count = in->rebuild_count,
            .buffer_count = b->buffers,
            .ratio = RATIO,
            .width = b->model.head_dim,
        };
        ST_CUDA(err, st_cuda_rebuild_state(&args, b->stream));
    }
    return 0;
}

static int prepare(struct st_backend *b, const struct st_step_input *in, struct st_error *err) {
    int64_t tokens = in->shape.padded_token_count, requests = in->shape.padded_request_count;
    if (tokens > b->max_tokens || requests > b->max_requests || in->rebuild_count > b->max_rebuild)
        return ST_FAIL(err, ST_ERR_USAGE, "step %lld is larger than announced",
                       (long long)in->step_id);
    b->request_count = in->shape.request_count;
    b->padded_request_count = (int32_t)requests;
    b->token_count = in->shape.token_count;
    b->padded_token_count = (int32_t)tokens;
    ST_TRY(upload(b, b->d_position, in->position, tokens * 8, err));
    if (in->state_slot)
        ST_TRY(upload(b, b->d_state_slot, in->state_slot, tokens * 8, err));
    ST_TRY(upload(b, b->d_token_to_request, in->token_to_request, tokens * 4, err));
    ST_TRY(upload(b, b->d_request_id, in->request_id, (int64_t)b->request_count * 8, err));
    ST_TRY(upload(b, b->d_query_start_loc, in->query_start_loc, (requests + 1) * 4, err));
    ST_TRY(upload(b, b->d_seq_len, in->seq_len, requests * 4, err));
    ST_TRY(upload_table(b, &b->state_table, &in->state_c128, in, err));
    ST_TRY(upload_table(b, &b->kv_c128_table, &in->kv_c128, in, err));
    ST_TRY(upload_table(b, &b->kv_c4_table, &in->kv_c4, in, err));
    struct st_cuda_fill fill = {
        .out = b->d_kv_score,
        .buffer_stride = (int64_t)b->max_tokens * 2 * b->model.head_dim,
        .request_id = b->d_request_id,
        .token_to_request = b->d_token_to_request,
        .position = b->d_position,
        .token_count = b->token_count,
        .padded_token_count = b->padded_token_count,
        .buffer_count = b->d_kv_score ? b->buffers : 0,
        .width = b->model.head_dim,
        .poison = b->poison,
    };
    ST_CUDA(err, st_cuda_fill_inputs(&fill, b->stream));
    ST_TRY(rebuild(b, in, err));
    ST_TRY(st_cuda_launch_left_out(b, err));
    /* The caller may reuse its arrays, and no launch shall wait for these copies. */
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

/* Where the rows of an output lie, and how many there can be. */
static int find_rows(struct st_backend *b, const struct st_output_rows *rows,
                     struct st_cuda_row_layout *layout, int64_t *limit, struct st_error *err) {
    int32_t buffer = b->buffers > 0 && rows->ordinal >= 0 ? rows->ordinal % b->buffers : 0;
    int64_t at = (int64_t)(b->sets > 1 ? rows->policy : 0) * b->buffers + buffer;
    switch (rows->op) {
    case ST_OP_COMPRESSED_SLOT_MAPPING:
        *layout = (struct st_cuda_row_layout){
            (const uint8_t *)((rows->ordinal == 4 ? b->d_slot_c4 : b->d_slot_c128) +
                              (b->sets > 1 ? rows->policy : 0) * b->slot_count),
            8, 1, 2, 0};
        *limit = b->slot_count;
        break;
    case ST_OP_SAVE_PARTIAL_STATES:
        *layout = (struct st_cuda_row_layout){
            b->d_state + at * b->state_bytes, b->model.state_c128.page_bytes,
            b->model.state_c128.block_size, 2 * b->model.head_dim, 0};
        *limit = b->state_bytes / layout->page_bytes * layout->entries;
        break;
    case ST_OP_COMPRESS_NORM_ROPE_STORE:
        *layout = (struct st_cuda_row_layout){b->d_kv + at * b->kv_bytes,
                                              b->model.kv_c128.page_bytes, b->model.kv_c128.entries,
                                              ENTRY_DATA_WORDS, ENTRY_SCALE_WORDS};
        *limit = b->kv_bytes / layout->page_bytes * layout->entries;
        break;
    default:
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "%s keeps no output to look at",
                       st_operator_name(rows->op));
    }
    for (int32_t i = 0; i < rows->count; i++)
        if (rows->slot[i] < 0 || rows->slot[i] >= *limit)
            return ST_FAIL(err, ST_ERR_USAGE, "%s has no row %lld (0 to %lld)",
                           st_operator_name(rows->op), (long long)rows->slot[i],
                           (long long)*limit - 1);
    return 0;
}

static int grow(struct st_backend *b, void **pointer, int64_t *room, int64_t wanted,
                int64_t element_bytes, struct st_error *err) {
    if (wanted <= *room)
        return 0;
    /* Superseded blocks stay until close: sizes double, so they add up to no more than the last. */
    int64_t size = 2 * *room > wanted ? 2 * *room : wanted < 4096 ? 4096 : wanted;
    ST_TRY(st_cuda_alloc(b, pointer, size * element_bytes, "rows to read back", err));
    *room = size;
    return 0;
}

static int upload_rows(struct st_backend *b, const struct st_output_rows *rows,
                       struct st_cuda_row_layout *layout, struct st_error *err) {
    int64_t limit, room = b->rows_room;
    ST_TRY(find_rows(b, rows, layout, &limit, err));
    ST_TRY(grow(b, (void **)&b->d_hash, &room, rows->count, 8, err));
    ST_TRY(grow(b, (void **)&b->d_rows, &b->rows_room, rows->count, 8, err));
    return upload(b, b->d_rows, rows->slot, (int64_t)rows->count * 8, err);
}

static int hash_rows(struct st_backend *b, const struct st_output_rows *rows, uint64_t *hash,
                     struct st_error *err) {
    if (rows->count == 0)
        return 0;
    struct st_cuda_row_layout layout;
    ST_TRY(upload_rows(b, rows, &layout, err));
    ST_CUDA(err, st_cuda_hash(&layout, b->d_rows, rows->count, b->d_hash, b->stream));
    ST_CUDA(err, cudaMemcpyAsync(hash, b->d_hash, (size_t)rows->count * 8, cudaMemcpyDeviceToHost,
                                 b->stream));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static int read_rows(struct st_backend *b, const struct st_output_rows *rows, void *bytes,
                     struct st_error *err) {
    if (rows->count == 0)
        return 0;
    struct st_cuda_row_layout layout;
    ST_TRY(upload_rows(b, rows, &layout, err));
    int64_t words = (int64_t)rows->count * (layout.data_words + layout.tail_words);
    ST_TRY(grow(b, (void **)&b->d_words, &b->words_room, words, 4, err));
    ST_CUDA(err, st_cuda_gather(&layout, b->d_rows, rows->count, b->d_words, b->stream));
    ST_CUDA(err, cudaMemcpyAsync(bytes, b->d_words, (size_t)words * 4, cudaMemcpyDeviceToHost,
                                 b->stream));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static void get_counters(const struct st_backend *b, struct st_backend_counters *counters) {
    *counters = b->counters;
    if (b->pass == ST_PASS_COUNT && !b->collector)
        counters->dropped = -1;
}

const struct st_backend_ops st_backend_cuda = {
    .name = "cuda",
    .summary = "the kernels on a GPU",
    .pass_mask = 1u << ST_PASS_TIME | 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .default_pass_mask = 1u << ST_PASS_TIME | 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .probe = probe,
    .open = backend_open,
    .prepare = prepare,
    .launch = st_cuda_launch,
    .sync = st_cuda_sync,
    .hash_rows = hash_rows,
    .read_rows = read_rows,
    .counters = get_counters,
    .close = backend_close,
    .needs_blocks = true,
};
