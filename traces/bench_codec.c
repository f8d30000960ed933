/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench codec: what a tape costs on disk, by column, beside the same facts as Parquet, and
 * how fast it is read.  Times are CPU time of one thread; the file is in the page cache.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "traces/base/embedded.h"
#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/format/blocks.h"
#include "traces/format/db.h"
#include "traces/format/facts.h"
#include "traces/format/reader.h"

#define MAX_COLUMNS 128
#define SEEKS 200

extern const struct st_embedded st_traces_embedded[];

struct column {
    char name[48];
    int64_t raw_bytes; /* before zlib; ST_UNKNOWN */
    int64_t bytes;
};

struct speed {
    int repetitions;
    double best, median, worst; /* million a second, or milliseconds a seek */
};

struct bench {
    const char *path, *python;
    bool json, parquet;
    struct column column[MAX_COLUMNS];
    int column_count;
    struct column parquet_column[MAX_COLUMNS];
    int parquet_count;
    int64_t file_bytes, steps, request_steps, ids;
    struct speed facts, blocks, seek[3];
};

static struct column *add_column(struct column *column, int *count, const char *name) {
    if (*count == MAX_COLUMNS)
        return NULL;
    struct column *c = &column[(*count)++];
    *c = (struct column){.raw_bytes = ST_UNKNOWN};
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static int64_t query_int(sqlite3 *db, const char *sql) {
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        return ST_UNKNOWN;
    int64_t value = sqlite3_step(stmt) == SQLITE_ROW ? st_db_column(stmt, 0) : ST_UNKNOWN;
    sqlite3_finalize(stmt);
    return value;
}

/* Columns of a block are packed together; each is packed alone here to see its share, so the sum is
 * a little more than what the file holds. */
static int add_packed(struct bench *b, sqlite3 *db, const char *sql, int count, int first,
                      struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, b->path, sql, &stmt, err));
    struct st_bytes scratch = {0}, packed = {0};
    struct st_bytes_reader column[ST_FACTS_COLUMNS];
    int rc = ST_OK, step = SQLITE_DONE;
    while (!rc && (step = sqlite3_step(stmt)) == SQLITE_ROW) {
        rc = st_columns_unpack(sqlite3_column_blob(stmt, 0), (size_t)sqlite3_column_bytes(stmt, 0),
                               &scratch, column, count, err);
        for (int c = 0; c < count && !rc; c++) {
            size_t size = (size_t)(column[c].end - column[c].at);
            packed.size = 0;
            rc = st_bytes_deflate(&packed, column[c].at, size, err);
            b->column[first + c].raw_bytes += (int64_t)size;
            b->column[first + c].bytes += size ? (int64_t)packed.size : 0;
        }
    }
    if (!rc && step != SQLITE_DONE)
        rc = st_db_fail(db, b->path, err);
    st_bytes_fini(&scratch);
    st_bytes_fini(&packed);
    sqlite3_finalize(stmt);
    return rc;
}

static int measure_columns(struct bench *b, struct st_tape *tape, struct st_error *err) {
    static const char *const ids[] = {"block_ids: counts", "block_ids: events", "block_ids: ids"};
    sqlite3 *db = st_tape_db(tape);
    struct column *c = add_column(b->column, &b->column_count, "table step");
    c->bytes = query_int(db, "SELECT sum(pgsize) FROM dbstat WHERE name = 'step'");
    int facts = b->column_count;
    for (int i = 0; i < ST_FACTS_COLUMNS; i++) {
        char name[48];
        snprintf(name, sizeof name, "facts: %s", st_facts_column_name((enum st_facts_column)i));
        add_column(b->column, &b->column_count, name)->raw_bytes = 0;
    }
    int blocks = b->column_count;
    for (int i = 0; i < ST_BLOCKS_COLUMNS; i++)
        add_column(b->column, &b->column_count, ids[i])->raw_bytes = 0;
    ST_TRY(add_packed(b, db, "SELECT facts FROM step_block", ST_FACTS_COLUMNS, facts, err));
    ST_TRY(add_packed(b, db, "SELECT block_ids FROM step_block", ST_BLOCKS_COLUMNS, blocks, err));
    c = add_column(b->column, &b->column_count, "keyframes");
    c->bytes = query_int(db, "SELECT coalesce(sum(length(keyframe)), 0) FROM step_block");
    c = add_column(b->column, &b->column_count, "check objects");
    c->bytes = query_int(db, "SELECT coalesce(sum(length(check_json)), 0) FROM step_check");
    b->file_bytes = query_int(db, "SELECT page_count * page_size FROM pragma_page_count,"
                                  " pragma_page_size");
    return ST_OK;
}

static double cpu_seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct speed summarize(double *value, int count) {
    qsort(value, (size_t)count, sizeof *value, compare_doubles);
    return (struct speed){count, value[0], value[count / 2], value[count - 1]};
}

static int read_all(struct bench *b, struct st_tape *tape, unsigned what, struct speed *speed,
                    struct st_error *err) {
    double seconds[15];
    int n = 0;
    for (double spent = 0; n < 15 && (n < 5 || spent < 2); n++) {
        struct st_cursor *cursor;
        const struct st_step *step;
        int rc;
        double start = cpu_seconds();
        b->request_steps = b->ids = 0;
        ST_TRY(st_cursor_open(tape, what, &cursor, err));
        while ((rc = st_cursor_next(cursor, &step, err)) == ST_OK) {
            b->request_steps += step->request_count;
            for (int32_t g = 0; g < step->group_count; g++)
                b->ids += step->blocks[g].offset[step->request_count];
        }
        st_cursor_close(cursor);
        if (rc < 0)
            return rc;
        seconds[n] = cpu_seconds() - start;
        spent += seconds[n];
    }
    double items = (double)(what ? b->ids : b->request_steps) / 1e6;
    *speed = summarize(seconds, n);
    *speed = (struct speed){n, items / speed->best, items / speed->median, items / speed->worst};
    return ST_OK;
}

static int seek_around(struct st_tape *tape, unsigned what, struct speed *speed,
                       struct st_error *err) {
    double milliseconds[SEEKS];
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < SEEKS; i++) {
        struct st_cursor *cursor;
        const struct st_step *step;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int64_t target =
            st_tape_first_step(tape) + (int64_t)(random % (uint64_t)st_tape_step_count(tape));
        double start = cpu_seconds();
        ST_TRY(st_cursor_open(tape, what, &cursor, err));
        int rc = st_cursor_seek(cursor, target, err);
        if (!rc)
            rc = st_cursor_next(cursor, &step, err);
        st_cursor_close(cursor);
        ST_TRY(rc);
        milliseconds[i] = (cpu_seconds() - start) * 1e3;
    }
    *speed = summarize(milliseconds, SEEKS);
    return ST_OK;
}

static int measure_speed(struct bench *b, struct st_tape *tape, struct st_error *err) {
    ST_TRY(read_all(b, tape, ST_READ_BLOCKS, &b->blocks, err));
    int64_t ids = b->ids;
    ST_TRY(read_all(b, tape, 0, &b->facts, err));
    b->ids = ids;
    b->steps = st_tape_step_count(tape);
    static const unsigned what[] = {0, ST_READ_BLOCKS, ST_READ_TABLES};
    for (int i = 0; i < 3; i++)
        ST_TRY(seek_around(tape, what[i], &b->seek[i], err));
    return ST_OK;
}

/* Runs the Python script with pyarrow and reads its one line; its talk goes to stderr as it comes.
 */
static int run_parquet(struct bench *b, char *line, size_t size, struct st_error *err) {
    /* The script asks this program for a dump: by its path, as /proc/self is Python's then. */
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "/proc/self/exe: %s", strerror(errno));
    program[length] = 0;
    int fd[2];
    if (pipe(fd) < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "pipe: %s", strerror(errno));
    const char *script = st_embedded_find(st_traces_embedded, "bench_parquet.py");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execlp(b->python, b->python, "-c", script, program, b->path, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    size_t got = 0;
    ssize_t n;
    while (pid > 0 && got < size - 1 && (n = read(fd[0], line + got, size - 1 - got)) != 0)
        if (n > 0)
            got += (size_t)n;
        else if (errno != EINTR || st_interrupted())
            break;
    close(fd[0]);
    line[got] = 0;
    int status = -1;
    if (pid > 0)
        waitpid(pid, &status, 0);
    return status == 0 ? ST_OK
                       : ST_FAIL(err, ST_ERR_UNAVAILABLE,
                                 "no Parquet figures: `%s` with pyarrow is needed (pip install "
                                 "pyarrow; --python=PATH names one)",
                                 b->python);
}

static void measure_parquet(struct bench *b, sqlite3 *db) {
    struct st_error err;
    size_t size = 65536;
    char *line = malloc(size);
    sqlite3_stmt *stmt = NULL;
    if (!line || run_parquet(b, line, size, &err) != 0) {
        if (line)
            st_log(ST_LOG_WARN, "%s", err.msg);
        free(line);
        return;
    }
    if (sqlite3_prepare_v2(db, "SELECT key, value FROM json_each(?)", -1, &stmt, NULL) ==
        SQLITE_OK) {
        sqlite3_bind_text(stmt, 1, line, -1, SQLITE_STATIC);
        while (sqlite3_step(stmt) == SQLITE_ROW) {
            struct column *c = add_column(b->parquet_column, &b->parquet_count,
                                          (const char *)sqlite3_column_text(stmt, 0));
            if (c)
                c->bytes = sqlite3_column_int64(stmt, 1);
        }
    }
    sqlite3_finalize(stmt);
    free(line);
}

static int64_t total(const struct column *column, int count) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += column[i].bytes;
    return count ? sum : ST_UNKNOWN;
}

static const char *number(char text[24], int64_t value, const char *unknown) {
    if (value == ST_UNKNOWN)
        return unknown;
    snprintf(text, 24, "%" PRId64, value);
    return text;
}

static void print_columns(const char *title, const struct column *column, int count) {
    printf("%-28s %12s %12s\n", title, "raw bytes", "bytes");
    for (int i = 0; i < count; i++) {
        char raw[24], bytes[24];
        printf("  %-26s %12s %12s\n", column[i].name, number(raw, column[i].raw_bytes, "-"),
               number(bytes, column[i].bytes, "-"));
    }
}

static void print_table(const struct bench *b) {
    printf("%s: %" PRId64 " steps, %" PRId64 " request-steps, %" PRId64 " block ids\n\n", b->path,
           b->steps, b->request_steps, b->ids);
    print_columns("tape, each column alone", b->column, b->column_count);
    printf("  %-26s %12s %12" PRId64 "   %.3f bytes a block id\n\n", "the file", "", b->file_bytes,
           b->ids ? (double)b->file_bytes / (double)b->ids : 0.0);
    int64_t parquet = total(b->parquet_column, b->parquet_count);
    if (parquet != ST_UNKNOWN) {
        print_columns("Parquet, each at its best", b->parquet_column, b->parquet_count);
        printf("  %-26s %12s %12" PRId64 "   the tape is %.2f of it\n\n", "together", "", parquet,
               (double)b->file_bytes / (double)parquet);
    }
    printf("%-34s %10s %10s %10s\n", "reading, CPU time of one thread", "best", "median", "worst");
    printf("  %-32s %10.1f %10.1f %10.1f\n", "million request-steps a second", b->facts.best,
           b->facts.median, b->facts.worst);
    printf("  %-32s %10.1f %10.1f %10.1f\n", "million block ids a second", b->blocks.best,
           b->blocks.median, b->blocks.worst);
    static const char *const seeks[] = {"a random step, ms", "  with its block ids, ms",
                                        "  with whole block tables, ms"};
    for (int i = 0; i < 3; i++)
        printf("  %-32s %10.3f %10.3f %10.3f\n", seeks[i], b->seek[i].best, b->seek[i].median,
               b->seek[i].worst);
}

static void json_columns(const char *key, const struct column *column, int count) {
    printf("\"%s\":", key);
    if (!count)
        printf("null");
    for (int i = 0; i < count; i++) {
        char bytes[24];
        printf("%s\"%s\":%s", i ? "," : "{", column[i].name,
               number(bytes, column[i].bytes, "null"));
    }
    printf("%s,", count ? "}" : "");
}

static void json_speed(const char *key, const struct speed *s, const char *end) {
    printf("\"%s\":{\"best\":%.4f,\"median\":%.4f,\"worst\":%.4f,\"repetitions\":%d}%s", key,
           s->best, s->median, s->worst, s->repetitions, end);
}

static void print_json(const struct bench *b) {
    printf("{\"steps\":%" PRId64 ",\"request_steps\":%" PRId64 ",\"block_ids\":%" PRId64
           ",\"file_bytes\":%" PRId64 ",",
           b->steps, b->request_steps, b->ids, b->file_bytes);
    json_columns("tape_column_bytes", b->column, b->column_count);
    json_columns("parquet_column_bytes", b->parquet_column, b->parquet_count);
    json_speed("million_request_steps_per_s", &b->facts, ",");
    json_speed("million_block_ids_per_s", &b->blocks, ",");
    json_speed("seek_ms", &b->seek[0], ",");
    json_speed("seek_with_block_ids_ms", &b->seek[1], ",");
    json_speed("seek_with_block_tables_ms", &b->seek[2], "}\n");
}

enum { OPTION_FORMAT = 256, OPTION_PYTHON, OPTION_NO_PARQUET };

static const struct argp_option options[] = {
    {"format", OPTION_FORMAT, "FORMAT", 0, "table (default) or json", 0},
    {"python", OPTION_PYTHON, "PATH", 0, "Python with pyarrow (default: python3)", 0},
    {"no-parquet", OPTION_NO_PARQUET, NULL, 0, "Leave the Parquet columns out; they take minutes",
     0},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct bench *b = state->input;
    switch (key) {
    case OPTION_FORMAT:
        b->json = strcmp(arg, "json") == 0;
        if (!b->json && strcmp(arg, "table") != 0)
            argp_error(state, "--format=%s: table or json expected", arg);
        return 0;
    case OPTION_PYTHON:
        b->python = arg;
        return 0;
    case OPTION_NO_PARQUET:
        b->parquet = false;
        return 0;
    case ARGP_KEY_ARG:
        if (b->path)
            argp_error(state, "one tape expected");
        b->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!b->path)
            argp_error(state, "a tape expected");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int st_bench_codec(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse_option,
        "X.tape",
        "Prints what a tape costs on disk, by column, beside the same facts as Parquet (zstd level "
        "19, each column in its better encoding, without dictionary), and how fast it is read."
        "\vExample: steptape bench codec x.tape --no-parquet",
        NULL,
        NULL,
        NULL};
    struct bench b = {.python = "python3", .parquet = true};
    argp_parse(&argp, argc, argv, 0, NULL, &b);
    struct st_error err;
    struct st_tape *tape;
    if (st_tape_open(b.path, &tape, &err) != 0)
        return st_command_fail(&err);
    int rc = st_tape_step_count(tape) ? ST_OK : ST_FAIL(&err, ST_ERR_INPUT, "%s: no steps", b.path);
    if (!rc)
        rc = measure_columns(&b, tape, &err);
    if (!rc)
        rc = measure_speed(&b, tape, &err);
    if (!rc && b.parquet)
        measure_parquet(&b, st_tape_db(tape));
    if (!rc)
        (b.json ? print_json : print_table)(&b);
    st_tape_close(tape);
    return rc ? st_command_fail(&err) : 0;
}
