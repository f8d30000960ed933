/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fast variants of compress_fused share: which tokens a group of threads takes, and the
 * entry of 512 channels by 128 threads.
 *
 * A group looks at 32 tokens at a time, one a lane; every warp of a group does the same, so that
 * nothing has to be exchanged.  Without a list these are neighbours, at most 32, once; with one
 * they lie `groups` apart in the list, so that all groups have equally many.
 */
#ifndef ST_KERNELS_COMPRESS_FUSED_WALK_CUH
#define ST_KERNELS_COMPRESS_FUSED_WALK_CUH

#include "kernels/compress_fused/compress_fused.h"
#include "kernels/compress_norm_rope_store/entry.cuh"
#include "kernels/compress_pool/pool.cuh"
#include "kernels/launch.cuh"

typedef struct steptape_compress_fused_args fused_args;

/* What a launch needs besides its arguments. */
struct fused_launch {
    int ratio_shift; /* -1: divide */
    int block_shift; /* of kv_block_size */
    int tokens;      /* without a list: of a group, but ... */
    int more;        /* ... one more of the first so many groups */
    int groups;
    int after_save; /* all but the states may be read before the launch before this one ends */
};

enum { FUSED_ROPE = ST_NORM_ROPE_DIM, FUSED_NOPE = ST_NORM_NOPE_DIM };

/* A lane's token. */
struct fused_item {
    int64_t kv_slot;
    int64_t position;
    int32_t req;
    bool stored;
};

template <int RATIO>
static __device__ __forceinline__ struct fused_item fused_look_at(const fused_args &a, int64_t t) {
    struct fused_item item = {-1, 0, 0, false};
    if (t < 0 || t >= a.num_tokens)
        return item;
    /* all at once: four loads that wait for one another take four times as long */
    const int64_t slot = __ldg(a.slot_mapping + t);
    item.position = __ldg(a.positions + t);
    item.kv_slot = __ldg(a.kv_slot_mapping + t);
    item.req = __ldg(a.token_to_req + t);
    item.stored = slot >= 0 && (item.position + 1) % RATIO == 0 && item.kv_slot >= 0;
    return item;
}

/* How far a list goes; 0 without one. */
static __device__ __forceinline__ int fused_list_length(const fused_args &a) {
    const int n = a.list != NULL ? __ldg(a.list_count) : 0;
    return n < a.num_tokens ? n : (int)a.num_tokens;
}

/*
 * This lane's token of the batch `batch` of group `group`; a whole warp comes here.  *more: whether
 * a further batch follows.  A list's entry is asked for before the list's length is known: list has
 * num_tokens entries.
 */
template <int RATIO>
static __device__ __forceinline__ struct fused_item
fused_item_of(const fused_args &a, const struct fused_launch &launch, int group, int batch,
              int lane, bool *more) {
    *more = false;
    if (a.list == NULL) {
        const bool larger = group < launch.more;
        const int64_t first = (int64_t)group * launch.tokens + (larger ? group : launch.more);
        const bool mine = group < launch.groups && lane < launch.tokens + larger;
        return fused_look_at<RATIO>(a, mine ? first + lane : -1);
    }
    const int64_t first = group + (int64_t)batch * 32 * launch.groups;
    const int64_t at = first + (int64_t)lane * launch.groups;
    const int64_t t = group < launch.groups && at < a.num_tokens ? __ldg(a.list + at) : -1;
    const int length = fused_list_length(a);
    *more = first + 32ll * launch.groups < length;
    return fused_look_at<RATIO>(a, at < length ? t : -1);
}

/* ---- an entry of 512 channels by 128 threads, four channels each: thread i has 4 i .. 4 i + 3 */

struct fused_turn {
    float2 cosine, sine; /* of this thread's two pairs, when they turn */
};

static __device__ __forceinline__ struct fused_turn fused_turn_of(const fused_args &a,
                                                                  int64_t position, int pair) {
    const float *row = a.cos_sin_cache + (position + 1 - a.ratio) * a.cos_sin_stride + pair;
    struct fused_turn turn;
    turn.cosine = __ldg((const float2 *)row);
    turn.sine = __ldg((const float2 *)(row + FUSED_ROPE / 2));
    return turn;
}

/* x: this thread's channels, scale: of the norm.  Whole warps come here. */
static __device__ __forceinline__ void fused_store512(const fused_args &a, int block_shift,
                                                      int64_t kv_slot, int thread, float4 x,
                                                      float scale, float4 weight,
                                                      const struct fused_turn &turn) {
    const struct st_entry_place place =
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, block_shift, kv_slot);
    const int d = 4 * thread;
    const bool turns = d >= FUSED_NOPE;
    float4 y = st_norm4(x, scale, weight);
    const float4 v = st_round4(y);
    const unsigned int byte = st_scale_byte(st_max_lanes<16>(st_absmax4(v)));
    if (turns) {
        y = st_turn4(y, turn.cosine, turn.sine);
        *(uint2 *)(place.data + FUSED_NOPE + 2 * (d - FUSED_NOPE)) =
            make_uint2(st_bf16x2(y.x, y.y), st_bf16x2(y.z, y.w));
    } else {
        *(unsigned int *)(place.data + d) = st_quantise4(v, st_scale_inverse(byte));
    }
    if (thread % 16 == 0)
        place.scales[thread / 16] = turns ? 0 : (uint8_t)byte;
}

/* The sum of squares over 512 channels from that of each of the four warps. */
static __device__ __forceinline__ float fused_squares512(const float *partial) {
    return __fadd_rn(__fadd_rn(partial[0], partial[1]), __fadd_rn(partial[2], partial[3]));
}

#endif
