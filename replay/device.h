/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device profiles: what the simulator knows of a GPU.  Data, not code: JSON files in
 * replay/devices, embedded in the program, or a file of the user's.
 */
#ifndef ST_REPLAY_DEVICE_H
#define ST_REPLAY_DEVICE_H

#include "traces/base/error.h"

struct st_device {
    char name[64];
    char device[96];
    char origin[32]; /* "datasheet", "measured" */
    char note[256];
    double sm_count;
    double dram_bytes_per_s;
    double fp32_flops_per_s;
    double bf16_flops_per_s; /* dense, of the tensor cores */
    double min_kernel_ns;    /* of a kernel with nothing to do */
    double block_ps;         /* the whole device hands out a block every so often */
    double stream_gap_ns;    /* end of a kernel to the start of the next in a stream */
    double host_issue_ns;    /* host time of one eager launch */
    double graph_launch_ns;  /* launch of a graph to the start of its first node */
    double graph_node_ns;    /* end of a node to the start of the next */
};

/* name: NULL ("h200"), a bundled profile, or a file (a name with '/' or ".profile"). */
int st_device_load(const char *name, struct st_device *device, struct st_error *err);
/* "host_issue_ns=2000".  "sm_count=66" takes the rates of the SMs with it, which are the whole
 * device's: flops, and blocks handed out. */
int st_device_set(struct st_device *device, const char *assignment, struct st_error *err);

#endif
