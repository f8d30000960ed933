/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/print.h"

void st_print_number(struct st_out *out, const char *key, int64_t value, int64_t unknown) {
    st_out_string(out, key);
    if (value == unknown)
        st_out_string(out, "null");
    else
        st_out_int(out, value);
}

void st_print_text(struct st_out *out, const char *key, const char *text) {
    st_out_string(out, key);
    st_out_json_string(out, text);
}

void st_print_bool(struct st_out *out, const char *key, int8_t value) {
    st_out_string(out, key);
    st_out_string(out, value < 0 ? "null" : value ? "true" : "false");
}

static void print_group(struct st_out *out, const struct st_group *group) {
    st_out_format(out, "{\"id\":%d,\"block_size\":%d,\"members\":[", group->group_id,
                  group->block_size);
    for (int32_t i = 0; i < group->member_count; i++) {
        const struct st_member *member = &group->members[i];
        st_out_format(out, "%s{\"kind\":\"%s\",\"layers\":%d,\"ratio\":%d", i ? "," : "",
                      st_member_kind_name(member->kind), member->layers, member->ratio);
        st_print_number(out, ",\"window\":", member->window, -1);
        st_print_number(out, ",\"page_bytes\":", member->page_bytes, -1);
        st_out_string(out, "}");
    }
    st_out_string(out, "]}");
}

void st_print_groups(struct st_out *out, const struct st_header *h, const char *gap) {
    st_out_string(out, "[");
    for (int32_t g = 0; g < h->group_count; g++) {
        st_out_string(out, g ? "," : "");
        st_out_string(out, gap);
        print_group(out, &h->groups[g]);
    }
    st_out_string(out, "]");
}

static void print_clock(struct st_out *out, const struct st_header *h) {
    if (h->clock_monotonic_ns == ST_UNKNOWN && h->clock_realtime_ns == ST_UNKNOWN) {
        st_out_string(out, ",\"clock\":null");
        return;
    }
    st_print_number(out, ",\"clock\":{\"monotonic_ns\":", h->clock_monotonic_ns, ST_UNKNOWN);
    st_print_number(out, ",\"realtime_ns\":", h->clock_realtime_ns, ST_UNKNOWN);
    st_out_string(out, "}");
}

void st_print_header(struct st_out *out, const struct st_header *h) {
    st_out_string(out, "{\"kind\":\"steps\",\"version\":1");
    st_print_text(out, ",\"engine\":", h->engine);
    st_print_text(out, ",\"engine_version\":", h->engine_version);
    st_print_text(out, ",\"runner\":", h->runner);
    st_print_text(out, ",\"device\":", h->device);
    st_print_text(out, ",\"model\":", h->model);
    st_print_text(out, ",\"architecture\":", h->architecture);
    if (h->compress_ratio_count < 0) {
        st_out_string(out, ",\"compress_ratios\":null");
    } else {
        st_out_string(out, ",\"compress_ratios\":[");
        st_out_ints32(out, h->compress_ratios, h->compress_ratio_count);
        st_out_string(out, "]");
    }
    st_print_number(out, ",\"max_model_len\":", h->max_model_len, -1);
    st_print_number(out, ",\"max_num_seqs\":", h->max_num_seqs, -1);
    st_print_number(out, ",\"max_num_batched_tokens\":", h->max_num_batched_tokens, -1);
    st_print_number(out, ",\"num_blocks\":", h->num_blocks, -1);
    st_print_bool(out, ",\"prefix_caching\":", h->prefix_caching);
    st_print_bool(out, ",\"async_scheduling\":", h->async_scheduling);
    st_out_string(out, ",\"speculative\":");
    st_out_json(out, h->speculative ? h->speculative : "null");
    st_print_number(out, ",\"rank\":", h->rank, -1);
    print_clock(out, h);
    st_print_text(out, ",\"scale\":", h->scale);
    st_out_string(out, ",\"groups\":");
    st_print_groups(out, h, "");
    st_out_string(out, "}\n");
}

static void print_list32(struct st_out *out, const char *key, const int32_t *values,
                         int64_t count) {
    st_out_string(out, key);
    st_out_ints32(out, values, count);
    st_out_bytes(out, "]", 1);
}

static void print_list64(struct st_out *out, const char *key, const int64_t *values,
                         int64_t count) {
    st_out_string(out, key);
    st_out_ints64(out, values, count);
    st_out_bytes(out, "]", 1);
}

static void print_prompts(struct st_out *out, const struct st_step *step) {
    st_out_string(out, ",\"prompt_len\":[");
    for (int32_t i = 0; i < step->new_requests.count; i++)
        st_print_number(out, i ? "," : "", step->new_prompt_len[i], -1);
    st_out_bytes(out, "]", 1);
}

static void print_blocks(struct st_out *out, const struct st_step *step) {
    st_out_string(out, ",\"blocks\":[");
    for (int32_t g = 0; g < step->group_count; g++) {
        const struct st_row_blocks *blocks = &step->blocks[g];
        st_out_string(out, g ? ",[" : "[");
        for (int32_t row = 0; row < step->request_count; row++) {
            int32_t begin = blocks->offset[row], end = blocks->offset[row + 1];
            st_out_string(out, row ? ",[" : "[");
            st_out_ints32(out, blocks->block_id + begin, end - begin);
            st_out_bytes(out, "]", 1);
        }
        st_out_bytes(out, "]", 1);
    }
    st_out_bytes(out, "]", 1);
}

void st_print_step(struct st_out *out, const struct st_step *step, const char *check_json) {
    st_out_string(out, "{\"step\":");
    st_out_int(out, step->step_id);
    st_print_number(out, ",\"t_ns\":", step->start_ns, ST_UNKNOWN);
    st_print_number(out, ",\"dur_ns\":", step->duration_ns, ST_UNKNOWN);
    st_print_text(out, ",\"mode\":", st_graph_mode_name(step->graph_mode));
    st_print_number(out, ",\"padded_tokens\":", step->padded_token_count, ST_UNKNOWN);
    st_print_number(out, ",\"padded_reqs\":", step->padded_request_count, ST_UNKNOWN);
    print_list64(out, ",\"req\":[", step->request_id, step->request_count);
    print_list32(out, ",\"qlen\":[", step->query_len, step->request_count);
    print_list32(out, ",\"start\":[", step->num_computed_tokens, step->request_count);
    if (step->cpu_starts >= 0)
        st_print_bool(out, ",\"cpu_starts\":", step->cpu_starts);
    print_list64(out, ",\"new\":[", step->new_requests.request_id, step->new_requests.count);
    print_prompts(out, step);
    print_list64(out, ",\"finished\":[", step->finished.request_id, step->finished.count);
    print_list64(out, ",\"preempted\":[", step->preempted.request_id, step->preempted.count);
    print_list64(out, ",\"resumed\":[", step->resumed.request_id, step->resumed.count);
    if (step->draft)
        print_list32(out, ",\"draft\":[", step->draft, step->request_count);
    print_blocks(out, step);
    if (step->replaced.count >= 0)
        print_list64(out, ",\"replace\":[", step->replaced.request_id, step->replaced.count);
    if (step->zeroed != ST_UNKNOWN)
        st_print_number(out, ",\"zeroed\":", step->zeroed, ST_UNKNOWN);
    if (step->dropped_before)
        st_print_number(out, ",\"dropped\":", step->dropped_before, 0);
    if (check_json) {
        st_out_string(out, ",\"check\":");
        st_out_json(out, check_json);
    }
    st_out_string(out, "}\n");
}
