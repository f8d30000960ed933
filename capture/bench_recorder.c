/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench recorder: what a step costs the engine's thread, beside a bare copy of the same
 * bytes.
 *
 * Decode steps: every request grows by a token, and by a block of a group when one is full. Between
 * two steps the caches are filled with other things, as an engine does.  Recorder and bare copy
 * take turns in being first; each reads arrays of its own and writes into a mapped file of its own,
 * at the same places.
 */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "capture/bench.h"
#include "capture/recorder_i.h"
#include "traces/base/command.h"

enum { MAX_ROWS = 1024, ROW_CELLS = 4096, WARM_STEPS = 200 };

static const int32_t block_size[] = {256, 64, 64, 8, 4}; /* as the groups of DeepSeek-V4 have */
enum { GROUPS = sizeof block_size / sizeof block_size[0] };

enum form { FORM_TABLE, FORM_RUNS, FORMS };
static const char *const form_name[] = {"table", "runs"};

struct options {
    bool json;
    const char *folder;
    int32_t requests; /* 0: all sizes */
    int32_t steps;
    int64_t evict_bytes;
};

/* What an engine holds of its batch.  The bare copy has one of its own, as cold in the caches. */
struct batch {
    int64_t id[MAX_ROWS];
    int32_t query[MAX_ROWS], start[MAX_ROWS], prompt[MAX_ROWS];
    int32_t table[GROUPS][MAX_ROWS][ROW_CELLS], cells[GROUPS][MAX_ROWS];
    int32_t added[GROUPS][MAX_ROWS];
    int32_t run_count[GROUPS], run_row[GROUPS][MAX_ROWS], run_length[GROUPS][MAX_ROWS];
    int32_t block_count[GROUPS], block_id[GROUPS][MAX_ROWS * 64];
};

/* Ids of one row that the bare copy copies. */
struct piece {
    int32_t group, row, from, count;
};

struct row {
    int32_t requests;
    enum form form;
    int64_t bytes; /* of a record, mean */
    int64_t dropped;
    int32_t samples;
    double record[3], copy[3]; /* median, p99, p99.9; us */
    double beyond;             /* median of the differences, us */
    double writer;             /* processor time of its thread a step in the tape, us */
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int64_t now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

static int64_t others_ns(void) { /* processor time of all threads but this one */
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID) - clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* Next step of every request; gives the bytes that its record has. */
static size_t grow(struct batch *b, int32_t rows, int64_t step) {
    size_t bytes = sizeof(struct st_ring_record) + (size_t)rows * 16 + GROUPS * 8;
    bytes += step ? 0 : (size_t)rows * 12; /* new ones and their prompts */
    memset(b->run_count, 0, sizeof b->run_count);
    memset(b->block_count, 0, sizeof b->block_count);
    for (int32_t r = 0; r < rows; r++) {
        b->start[r] += step ? b->query[r] : 0;
        b->query[r] = step ? 1 : 1 + (r * 37 + 11) % 256; /* all at different places of a block */
        int32_t tokens = b->start[r] + b->query[r];
        for (int g = 0; g < GROUPS; g++) {
            int32_t first = b->cells[g][r];
            for (; b->cells[g][r] * block_size[g] < tokens && b->cells[g][r] < ROW_CELLS;
                 b->cells[g][r]++)
                b->table[g][r][b->cells[g][r]] = (r * 7919 + g * 31 + b->cells[g][r]) & 0xfffff;
            int32_t added = b->cells[g][r] - first, run = b->run_count[g];
            b->added[g][r] = added;
            if (!added)
                continue;
            memcpy(b->block_id[g] + b->block_count[g], b->table[g][r] + first,
                   (size_t)added * sizeof(int32_t));
            b->block_count[g] += added;
            b->run_row[g][run] = r;
            b->run_length[g][run] = added;
            b->run_count[g]++;
            bytes += 8 + 4 * (size_t)added;
        }
    }
    return (bytes + 7) & ~(size_t)7;
}

static void describe(const struct batch *b, int32_t rows, enum form form, bool first,
                     struct steptape_step_blocks *blocks, struct steptape_step *step) {
    for (int g = 0; g < GROUPS; g++) {
        blocks[g] = (struct steptape_step_blocks){0};
        if (form == FORM_TABLE)
            blocks[g] = (struct steptape_step_blocks){.table = b->table[g][0],
                                                      .row_stride = ROW_CELLS,
                                                      .row_cell_count = b->cells[g],
                                                      .cells_per_block = 1};
        else
            blocks[g] = (struct steptape_step_blocks){.run_count = b->run_count[g],
                                                      .run_row = b->run_row[g],
                                                      .run_length = b->run_length[g],
                                                      .block_id = b->block_id[g]};
    }
    *step = (struct steptape_step){
        .struct_size = sizeof *step,
        .graph_mode = 2,
        .cpu_starts = 1,
        .request_count = rows,
        .start_ns = now_ns(),
        .duration_ns = 1000000,
        .padded_token_count = rows,
        .padded_request_count = rows,
        .zeroed_count = STEPTAPE_UNKNOWN,
        .request_id = b->id,
        .query_len = b->query,
        .num_computed_tokens = b->start,
        .new_count = first ? rows : 0,
        .new_request = b->id,
        .new_prompt_len = b->prompt,
        .replaced_count = -1,
        .group_count = GROUPS,
        .blocks = blocks,
    };
}

static int32_t list_pieces(const struct batch *b, int32_t rows, enum form form,
                           struct piece *piece) {
    int32_t count = 0;
    for (int g = 0; g < GROUPS; g++) {
        if (form == FORM_RUNS && b->block_count[g])
            piece[count++] = (struct piece){g, -1, 0, b->block_count[g]};
        for (int32_t row = 0; form == FORM_TABLE && row < rows; row++) {
            int32_t added = b->added[g][row];
            if (added)
                piece[count++] = (struct piece){g, row, b->cells[g][row] - added, added};
        }
    }
    return count;
}

/* The bare copy: request numbers, lengths and starts, the new ids from where the engine has them,
 * and as many more bytes as the record has. */
static int64_t time_copy(const struct batch *b, size_t rows, const struct piece *piece,
                         int32_t count, size_t bytes, uint8_t *to) {
    static const uint8_t rest[1 << 18];
    uint8_t *end = to + bytes;
    int64_t begin = now_ns();
    memcpy(to, b->id, rows * sizeof b->id[0]);
    memcpy(to + rows * 8, b->query, rows * sizeof b->query[0]);
    memcpy(to + rows * 12, b->start, rows * sizeof b->start[0]);
    int32_t *id = (int32_t *)(void *)(to + rows * 16);
    for (int32_t i = 0; i < count; i++) {
        const int32_t *from = piece[i].row < 0
                                  ? b->block_id[piece[i].group]
                                  : b->table[piece[i].group][piece[i].row] + piece[i].from;
        for (int32_t k = 0; k < piece[i].count; k++)
            *id++ = from[k];
    }
    if ((uint8_t *)id < end)
        memcpy(id, rest, (size_t)(end - (uint8_t *)id) % sizeof rest);
    __asm__ volatile("" ::: "memory");
    return now_ns() - begin;
}

static int64_t time_record(struct steptape_recorder *recorder, const struct steptape_step *step) {
    int64_t begin = now_ns();
    steptape_recorder_record_step(recorder, step);
    return now_ns() - begin;
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void quantiles(int64_t *ns, int32_t count, double us[3]) {
    static const double share[3] = {0.5, 0.99, 0.999};
    qsort(ns, (size_t)count, sizeof *ns, compare);
    for (int i = 0; i < 3; i++)
        us[i] = (double)ns[(int32_t)(share[i] * (count - 1) + 0.5)] * 1e-3;
}

struct run {
    const struct options *options;
    struct batch *batch, *twin;
    struct piece *piece;
    uint8_t *evict, *copy_ring;
    int64_t *record_ns, *copy_ns, *beyond_ns;
};

static void fill_caches(struct run *r) {
    for (int64_t i = 0; i < r->options->evict_bytes; i += 64)
        r->evict[i]++;
    __asm__ volatile("" ::: "memory");
}

static void measure_steps(struct run *r, struct steptape_recorder *recorder, struct row *row) {
    struct steptape_step_blocks blocks[GROUPS];
    struct steptape_step step;
    struct batch *b = r->batch, *twin = r->twin;
    size_t rows = (size_t)row->requests;
    int64_t bytes_sum = 0;
    memset(b, 0, sizeof *b);
    memset(twin, 0, sizeof *twin);
    for (int32_t i = 0; i < row->requests; i++)
        twin->id[i] = b->id[i] = i;
    for (int32_t i = -WARM_STEPS; i < r->options->steps; i++) {
        size_t bytes = grow(b, row->requests, i + WARM_STEPS);
        grow(twin, row->requests, i + WARM_STEPS);
        int32_t pieces = list_pieces(twin, row->requests, row->form, r->piece);
        describe(b, row->requests, row->form, i == -WARM_STEPS, blocks, &step);
        uint64_t offset = recorder->ring.position % recorder->ring.capacity;
        uint8_t *to = r->copy_ring + (offset + bytes <= recorder->ring.capacity ? offset : 0);
        fill_caches(r);
        int64_t copy = i & 1 ? time_copy(twin, rows, r->piece, pieces, bytes, to) : 0;
        int64_t record = time_record(recorder, &step);
        if (!(i & 1))
            copy = time_copy(twin, rows, r->piece, pieces, bytes, to);
        if (i < 0)
            continue;
        r->record_ns[i] = record;
        r->copy_ns[i] = copy;
        r->beyond_ns[i] = record - copy;
        bytes_sum += (int64_t)bytes;
    }
    row->bytes = bytes_sum / r->options->steps;
}

static int measure(struct run *r, struct row *row, struct st_error *err) {
    static const char header[] =
        "{\"kind\":\"steps\",\"version\":1,\"engine\":\"bench\",\"max_num_seqs\":1024,"
        "\"num_blocks\":2147483647,\"groups\":["
        "{\"id\":0,\"block_size\":256,\"members\":[{\"kind\":\"kv\",\"layers\":1,\"ratio\":4}]},"
        "{\"id\":1,\"block_size\":64,\"members\":[{\"kind\":\"kv\",\"layers\":1,\"ratio\":1}]},"
        "{\"id\":2,\"block_size\":64,\"members\":[{\"kind\":\"swa\",\"layers\":1,\"ratio\":1}]},"
        "{\"id\":3,\"block_size\":8,\"members\":[{\"kind\":\"state\",\"layers\":1,\"ratio\":128}]},"
        "{\"id\":4,\"block_size\":4,\"members\":[{\"kind\":\"state\",\"layers\":1,\"ratio\":4}]}]}";
    struct steptape_recorder *recorder;
    struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
    char path[512], message[512];
    snprintf(path, sizeof path, "%.400s/steptape-bench-%ld.tape", r->options->folder,
             (long)getpid());
    int64_t before_ns = others_ns();
    int rc = steptape_recorder_open(path, header, NULL, &recorder, message, sizeof message);
    if (rc)
        return ST_FAIL(err, ST_ERR_IO, "%s", message);
    memset(r->copy_ring, 1, recorder->ring.capacity);
    measure_steps(r, recorder, row);
    steptape_recorder_get_stats(recorder, &stats);
    row->dropped = stats.dropped_count;
    rc = steptape_recorder_close(recorder, message, sizeof message);
    if (rc)
        return ST_FAIL(err, ST_ERR_IO, "%s", message);
    unlink(path);
    int64_t taken = r->options->steps + WARM_STEPS - row->dropped;
    row->writer = taken ? (double)(others_ns() - before_ns) / 1000 / (double)taken : 0;
    double beyond[3];
    quantiles(r->record_ns, r->options->steps, row->record);
    quantiles(r->copy_ns, r->options->steps, row->copy);
    quantiles(r->beyond_ns, r->options->steps, beyond);
    row->beyond = beyond[0];
    return ST_OK;
}

/* ---- the command */

enum { OPT_FORMAT = 0x100, OPT_REQUESTS, OPT_STEPS, OPT_FOLDER, OPT_EVICT };

static const char doc[] =
    "What recording a step costs the engine's thread, beside a bare copy of the same bytes: decode "
    "steps of 1 to 1,024 requests and 5 KV cache groups, block tables or runs of new ids. "
    "Microseconds; 'beyond' is the median of what a step took longer than its copy, 'writer' the "
    "processor time of the thread that writes the tape.\v"
    "Between steps the caches are filled with other data, as by an engine; --evict=0 leaves them "
    "warm. The tape is made in --folder and removed.";

static const struct argp_option option_list[] = {
    {"format", OPT_FORMAT, "table|json", 0, "How to print (default table)", 0},
    {"requests", OPT_REQUESTS, "N", 0, "Batches of this size alone", 0},
    {"steps", OPT_STEPS, "N", 0, "Steps a row that are measured (default 4000)", 0},
    {"folder", OPT_FOLDER, "FOLDER", 0, "Where to record (default the present one)", 0},
    {"evict", OPT_EVICT, "KIB", 0, "What is touched between steps (default 4096)", 0},
    {0},
};

static int64_t parse_number(struct argp_state *state, const char *arg, const char *name,
                            int64_t min, int64_t max) {
    char *end;
    long long n = strtoll(arg, &end, 10);
    if (end == arg || *end || n < min || n > max)
        argp_error(state, "--%s %s: %" PRId64 " to %" PRId64 " expected", name, arg, min, max);
    return n;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case OPT_FORMAT:
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(state, "--format %s: table or json expected", arg);
        o->json = strcmp(arg, "json") == 0;
        return 0;
    case OPT_REQUESTS:
        o->requests = (int32_t)parse_number(state, arg, "requests", 1, MAX_ROWS);
        return 0;
    case OPT_STEPS:
        o->steps = (int32_t)parse_number(state, arg, "steps", 1, 10000000);
        return 0;
    case OPT_FOLDER:
        o->folder = arg;
        return 0;
    case OPT_EVICT:
        o->evict_bytes = parse_number(state, arg, "evict", 0, 1 << 20) << 10;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_row(const struct options *o, bool first, const struct row *row) {
    const double *a = row->record, *b = row->copy;
    if (o->json)
        printf("%s\n {\"requests\":%d,\"groups\":%d,\"form\":\"%s\",\"bytes\":%" PRId64
               ",\"steps\":%d,\"dropped\":%" PRId64
               ",\"record_us\":{\"median\":%.3f,\"p99\":%.3f,\"p999\":%.3f}"
               ",\"copy_us\":{\"median\":%.3f,\"p99\":%.3f,\"p999\":%.3f},\"beyond_us\":%.3f,"
               "\"writer_us\":%.3f}",
               first ? "" : ",", row->requests, GROUPS, form_name[row->form], row->bytes, o->steps,
               row->dropped, a[0], a[1], a[2], b[0], b[1], b[2], row->beyond, row->writer);
    else
        printf("%8d  %-8s  %7" PRId64
               "  %7.2f %7.2f %7.2f  %7.2f %7.2f %7.2f  %7.2f %7.2f  %" PRId64 "\n",
               row->requests, form_name[row->form], row->bytes, a[0], a[1], a[2], b[0], b[1], b[2],
               row->beyond, row->writer, row->dropped);
    fflush(stdout);
}

static int bench_all(struct run *r, struct st_error *err) {
    bool first = true;
    for (int32_t requests = 1; requests <= MAX_ROWS; requests *= 4)
        for (int form = 0; form < FORMS; form++) {
            struct row row = {.requests = r->options->requests ? r->options->requests : requests,
                              .form = (enum form)form};
            if (r->options->requests && requests > 1)
                continue;
            ST_TRY(measure(r, &row, err));
            print_row(r->options, first, &row);
            first = false;
        }
    return ST_OK;
}

int st_bench_recorder(int argc, char **argv) {
    static const struct argp argp = {option_list, parse_option, NULL, doc, NULL, NULL, NULL};
    struct options o = {.folder = ".", .steps = 4000, .evict_bytes = 4 << 20};
    struct st_error err = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return 2;
    size_t samples = (size_t)o.steps * sizeof(int64_t);
    struct run r = {
        .options = &o,
        .batch = malloc(sizeof *r.batch),
        .twin = malloc(sizeof *r.twin),
        .piece = malloc((size_t)GROUPS * MAX_ROWS * sizeof *r.piece),
        .evict = calloc(1, (size_t)o.evict_bytes + 1),
        .copy_ring = malloc((size_t)72 << 20),
        .record_ns = malloc(samples),
        .copy_ns = malloc(samples),
        .beyond_ns = malloc(samples),
    };
    int rc = ST_OK;
    if (!r.batch || !r.twin || !r.piece || !r.evict || !r.copy_ring || !r.record_ns || !r.copy_ns ||
        !r.beyond_ns)
        rc = ST_FAIL_NOMEM(&err);
    if (!rc && o.json)
        putchar('[');
    else if (!rc)
        puts("record_step, us                      recorder                bare copy\n"
             "requests  form        bytes   median     p99   p99.9   median     p99   p99.9   "
             "beyond  writer  dropped");
    if (!rc)
        rc = bench_all(&r, &err);
    if (o.json)
        puts("\n]");
    free(r.batch);
    free(r.twin);
    free(r.piece);
    free(r.evict);
    free(r.copy_ring);
    free(r.record_ns);
    free(r.copy_ns);
    free(r.beyond_ns);
    return rc ? st_command_fail(&err) : 0;
}
