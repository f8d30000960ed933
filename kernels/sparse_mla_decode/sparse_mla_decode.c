/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode on the host: variants, argument check, geometry, sizes, cost, launcher.
 */
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

#include "kernels/device.h"
#include "kernels/operator.h"

typedef struct steptape_sparse_mla_decode_args decode_args;

enum { ALL_PHASES = STEPTAPE_DECODE_PLAN | STEPTAPE_DECODE_SPLIT | STEPTAPE_DECODE_COMBINE };

#define PLAN_FUNCTIONS "steptape_sparse_mla_decode_plan_v1", "steptape_sparse_mla_decode_plan_v2"
#define COMBINE_FUNCTIONS                                                                          \
    "steptape_sparse_mla_decode_combine_v1", "steptape_sparse_mla_decode_combine_v2"

const struct st_kernel_variant st_sparse_mla_decode_variants[ST_DECODE_VARIANTS] = {
    {1,
     3,
     {PLAN_FUNCTIONS, "steptape_sparse_mla_decode_split_v1", COMBINE_FUNCTIONS, NULL},
     "any device: fp32 arithmetic, 4 threads a head, one column after the other"},
    {2,
     3,
     {PLAN_FUNCTIONS, "steptape_sparse_mla_decode_split_v2",
      "steptape_sparse_mla_decode_split_v2_v32", COMBINE_FUNCTIONS, NULL},
     "mma.sync: 16 columns at a time through shared memory"},
    {3,
     3,
     {PLAN_FUNCTIONS, "steptape_sparse_mla_decode_split_v3",
      "steptape_sparse_mla_decode_split_v3_v32", COMBINE_FUNCTIONS, NULL},
     "Hopper: two warpgroups convert entries, two multiply (wgmma), tiles of 64"},
    {4,
     3,
     {PLAN_FUNCTIONS, "steptape_sparse_mla_decode_split_v4",
      "steptape_sparse_mla_decode_split_v4_v32", COMBINE_FUNCTIONS, NULL},
     "as 3, and the next tile's entries are asked into the L2 cache a tile before"},
};

static int64_t entry_bytes(const decode_args *args) {
    return args->format == STEPTAPE_KV_FP8_V32 ? STEPTAPE_KV_V32_ENTRY_BYTES
                                               : STEPTAPE_KV_ENTRY_BYTES;
}

static int check_scope(const decode_args *args, const struct steptape_decode_scope *scope) {
    if (scope->topk < 0 || scope->topk % ST_DECODE_TILE != 0)
        return STEPTAPE_ERR_ARGUMENT;
    if (scope->topk > 0 && (scope->page_size < 1 || scope->indices_stride < scope->topk ||
                            scope->page_stride_bytes < scope->page_size * entry_bytes(args)))
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int st_sparse_mla_decode_check(const decode_args *args) {
    if (args == NULL || args->tokens < 0 || args->tokens > INT32_MAX || args->heads < 1 ||
        (args->format != STEPTAPE_KV_FP8_DS_MLA && args->format != STEPTAPE_KV_FP8_V32) ||
        args->d_qk != (args->format == STEPTAPE_KV_FP8_V32 ? 576 : 512) ||
        args->q_head_stride < args->d_qk || args->q_stride < args->d_qk || args->num_parts < 0 ||
        args->num_parts > ST_DECODE_MAX_PARTS || (args->phases & ~ALL_PHASES) != 0 ||
        args->plan_variant > ST_DECODE_PLAN_VARIANTS || args->variant > ST_DECODE_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    for (int s = 0; s < 2; s++)
        if (check_scope(args, &args->scope[s]) != STEPTAPE_OK)
            return STEPTAPE_ERR_ARGUMENT;
    if (args->heads % ST_DECODE_GROUP_HEADS != 0 || args->heads > 2 * ST_DECODE_GROUP_HEADS)
        return STEPTAPE_ERR_UNSUPPORTED;
    /* the plan counts tiles of all tokens in 32 bits */
    int64_t tiles = ((int64_t)args->scope[0].topk + args->scope[1].topk) / ST_DECODE_TILE;
    if (args->tokens * (tiles + ST_DECODE_OVERHEAD) > INT32_MAX)
        return STEPTAPE_ERR_UNSUPPORTED;
    return args->tokens > 0;
}

static uint32_t phases_of(const decode_args *args) {
    return args->phases != 0 ? args->phases : ALL_PHASES;
}

static int is_aligned(const void *pointer) {
    return ((uintptr_t)pointer & 15) == 0;
}

int st_sparse_mla_decode_ready(const decode_args *args) {
    int rc = st_sparse_mla_decode_check(args);
    if (rc <= 0)
        return rc;
    if (args->plan == NULL || !is_aligned(args->plan) || !is_aligned(args->scratch) ||
        !is_aligned(args->out))
        return STEPTAPE_ERR_ARGUMENT;
    uint32_t phases = phases_of(args);
    if ((phases & ~STEPTAPE_DECODE_PLAN) != 0 && (args->out == NULL || args->scratch == NULL))
        return STEPTAPE_ERR_ARGUMENT;
    if ((phases & STEPTAPE_DECODE_SPLIT) == 0)
        return rc;
    for (int s = 0; s < 2; s++)
        if (args->scope[s].topk > 0 &&
            (args->scope[s].cache == NULL || args->scope[s].indices == NULL))
            return STEPTAPE_ERR_ARGUMENT;
    return args->q != NULL ? rc : STEPTAPE_ERR_ARGUMENT;
}

/* ---- geometry */

static int32_t parts_of(const decode_args *args) {
    if (args->num_parts > 0)
        return args->num_parts;
    int32_t parts = st_device_facts().multiprocessors / (args->heads / ST_DECODE_GROUP_HEADS);
    return parts < 1 ? 1 : parts > ST_DECODE_MAX_PARTS ? ST_DECODE_MAX_PARTS : parts;
}

static void plan_geometry(const decode_args *args, struct st_decode_geometry *out) {
    out->plan_variant = args->plan_variant != 0 ? args->plan_variant : 2;
    out->plan = (struct st_decode_launch){{1, 1}, 32, (uint32_t)(4 * args->tokens)};
    if (out->plan_variant == 2) {
        out->plan.threads = args->tokens <= 256 ? 256 : 1024;
        out->plan.smem_bytes = (uint32_t)(4 * (args->tokens + 1 + 32));
    }
}

/* Whether entries and queries can be read 16 bytes (scales 8 bytes) at a time. */
static int is_wide(const decode_args *args) {
    if (!is_aligned(args->q) || args->q_stride % 8 != 0 || args->q_head_stride % 8 != 0)
        return 0;
    for (int s = 0; s < 2; s++)
        if (args->scope[s].topk > 0 &&
            (!is_aligned(args->scope[s].cache) || args->scope[s].page_stride_bytes % 16 != 0))
            return 0;
    return 1;
}

static int serves(const decode_args *args, unsigned int variant, int generation) {
    return variant == 1 || (is_wide(args) && (variant == 2 ? generation >= 80 : generation == 90));
}

static int resolve(const decode_args *args, unsigned int *variant) {
    const int generation = st_device_facts().generation;
    *variant = args->variant;
    if (args->variant == 0) {
        *variant = ST_DECODE_DEFAULT;
        while (!serves(args, *variant, generation))
            --*variant;
    }
    return serves(args, *variant, generation) ? STEPTAPE_OK : STEPTAPE_ERR_UNSUPPORTED;
}

static void split_geometry(const decode_args *args, struct st_decode_geometry *out) {
    const uint32_t d = (uint32_t)args->d_qk;
    out->split.grid[0] = (uint32_t)out->groups;
    out->split.grid[1] = (uint32_t)out->parts;
    out->split.threads = out->variant >= 3 ? 512 : 256;
    if (out->variant == 1) /* queries, a little apart; 8 entries as floats */
        out->split.smem_bytes = 2 * ST_DECODE_GROUP_HEADS * (d + 16) + 4 * 8 * d;
    else if (out->variant == 2) /* queries and 16 entries, a little apart */
        out->split.smem_bytes = 2 * (ST_DECODE_GROUP_HEADS + 16) * (d + 8);
    else /* queries, two tiles, weights, what is between warps; from a multiple of 1,024 */
        out->split.smem_bytes = 3 * 128 * d + 128 * 64 + 880 + 1024;
}

int st_sparse_mla_decode_geometry(const decode_args *args, struct st_decode_geometry *out) {
    if (args->tokens > ST_DECODE_PLAN_MAX_TOKENS)
        return STEPTAPE_ERR_UNSUPPORTED;
    out->phases = phases_of(args);
    out->parts = parts_of(args);
    out->groups = args->heads / ST_DECODE_GROUP_HEADS;
    int rc = resolve(args, &out->variant);
    if (rc != STEPTAPE_OK)
        return rc;
    plan_geometry(args, out);
    split_geometry(args, out);
    const int is_few = args->tokens <= ST_DECODE_FEW_TOKENS;
    out->combine.grid[0] = (uint32_t)args->tokens;
    out->combine.grid[1] = (uint32_t)(is_few ? args->heads : args->heads / 8);
    out->combine.threads = 256;
    out->combine.smem_bytes = is_few ? 8 * 4 * ST_DECODE_V_DIM : 0;
    return STEPTAPE_OK;
}

/* ---- sizes */

uint64_t steptape_sparse_mla_decode_plan_bytes(const decode_args *args) {
    if (st_sparse_mla_decode_check(args) < 0)
        return 0;
    return (uint64_t)parts_of(args) * sizeof(struct st_decode_part) +
           (uint64_t)args->tokens * sizeof(struct st_decode_token);
}

uint64_t steptape_sparse_mla_decode_scratch_bytes(const decode_args *args) {
    if (st_sparse_mla_decode_check(args) < 0)
        return 0;
    const uint64_t rows = 2 * (uint64_t)parts_of(args) * (uint64_t)args->heads;
    return rows * (ST_DECODE_V_DIM + 2) * sizeof(float);
}

/* ---- cost and launch */

/* What the contract needs of each phase; partial results depend on the plan and are not counted. */
static int count_work(const decode_args *args, const struct steptape_token_counts *counts,
                      uint32_t phases, struct steptape_cost *cost) {
    const uint64_t tokens = (uint64_t)args->tokens, heads = (uint64_t)args->heads;
    const uint64_t entries = (uint64_t)counts->entries;
    const int64_t topk = (int64_t)args->scope[0].topk + args->scope[1].topk;
    if (counts->entries > args->tokens * topk)
        return STEPTAPE_ERR_ARGUMENT;
    uint64_t lengths = 0;
    for (int s = 0; s < 2; s++)
        lengths += args->scope[s].topk > 0 && args->scope[s].length != NULL ? 4 * tokens : 0;
    if ((phases & STEPTAPE_DECODE_PLAN) != 0) {
        cost->read_bytes += lengths;
        cost->written_bytes += steptape_sparse_mla_decode_plan_bytes(args);
    }
    if ((phases & STEPTAPE_DECODE_SPLIT) != 0) {
        cost->read_bytes += steptape_sparse_mla_decode_plan_bytes(args) + lengths +
                            entries * (4 + (uint64_t)entry_bytes(args)) +
                            tokens * heads * 2 * (uint64_t)args->d_qk +
                            (args->attn_sink != NULL ? 4 * heads : 0);
        cost->written_bytes += tokens * heads * 2 * ST_DECODE_V_DIM;
        cost->written_bytes += args->lse != NULL ? 4 * tokens * heads : 0;
        /* the two products; scale, max, subtract, exponential and sum of a score */
        cost->flops = entries * heads * (2 * ((uint64_t)args->d_qk + ST_DECODE_V_DIM) + 5);
    }
    if ((phases & STEPTAPE_DECODE_COMBINE) != 0)
        cost->read_bytes += tokens * sizeof(struct st_decode_token);
    return STEPTAPE_OK;
}

static void add_launch(const struct st_decode_launch *launch, uint64_t idle,
                       struct steptape_cost *cost) {
    cost->launch_count++;
    cost->grid[0] = launch->grid[0];
    cost->grid[1] = launch->grid[1];
    cost->grid[2] = 1;
    cost->block[0] = launch->threads;
    cost->block[1] = cost->block[2] = 1;
    cost->smem_bytes = launch->smem_bytes;
    cost->block_count += (uint64_t)launch->grid[0] * launch->grid[1];
    cost->idle_max_block_count += idle;
}

int steptape_sparse_mla_decode_cost(const decode_args *args,
                                    const struct steptape_token_counts *counts,
                                    struct steptape_cost *out) {
    struct steptape_cost cost = {0};
    struct st_decode_geometry geometry;
    int rc = st_sparse_mla_decode_check(args);
    if (rc < 0)
        return rc;
    if (counts == NULL || out == NULL || counts->entries < 0)
        return STEPTAPE_ERR_ARGUMENT;
    if (rc > 0) {
        rc = st_sparse_mla_decode_geometry(args, &geometry);
        if (rc == STEPTAPE_OK)
            rc = count_work(args, counts, geometry.phases, &cost);
        if (rc != STEPTAPE_OK)
            return rc;
        const uint64_t split = (uint64_t)geometry.groups * (uint64_t)geometry.parts;
        /* a part has at least one column */
        const uint64_t busy = counts->entries > 0 ? (uint64_t)geometry.groups : 0;
        if ((geometry.phases & STEPTAPE_DECODE_PLAN) != 0)
            add_launch(&geometry.plan, 0, &cost);
        if ((geometry.phases & STEPTAPE_DECODE_SPLIT) != 0)
            add_launch(&geometry.split, split - busy, &cost);
        if ((geometry.phases & STEPTAPE_DECODE_COMBINE) != 0)
            add_launch(&geometry.combine,
                       (uint64_t)geometry.combine.grid[0] * geometry.combine.grid[1], &cost);
        cost.scratch_bytes = steptape_sparse_mla_decode_plan_bytes(args) +
                             steptape_sparse_mla_decode_scratch_bytes(args);
    }
    *out = cost;
    return STEPTAPE_OK;
}

int steptape_sparse_mla_decode(const decode_args *args, void *stream) {
    struct st_decode_geometry geometry;
    int rc = st_sparse_mla_decode_ready(args);
    if (rc <= 0)
        return rc;
    rc = st_sparse_mla_decode_geometry(args, &geometry);
    if (rc != STEPTAPE_OK)
        return rc;
#ifdef ST_KERNELS_CUDA
    return st_sparse_mla_decode_cuda(args, &geometry, stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}
