/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index lists and the attention of whole replays, told again from requests, positions and block
 * tables alone.
 *
 * Backends and policies take their arguments from the same plan and the same bind: a wrong row of a
 * table there gives all of them the same wrong rows, which no comparison of theirs shows.  Nothing
 * here asks the plan for more than where a chunk's rows lie in the workspace.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <unistd.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "replay/backend_cpu_i.h"
#include "replay/generator.h"
#include "replay/replay.h"
#include "replay/testing.h"
#include "traces/format/writer.h"

enum { TOPK = 128, MOST = 4096, VALUE_DIM = 512, REQUESTS = 10, GROUPS = 3 };

/* Fewer entries than the contexts of the tape have, so that there is something to choose. */
static const char v4[] =
    "{\"name\": \"v4\", \"architecture\": \"DeepseekV4ForCausalLM\", \"compress_ratios\":"
    " [0, 4, 128, 4], \"heads\": 64, \"head_dim\": 512, \"rope_dim\": 64, \"index_topk\": 128,"
    " \"rms_eps\": 1e-06, \"compress_rope_theta\": 160000.0, \"rope_scaling\": {\"factor\": 16,"
    " \"beta_fast\": 32, \"beta_slow\": 1, \"original_max_position_embeddings\": 4096},"
    " \"caches\": [{\"kind\": \"swa\", \"ratio\": 1, \"block_size\": 64, \"page_bytes\": 37440},"
    " {\"kind\": \"state\", \"ratio\": 4, \"block_size\": 4, \"page_bytes\": 32832},"
    " {\"kind\": \"indexer_state\", \"ratio\": 4, \"block_size\": 4, \"page_bytes\": 8640},"
    " {\"kind\": \"indexer_kv\", \"ratio\": 4, \"block_size\": 256, \"page_bytes\": 8640},"
    " {\"kind\": \"state\", \"ratio\": 128, \"block_size\": 8, \"page_bytes\": 32832},"
    " {\"kind\": \"kv\", \"ratio\": 128, \"block_size\": 256, \"page_bytes\": 1728},"
    " {\"kind\": \"kv\", \"ratio\": 4, \"block_size\": 256, \"page_bytes\": 37440}],"
    " \"engine\": {\"max_model_len\": 4096, \"max_num_seqs\": 8, \"max_num_batched_tokens\": 1024,"
    " \"num_blocks\": 2000}}";
static const char v32[] =
    "{\"name\": \"v32\", \"architecture\": \"DeepseekV32ForCausalLM\", \"attention\": \"dsa\","
    " \"compress_ratios\": [1, 1], \"heads\": 64, \"head_dim\": 576, \"rope_dim\": 64,"
    " \"index_topk\": 128, \"rms_eps\": 1e-06, \"compress_rope_theta\": 10000.0, \"rope_scaling\":"
    " {\"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, \"original_max_position_embeddings\":"
    " 4096}, \"caches\": [{\"kind\": \"attention\", \"ratio\": 1, \"block_size\": 64,"
    " \"page_bytes\": 41984}], \"engine\": {\"max_model_len\": 4096, \"max_num_seqs\": 8,"
    " \"max_num_batched_tokens\": 1024, \"num_blocks\": 2000}}";

static char folder[] = "/tmp/steptape-lists-XXXXXX";
static char tape[64], dense[64], crowd[64], v4_file[64], v32_file[64];

/* The window of two layers in each of two groups, and requests for several chunks. */
static const struct st_header *two_windows(void) {
    static const struct st_member swa[] = {{ST_MEMBER_SWA, 2, 1, 128, 37440}};
    static const struct st_member kv[] = {{ST_MEMBER_KV, 2, 4, -1, 37440},
                                          {ST_MEMBER_INDEXER_KV, 2, 4, -1, 8640},
                                          {ST_MEMBER_KV, 1, 128, -1, 1728}};
    static const struct st_group groups[] = {{0, 64, 1, swa}, {1, 256, 3, kv}, {2, 64, 1, swa}};
    static struct st_header header;
    header = *st_testing_header();
    header.groups = groups;
    header.max_num_seqs = REQUESTS;
    header.max_num_batched_tokens = 480;
    return &header;
}

/* A long prompt among short ones: more than one workspace holds.  Then decodes that verify other
 * counts of drafts, beside the rest of two prompts. */
static int write_crowd(struct st_error *err) {
    static const int32_t query_len[2][REQUESTS] = {{300, 20, 20, 20, 20, 20, 20, 20, 20, 20},
                                                   {3, 1, 2, 1, 4, 1, 1, 2, 30, 35}};
    static const int32_t draft[2][REQUESTS] = {{0}, {2, 0, 1, 0, 3, 0, 0, 1, 0, 0}};
    static const int64_t id[REQUESTS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int32_t prompt[REQUESTS] = {300, 20, 20, 20, 20, 20, 20, 20, 50, 55};
    const struct st_header *header = two_windows();
    struct st_writer *writer = NULL;
    int32_t start[REQUESTS] = {0}, offset[GROUPS][REQUESTS + 1] = {{0}}, block[GROUPS][64];
    struct st_row_blocks blocks[GROUPS];
    int32_t taken = 0;
    int rc = st_writer_open(crowd, header, &writer, err);
    for (int step = 0; rc == 0 && step < 2; step++) {
        struct st_step s = {.step_id = step,
                            .start_ns = step,
                            .duration_ns = ST_UNKNOWN,
                            .padded_token_count = ST_UNKNOWN,
                            .padded_request_count = ST_UNKNOWN,
                            .zeroed = ST_UNKNOWN,
                            .cpu_starts = -1,
                            .graph_mode = ST_GRAPH_MODE_NONE,
                            .request_count = REQUESTS,
                            .request_id = id,
                            .query_len = query_len[step],
                            .draft = draft[step],
                            .num_computed_tokens = start,
                            .new_requests = {step == 0 ? REQUESTS : 0, id},
                            .new_prompt_len = prompt,
                            .group_count = GROUPS,
                            .blocks = blocks};
        s.replaced.count = -1;
        for (int32_t r = 0; r < REQUESTS; r++)
            s.token_count += query_len[step][r];
        for (int g = 0; g < GROUPS; g++) {
            int32_t size = header->groups[g].block_size, at = 0;
            for (int32_t r = 0; r < REQUESTS; r++) {
                int32_t end = start[r] + query_len[step][r];
                for (int32_t b = (start[r] + size - 1) / size; b * size < end; b++)
                    block[g][at++] = ++taken;
                offset[g][r + 1] = at;
            }
            blocks[g] = (struct st_row_blocks){offset[g], block[g]};
        }
        rc = st_writer_add(writer, &s, NULL, err);
        for (int32_t r = 0; r < REQUESTS; r++)
            start[r] += query_len[step][r];
    }
    if (rc == 0)
        return st_writer_finish(writer, err);
    st_writer_abort(writer);
    return rc;
}

static int write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    int rc = file && fputs(text, file) >= 0 ? 0 : -1;
    return file && fclose(file) == 0 ? rc : -1;
}

static int make_tapes(void **state) {
    (void)state;
    struct st_error err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(tape, sizeof tape, "%s/x.tape", folder);
    snprintf(dense, sizeof dense, "%s/dense.tape", folder);
    snprintf(crowd, sizeof crowd, "%s/crowd.tape", folder);
    snprintf(v4_file, sizeof v4_file, "%s/v4.json", folder);
    snprintf(v32_file, sizeof v32_file, "%s/v32.json", folder);
    int rc = st_testing_write_tape(tape, two_windows(), &err);
    rc = rc == 0 ? st_testing_write_tape(dense, st_testing_dense_header(), &err) : rc;
    rc = rc == 0 ? write_crowd(&err) : rc;
    if (rc != 0)
        fprintf(stderr, "%s\n", err.msg);
    return rc != 0 ? rc : write_file(v4_file, v4) | write_file(v32_file, v32);
}

static int remove_tapes(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* ---- a token, and what it attends to */

struct token {
    struct st_backend *b;
    const struct st_plan *plan;
    const struct st_launch *launch; /* the observation */
    int32_t policy, row, request;
    int64_t id, position;
};

static enum st_cache_id window_of(const struct token *t) {
    return t->launch->layer < 2 ? ST_CACHE_SWA0 : ST_CACHE_SWA1;
}

static enum st_cache_id entries_of(const struct token *t) {
    static const enum st_cache_id caches[ST_LAYER_KINDS] = {[ST_LAYER_C4] = ST_CACHE_KV_C4,
                                                            [ST_LAYER_C128] = ST_CACHE_KV_C128,
                                                            [ST_LAYER_DSA] = ST_CACHE_DSA};
    return caches[t->launch->kind];
}

/* Where entry number `entry` of the token's request lies. */
static int32_t slot_of(const struct token *t, enum st_cache_id cache, int64_t entry) {
    const int32_t *table = t->b->input.host.at[st_buffer_of_table(cache)];
    int32_t entries = t->b->model->cache[cache].entries;
    table += t->request * t->b->buffers.table_stride[cache];
    return table[entry / entries] * entries + (int32_t)(entry % entries);
}

static int64_t first_of_window(const struct token *t) {
    return t->position > 127 ? t->position - 127 : 0;
}

struct scored {
    float score;
    int32_t entry;
};

static int best_first(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->entry - y->entry;
}

static int ascending(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Entries that the token attends to beside its window, ascending. */
static int32_t selected(const struct token *t, int32_t *out) {
    static const int32_t ratio[ST_LAYER_KINDS] = {
        [ST_LAYER_C4] = 4, [ST_LAYER_C128] = 128, [ST_LAYER_DSA] = 1};
    struct scored all[MOST];
    int32_t kind = t->launch->kind, count = 0;
    if (kind == ST_LAYER_SWA)
        return 0;
    uint64_t scores = st_gen_row(ST_GEN_LOGIT, 0, t->id, t->position);
    for (; count < (t->position + 1) / ratio[kind]; count++)
        all[count] = (struct scored){st_gen_logit(scores, count), count};
    if (kind != ST_LAYER_C128 && count > TOPK) {
        qsort(all, (size_t)count, sizeof *all, best_first);
        count = TOPK;
    }
    for (int32_t i = 0; i < count; i++)
        out[i] = all[i].entry;
    qsort(out, (size_t)count, sizeof *out, ascending);
    return count;
}

/* ---- lists */

/* Rows of the workspace: the request's entries, then its window. */
static int32_t combined(const struct token *t, int32_t *out) {
    const struct st_chunk *chunk = &t->plan->chunk[t->launch->chunk];
    const int32_t *start = t->b->input.host.at[ST_BUF_QUERY_START_LOC];
    const int32_t *seq_len = t->b->input.host.at[ST_BUF_SEQ_LEN];
    int32_t base = (t->request - chunk->plan.first_req) * chunk->plan.m;
    int64_t before = seq_len[t->request] - (start[t->request + 1] - start[t->request]);
    int32_t count = selected(t, out);
    for (int32_t i = 0; i < count; i++)
        out[i] += base;
    for (int64_t p = first_of_window(t);
         p <= t->position && t->b->model->cache[ST_CACHE_SWA0].window; p++)
        out[count++] = base + chunk->plan.n + (int32_t)(p - (before > 127 ? before - 127 : 0));
    return count;
}

static int32_t list_of(const struct token *t, int32_t *out) {
    int32_t count = 0;
    switch ((enum st_view)t->launch->view) {
    case ST_VIEW_SWA_INDICES:
        for (int64_t p = first_of_window(t); p <= t->position; p++)
            out[count++] = slot_of(t, (enum st_cache_id)t->launch->cache, p);
        return count;
    case ST_VIEW_C128A_DECODE:
        for (; count < (t->position + 1) / 128; count++)
            out[count] = slot_of(t, ST_CACHE_KV_C128, count);
        return count;
    case ST_VIEW_C128A_PREFILL:
        for (; count < (t->position + 1) / 128; count++)
            out[count] = count;
        return count;
    case ST_VIEW_TOPK:
        return selected(t, out);
    case ST_VIEW_GLOBAL_TOPK:
        count = selected(t, out);
        for (int32_t i = 0; i < count; i++)
            out[i] = slot_of(t, entries_of(t), out[i]);
        return count;
    default:
        return combined(t, out);
    }
}

/* ---- attention */

struct softmax {
    double max, sum, value[VALUE_DIM];
};

static void add_key(const struct token *t, int32_t head, enum st_cache_id cache, int32_t slot,
                    struct softmax *s) {
    const struct st_model *m = t->b->model;
    bool is_dsa = t->launch->kind == ST_LAYER_DSA;
    int32_t entries = m->cache[cache].entries, buffer = t->launch->ordinal;
    const uint8_t *pages = st_cpu_buffer(t->b, st_buffer_of_cache(cache), t->policy, buffer);
    uint16_t key[576];
    double score = 0;
    st_gather_entry(key, pages + slot / entries * m->cache[cache].page_bytes, entries,
                    slot % entries, is_dsa ? STEPTAPE_KV_FP8_V32 : STEPTAPE_KV_FP8_DS_MLA);
    uint64_t q = st_gen_row(ST_GEN_Q, head, t->id, t->position);
    for (int32_t d = 0; d < m->head_dim; d++)
        score +=
            (double)steptape_bf16_to_float(st_gen_q(q, d)) * (double)steptape_bf16_to_float(key[d]);
    score /= sqrt(is_dsa ? 192 : 512);
    double max = score > s->max ? score : s->max, shrink = exp(s->max - max);
    double weight = exp(score - max);
    s->max = max;
    s->sum = s->sum * shrink + weight;
    for (int32_t d = 0; d < VALUE_DIM; d++)
        s->value[d] = s->value[d] * shrink + weight * (double)steptape_bf16_to_float(key[d]);
}

static void check_head(const struct token *t, int32_t head, const uint16_t *out) {
    struct softmax s = {.max = -INFINITY};
    int32_t entry[MOST], count = selected(t, entry);
    for (int32_t i = 0; i < count; i++)
        add_key(t, head, entries_of(t), slot_of(t, entries_of(t), entry[i]), &s);
    for (int64_t p = first_of_window(t); p <= t->position && t->launch->kind != ST_LAYER_DSA; p++)
        add_key(t, head, window_of(t), slot_of(t, window_of(t), p), &s);
    double sink = exp((double)st_gen_sink(head) - s.max);
    for (int32_t d = 0; d < VALUE_DIM; d++) {
        double got = (double)steptape_bf16_to_float(out[head * VALUE_DIM + d]);
        double want = s.value[d] / (s.sum + sink);
        if (!(fabs(got - want) <= 0x1p-8 * fabs(want) + 1e-6)) /* half a unit of bf16 is 2^-9 */
            fail_msg("layer %d, row %d, head %d, channel %d: %g, expected %g", t->launch->layer,
                     t->row, head, d, got, want);
    }
}

/* ---- every row of a step */

static int64_t checked[ST_VIEW_OUT + 1];
static int32_t most_chunks; /* of attention, in a step */

static void check_list(const struct token *t, const int32_t *got, int32_t length) {
    int32_t want[MOST], count = list_of(t, want);
    const char *name = st_operator_name((enum st_operator)t->launch->observed);
    if (length != 4 * (count + 1) || got[count] != count)
        fail_msg("%s, layer %d, row %d: %d bytes, %d indices expected", name, t->launch->layer,
                 t->row, length, count);
    for (int32_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("%s, layer %d, row %d, column %d: %d, expected %d", name, t->launch->layer,
                     t->row, i, got[i], want[i]);
}

/* Of the CPU backend's rows those of sampled tokens are there, padding has empty lists. */
static void check_row(struct token *t, int32_t number) {
    static _Alignas(8) uint8_t bytes[1 << 18];
    int32_t length, token = t->launch->first_token + t->row;
    ST_ASSERT_OK(st_backend_cpu.read_row(t->b, t->plan, t->policy, number, t->row, bytes,
                                         sizeof bytes, &length, &ok_err));
    const int32_t *words = (const int32_t *)(const void *)bytes;
    if (length == 0)
        return;
    checked[t->launch->view]++;
    if (token >= t->plan->shape.token_count) {
        if (t->launch->view != ST_VIEW_OUT)
            assert_int_equal(length, 4);
        return;
    }
    t->request = ((const int32_t *)t->b->input.host.at[ST_BUF_TOKEN_TO_REQ])[token];
    t->id = ((const int64_t *)t->b->input.host.at[ST_BUF_REQUEST_ID])[t->request];
    t->position = ((const int64_t *)t->b->input.host.at[ST_BUF_POSITION])[token];
    if (t->launch->view != ST_VIEW_OUT) {
        check_list(t, words, length);
        return;
    }
    check_head(t, 0, (const uint16_t *)(const void *)bytes);
    check_head(t, t->b->model->heads - 1, (const uint16_t *)(const void *)bytes);
}

static void check_gathered(const struct token *t, int32_t number) {
    const int32_t *start = t->b->input.host.at[ST_BUF_QUERY_START_LOC];
    const int32_t *seq_len = t->b->input.host.at[ST_BUF_SEQ_LEN];
    for (int32_t i = 0; i < t->launch->request_count; i++) {
        int32_t r = t->launch->first_request + i, got, length;
        int32_t query = start[r + 1] - start[r], before = seq_len[r] - query;
        ST_ASSERT_OK(st_backend_cpu.read_row(t->b, t->plan, t->policy, number, i, &got, sizeof got,
                                             &length, &ok_err));
        assert_int_equal(got, query + (before > 127 ? 127 : before));
    }
}

static int launch_and_check(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                            struct st_error *err) {
    int rc = st_backend_cpu.launch(b, plan, policy, err);
    int64_t outputs = checked[ST_VIEW_OUT];
    int32_t number = -1, samples, layers = 0;
    most_chunks = plan->first_index_chunk > most_chunks ? plan->first_index_chunk : most_chunks;
    for (int32_t i = 0; rc == 0 && i < plan->launch_count; i++) {
        const struct st_launch *l = &plan->launch[i];
        struct token t = {.b = b, .plan = plan, .launch = l, .policy = policy};
        number += l->op == ST_OP_OBSERVE;
        if (l->op != ST_OP_OBSERVE || l->ordinal >= b->buffers.layer_buffers ||
            l->view == ST_VIEW_KV_SLOT || l->view == ST_VIEW_STATE || l->view == ST_VIEW_ENTRY)
            continue;
        if (l->view == ST_VIEW_GATHER_LENS)
            check_gathered(&t, number);
        else
            for (t.row = 0; t.row < l->token_count; t.row++)
                check_row(&t, number);
    }
    /* No sampled token is left out, none comes twice. */
    (void)st_backend_cpu.sampled_tokens(b, &samples);
    for (int32_t layer = 0; layer < b->model->layer_count; layer++) {
        int32_t same = 0;
        for (int32_t k = 0; k < layer; k++)
            same += b->model->layer_kind[k] == b->model->layer_kind[layer];
        layers += same < b->buffers.layer_buffers;
    }
    assert_int_equal(checked[ST_VIEW_OUT] - outputs, (int64_t)samples * layers);
    return rc;
}

/* ---- replays */

static void replay(const char *path, const char *model, const char *const *set,
                   enum st_mode_request mode, int64_t first, int64_t last) {
    static const char *const policies[] = {"baseline", "safe,topk-rows=padded"};
    struct st_backend_ops ops = st_backend_cpu;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    ops.launch = launch_and_check;
    st_replay_options_init(&o);
    snprintf(result, sizeof result, "%s/runs.tape", folder);
    remove(result);
    o.tape_path = path;
    o.result_path = result;
    o.backend = "cpu";
    o.ops = &ops;
    o.model = model;
    o.mode = mode;
    o.first_step = first;
    o.last_step = last;
    o.pass_mask = 1u << ST_PASS_VERIFY;
    o.poison = true;
    o.set = set;
    o.set_count = set ? 2 : 0;
    for (; o.policy_count < 2; o.policy_count++)
        ST_ASSERT_OK(st_policy_parse(policies[o.policy_count], &o.policy[o.policy_count], &ok_err));
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
}

static void assert_checked(int view, int64_t least) {
    if (checked[view] < least)
        fail_msg("view %d: %lld rows", view, (long long)checked[view]);
}

static void prefill_alone_and_beside_decodes(void **state) {
    (void)state;
    memset(checked, 0, sizeof checked);
    replay(tape, v4_file, NULL, ST_MODE_EAGER, 1, 2);
    replay(tape, v4_file, NULL, ST_MODE_FULL_AND_PIECEWISE, 212, 213);
    for (int view = ST_VIEW_C128A_DECODE; view <= ST_VIEW_OUT; view++)
        if (view != ST_VIEW_STATE && view != ST_VIEW_ENTRY)
            assert_checked(view, 12);
}

static void several_chunks_and_drafts(void **state) {
    (void)state;
    static const char *const short_contexts[] = {"max_model_len=304", "max_capture_size=8"};
    memset(checked, 0, sizeof checked);
    most_chunks = 0;
    replay(crowd, v4_file, short_contexts, ST_MODE_EAGER, 0, 1);
    assert_int_equal(most_chunks, 3 * 2);
    assert_checked(ST_VIEW_COMBINED, 2 * 3 * 9);
}

static void graphs_of_decodes(void **state) {
    (void)state;
    static const char *const large[] = {"max_model_len=65536", "max_capture_size=8"};
    memset(checked, 0, sizeof checked);
    replay(tape, v4_file, large, ST_MODE_FULL, 214, 215);
    assert_checked(ST_VIEW_C128A_DECODE, 2 * 2 * 4);
    assert_checked(ST_VIEW_GLOBAL_TOPK, 2 * 2 * 4 * 2);
}

static void the_best_of_all_tokens(void **state) {
    (void)state;
    memset(checked, 0, sizeof checked);
    replay(dense, v32_file, NULL, ST_MODE_FULL_AND_PIECEWISE, 212, 214);
    assert_checked(ST_VIEW_GLOBAL_TOPK, 12);
    assert_checked(ST_VIEW_COMBINED, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_alone_and_beside_decodes),
        cmocka_unit_test(several_chunks_and_drafts),
        cmocka_unit_test(graphs_of_decodes),
        cmocka_unit_test(the_best_of_all_tokens),
    };
    return cmocka_run_group_tests(tests, make_tapes, remove_tapes);
}
