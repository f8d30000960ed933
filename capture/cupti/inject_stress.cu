/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches and measures what launching costs: the figures of docs/measurements/capture-h200.md and
 * the test cupti.inject_gpu.
 *
 *     inject_stress eager LAUNCHES          kernels one by one, 500 a step
 *     inject_stress graph NODES LAUNCHES    a graph of NODES kernels, one launch a step
 *     inject_stress mixed STEPS             both, copies, memory sets, two streams
 *
 * Without capture as it is; with it under CUDA_INJECTION64_PATH (and LD_PRELOAD at level count);
 * with --bare=node|graph under a CUPTI that records the same and reads nothing.  One JSON object a
 * run on stdout: medians and 10th and 90th percentiles over the steps, and what was launched.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cupti.h>

#include "steptape/inject.h"

namespace {

constexpr int kBatch = 500;
constexpr size_t kBufferBytes = 4 << 20;

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void must(cudaError_t result, const char *what) {
    if (result == cudaSuccess)
        return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
    std::exit(result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver ? 77 : 1);
}
#define MUST(call) must((call), #call)

__global__ void add_one(float *p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] += 1;
}

__global__ void halve(float *p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] /= 2;
}

/* ---- the library under test, when it is here */

struct Capture {
    decltype(&steptape_inject_step) step = nullptr;
    decltype(&steptape_inject_flush) flush = nullptr;
    decltype(&steptape_inject_get_stats) stats = nullptr;

    Capture() {
        const char *path = std::getenv("CUDA_INJECTION64_PATH");
        void *library = path && *path ? dlopen(path, RTLD_NOW) : nullptr;
        if (!library)
            return;
        step = reinterpret_cast<decltype(step)>(dlsym(library, "steptape_inject_step"));
        flush = reinterpret_cast<decltype(flush)>(dlsym(library, "steptape_inject_flush"));
        stats = reinterpret_cast<decltype(stats)>(dlsym(library, "steptape_inject_get_stats"));
    }
    void mark(int64_t sequence) const {
        if (step)
            step(sequence);
    }
};

/* ---- the least that CUPTI can be asked for */

pthread_mutex_t bare_lock = PTHREAD_MUTEX_INITIALIZER;
std::vector<uint8_t *> bare_free;
size_t bare_bytes;

void CUPTIAPI bare_request(uint8_t **buffer, size_t *size, size_t *max_records) {
    pthread_mutex_lock(&bare_lock);
    *size = kBufferBytes;
    *max_records = 0;
    if (bare_free.empty()) {
        *buffer = static_cast<uint8_t *>(aligned_alloc(64, kBufferBytes));
        std::memset(*buffer, 0, kBufferBytes);
    } else {
        *buffer = bare_free.back();
        bare_free.pop_back();
    }
    pthread_mutex_unlock(&bare_lock);
}

void CUPTIAPI bare_complete(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
    std::memset(buffer, 0, valid); /* on CUPTI's own thread */
    pthread_mutex_lock(&bare_lock);
    bare_bytes += valid;
    bare_free.push_back(buffer);
    pthread_mutex_unlock(&bare_lock);
}

void start_bare(const char *level) {
    void *library = dlopen("libcupti.so.13", RTLD_NOW);
    if (!library)
        library = dlopen("libcupti.so.12", RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(77);
    }
    auto attribute = reinterpret_cast<decltype(&cuptiActivitySetAttribute)>(
        dlsym(library, "cuptiActivitySetAttribute"));
    auto callbacks = reinterpret_cast<decltype(&cuptiActivityRegisterCallbacks)>(
        dlsym(library, "cuptiActivityRegisterCallbacks"));
    auto enable =
        reinterpret_cast<decltype(&cuptiActivityEnable)>(dlsym(library, "cuptiActivityEnable"));
    for (int i = 0; i < 4; i++) {
        uint8_t *b = static_cast<uint8_t *>(aligned_alloc(64, kBufferBytes));
        std::memset(b, 0, kBufferBytes);
        bare_free.push_back(b);
    }
    uint8_t zeroed = 1;
    size_t size = sizeof zeroed;
    attribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed);
    callbacks(bare_request, bare_complete);
    if (std::strcmp(level, "graph") == 0)
        enable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
    enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

/* ---- runs */

double percentile(std::vector<double> v, double share) {
    if (v.empty())
        return 0;
    std::sort(v.begin(), v.end());
    return v[static_cast<size_t>(share * double(v.size() - 1))];
}

void print_spread(const char *name, const std::vector<double> &v) {
    std::printf(",\"%s\":[%.1f,%.1f,%.1f]", name, percentile(v, 0.1), percentile(v, 0.5),
                percentile(v, 0.9));
}

struct Work {
    float *data;
    cudaStream_t stream, second;

    Work() {
        MUST(cudaSetDevice(0));
        MUST(cudaMalloc(&data, 1 << 20));
        MUST(cudaStreamCreate(&stream));
        MUST(cudaStreamCreate(&second));
    }
    cudaGraphExec_t graph(int nodes) const {
        cudaGraph_t g;
        cudaGraphExec_t exec;
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < nodes; i++) {
            if (i % 2)
                add_one<<<2, 128, 0, stream>>>(data, 256);
            else
                halve<<<4, 64, 0, stream>>>(data, 256);
        }
        MUST(cudaStreamEndCapture(stream, &g));
        MUST(cudaGraphInstantiate(&exec, g, 0));
        MUST(cudaGraphDestroy(g));
        return exec;
    }
};

int64_t run_eager(const Work &w, const Capture &c, int64_t launches) {
    std::vector<double> host, wall;
    for (int64_t step = 0; step < launches / kBatch; step++) {
        int64_t begin = now_ns();
        c.mark(step);
        int64_t first = now_ns();
        for (int i = 0; i < kBatch; i++)
            add_one<<<1, 32, 0, w.stream>>>(w.data, 32);
        int64_t last = now_ns();
        cudaStreamSynchronize(w.stream);
        host.push_back(double(last - first) / kBatch);
        wall.push_back(double(now_ns() - begin) / kBatch);
    }
    c.mark(-1);
    print_spread("launch_ns", host);
    print_spread("wall_ns", wall);
    return launches / kBatch * kBatch;
}

int64_t run_graph(const Work &w, const Capture &c, int nodes, int64_t launches) {
    cudaGraphExec_t exec = w.graph(nodes);
    std::vector<double> host, wall;
    for (int i = 0; i < 20; i++)
        cudaGraphLaunch(exec, w.stream);
    cudaStreamSynchronize(w.stream);
    for (int64_t step = 0; step < launches; step++) {
        c.mark(step);
        int64_t first = now_ns();
        cudaGraphLaunch(exec, w.stream);
        int64_t last = now_ns();
        cudaStreamSynchronize(w.stream);
        host.push_back(double(last - first));
        wall.push_back(double(now_ns() - first));
    }
    c.mark(-1);
    print_spread("launch_ns", host);
    print_spread("wall_ns", wall);
    return launches + 20;
}

/* What a step of an engine looks like: its counts are known exactly. */
int64_t run_mixed(const Work &w, const Capture &c, int64_t steps) {
    cudaGraphExec_t exec = w.graph(50);
    std::vector<float> host(256);
    for (int64_t step = 0; step < steps; step++) {
        c.mark(step);
        for (int i = 0; i < 7; i++)
            add_one<<<1 + i % 3, 64, 0, w.stream>>>(w.data, 64);
        cudaMemcpyAsync(w.data, host.data(), 1024, cudaMemcpyHostToDevice, w.stream);
        cudaMemsetAsync(w.data, 0, 512, w.stream);
        if (step % 4)
            cudaGraphLaunch(exec, w.stream);
        halve<<<2, 64, 0, w.second>>>(w.data + 4096, 64);
        cudaDeviceSynchronize();
    }
    c.mark(-1);
    return steps;
}

void print_stats(const Capture &c) {
    if (!c.stats)
        return;
    steptape_inject_stats s = {};
    s.struct_size = sizeof s;
    int flushed = c.flush();
    c.stats(&s);
    std::printf(",\"flushed\":%d,\"state\":%d,\"level\":%d,\"cupti\":%u,\"steps\":%lld,"
                "\"kernel_launches\":%lld,\"graph_launches\":%lld,\"records\":%lld,"
                "\"dropped\":%lld,\"untimed\":%lld,\"reversed\":%lld,\"unattributed\":%lld,"
                "\"other\":%lld,\"bytes\":%lld,\"buffer_bytes\":%lld,\"message\":\"%s\"",
                flushed, s.state, s.level, s.cupti_version, (long long)s.steps,
                (long long)s.kernel_launches, (long long)s.graph_launches, (long long)s.records,
                (long long)s.dropped, (long long)s.untimed, (long long)s.reversed,
                (long long)s.unattributed, (long long)s.other, (long long)s.bytes,
                (long long)s.buffer_bytes, s.message);
}

int usage() {
    std::fprintf(stderr, "usage: inject_stress [--bare=node|graph] eager LAUNCHES | "
                         "graph NODES LAUNCHES | mixed STEPS\n");
    return 2;
}

} /* namespace */

int main(int argc, char **argv) {
    const char *bare = nullptr;
    int at = 1;
    if (argc > 1 && std::strncmp(argv[1], "--bare=", 7) == 0)
        bare = argv[at++] + 7;
    if (argc - at < 2)
        return usage();
    const char *mode = argv[at];
    if (bare)
        start_bare(bare);
    Work work;
    Capture capture;
    for (int i = 0; i < 1000; i++)
        add_one<<<1, 32, 0, work.stream>>>(work.data, 32);
    MUST(cudaDeviceSynchronize());
    std::printf("{\"mode\":\"%s\",\"bare\":\"%s\"", mode, bare ? bare : "");
    int64_t calls;
    if (std::strcmp(mode, "eager") == 0)
        calls = run_eager(work, capture, std::atoll(argv[at + 1]));
    else if (std::strcmp(mode, "graph") == 0 && argc - at == 3)
        calls = run_graph(work, capture, std::atoi(argv[at + 1]), std::atoll(argv[at + 2]));
    else if (std::strcmp(mode, "mixed") == 0)
        calls = run_mixed(work, capture, std::atoll(argv[at + 1]));
    else
        return usage();
    MUST(cudaDeviceSynchronize());
    std::printf(",\"warm\":1000,\"calls\":%lld", (long long)calls);
    print_stats(capture);
    std::printf("}\n");
    return 0;
}
