/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine for tests: schedules requests without a model and records itself as a plug-in would,
 * into the tape that STEPTAPE_RECORD names, or the first argument.
 *
 *     fake_engine [--steps N] [--sleep US [--burst STEPS]] [--no-close] [--abort-at N]
 *                 [--requests N] [--ring BYTES] [--progress FILE] [--exit STATUS] [--fork] [X.tape]
 *
 * FILE holds two 64-bit numbers: steps begun, steps recorded.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "steptape/capture.h"

enum { GROUPS = 2, MAX_ROWS = 256, MAX_BLOCKS = 512 };
static const int block_size[GROUPS] = {16, 64};

static const char header[] =
    "{\"kind\":\"steps\",\"version\":1,\"engine\":\"fake\",\"engine_version\":\"1\",\"device\":"
    "\"none\","
    "\"model\":\"none\",\"compress_ratios\":[0,4,128],\"max_model_len\":4096,\"max_num_seqs\":256,"
    "\"max_num_batched_tokens\":2048,\"num_blocks\":100000,\"groups\":["
    "{\"id\":0,\"block_size\":16,\"members\":[{\"kind\":\"attention\",\"layers\":2,\"ratio\":1}]},"
    "{\"id\":1,\"block_size\":64,\"members\":[{\"kind\":\"swa\",\"layers\":1,\"ratio\":1,"
    "\"window\":128}]}]}";

struct options {
    long steps, sleep_us, burst, abort_at, requests, ring, status;
    int no_close, fork;
    const char *path, *progress;
};

struct request {
    int64_t id;
    int32_t prompt, tokens, last;
};

struct engine {
    struct request request[MAX_ROWS];
    int32_t rows;
    int64_t next_id;
    int32_t next_block;
    int32_t table[GROUPS][MAX_ROWS][MAX_BLOCKS], cells[GROUPS][MAX_ROWS];
    int64_t id[MAX_ROWS], added[MAX_ROWS], finished[MAX_ROWS];
    int32_t query[MAX_ROWS], start[MAX_ROWS], prompt[MAX_ROWS];
    int32_t added_count, finished_count;
};

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Finished ones leave; the last row takes the place. */
static void leave(struct engine *e) {
    e->finished_count = 0;
    for (int32_t r = 0; r < e->rows;) {
        if (e->request[r].tokens < e->request[r].last) {
            r++;
            continue;
        }
        e->finished[e->finished_count++] = e->request[r].id;
        e->rows--;
        e->request[r] = e->request[e->rows];
        for (int g = 0; g < GROUPS; g++) {
            memcpy(e->table[g][r], e->table[g][e->rows], sizeof e->table[g][r]);
            e->cells[g][r] = e->cells[g][e->rows];
        }
    }
}

static void join(struct engine *e, long requests) {
    e->added_count = 0;
    while (e->rows < requests && e->added_count < 4) {
        int64_t id = e->next_id++;
        int32_t prompt = 20 + (int32_t)(id * 37 % 300), r = e->rows++;
        e->request[r] = (struct request){id, prompt, 0, prompt + 30 + (int32_t)(id * 53 % 200)};
        e->added[e->added_count] = id;
        e->prompt[e->added_count++] = prompt;
        for (int g = 0; g < GROUPS; g++)
            e->cells[g][r] = 0;
    }
}

static void schedule(struct engine *e, long requests) {
    leave(e);
    join(e, requests);
    for (int32_t r = 0; r < e->rows; r++) {
        struct request *q = &e->request[r];
        e->id[r] = q->id;
        e->start[r] = q->tokens;
        e->query[r] = q->tokens < q->prompt ? q->prompt - q->tokens : 1;
        q->tokens += e->query[r];
        for (int g = 0; g < GROUPS; g++)
            while (e->cells[g][r] * block_size[g] < q->tokens)
                e->table[g][r][e->cells[g][r]++] = 1 + e->next_block++ % 99999;
    }
}

static int record(struct engine *e, struct steptape_recorder *recorder, int64_t began) {
    struct steptape_step_blocks blocks[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        blocks[g] = (struct steptape_step_blocks){.table = e->table[g][0],
                                                  .row_stride = MAX_BLOCKS,
                                                  .row_cell_count = e->cells[g],
                                                  .cells_per_block = 1};
    const struct steptape_step step = {
        .struct_size = sizeof step,
        .graph_mode = 0,
        .cpu_starts = 1,
        .request_count = e->rows,
        .start_ns = began,
        .duration_ns = now_ns() - began,
        .padded_token_count = STEPTAPE_UNKNOWN,
        .padded_request_count = STEPTAPE_UNKNOWN,
        .zeroed_count = STEPTAPE_UNKNOWN,
        .request_id = e->id,
        .query_len = e->query,
        .num_computed_tokens = e->start,
        .new_count = e->added_count,
        .finished_count = e->finished_count,
        .replaced_count = -1,
        .new_request = e->added,
        .new_prompt_len = e->prompt,
        .finished = e->finished,
        .group_count = GROUPS,
        .blocks = blocks,
    };
    return steptape_recorder_record_step(recorder, &step);
}

static void parse(int argc, char **argv, struct options *o) {
    const struct {
        const char *name;
        long *to;
    } numbers[] = {{"--steps", &o->steps},       {"--sleep", &o->sleep_us},
                   {"--abort-at", &o->abort_at}, {"--requests", &o->requests},
                   {"--exit", &o->status},       {"--burst", &o->burst},
                   {"--ring", &o->ring}};
    const size_t count = sizeof numbers / sizeof numbers[0];
    o->path = getenv("STEPTAPE_RECORD");
    for (int i = 1; i < argc; i++) {
        size_t n = 0;
        while (n < count && strcmp(argv[i], numbers[n].name) != 0)
            n++;
        if (n < count && i + 1 < argc)
            *numbers[n].to = strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--no-close") == 0)
            o->no_close = 1;
        else if (strcmp(argv[i], "--fork") == 0)
            o->fork = 1;
        else if (strcmp(argv[i], "--progress") == 0 && i + 1 < argc)
            o->progress = argv[++i];
        else
            o->path = argv[i];
    }
}

static volatile int64_t *map_progress(const char *path) {
    static int64_t nowhere[2];
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, 16) < 0)
        return nowhere;
    void *map = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map == MAP_FAILED ? nowhere : map;
}

static volatile sig_atomic_t stopped;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

int main(int argc, char **argv) {
    struct options o = {.steps = 100, .burst = 1, .abort_at = -1, .requests = 8};
    struct steptape_recorder *recorder = NULL;
    char message[512];
    parse(argc, argv, &o);
    signal(SIGTERM, stop);
    volatile int64_t *progress = map_progress(o.progress);
    const struct steptape_recorder_options options = {.struct_size = sizeof options,
                                                      .ring_bytes = o.ring};
    if (o.path &&
        steptape_recorder_open(o.path, header, &options, &recorder, message, sizeof message))
        fprintf(stderr, "fake engine: not recording: %s\n", message);
    else if (o.path && message[0])
        fprintf(stderr, "fake engine: %s\n", message);
    if (o.fork && fork() == 0) { /* a worker that outlives the engine */
        sleep(2);
        _exit(0); /* exit() checks for leaks, and for that takes locks of the writer's thread */
    }
    struct engine *e = calloc(1, sizeof *e);
    for (long i = 0; e && i < o.steps && !stopped; i++) {
        int64_t began = now_ns();
        if (i == o.abort_at)
            raise(SIGKILL);
        schedule(e, o.requests < MAX_ROWS ? o.requests : MAX_ROWS);
        progress[0]++;
        progress[1] += record(e, recorder, began) == 0;
        if (o.sleep_us && i % o.burst == 0)
            usleep((useconds_t)o.sleep_us);
    }
    free(e);
    printf("engine: done%s\n", stopped ? ", stopped" : "");
    if (recorder && !o.no_close && steptape_recorder_close(recorder, message, sizeof message))
        fprintf(stderr, "fake engine: %s\n", message);
    return (int)o.status;
}
