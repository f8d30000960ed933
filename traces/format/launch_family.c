/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/launch_family.h"

#include <stddef.h>
#include <string.h>

#include "traces/format/launch_code.h"

enum family {
    MOE_EXPERTS,
    FP8_GEMM,
    DECODE_PLANNER,
    DECODE_SPLIT,
    DECODE_COMBINE,
    SPARSE_PREFILL,
    SAVE_PARTIAL,
    COMPRESSOR_FUSED,
    COMPRESSOR_POOL,
    COMPRESSOR_STORE,
    INDEXER_COMPRESSOR,
    COMPRESSED_SLOTS,
    SLOTS,
    SWA,
    C128A,
    GLOBAL_TOPK,
    COMBINE_INDICES,
    GATHER,
    PREFILL_METADATA,
    TOPK_COOPERATIVE,
    TOPK_ROW,
    INDEXER_LOGITS,
    INDEXER_PLANNER,
    INDEXER_Q,
    QKV_INSERT,
    QKV_NORM,
    INVERSE_ROPE,
    QUANT,
    MHC,
    MOE_GLUE,
    BF16_GEMM,
    FILLS,
    COPIES,
    GRAPHS,
    MEMCPY,
    MEMSET,
    CALLS,
    COMMUNICATION,
    OTHER,
    FAMILIES
};

static const struct st_launch_family families[FAMILIES] = {
    [MOE_EXPERTS] = {"MoE experts (Marlin)", NULL},
    [FP8_GEMM] = {"fp8 GEMM (DeepGEMM)", NULL},
    [DECODE_PLANNER] = {"MLA decode planner", "sparse_mla_decode"},
    [DECODE_SPLIT] = {"MLA sparse decode, split-KV", "sparse_mla_decode"},
    [DECODE_COMBINE] = {"MLA decode combine", "sparse_mla_decode"},
    [SPARSE_PREFILL] = {"MLA sparse prefill", "sparse_mla_prefill"},
    [SAVE_PARTIAL] = {"save_partial_states", "save_partial_states"},
    [COMPRESSOR_FUSED] = {"compressor", "compress_fused"},
    [COMPRESSOR_POOL] = {"compressor", "compress_pool"},
    [COMPRESSOR_STORE] = {"compressor", "compress_norm_rope_store"},
    [INDEXER_COMPRESSOR] = {"indexer compressor", "compress_fused"},
    [COMPRESSED_SLOTS] = {"compressed_slot_mapping", "compressed_slot_mapping"},
    [SLOTS] = {"slot mapping", NULL},
    [SWA] = {"SWA indices", "swa_indices"},
    [C128A] = {"C128A top-k metadata", "c128a_topk_metadata"},
    [GLOBAL_TOPK] = {"global top-k indices", "global_topk_indices"},
    [COMBINE_INDICES] = {"combine_topk_swa_indices", "combine_topk_swa_indices"},
    [GATHER] = {"dequant gather", "dequantize_and_gather"},
    [PREFILL_METADATA] = {"prefill metadata", "gather_lens"},
    [TOPK_COOPERATIVE] = {"top-k, cooperative", "topk_per_row"},
    [TOPK_ROW] = {"top-k, per row", "topk_per_row"},
    [INDEXER_LOGITS] = {"indexer logits", NULL},
    [INDEXER_PLANNER] = {"indexer logits planner", NULL},
    [INDEXER_Q] = {"indexer q", NULL},
    [QKV_INSERT] = {"q/kv norm + rope + insert", NULL},
    [QKV_NORM] = {"q/kv RMSNorm", NULL},
    [INVERSE_ROPE] = {"inverse rope + quant", NULL},
    [QUANT] = {"activation quant", NULL},
    [MHC] = {"mHC", NULL},
    [MOE_GLUE] = {"MoE routing and glue", NULL},
    [BF16_GEMM] = {"bf16 GEMM (cuBLAS, CuTe)", NULL},
    [FILLS] = {"fills", NULL},
    [COPIES] = {"copies, casts, elementwise", NULL},
    [GRAPHS] = {"[graph]", NULL},
    [MEMCPY] = {"[memcpy]", NULL},
    [MEMSET] = {"[memset]", NULL},
    [CALLS] = {"[host call]", NULL},
    /* Its time is waiting as much as work: for the slowest rank. */
    [COMMUNICATION] = {"communication, waits for ranks", NULL},
    [OTHER] = {"other", NULL},
};

/* The first row whose text is in the name counts.  Texts are plain words of the source, which the
 * compiler keeps when it mangles a name. */
static const struct {
    const char *text;
    enum family family;
} table[] = {
    {"ncclDevKernel", COMMUNICATION},
    {"ncclKernel", COMMUNICATION},
    {"cross_device_reduce", COMMUNICATION},
    {"allreduce_fusion", COMMUNICATION},
    {"shot_all_reduce", COMMUNICATION},
    {"multimem_all_reduce", COMMUNICATION},
    {"nvshmem", COMMUNICATION},
    {"deep_ep", COMMUNICATION},
    {"marlin_moe", MOE_EXPERTS},
    {"paged_mqa_logits_metadata", INDEXER_PLANNER},
    {"mqa_logits", INDEXER_LOGITS},
    {"hc_prenorm_gemm", MHC},
    {"mhc_", MHC},
    {"hc_head_fuse", MHC},
    {"fp8_gemm", FP8_GEMM},
    {"get_mla_metadata", DECODE_PLANNER},
    {"flash_fwd_splitkv_mla", DECODE_SPLIT},
    {"flash_fwd_mla_combine", DECODE_COMBINE},
    {"sparse_attn_fwd", SPARSE_PREFILL},
    {"save_partial_states", SAVE_PARTIAL},
    {"fused_kv_compress_norm_rope_insert_indexer", INDEXER_COMPRESSOR},
    {"SparseAttnCompressNormRopeStore", COMPRESSOR_FUSED},
    {"SparseAttnCompress", COMPRESSOR_POOL},
    {"SparseAttnNormRopeStore", COMPRESSOR_STORE},
    {"compressed_slot_mapping", COMPRESSED_SLOTS},
    {"compute_slot_mapping", SLOTS},
    {"compute_swa_indices", SWA},
    {"build_c128a_topk_metadata", C128A},
    {"compute_global_topk_indices", GLOBAL_TOPK},
    {"combine_topk_swa_indices", COMBINE_INDICES},
    {"DequantGatherKCache", GATHER},
    {"prefill_metadata", PREFILL_METADATA},
    {"cooperative_topk", TOPK_COOPERATIVE},
    {"topKPerRow", TOPK_ROW},
    {"fused_indexer_q", INDEXER_Q},
    {"QNormRopeKVRopeQuantInsert", QKV_INSERT},
    {"fused_q_kv_rmsnorm", QKV_NORM},
    {"fused_inv_rope_fp8_quant", INVERSE_ROPE},
    {"per_token_group_quant", QUANT},
    {"topkGating", MOE_GLUE},
    {"moe_align", MOE_GLUE},
    {"count_and_sort_expert", MOE_GLUE},
    {"moe_sum", MOE_GLUE},
    {"act_and_mul", MOE_GLUE},
    {"nvjet", BF16_GEMM},
    {"splitKreduce", BF16_GEMM},
    {"LLBf16", BF16_GEMM},
    {"FillFunctor", FILLS},
    {"ArgMaxOps", OTHER},
    {"cp_gather_indexer", OTHER},
    {"elementwise_kernel", COPIES},
    {"memcpy", COPIES},
    {"gather_kernel", COPIES},
};

int32_t st_launch_family_count(void) {
    return FAMILIES;
}

const struct st_launch_family *st_launch_family_at(int32_t index) {
    return &families[index];
}

static int32_t find_row(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strstr(name, table[i].text))
            return (int32_t)i;
    return -1;
}

int32_t st_launch_family_of(int32_t kind, const char *name) {
    switch (kind) {
    case ST_LAUNCH_KERNEL:
        break;
    case ST_LAUNCH_GRAPH:
        return GRAPHS;
    case ST_LAUNCH_MEMCPY:
        return MEMCPY;
    case ST_LAUNCH_MEMSET:
        return MEMSET;
    default:
        return CALLS;
    }
    int32_t row = find_row(name);
    return row < 0 ? (int32_t)OTHER : (int32_t)table[row].family;
}

const char *st_launch_family_word(const char *name) {
    int32_t row = find_row(name);
    return row < 0 ? NULL : table[row].text;
}
