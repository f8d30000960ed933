/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coding recorded launches: what libsteptape_inject writes while an engine runs and what a tape
 * keeps.  No SQLite here: the coder runs inside the engine's process, in a thread of its own.
 *
 * A *site* is everything of a launch that repeats: kernel, grid, block, and for kernels of a CUDA
 * graph the graph and the node.  The sites of one graph are its template.  A launch is a site, the
 * call that made it (CUPTI's correlation id, shared by all nodes of one graph launch), its step,
 * start and duration; each is coded as its difference from what the launch before, or the last one
 * of that site, predicts.  A block of launches can be decoded alone: only the sites are shared.
 *
 * traces/LAUNCHES.md has the grammar.
 */
#ifndef ST_FORMAT_LAUNCH_CODE_H
#define ST_FORMAT_LAUNCH_CODE_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/bytes.h"
#include "traces/base/error.h"

enum st_launch_kind {
    ST_LAUNCH_KERNEL,
    ST_LAUNCH_GRAPH, /* a whole graph launch, one record */
    ST_LAUNCH_MEMCPY,
    ST_LAUNCH_MEMSET,
    ST_LAUNCH_API, /* the host's call that launched, on the host's clock */
    ST_LAUNCH_KINDS
};

enum {
    ST_LAUNCH_OUTSIDE = -1,            /* sequence of a launch between steps */
    ST_LAUNCH_UNATTRIBUTED = -2,       /* its call was not seen: the step is not known */
    ST_LAUNCH_SITES_MAX = 1 << 22,     /* of a stream; a tape that claims more is hostile */
    ST_LAUNCH_BLOCK_MAX = 1 << 20,     /* launches of a block */
    ST_LAUNCH_NAME_MAX = 1 << 16,      /* bytes of a kernel's name */
    ST_LAUNCH_DICTIONARY_MAX = 1 << 17 /* sites that an encoder knows at a time */
};

/* What repeats.  Borrowed name, as the compiler mangled it. */
struct st_launch_site {
    int32_t kind;
    uint32_t graph_id;      /* of the executable graph; 0: launched alone */
    uint64_t graph_node_id; /* 0: launched alone */
    const char *name;
    int32_t grid[3], block[3]; /* 0 where the kind has none */
    int32_t shared_bytes;      /* static and dynamic */
    uint32_t stream_id, device_id;
};

/* One launch.  start_ns and end_ns 0: not timed. */
struct st_launch_record {
    int64_t sequence; /* the recorder's number of the step, or ST_LAUNCH_OUTSIDE, _UNATTRIBUTED */
    int64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    int64_t bytes;            /* of a copy or memory set, else 0 */
    int32_t site;
    uint32_t correlation_id;
};

const char *st_launch_kind_name(int32_t kind);

/* Whether a launch has a duration: it was timed, and its end is not before its start. */
static inline bool st_launch_is_timed(const struct st_launch_record *launch) {
    return launch->start_ns != 0 && launch->end_ns != 0 && launch->end_ns >= launch->start_ns;
}

/* Adds its duration, if it has one; sums of a hostile tape wrap around. */
static inline void st_launch_add_time(int64_t *sum_ns, const struct st_launch_record *launch) {
    if (st_launch_is_timed(launch))
        *sum_ns = (int64_t)((uint64_t)*sum_ns + (uint64_t)(launch->end_ns - launch->start_ns));
}

/* ---- encoding */

struct st_launch_encoder;

int st_launch_encoder_create(struct st_launch_encoder **encoder, struct st_error *err);
void st_launch_encoder_destroy(struct st_launch_encoder *encoder);

/* The number of a site, new or known; ST_ERR_UNSUPPORTED when the stream has ST_LAUNCH_SITES_MAX.
 * site->name may be NULL ("").  Call st_launch_encoder_room() before a batch: it forgets the sites
 * when they have become too many, and numbers go on. */
int st_launch_encoder_site(struct st_launch_encoder *encoder, const struct st_launch_site *site,
                           int32_t *number, struct st_error *err);
void st_launch_encoder_room(struct st_launch_encoder *encoder);

/* Sorts a batch the way it is coded (calls in order, nodes of a graph in the template's) and adds
 * it to the block. */
int st_launch_encoder_add(struct st_launch_encoder *encoder, struct st_launch_record *launch,
                          int64_t count, struct st_error *err);
/* Launches in the block so far. */
int64_t st_launch_encoder_count(const struct st_launch_encoder *encoder);
/* Appends what was defined since the last call: payload of a DEFINITIONS chunk; nothing when there
 * is nothing. */
int st_launch_encoder_definitions(struct st_launch_encoder *encoder, struct st_bytes *out,
                                  struct st_error *err);
/* Appends the block (payload of a LAUNCHES chunk) and begins a new one. */
int st_launch_encoder_block(struct st_launch_encoder *encoder, struct st_bytes *out,
                            struct st_error *err);

/* ---- decoding */

/* The head of a block. */
struct st_launch_block {
    int64_t count;
    int64_t first_sequence, last_sequence; /* of steps; -1: none of its launches is in a step */
    int64_t first_start_ns;                /* of its first timed launch in coded order */
};

struct st_launch_decoder;

int st_launch_decoder_create(struct st_launch_decoder **decoder, struct st_error *err);
void st_launch_decoder_destroy(struct st_launch_decoder *decoder);
/* Reads the head of a block without unpacking it. */
int st_launch_block_head(const void *data, size_t size, struct st_launch_block *block,
                         struct st_error *err);
/* Begins to read a block whose sites are below site_count.  data is not needed afterwards. */
int st_launch_decoder_begin(struct st_launch_decoder *decoder, const void *data, size_t size,
                            int64_t site_count, struct st_error *err);
/* 0 and the next launch, or ST_DONE. */
int st_launch_decoder_next(struct st_launch_decoder *decoder, struct st_launch_record *launch,
                           struct st_error *err);

/* Definitions as they come from a stream: calls back for each; strings and sites are borrowed. */
struct st_launch_definitions {
    void *user;
    int (*on_name)(void *user, int64_t number, const char *name, size_t size, struct st_error *err);
    /* site->name is NULL; name_number is below the names seen so far. */
    int (*on_site)(void *user, int64_t number, const struct st_launch_site *site,
                   int64_t name_number, struct st_error *err);
};
/* names, sites: how many were defined before; moved on. */
int st_launch_read_definitions(const void *data, size_t size, int64_t *names, int64_t *sites,
                               const struct st_launch_definitions *to, struct st_error *err);

#endif
