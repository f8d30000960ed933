/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split v2 of sparse_mla_decode: tensor cores of any device that has bf16 (sm_80 on).
 *
 * Eight warps; 16 columns at a time are rounded to bf16 in shared memory.  Warp w has heads
 * 16 * (w % 4) and on, and half of the value's columns; both halves compute the scores.  Small
 * enough for devices with 99 KiB of shared memory a block.
 */
#include "kernels/sparse_mla_decode/entries.cuh"

enum { MMA_THREADS = 256, STEP = 16 /* columns */, PAD = 8 /* values between rows */ };

template <bool V32> struct mma_shape {
    enum {
        D = V32 ? 576 : 512,
        QUANTISED = D - 64,
        PITCH = 2 * (D + PAD), /* bytes; rows 16 bytes apart modulo 128 */
        Q_BYTES = ST_DECODE_GROUP_HEADS * PITCH,
        BYTES = Q_BYTES + STEP * PITCH
    };
};

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void multiply(float *d, const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Columns first .. first + 16 of a tile into shared memory, 16 threads each; whether this thread's
 * is valid. */
template <bool V32>
static __device__ __forceinline__ bool fetch(const struct decode_launch &l, const int32_t *indices,
                                             int scope, int count, uint32_t stage) {
    typedef mma_shape<V32> S;
    const int key = threadIdx.x / 16;
    const int lane = threadIdx.x % 16;
    const int index = key < count ? __ldg(indices + key) : -1;
    const struct source source = source_of<V32>(l, index, scope);
    const uint32_t row = stage + key * S::PITCH;
#pragma unroll
    for (int c = lane; c < S::QUANTISED / 16; c += 16) {
        uint32_t v[8] = {};
        if (index >= 0) {
            const uint4 bytes = load16(source.data + 16 * c);
            float scale;
            if (V32) {
                scale = __ldg((const float *)source.scales + c / 8);
            } else {
                const uint32_t byte = __ldg(source.scales + c / 4);
                scale = byte == 255 ? NAN : __uint_as_float(byte == 0 ? 0x00400000u : byte << 23);
            }
            const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 pair = floats_of(words[i / 2] >> (16 * (i % 2)) & 0xffff);
                v[i] = bf16x2(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
            }
        }
        store16(row + 32 * c, v[0], v[1], v[2], v[3]);
        store16(row + 32 * c + 16, v[4], v[5], v[6], v[7]);
    }
    if (lane < 8) {
        uint4 rope = make_uint4(0, 0, 0, 0);
        if (index >= 0)
            rope = load16(source.data + (V32 ? 528 : 448) + 16 * lane);
        store16(row + 2 * S::QUANTISED + 16 * lane, rope.x, rope.y, rope.z, rope.w);
    }
    return index >= 0;
}

template <bool V32>
static __device__ __forceinline__ void scores_of(float (&s)[8], uint32_t q, uint32_t stage) {
    typedef mma_shape<V32> S;
    const int lane = threadIdx.x % 32;
    const uint32_t a_at = q + (threadIdx.x / 32 % 4 * 16 + lane % 16) * S::PITCH + lane / 16 * 16;
    const uint32_t b_at = stage + (lane % 8 + lane / 16 * 8) * S::PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < 8; i++)
        s[i] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < S::D / 16; k++) {
        uint32_t a[4], b[4];
        load_matrices(a, a_at + 32 * k);
        load_matrices(b, b_at + 32 * k);
        multiply(s, a, b[0], b[1]);
        multiply(s + 4, a, b[2], b[3]);
    }
}

/* Scores to weights in A's layout; sums are scaled. */
static __device__ __forceinline__ void softmax16(float (&s)[8], uint32_t valid, float scale,
                                                 float (&max)[2], float (&sum)[2], float (&o)[128],
                                                 uint32_t (&p)[4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int column = i / 4 * 8 + 2 * t + (i & 1);
        s[i] = (valid >> column & 1) != 0 ? s[i] * scale : -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most =
            fmaxf(fmaxf(s[2 * half], s[2 * half + 1]), fmaxf(s[4 + 2 * half], s[5 + 2 * half]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(most, max[half]);
        /* nothing but -inf so far: no difference of two infinities */
        const float base = most == -INFINITY ? 0.0f : most;
        const float alpha = st_exp2(max[half] - base);
        max[half] = most;
        sum[half] *= alpha;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &v = s[i / 2 * 4 + 2 * half + i % 2];
            v = st_exp2(v - base);
            sum[half] += v;
        }
#pragma unroll
        for (int j = 0; j < 32; j++) {
            o[4 * j + 2 * half] *= alpha;
            o[4 * j + 2 * half + 1] *= alpha;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = bf16x2(s[2 * i], s[2 * i + 1]);
}

template <bool V32>
static __device__ __forceinline__ void add_values(float (&o)[128], const uint32_t (&p)[4],
                                                  uint32_t stage) {
    const int lane = threadIdx.x % 32;
    const uint32_t at =
        stage + lane % 16 * mma_shape<V32>::PITCH + threadIdx.x / 128 * 512 + lane / 16 * 16;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        uint32_t v[4];
        load_transposed(v, at + 32 * j);
        multiply(o + 8 * j, p, v[0], v[1]);
        multiply(o + 8 * j + 4, p, v[2], v[3]);
    }
}

template <bool V32>
static __device__ __forceinline__ void load_queries(const decode_args &a, int t, uint8_t *q) {
    typedef mma_shape<V32> S;
    const int row = threadIdx.x / 4;
    const uint16_t *from = a.q + t * a.q_stride +
                           (int64_t)(blockIdx.x * ST_DECODE_GROUP_HEADS + row) * a.q_head_stride;
#pragma unroll 8
    for (int c = threadIdx.x % 4; c < S::D / 8; c += 4)
        *(uint4 *)(q + row * S::PITCH + 16 * c) = *(const uint4 *)(from + 8 * c);
}

template <bool V32>
static __device__ __forceinline__ void
split_piece(const struct decode_launch &l, const struct decode_piece &piece, uint8_t *shared) {
    __shared__ uint32_t valid;
    typedef mma_shape<V32> S;
    const uint32_t q = shared_address(shared);
    const uint32_t stage = q + S::Q_BYTES;
    float o[128];
    float max[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0.0f;
    __syncthreads();
    load_queries<V32>(l.a, piece.token, shared);
    for (int i = piece.begin; i < piece.end; i++) {
        const struct decode_tile tile = tile_of(piece, i);
        const struct steptape_decode_scope &scope = l.a.scope[tile.scope];
        const int32_t *indices = scope.indices + piece.token * scope.indices_stride + tile.first;
        for (int first = 0; first < tile.count; first += STEP) {
            if (threadIdx.x == 0)
                valid = 0;
            __syncthreads(); /* the stage before it is used up */
            const bool is_valid =
                fetch<V32>(l, indices + first, tile.scope, tile.count - first, stage);
            if (is_valid && threadIdx.x % 16 == 0)
                atomicOr(&valid, 1u << (threadIdx.x / 16));
            __syncthreads();
            float s[8];
            uint32_t p[4];
            scores_of<V32>(s, q, stage);
            softmax16(s, valid, l.scale_log2, max, sum, o, p);
            add_values<V32>(o, p, stage);
            __syncthreads();
        }
    }
    float factor[2] = {};
    bool is_empty[2] = {};
    const int lane = threadIdx.x % 32;
    const int head = blockIdx.x * ST_DECODE_GROUP_HEADS + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float lse;
        const int h = head + 8 * half;
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        factor[half] = finish(l.a, max[half], sum[half], h, &lse);
        is_empty[half] = sum[half] == 0.0f;
        if (threadIdx.x >= 128 || lane % 4 != 0)
            continue;
        if (piece.slot >= 0)
            *slot_state(l, piece.slot, h) = make_float2(max[half], sum[half]);
        else if (l.a.lse != NULL)
            l.a.lse[(int64_t)piece.token * l.a.heads + h] = lse;
    }
    store_sums(l, piece, o, factor, is_empty, head, threadIdx.x / 128 * 256);
}

template <bool V32> static __device__ __forceinline__ void split(const struct decode_launch &l) {
    extern __shared__ uint4 mma_shared[];
    st_launch_dependents();
    st_wait_for_earlier();
    const struct st_decode_part part = plan_parts(l)[blockIdx.y];
    for (int t = part.first_token; t <= part.last_token; t++) {
        const struct decode_piece piece = piece_of(l, part, blockIdx.y, t);
        if (piece.begin < piece.end)
            split_piece<V32>(l, piece, (uint8_t *)mma_shared);
    }
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS)
    steptape_sparse_mla_decode_split_v2(const __grid_constant__ decode_launch l) {
    split<false>(l);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS)
    steptape_sparse_mla_decode_split_v2_v32(const __grid_constant__ decode_launch l) {
    split<true>(l);
}

int st_decode_split_mma(const struct decode_launch *l, const struct st_decode_launch *geometry,
                        int overlap, void *stream) {
    return st_decode_launch_kernel(l->a.format == STEPTAPE_KV_FP8_V32
                                       ? steptape_sparse_mla_decode_split_v2_v32
                                       : steptape_sparse_mla_decode_split_v2,
                                   l, geometry, overlap, (cudaStream_t)stream);
}
