/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sim backend: executes nothing, times a plan on a device profile.
 *
 * How it works
 *  - A kernel takes max(least kernel time, bytes / bandwidth, flops / rate), and for each block the
 *    time to hand it out.
 *  - Eager: the host issues one launch every host_issue_ns; a kernel starts when it was issued and
 *    the one before it has ended (plus the stream's gap), whichever is later.
 *  - A graph's launch is one issue; its nodes follow each other with the node gap, which a node
 * that is switched off takes too.  What the host does to switch it is not modelled.
 *  - step_ns runs from the first issue to the end of the last kernel.
 *
 * It is an analytic model of what the profile says, its error is not known (run.sim_error is NULL),
 * and it is deterministic: the same plan gives the same time.
 */
#include <math.h>
#include <stdbool.h>
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

static double flops_per_s(const struct st_device *device, const struct st_launch *launch) {
    bool tensor = launch->op == ST_OP_SPARSE_MLA_DECODE || launch->op == ST_OP_SPARSE_MLA_PREFILL;
    return tensor ? device->bf16_flops_per_s : device->fp32_flops_per_s;
}

/* All kernels of a launch, what lies between them included. */
static double launch_ns(const struct st_device *device, const struct st_launch *launch,
                        double gap_ns) {
    double memory = (double)launch->bytes / device->dram_bytes_per_s * 1e9;
    double compute = (double)launch->flops / flops_per_s(device, launch) * 1e9;
    double least = device->min_kernel_ns * launch->launch_count;
    double work = fmax(least, fmax(memory, compute));
    return work + launch->grid * device->block_ps * 1e-3 + (launch->launch_count - 1) * gap_ns;
}

struct timeline {
    double issued, free_at;
    bool graph_open;
};

/* When a launch of the step can start; the host issues what is no node of an open graph. */
static double start_of(struct st_backend *b, const struct st_launch *launch, struct timeline *t) {
    const struct st_device *device = &b->device;
    if (!launch->in_graph) {
        t->issued += device->host_issue_ns * launch->launch_count;
        return fmax(t->issued, t->free_at + device->stream_gap_ns);
    }
    if (t->graph_open)
        return t->free_at + device->graph_node_ns;
    t->graph_open = true;
    t->issued += device->graph_launch_ns;
    b->counters.graph_launches++;
    return fmax(t->issued, t->free_at + device->graph_node_ns);
}

static int launch_plan(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                       struct st_error *err) {
    (void)policy;
    (void)err;
    struct timeline t = {0};
    double total = 0, op_ns[ST_OP_COUNT] = {0};
    memset(&b->result, 0, sizeof b->result);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op >= ST_OP_COUNT || launch->launch_count == 0)
            continue;
        double start = start_of(b, launch, &t);
        t.free_at = start;
        if (launch->disabled) /* the node is passed, nothing runs */
            continue;
        double ns = launch_ns(&b->device, launch,
                              launch->in_graph ? b->device.graph_node_ns : b->device.stream_gap_ns);
        t.free_at += ns;
        total += ns;
        op_ns[launch->op] += ns;
        b->result.launches[launch->op] += (int32_t)launch->launch_count;
        b->counters.launches += launch->launch_count;
    }
    b->result.step_ns = llround(t.free_at);
    b->result.host_ns = llround(t.issued);
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
