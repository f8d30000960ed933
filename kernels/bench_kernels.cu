/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks.  bench.h has the method; bench_cases.cu what is measured.
 */
#include "kernels/bench_i.cuh"

#include <algorithm>
#include <chrono>
#include <stdio.h>
#include <string.h>

/* ---- samples to a row */

static double at(const double *sorted, int n, double quantile) {
    double place = quantile * (n - 1);
    int low = (int)place;
    int high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

static void summarise(double *samples, int n, struct st_bench_row *row) {
    std::sort(samples, samples + n);
    row->sample_count = n;
    row->min_us = samples[0];
    row->max_us = samples[n - 1];
    row->q1_us = at(samples, n, 0.25);
    row->median_us = at(samples, n, 0.5);
    row->q3_us = at(samples, n, 0.75);
}

int st_bench_wanted(const struct st_bench *bench, const char *group, const char *name) {
    const char *filter = bench->options.filter;
    return filter == NULL || strstr(group, filter) != NULL || strstr(name, filter) != NULL;
}

int st_bench_emit(struct st_bench *bench, const struct st_bench_row *row) {
    return bench->row(row, bench->user);
}

int st_bench_sets(const struct st_bench *bench, uint64_t bytes_per_set) {
    uint64_t want = 4 * bench->device.l2_bytes;
    if (bytes_per_set == 0)
        return ST_BENCH_MAX_SETS;
    uint64_t sets = (want + bytes_per_set - 1) / bytes_per_set;
    return sets < 1 ? 1 : sets > ST_BENCH_MAX_SETS ? ST_BENCH_MAX_SETS : (int)sets;
}

/* ---- a graph of calls */

int st_bench_graph(struct st_bench *bench, int calls, st_bench_call_fn *call, void *user,
                   struct st_bench_row *row) {
    struct st_error *err = bench->err;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int warm_up = 20;
    int n = bench->options.replay_count;
    int rc;
    ST_BENCH_CUDA(err, cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeRelaxed));
    rc = 0;
    for (int i = 0; i < calls && rc == 0; i++)
        rc = call(i, bench->stream, user);
    cudaError_t end = cudaStreamEndCapture(bench->stream, &graph);
    if (rc != 0)
        return ST_FAIL(err, ST_ERR_NATIVE, "%s %s: %s (%d)", row->group, row->name,
                       steptape_status_name(rc), rc);
    ST_BENCH_CUDA(err, end);
    ST_BENCH_CUDA(err, cudaGraphInstantiate(&exec, graph, 0));
    ST_BENCH_CUDA(err, cudaGraphUpload(exec, bench->stream));
    ST_BENCH_CUDA(err, cudaMemsetAsync(bench->flush, 0, bench->flush_bytes, bench->stream));
    for (int i = 0; i < warm_up + n; i++) {
        float ms = 0.0f;
        ST_BENCH_CUDA(err, cudaEventRecord(bench->start, bench->stream));
        for (int r = 0; r < ST_BENCH_REPLAYS; r++)
            ST_BENCH_CUDA(err, cudaGraphLaunch(exec, bench->stream));
        ST_BENCH_CUDA(err, cudaEventRecord(bench->stop, bench->stream));
        ST_BENCH_CUDA(err, cudaEventSynchronize(bench->stop));
        ST_BENCH_CUDA(err, cudaEventElapsedTime(&ms, bench->start, bench->stop));
        if (i >= warm_up)
            bench->samples[i - warm_up] = ms * 1e3 / calls / ST_BENCH_REPLAYS;
        /* long rows: enough is enough */
        if (ms > 20.0f && i >= warm_up + 20)
            n = i - warm_up + 1;
    }
    summarise(bench->samples, n, row);
    ST_BENCH_CUDA(err, cudaGraphExecDestroy(exec));
    ST_BENCH_CUDA(err, cudaGraphDestroy(graph));
    row->mode = "graph";
    return ST_OK;
}

/* `calls` calls in a row without a graph, timed as one; several times. */
int st_bench_eager(struct st_bench *bench, int calls, int warm_up, st_bench_call_fn *call,
                   void *user, struct st_bench_row *row) {
    struct st_error *err = bench->err;
    enum { REPEATS = 11 };
    for (int r = 0; r < REPEATS; r++) {
        for (int i = 0; i < warm_up; i++)
            call(i, bench->stream, user);
        ST_BENCH_CUDA(err, cudaStreamSynchronize(bench->stream));
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; i++) {
            int rc = call(i, bench->stream, user);
            if (rc != 0)
                return ST_FAIL(err, ST_ERR_NATIVE, "%s %s: %s (%d)", row->group, row->name,
                               steptape_status_name(rc), rc);
        }
        ST_BENCH_CUDA(err, cudaStreamSynchronize(bench->stream));
        std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        bench->samples[r] = took.count() / calls;
    }
    summarise(bench->samples, REPEATS, row);
    row->mode = "eager";
    return ST_OK;
}

/* A graph of one call, launched `calls` times in a row, timed as one; several times. */
int st_bench_graph_launches(struct st_bench *bench, int calls, int warm_up, st_bench_call_fn *call,
                            void *user, struct st_bench_row *row) {
    struct st_error *err = bench->err;
    enum { REPEATS = 11 };
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    ST_BENCH_CUDA(err, cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeRelaxed));
    int rc = call(0, bench->stream, user);
    ST_BENCH_CUDA(err, cudaStreamEndCapture(bench->stream, &graph));
    if (rc != 0)
        return ST_FAIL(err, ST_ERR_NATIVE, "%s %s: %s (%d)", row->group, row->name,
                       steptape_status_name(rc), rc);
    ST_BENCH_CUDA(err, cudaGraphInstantiate(&exec, graph, 0));
    for (int r = 0; r < REPEATS; r++) {
        float ms = 0.0f;
        for (int i = 0; i < warm_up; i++)
            ST_BENCH_CUDA(err, cudaGraphLaunch(exec, bench->stream));
        ST_BENCH_CUDA(err, cudaEventRecord(bench->start, bench->stream));
        for (int i = 0; i < calls; i++)
            ST_BENCH_CUDA(err, cudaGraphLaunch(exec, bench->stream));
        ST_BENCH_CUDA(err, cudaEventRecord(bench->stop, bench->stream));
        ST_BENCH_CUDA(err, cudaEventSynchronize(bench->stop));
        ST_BENCH_CUDA(err, cudaEventElapsedTime(&ms, bench->start, bench->stop));
        bench->samples[r] = ms * 1e3 / calls;
    }
    summarise(bench->samples, REPEATS, row);
    ST_BENCH_CUDA(err, cudaGraphExecDestroy(exec));
    ST_BENCH_CUDA(err, cudaGraphDestroy(graph));
    row->mode = "graph";
    return ST_OK;
}

/* ---- device memory */

static __global__ void fill_uniform(float *out, int64_t n, uint64_t seed, float scale) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (seed + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        out[i] = ((float)(z >> 40) / 8388608.0f - 1.0f) * scale;
    }
}

int st_bench_alloc(struct st_bench *bench, void **out, size_t bytes) {
    if (bench->allocation_count == ST_BENCH_MAX_ALLOCATIONS)
        return ST_FAIL(bench->err, ST_ERR_NOMEM, "too many benchmark buffers");
    ST_BENCH_CUDA(bench->err, cudaMalloc(out, bytes));
    bench->allocations[bench->allocation_count++] = *out;
    return ST_OK;
}

int st_bench_alloc_copy(struct st_bench *bench, void **out, const void *data, size_t bytes) {
    ST_TRY(st_bench_alloc(bench, out, bytes));
    ST_BENCH_CUDA(bench->err, cudaMemcpy(*out, data, bytes, cudaMemcpyHostToDevice));
    return ST_OK;
}

int st_bench_alloc_random(struct st_bench *bench, float **out, int64_t n, uint64_t seed,
                          float scale) {
    ST_TRY(st_bench_alloc(bench, (void **)out, (size_t)n * sizeof(float)));
    fill_uniform<<<1024, 256, 0, bench->stream>>>(*out, n, seed, scale);
    ST_BENCH_CUDA(bench->err, cudaGetLastError());
    return ST_OK;
}

void st_bench_free_all(struct st_bench *bench) {
    cudaStreamSynchronize(bench->stream);
    while (bench->allocation_count > 0)
        cudaFree(bench->allocations[--bench->allocation_count]);
}

/* ---- the run */

static int describe(struct st_bench_device *device, struct st_error *err) {
    struct cudaDeviceProp properties;
    int ordinal = 0;
    ST_BENCH_CUDA(err, cudaGetDevice(&ordinal));
    ST_BENCH_CUDA(err, cudaGetDeviceProperties(&properties, ordinal));
    memset(device, 0, sizeof(*device));
    snprintf(device->name, sizeof(device->name), "%s", properties.name);
    device->sm_count = properties.multiProcessorCount;
    device->l2_bytes = (uint64_t)properties.l2CacheSize;
    device->memory_bytes = properties.totalGlobalMem;
    ST_BENCH_CUDA(err, cudaDriverGetVersion(&device->driver_version));
    ST_BENCH_CUDA(err, cudaRuntimeGetVersion(&device->runtime_version));
    return ST_OK;
}

int st_bench_kernels(const struct st_bench_options *options, struct st_bench_device *device,
                     st_bench_row_fn *row, void *user, struct st_error *err) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        cudaGetLastError();
        return ST_FAIL(err, ST_ERR_UNAVAILABLE, "kernel benchmarks need a GPU; none was found");
    }
    struct st_bench bench = {};
    if (options != NULL)
        bench.options = *options;
    if (bench.options.replay_count <= 0)
        bench.options.replay_count = 200;
    bench.row = row;
    bench.user = user;
    bench.err = err;
    ST_TRY(describe(&bench.device, err));
    if (device != NULL)
        *device = bench.device;
    int rc = ST_OK;
    bench.samples = (double *)malloc(sizeof(double) * (size_t)(bench.options.replay_count + 32));
    if (bench.samples == NULL)
        return ST_FAIL_NOMEM(err);
    if (cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&bench.start) != cudaSuccess || cudaEventCreate(&bench.stop) != cudaSuccess)
        rc = ST_FAIL(err, ST_ERR_NATIVE, "the CUDA runtime gave no stream or event");
    bench.flush_bytes = 4 * (size_t)bench.device.l2_bytes;
    if (rc == ST_OK && cudaMalloc(&bench.flush, bench.flush_bytes) != cudaSuccess)
        rc = ST_FAIL(err, ST_ERR_NOMEM, "no device memory for the benchmark");
    if (rc == ST_OK)
        rc = st_bench_cases(&bench);
    st_bench_free_all(&bench);
    cudaFree(bench.flush);
    cudaEventDestroy(bench.start);
    cudaEventDestroy(bench.stop);
    cudaStreamDestroy(bench.stream);
    free(bench.samples);
    return rc;
}
