/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sim backend: executes nothing, times a plan on a device profile.
 *
 * How it works
 *  - A kernel takes max(least kernel time, bytes / bandwidth, flops / rate), and for each block the
 *    time to hand it out.
 *  - Eager: the host issues one launch every host_issue_ns; a kernel starts when it was issued and
 *    the one before it has ended (plus the stream's gap), whichever is later.
 *  - A graph's launch is one issue; its nodes follow each other with the node gap.
 *  - step_ns runs from the first issue to the end of the last kernel.
 *
 * It is an analytic model of what the profile says, its error is not known (run.sim_error is NULL),
 * and it is deterministic: the same plan gives the same time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/backend.h"
#include "replay/device.h"

struct st_backend {
    struct st_device device;
    struct st_step_result result;
    struct st_backend_counters counters;
};

static int probe(struct st_error *err) {
    (void)err;
    return 0;
}

static int open_backend(const struct st_backend_config *config, struct st_backend **out,
                        struct st_backend_info *info, struct st_error *err) {
    struct st_device device;
    ST_TRY(st_device_load(config->device, &device, err));
    for (int32_t i = 0; i < config->device_set_count; i++)
        ST_TRY(st_device_set(&device, config->device_set[i], err));
    struct st_backend *b = calloc(1, sizeof *b);
    if (!b)
        return ST_FAIL_NOMEM(err);
    b->device = device;
    memset(info, 0, sizeof *info);
    snprintf(info->device, sizeof info->device, "sim: %s (%s profile%s)",
             device.device[0] ? device.device : device.name, device.origin,
             config->device_set_count ? ", changed" : "");
    info->simulated = true;
    snprintf(info->error_note, sizeof info->error_note,
             "simulated on a %s profile; the error is not known", device.origin);
    *out = b;
    return 0;
}

static int prepare(struct st_backend *b, const struct st_step_input *input, struct st_error *err) {
    (void)b;
    (void)input;
    (void)err;
    return 0;
}

static double kernel_ns(const struct st_device *device, const struct st_launch *launch) {
    double memory = (double)launch->bytes / device->dram_bytes_per_s * 1e9;
    double compute = (double)launch->flops / device->fp32_flops_per_s * 1e9;
    double work = fmax(device->min_kernel_ns, fmax(memory, compute));
    return work + launch->grid * device->block_ps * 1e-3;
}

static int launch_plan(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                       struct st_error *err) {
    (void)policy;
    (void)err;
    const struct st_device *device = &b->device;
    double issued = 0, free_at = 0, total = 0;
    double op_ns[ST_OP_COUNT] = {0};
    bool graph_open = false;
    memset(&b->result, 0, sizeof b->result);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        double ns = kernel_ns(device, launch), start;
        if (!launch->in_graph) {
            issued += device->host_issue_ns;
            start = fmax(issued, free_at + device->stream_gap_ns);
        } else if (!graph_open) {
            graph_open = true;
            issued += device->graph_launch_ns;
            start = fmax(issued, free_at + device->graph_node_ns);
            b->counters.graph_launches++;
        } else {
            start = free_at + device->graph_node_ns;
        }
        free_at = start + ns;
        total += ns;
        op_ns[launch->op] += ns;
        b->result.launches[launch->op]++;
        b->counters.launches++;
    }
    b->result.step_ns = llround(free_at);
    b->result.kernel_ns = llround(total);
    for (int i = 0; i < ST_OP_COUNT; i++)
        b->result.op_kernel_ns[i] = llround(op_ns[i]);
    return 0;
}

static int sync_backend(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    (void)err;
    *result = b->result;
    return 0;
}

static void counters(const struct st_backend *b, struct st_backend_counters *out) {
    *out = b->counters;
}

static void close_backend(struct st_backend *b) {
    free(b);
}

const struct st_backend_ops st_backend_sim = {
    .name = "sim",
    .summary = "no execution: the plan timed on a device profile (--device)",
    .pass_mask = 1u << ST_PASS_TIME,
    .default_pass_mask = 1u << ST_PASS_TIME,
    .probe = probe,
    .open = open_backend,
    .prepare = prepare,
    .launch = launch_plan,
    .sync = sync_backend,
    .counters = counters,
    .close = close_backend,
};
