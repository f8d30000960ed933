/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that libsteptape_inject appends to while an engine runs, one a process: chunks, each
 * with its size and checksum, so that a process that was killed loses at most the chunk that it was
 * writing.  traces/LAUNCHES.md has the grammar.
 *
 * Writing makes chunks in memory and leaves the file to the caller.  Reading holds one chunk.
 */
#ifndef ST_FORMAT_LAUNCH_STREAM_H
#define ST_FORMAT_LAUNCH_STREAM_H

#include <stdint.h>

#include "traces/base/bytes.h"
#include "traces/base/error.h"

enum st_launch_chunk {
    ST_CHUNK_HEAD = 1,        /* text: what records, and where */
    ST_CHUNK_DEFINITIONS = 2, /* launch_code.h */
    ST_CHUNK_LAUNCHES = 3,    /* launch_code.h */
    ST_CHUNK_STEPS = 4,       /* below */
    ST_CHUNK_NOTE = 5,        /* text: something happened */
    ST_CHUNK_TOTALS = 6,      /* text: counts since the start */
    ST_CHUNK_END = 7          /* text: as TOTALS; nothing follows */
};

enum {
    ST_CHUNK_HEAD_BYTES = 24,
    ST_CHUNK_MAX = 64 << 20, /* payload; a larger one is damage */
    ST_LAUNCH_STEPS_MAX = 1 << 16
};

enum st_launch_level {
    ST_LEVEL_OFF,
    ST_LEVEL_COUNT,
    ST_LEVEL_GRAPH,
    ST_LEVEL_NODE,
    ST_LEVEL_FULL,
    ST_LEVELS
};
const char *st_launch_level_name(int32_t level);
/* -1: no such level. */
int32_t st_launch_level_parse(const char *name);

/* A step as the capture saw it: counted on the thread that ran it. */
struct st_launch_step {
    int64_t sequence;
    int32_t level;                 /* enum st_launch_level that it ran at */
    int32_t changed;               /* 1: the level changed while it ran: launches may be missing */
    int64_t start_ns, duration_ns; /* CLOCK_MONOTONIC, between the two calls */
    int64_t kernel_launches, graph_launches; /* calls; -1: not counted (level off) */
    int64_t graph_kernels; /* kernel nodes of those graphs; -1: not known of all */
};

/* ---- writing: each appends one whole chunk to out */
int st_chunk_put(struct st_bytes *out, enum st_launch_chunk type, const void *data, size_t size,
                 struct st_error *err);
/* At most ST_LAUNCH_STEPS_MAX. */
int st_chunk_put_steps(struct st_bytes *out, const struct st_launch_step *step, int64_t count,
                       struct st_error *err);
/* Adds "KEY=VALUE" to a text; line ends in the value become spaces. */
void st_chunk_text(struct st_bytes *text, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- reading */

struct st_launch_stream;

/* ST_ERR_INPUT when the file does not begin as a stream. */
int st_launch_stream_open(const char *path, struct st_launch_stream **stream, struct st_error *err);
void st_launch_stream_close(struct st_launch_stream *stream);
/* 0 and the next chunk, borrowed until the next call; or ST_DONE, also at the first chunk that is
 * not whole: nothing behind it can be read. */
int st_launch_stream_next(struct st_launch_stream *stream, int32_t *type, const uint8_t **data,
                          size_t *size, struct st_error *err);
/* Bytes at the end that are no whole chunk; known after ST_DONE. */
int64_t st_launch_stream_torn(const struct st_launch_stream *stream);

/* Steps of a STEPS chunk; *step is the caller's to free. */
int st_chunk_read_steps(const void *data, size_t size, struct st_launch_step **step, int64_t *count,
                        struct st_error *err);
/* The value of a key in a text, cut to size; NULL when it has none. */
const char *st_chunk_read_text(const void *data, size_t size, const char *key, char *value,
                               size_t value_size);
/* The same as an integer; fallback when there is none. */
int64_t st_chunk_read_integer(const void *data, size_t size, const char *key, int64_t fallback);

#endif
