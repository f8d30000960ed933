/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libsteptape_capture: records what an engine's scheduler did, step by step, into a tape.
 *
 *     struct steptape_recorder *recorder;
 *     char message[512];
 *     if (steptape_recorder_open("x.tape", header_json, NULL, &recorder, message, sizeof message))
 *         log(message);                                      -- and go on without recording
 *     for (every step)
 *         steptape_recorder_record_step(recorder, &step);    -- after the step's end
 *     steptape_recorder_close(recorder, message, sizeof message);
 *
 * record_step copies the step into a ring, a file that is mapped and reserved in full by open; a
 * thread of the library codes it and writes the tape.  After open, record_step allocates nothing,
 * makes no system call, takes no lock and waits for nobody.  A step that finds the ring full is
 * dropped whole and counted, in the tape too; what happened in it to requests (new, finished, block
 * ids) is carried into the next step that is recorded.
 *
 * While recording, the files lie in the folder x.tape.recording (mode 0700).  close() makes x.tape
 * of them.  When the process ends without it, by kill -9 too, `steptape recover x.tape` or
 * steptape_recover() does: at most the step that was being copied is lost.  A name that is taken is
 * never written over: the next tape is x.2.tape.
 *
 * Requests are numbers of the caller's choice, never twice the same for two requests: no name, no
 * prompt and no token id comes into this library.
 *
 * Threads: one thread calls record_step and note of a recorder; sequence and get_stats may be
 * called from any.  A recorder belongs to the process that opened it: in a child made by fork() its
 * calls do nothing and return STEPTAPE_RECORDER_ERR_OFF.
 *
 * Every struct begins with struct_size = sizeof it, so that later versions can grow it.
 */
#ifndef STEPTAPE_CAPTURE_H
#define STEPTAPE_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STEPTAPE_API __attribute__((visibility("default")))
#else
#define STEPTAPE_API
#endif

/* A time or a size that nobody measured. */
#define STEPTAPE_UNKNOWN INT64_MIN

/* Values are pinned; gaps are left for more of a kind. */
enum steptape_recorder_status {
    STEPTAPE_RECORDER_OK = 0,
    STEPTAPE_RECORDER_DROPPED = 1,        /* the ring is full: this step is counted, not kept */
    STEPTAPE_RECORDER_ERR_NOMEM = -1,     /* open: an allocation failed */
    STEPTAPE_RECORDER_ERR_IO = -10,       /* the system refused: no space, no permission */
    STEPTAPE_RECORDER_ERR_BUSY = -11,     /* open: another recorder records this path */
    STEPTAPE_RECORDER_ERR_OFF = -12,      /* recording has ended: see the stats' message */
    STEPTAPE_RECORDER_ERR_ARGUMENT = -20, /* a header, or a step, that makes no sense */
    STEPTAPE_RECORDER_ERR_DAMAGED = -21   /* recover: the files are damaged */
};

enum steptape_recorder_state {
    STEPTAPE_RECORDER_RECORDING = 0,
    STEPTAPE_RECORDER_FILLING =
        1,                    /* the writer has failed; steps are kept until the ring is full */
    STEPTAPE_RECORDER_OFF = 2 /* no step is taken any more */
};

struct steptape_recorder;

struct steptape_recorder_options {
    uint32_t struct_size;
    int32_t max_requests; /* in one step; 0: max_num_seqs of the header, or 1024 */
    int64_t ring_bytes;   /* 0: 64 MiB; 1 MiB to 1 GiB */
    const char *part;     /* NULL, or which part of a recording by many processes this one writes:
                             "rank1" makes x.rank1.tape; letters, digits, '_' and '-' */
};

/*
 * The block ids that requests got in a step, of one KV cache group.  Either the runner's block
 * table, of which the library takes what is new since the last step, or, with table NULL, runs: the
 * new ids alone, a run for each row that got any, in any order of rows.  A group keeps its form for
 * a whole recording.
 */
struct steptape_step_blocks {
    const int32_t *table;          /* [request_count][row_stride] cells, rows as in request_id */
    int64_t row_stride;            /* cells from one row to the next */
    const int32_t *row_cell_count; /* [request_count] used cells of each row */
    int32_t cells_per_block;       /* a runner may split a block of the allocator into so many
                                      kernel blocks of consecutive ids: the allocator's id is
                                      cell / cells_per_block of every cells_per_block-th cell;
                                      1: the cells are the ids */
    int32_t run_count;             /* 0 to request_count */
    const int32_t *run_row;        /* [run_count] rows; of one that comes again the ids follow */
    const int32_t *run_length;     /* [run_count] ids of each run, >= 1; NULL: one each */
    const int32_t *block_id;       /* ids >= 0, run after run; 0 is the null block */
};

/* One step: a forward pass over one scheduled batch.  Everything is read before the call returns.
 */
struct steptape_step {
    uint32_t struct_size;
    int32_t graph_mode;    /* -1 unknown, 0 NONE, 1 PIECEWISE, 2 FULL */
    int32_t cpu_starts;    /* whether the engine had num_computed_tokens on the CPU: 1, 0; -1: not
                              said, which means 1 */
    int32_t request_count; /* rows of the batch */
    int64_t start_ns;      /* CLOCK_MONOTONIC; STEPTAPE_UNKNOWN */
    int64_t duration_ns;   /* STEPTAPE_UNKNOWN */
    int64_t padded_token_count, padded_request_count; /* sizes the engine ran with; _UNKNOWN */
    int64_t zeroed_count;      /* blocks that the engine clears before the step; _UNKNOWN */
    const int64_t *request_id; /* [request_count] >= 0, in batch order */
    const int32_t *query_len;  /* [request_count] >= 1: tokens scheduled */
    const int32_t *num_computed_tokens; /* [request_count] >= 0, at the start of the step */
    const int32_t *draft;               /* [request_count] speculative tokens, or NULL */

    /* What happened before the step.  finished and preempted requests are not in request_id. */
    int32_t new_count, finished_count, preempted_count, resumed_count;
    int32_t replaced_count;        /* -1: this engine does not say */
    const int64_t *new_request;    /* [new_count] first scheduled in this step */
    const int32_t *new_prompt_len; /* [new_count]; -1: unknown */
    const int64_t *finished;       /* [finished_count] */
    const int64_t *preempted;      /* [preempted_count] */
    const int64_t *resumed;        /* [resumed_count] preempted ones that run again */
    const int64_t *replaced;       /* [replaced_count] whose table is a new one: ids given here
                                      replace the old ones */
    int32_t group_count;           /* as in the header */
    const struct steptape_step_blocks *blocks; /* [group_count] */
    const char *check_json; /* NULL, or the `check` object of the interchange format: what the
                               engine itself held, for tests */
};

struct steptape_recorder_stats {
    uint32_t struct_size;
    int32_t state;      /* enum steptape_recorder_state */
    int64_t step_count; /* recorded */
    int64_t dropped_count;
    int64_t committed_count;              /* of those recorded, already in the unfinished tape */
    int64_t byte_count;                   /* copied into the ring */
    int64_t cost_sum_ns;                  /* time in record_step, over all calls */
    int64_t cost_median_ns, cost_p999_ns; /* upper ends of the classes they fall into, which are an
                                             eighth wide; STEPTAPE_UNKNOWN before the first step */
    int64_t cost_max_ns;
    char message[256]; /* why recording has ended or will; "" */
};

/*
 * Starts a recording of path ("x.tape").  header_json: line 1 of the interchange format; a clock
 * that it lacks is filled in.  options may be NULL.  0, or a negative status and *recorder NULL.
 * message (may be NULL) gets one line without a newline: on failure why; on success "", or what the
 * log should say (another name was taken).
 */
STEPTAPE_API int steptape_recorder_open(const char *path, const char *header_json,
                                        const struct steptape_recorder_options *options,
                                        struct steptape_recorder **recorder, char *message,
                                        size_t message_size);

/* The number of the step that record_step takes next; dropped ones count.  -1 for NULL. */
STEPTAPE_API int64_t steptape_recorder_sequence(const struct steptape_recorder *recorder);

/*
 * Takes a step.  STEPTAPE_RECORDER_OK; STEPTAPE_RECORDER_DROPPED when the ring is full; a negative
 * status when recording has ended, and it stays ended.  NULL is a recorder that is off.
 */
STEPTAPE_API int steptape_recorder_record_step(struct steptape_recorder *recorder,
                                               const struct steptape_step *step);

/*
 * Something about the recording that the tape should say: the plug-in's version, which of its hooks
 * it found, why it went off.  Short texts; 64 KiB in all, then STEPTAPE_RECORDER_DROPPED.
 */
STEPTAPE_API int steptape_recorder_note(struct steptape_recorder *recorder, const char *key,
                                        const char *value);

/* Fills *stats, whose struct_size the caller has set. */
STEPTAPE_API int steptape_recorder_get_stats(const struct steptape_recorder *recorder,
                                             struct steptape_recorder_stats *stats);

/*
 * Writes what is left and makes the tape.  0 and message = path of the tape, from the root; or a
 * negative status and message = why, and what `steptape recover` can still do.  The recorder is
 * gone.  It may take seconds: a long tape is hashed.  NULL is allowed.
 */
STEPTAPE_API int steptape_recorder_close(struct steptape_recorder *recorder, char *message,
                                         size_t message_size);

/*
 * Makes tapes of all recordings of path that no live process holds.  0 and message = what was made;
 * or a negative status and message = why.
 */
STEPTAPE_API int steptape_recover(const char *path, char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
