/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks, private side: the state of a run and its ways to time.
 */
#ifndef ST_KERNELS_BENCH_I_CUH
#define ST_KERNELS_BENCH_I_CUH

#include <cuda_runtime.h>
#include <stdlib.h>

#include "kernels/bench.h"
#include "kernels/registry.h"

#define ST_BENCH_CUDA(err, call)                                                                   \
    do {                                                                                           \
        cudaError_t st_bench_error_ = (call);                                                      \
        if (st_bench_error_ != cudaSuccess)                                                        \
            return ST_FAIL_NATIVE((err), ST_ERR_NATIVE, (int)st_bench_error_, "%s: %s", #call,     \
                                  cudaGetErrorString(st_bench_error_));                            \
    } while (0)

enum {
    ST_BENCH_MAX_ALLOCATIONS = 256,
    ST_BENCH_REPLAYS = 10, /* of a graph, in a row, that are timed as one */
    ST_BENCH_CALLS = 20,   /* of a graph */
    ST_BENCH_MAX_SETS = 16
};

/* Of a page of states of that width, as vLLM pads them: multiples of 576 bytes. */
static inline int st_bench_state_page_floats(int width) {
    return (width == 256 ? 8640 : 32832) / 4;
}

struct st_bench {
    struct st_bench_options options;
    struct st_bench_device device;
    st_bench_row_fn *row;
    void *user;
    struct st_error *err;
    cudaStream_t stream;
    cudaEvent_t start, stop;
    void *flush; /* written before a row is timed, so that no row starts from another's L2 */
    size_t flush_bytes;
    double *samples;
    double write_bytes_per_us; /* of a memset of 1 GiB; 0: not measured yet */
    void *allocations[ST_BENCH_MAX_ALLOCATIONS];
    int allocation_count;
};

/* Makes call i on the stream; 0 or a steptape status. */
typedef int st_bench_call_fn(int i, void *stream, void *user);

/* Whether the options' filter lets a row through. */
int st_bench_wanted(const struct st_bench *bench, const char *group, const char *name);

/* Three ways to time a call; each fills mode and times of *row. */
int st_bench_graph(struct st_bench *bench, int calls, st_bench_call_fn *call, void *user,
                   struct st_bench_row *row);
int st_bench_eager(struct st_bench *bench, int calls, int warm_up, st_bench_call_fn *call,
                   void *user, struct st_bench_row *row);
int st_bench_graph_launches(struct st_bench *bench, int calls, int warm_up, st_bench_call_fn *call,
                            void *user, struct st_bench_row *row);

/* Device memory that st_bench_free_all gives back. */
int st_bench_alloc(struct st_bench *bench, void **out, size_t bytes);
int st_bench_alloc_copy(struct st_bench *bench, void **out, const void *data, size_t bytes);
int st_bench_alloc_random(struct st_bench *bench, float **out, int64_t n, uint64_t seed,
                          float scale);
void st_bench_free_all(struct st_bench *bench);

/* Hands a measured row out. */
int st_bench_emit(struct st_bench *bench, const struct st_bench_row *row);

/* How many buffer sets calls rotate through, so that what they touch is several times the L2. */
int st_bench_sets(const struct st_bench *bench, uint64_t bytes_per_set);

/* Buffers of save_partial_states for T tokens, each the next of a request of its own. */
int st_bench_make_save(struct st_bench *bench, int64_t tokens, int width, int set,
                       struct steptape_save_partial_states_args *args);

/* All cases, in the table's order. */
int st_bench_cases(struct st_bench *bench);
/* Groups of it that have a file of their own. */
int st_bench_decode_cases(struct st_bench *bench);
int st_bench_index_cases(struct st_bench *bench);
int st_bench_prefill_cases(struct st_bench *bench);
int st_bench_topk_cases(struct st_bench *bench);
int st_bench_compress_cases(struct st_bench *bench);
int st_bench_gather_cases(struct st_bench *bench);

#endif
