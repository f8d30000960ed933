/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend: plans on a GPU.  Its life and its memory; backend_cuda_i.h says what is where.
 */
#include "replay/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "traces/base/log.h"

enum {
    MEMORY_PERCENT = 90,            /* of what is free, for all buffers */
    ALIGNMENT = ST_GUARD_ALIGNMENT, /* of every copy of a buffer */
    MIN_CACHE_L2 = 4,               /* shared buffers: at least so many L2 sizes in all */
    EVICT_L2 = 2,                   /* L2 sizes written to evict it */
    WARM_UP_NS = 300000000,         /* until the clocks are up */
};

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

/* ---- memory */

int st_cuda_alloc(struct st_backend *b, void *pointer, int64_t bytes, const char *what,
                  struct st_error *err) {
    void *memory = NULL;
    memcpy(pointer, &memory, sizeof memory);
    if (bytes <= 0)
        return 0;
    if (b->allocation_count == ST_CUDA_MAX_ALLOCATIONS)
        return ST_FAIL_NOMEM(err);
    cudaError_t rc = cudaMalloc(&memory, (size_t)bytes);
    if (rc != cudaSuccess)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, (int)rc,
                              "CUDA: cannot allocate %lld bytes of GPU memory for %s: %s",
                              (long long)bytes, what, cudaGetErrorString(rc));
    b->d_allocation[b->allocation_count++] = memory;
    memcpy(pointer, &memory, sizeof memory);
    return 0;
}

static int64_t band_of(const struct st_backend *b, const struct st_buffers *buffers,
                       enum st_buffer_id id) {
    return b->poison ? st_guard_band(&b->model, buffers, id) : 0;
}

static int64_t needed(const struct st_backend *b, const struct st_buffers *buffers,
                      int32_t layer_buffers) {
    struct st_buffers sized = *buffers;
    int64_t total = 0;
    sized.layer_buffers = layer_buffers;
    for (int id = 0; id < ST_BUF_COUNT; id++)
        total += (sized.bytes[id] + ALIGNMENT + 2 * band_of(b, &sized, (enum st_buffer_id)id)) *
                 st_buffer_copies(&sized, (enum st_buffer_id)id, b->sets);
    return total;
}

static int32_t most_layers(const struct st_model *model) {
    int32_t most = 1;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        most = model->kind_count[k] > most ? model->kind_count[k] : most;
    return most;
}

static int64_t cache_bytes(const struct st_buffers *buffers) {
    int64_t total = 0;
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        total += buffers->bytes[st_buffer_of_cache((enum st_cache_id)c)];
    return total;
}

/* How many layer buffers: one a layer when they fit. */
static int size_buffers(struct st_backend *b, const struct st_backend_config *config,
                        const struct cudaDeviceProp *prop, struct st_error *err) {
    size_t free_bytes, total_bytes;
    int32_t most = most_layers(&b->model), count;
    st_buffers_make(&b->model, &config->limits, 1, &b->buffers);
    ST_CUDA(err, cudaMemGetInfo(&free_bytes, &total_bytes));
    int64_t room = (int64_t)free_bytes / 100 * MEMORY_PERCENT;
    count =
        config->layer_buffers > 0 && config->layer_buffers < most ? config->layer_buffers : most;
    while (count > 1 && needed(b, &b->buffers, count) > room)
        count--;
    if (needed(b, &b->buffers, count) > room)
        return ST_FAIL(
            err, ST_ERR_UNAVAILABLE,
            "%s: %lld MiB of GPU memory are free, the buffers of one layer (%d policies) take %lld "
            "(see --set num_blocks, max_model_len, max_num_batched_tokens)",
            prop->name, (long long)(free_bytes >> 20), b->sets,
            (long long)(needed(b, &b->buffers, 1) >> 20));
    st_buffers_make(&b->model, &config->limits, count, &b->buffers);
    int64_t all = count * cache_bytes(&b->buffers);
    if (b->pass == ST_PASS_TIME && count < most && all < (int64_t)MIN_CACHE_L2 * prop->l2CacheSize)
        st_log(ST_LOG_WARN,
               "%d layers share %d buffers of %lld MiB in all, less than %d times the L2 cache: it "
               "may flatter the times",
               most, count, (long long)(all >> 20), MIN_CACHE_L2);
    return 0;
}

static int open_buffers(struct st_backend *b, struct st_error *err) {
    for (int i = 0; i < ST_BUF_COUNT; i++) {
        enum st_buffer_id id = (enum st_buffer_id)i;
        b->band[id] = band_of(b, &b->buffers, id);
        b->stride[id] =
            (b->buffers.bytes[id] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + 2 * b->band[id];
        int64_t bytes = b->stride[id] * st_buffer_copies(&b->buffers, id, b->sets);
        ST_TRY(st_cuda_alloc(b, &b->memory[id], bytes, st_buffer_name(id), err));
        if (bytes <= 0)
            continue;
        ST_CUDA(err, cudaMemsetAsync(b->memory[id], 0, (size_t)bytes, b->stream));
        b->memory[id] += b->band[id];
    }
    int32_t layers = b->buffers.layer_buffers;
    b->frame = calloc((size_t)(b->sets * layers), sizeof *b->frame);
    if (!b->frame)
        return ST_FAIL_NOMEM(err);
    for (int32_t set = 0; set < b->sets; set++)
        for (int32_t layer = 0; layer < layers; layer++)
            for (int id = 0; id < ST_BUF_COUNT; id++)
                b->frame[set * layers + layer].at[id] =
                    st_cuda_buffer(b, (enum st_buffer_id)id, set, layer);
    size_t requests = (size_t)b->buffers.max_requests;
    b->query_len = calloc(requests, sizeof *b->query_len);
    b->computed = calloc(requests, sizeof *b->computed);
    if (!b->query_len || !b->computed)
        return ST_FAIL_NOMEM(err);
    return st_cuda_alloc(b, &b->d_rebuild, b->max_rebuild * 24, "lost state", err);
}

/* Reserved for one policy. */
static int64_t set_bytes(const struct st_backend *b) {
    int64_t total = 0;
    for (int i = 0; i < ST_BUF_COUNT; i++) {
        enum st_buffer_id id = (enum st_buffer_id)i;
        enum st_scope scope = st_buffer_scope(id);
        if (scope == ST_SCOPE_SET || scope == ST_SCOPE_CACHE)
            total += (b->stride[id] - 2 * b->band[id]) * st_buffer_copies(&b->buffers, id, 1);
    }
    return total;
}

/* ---- closing */

static void backend_close(struct st_backend *b) {
    if (!b)
        return;
    if (b->stream)
        cudaStreamSynchronize(b->stream);
    st_collector_close(b->collector);
    st_cuda_free_full(b);
    st_cuda_close_observed(b);
    st_cuda_close_guards(b);
    for (int32_t i = 0; i < b->allocation_count; i++)
        cudaFree(b->d_allocation[i]);
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        if (b->packed[c].host)
            cudaFreeHost(b->packed[c].host);
        cudaFree(b->packed[c].device);
    }
    if (b->h_gate)
        cudaFreeHost(b->h_gate);
    if (b->begin)
        cudaEventDestroy(b->begin);
    if (b->end)
        cudaEventDestroy(b->end);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    st_plan_fini(&b->stack[0]);
    st_plan_fini(&b->stack[1]);
    st_plan_fini(&b->left_out);
    free(b->record);
    free(b->frame);
    free(b->query_len);
    free(b->computed);
    free(b);
}

/* ---- opening */

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

/* Events, gate and eviction; then work until the clocks are up. */
static int open_time(struct st_backend *b, const struct cudaDeviceProp *prop,
                     struct st_error *err) {
    void *gate = NULL;
    ST_CUDA(err, cudaHostAlloc(&gate, sizeof *b->h_gate, cudaHostAllocMapped));
    b->h_gate = gate;
    *b->h_gate = 0;
    b->evict_bytes = (int64_t)EVICT_L2 * prop->l2CacheSize;
    ST_TRY(st_cuda_alloc(b, &b->d_evict, b->evict_bytes, "evicting the L2 cache", err));
    int64_t until_ns = st_cuda_now_ns() + WARM_UP_NS;
    while (st_cuda_now_ns() < until_ns) {
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

static int open_device(struct st_backend *b, struct st_error *err) {
    ST_CUDA(err, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    ST_CUDA(err, cudaEventCreate(&b->begin));
    ST_CUDA(err, cudaEventCreate(&b->end));
    return 0;
}

static int open_pass(struct st_backend *b, const struct st_backend_config *config,
                     const struct cudaDeviceProp *prop, struct st_error *err) {
    ST_TRY(open_device(b, err));
    ST_TRY(size_buffers(b, config, prop, err));
    ST_TRY(open_buffers(b, err));
    ST_TRY(st_cuda_fill_pass(b, err));
    if (b->pass == ST_PASS_VERIFY)
        ST_TRY(st_cuda_open_observed(b, err));
    ST_TRY(st_cuda_open_guards(b, err));
    if (b->pass == ST_PASS_TIME)
        ST_TRY(open_time(b, prop, err));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    if (b->pass == ST_PASS_COUNT) /* after the work above, before any graph */
        open_count(b, config);
    return 0;
}

static int backend_open(const struct st_backend_config *config, struct st_backend **backend,
                        struct st_backend_info *info, struct st_error *err) {
    struct cudaDeviceProp prop;
    memset(info, 0, sizeof *info);
    ST_TRY(pick_device(config->device, &prop, info, err));
    struct st_backend *b = calloc(1, sizeof *b);
    if (!b)
        return ST_FAIL_NOMEM(err);
    b->model = *config->model;
    b->pass = config->pass;
    b->ops_mask = config->ops_mask;
    b->poison = config->poison && config->pass == ST_PASS_VERIFY;
    b->max_rebuild = config->max_rebuild;
    b->sets = config->pass == ST_PASS_VERIFY ? config->policy_count : 1;
    int rc = open_pass(b, config, &prop, err);
    if (rc != 0) {
        backend_close(b);
        return rc;
    }
    info->buffers = b->buffers;
    info->set_bytes = set_bytes(b);
    *backend = b;
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
    .prepare = st_cuda_prepare,
    .launch = st_cuda_launch,
    .sync = st_cuda_sync,
    .hashes = st_cuda_hashes,
    .read_row = st_cuda_read_row,
    .damages = st_cuda_get_damages,
    .counters = get_counters,
    .close = backend_close,
    .needs_blocks = true,
};
