/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include "kernels/device.h"

typedef struct steptape_sparse_mla_prefill_args prefill_args;

const struct st_kernel_variant st_sparse_mla_prefill_variants[ST_PREFILL_VARIANTS] = {
    {1,
     1,
     {"steptape_sparse_mla_prefill_v1", NULL},
     "any device: fp32 arithmetic, 4 threads a head, one column after the other"},
    {2,
     1,
     {"steptape_sparse_mla_prefill_v2_d512", "steptape_sparse_mla_prefill_v2_d512_small",
      "steptape_sparse_mla_prefill_v2_d576", NULL},
     "mma.sync on bf16, keys gathered a tile ahead; needs 160 KB of shared memory a block"},
    {3,
     1,
     {"steptape_sparse_mla_prefill_v3_d512", "steptape_sparse_mla_prefill_v3_d576", NULL},
     "Hopper: wgmma; gather, scores and values are warpgroups of a block, one a multiprocessor"},
};

int st_sparse_mla_prefill_check(const prefill_args *args) {
    if (args == NULL || args->s_q < 0 || args->s_q > INT32_MAX || args->s_kv < 0 ||
        args->s_kv > INT32_MAX || args->topk < 0 || args->topk % STEPTAPE_MLA_TILE != 0 ||
        args->heads < 1 || (args->d_qk != 512 && args->d_qk != 576) ||
        args->d_v != ST_PREFILL_V_DIM || args->q_head_stride < args->d_qk ||
        args->q_stride < args->d_qk || args->kv_stride < args->d_qk ||
        args->indices_stride < args->topk || args->variant > ST_PREFILL_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    if (args->heads % ST_PREFILL_HEADS != 0 || args->heads > 2 * ST_PREFILL_HEADS)
        return STEPTAPE_ERR_UNSUPPORTED;
    return args->s_q > 0;
}

static int is_aligned(const void *pointer, int64_t stride) {
    return ((uintptr_t)pointer & 15) == 0 && stride % 8 == 0;
}

/* Without a device: as an H200 with all of this build's code. */
static int has_hopper(int generation) {
#ifdef ST_KERNELS_CUDA
    if (st_device_ordinal() >= 0)
        return generation == 90 && st_sparse_mla_prefill_has_hopper();
#endif
    return generation == 90;
}

int st_sparse_mla_prefill_serves(const prefill_args *args, unsigned int variant) {
    if (variant == 1)
        return 1;
    const int generation = st_device_facts().generation;
    /* 2: generations whose blocks can have so much shared memory */
    const int has_device = variant == 3 ? has_hopper(generation)
                                        : generation == 80 || generation == 87 ||
                                              (generation >= 90 && generation < 120);
    return has_device && is_aligned(args->q, args->q_stride) &&
           is_aligned(args->q, args->q_head_stride) && is_aligned(args->kv, args->kv_stride) &&
           is_aligned(args->out, 0);
}

void st_sparse_mla_prefill_geometry(const prefill_args *args, struct st_geometry *geometry) {
    geometry->variant = args->variant;
    if (args->variant == 0) {
        geometry->variant = ST_PREFILL_DEFAULT;
        while (!st_sparse_mla_prefill_serves(args, geometry->variant))
            geometry->variant--;
    }
    if (geometry->variant == 3) {
        const int64_t items = args->s_q * (args->heads / ST_PREFILL_HEADS);
        const int64_t most = st_device_facts().multiprocessors;
        geometry->threads = ST_PREFILL_V3_THREADS;
        geometry->grid[0] = (uint32_t)(items < most ? items : most);
        return;
    }
    geometry->threads = 256;
    geometry->grid[0] = (uint32_t)args->s_q;
    geometry->grid[1] = (uint32_t)(args->heads / ST_PREFILL_HEADS);
}

static int sparse_mla_prefill_bytes(const prefill_args *args,
                                    const struct steptape_token_counts *counts,
                                    struct steptape_cost *cost) {
    const uint64_t tokens = (uint64_t)args->s_q, heads = (uint64_t)args->heads;
    const uint64_t listed = (uint64_t)counts->entries, d_qk = (uint64_t)args->d_qk;
    /* a row of kv counts once, however many tokens list it */
    const uint64_t rows = listed < (uint64_t)args->s_kv ? listed : (uint64_t)args->s_kv;
    cost->read_bytes = 2 * tokens * heads * d_qk + 4 * listed + 2 * rows * d_qk;
    if (args->topk_length != NULL)
        cost->read_bytes += 4 * tokens;
    cost->written_bytes = 2 * tokens * heads * ST_PREFILL_V_DIM;
    if (args->lse != NULL)
        cost->written_bytes += 4 * tokens * heads;
    if (args->max_logits != NULL)
        cost->written_bytes += 4 * tokens * heads;
    cost->flops = 2 * listed * heads * (d_qk + ST_PREFILL_V_DIM);
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(sparse_mla_prefill,
                 args->q != NULL && args->out != NULL &&
                     (args->topk == 0 ||
                      (args->indices != NULL && (args->s_kv == 0 || args->kv != NULL))))
