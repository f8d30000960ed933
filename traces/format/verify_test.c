/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flips bits of a small tape, byte after byte: whenever anything that can be read changes, verify
 * says so.  What can be read is every row and definition that SQLite gives and every step, table
 * and check object that the reader gives.
 *
 * Takes every STEPTAPE_FLIP_STRIDEth byte (41), 1: all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "traces/format/db.h"
#include "traces/format/reader.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"

struct digest {
    uint64_t hash;
};

static void mix(struct digest *d, const void *data, size_t size) {
    const uint8_t *byte = data;
    for (size_t i = 0; i < size; i++)
        d->hash = (d->hash ^ byte[i]) * 0x100000001b3u;
}

static void mix_number(struct digest *d, int64_t value) {
    mix(d, &value, sizeof value);
}

static void mix_query(struct digest *d, sqlite3 *db, const char *sql) {
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        for (int c = 0; c < sqlite3_column_count(stmt); c++) {
            const char *name = sqlite3_column_name(stmt, c);
            mix(d, name, strlen(name));
            mix_number(d, sqlite3_column_type(stmt, c));
            const void *data = sqlite3_column_blob(stmt, c);
            mix(d, data, (size_t)sqlite3_column_bytes(stmt, c));
        }
        rc = SQLITE_OK;
    }
    mix_number(d, rc);
    sqlite3_finalize(stmt);
}

/* By SQLite alone. */
static void mix_sql(struct digest *d, const char *path) {
    static const char *const queries[] = {"SELECT * FROM tape",
                                          "SELECT * FROM kv_group",
                                          "SELECT * FROM step",
                                          "SELECT * FROM operation",
                                          "SELECT * FROM step_block",
                                          "SELECT * FROM step_check",
                                          "SELECT * FROM step_summary",
                                          "SELECT * FROM recorder",
                                          "SELECT * FROM recorder_note",
                                          "SELECT * FROM step_gap",
                                          "SELECT * FROM seal",
                                          "SELECT type, name, tbl_name, sql FROM sqlite_schema",
                                          "SELECT step_id FROM step ORDER BY step_id DESC",
                                          "SELECT count(*) FROM step_block",
                                          "SELECT * FROM kv_group WHERE group_id = 1",
                                          "PRAGMA user_version",
                                          "PRAGMA application_id"};
    sqlite3 *db;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK)
        for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
            mix_query(d, db, queries[i]);
    sqlite3_close(db);
}

static void mix_list(struct digest *d, const struct st_request_list *list) {
    mix_number(d, list->count);
    if (list->count > 0)
        mix(d, list->request_id, (size_t)list->count * sizeof *list->request_id);
}

static void mix_step(struct digest *d, struct st_cursor *cursor, const struct st_step *step) {
    size_t bytes = (size_t)step->request_count * sizeof(int32_t);
    const int64_t numbers[] = {step->step_id,
                               step->start_ns,
                               step->duration_ns,
                               step->graph_mode,
                               step->padded_token_count,
                               step->padded_request_count,
                               step->cpu_starts,
                               step->zeroed,
                               step->request_count,
                               step->token_count,
                               step->draft != NULL};
    mix(d, numbers, sizeof numbers);
    mix(d, step->request_id, 2 * bytes);
    mix(d, step->query_len, bytes);
    mix(d, step->num_computed_tokens, bytes);
    mix(d, step->prompt_len, bytes);
    mix_list(d, &step->new_requests);
    mix_list(d, &step->finished);
    mix_list(d, &step->preempted);
    mix_list(d, &step->resumed);
    mix_list(d, &step->replaced);
    for (int32_t g = 0; g < step->group_count; g++)
        for (int32_t row = 0; row < step->request_count; row++) {
            const int32_t *id;
            int32_t count;
            mix_number(d, st_cursor_block_table(cursor, g, row, &id, &count, NULL));
            mix(d, id, (size_t)count * sizeof *id);
        }
}

/* By the reader. */
static void mix_tape(struct digest *d, const char *path) {
    struct st_tape *tape;
    struct st_cursor *cursor = NULL;
    const struct st_step *step;
    const char *json;
    int rc = st_tape_open(path, &tape, NULL);
    mix_number(d, rc);
    if (rc)
        return;
    const struct st_header *h = st_tape_header(tape);
    mix_number(d, h->num_blocks + h->group_count);
    mix(d, st_tape_hash(tape), 32);
    rc = st_cursor_open(tape, ST_READ_TABLES, &cursor, NULL);
    while (!rc && (rc = st_cursor_next(cursor, &step, NULL)) == 0) {
        mix_step(d, cursor, step);
        if (st_tape_check_json(tape, step->step_id, &json, NULL) == 0 && json)
            mix(d, json, strlen(json));
    }
    mix_number(d, rc);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static uint64_t read_all(const char *path) {
    struct digest d = {0xcbf29ce484222325u};
    mix_sql(&d, path);
    mix_tape(&d, path);
    return d.hash;
}

static void write_small_tape(const char *path) {
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 3);
    options.step_count = 30;
    options.group_count = 2;
    options.max_running = 4;
    options.check = 10;
    struct st_test_recording *recording = st_test_record(&options);
    assert_int_equal(st_test_write(recording, path, NULL), 0);
    st_test_recording_destroy(recording);
}

static void put(FILE *file, long at, int byte) {
    fseek(file, at, SEEK_SET);
    fputc(byte, file);
    fflush(file);
}

static void every_flip_that_shows_is_found(void **state) {
    (void)state;
    const char *text = getenv("STEPTAPE_FLIP_STRIDE");
    long stride = text ? atol(text) : 41, changed = 0, missed = 0, flips = 0;
    const char *path = st_test_path("flip.tape");
    struct st_verify_report report;
    write_small_tape(path);
    uint64_t good = read_all(path);
    assert_int_equal(st_tape_verify(path, &report, NULL), 0);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    /* SQLite's header is looked at whole: what each of its bytes does is a matter of its own. */
    for (long at = 0; at < size; at += at < 100 ? 1 : stride) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        for (int bit = 0; bit < (at < 100 ? 8 : 1); bit++, flips++) {
            put(file, at, byte ^ 1 << (bit + at) % 8);
            if (read_all(path) == good)
                continue;
            changed++;
            if (st_tape_verify(path, &report, NULL) == 0) {
                print_error("byte %ld, bit %ld: not found\n", at, (bit + at) % 8);
                missed++;
            }
        }
        put(file, at, byte);
    }
    fclose(file);
    assert_true(read_all(path) == good);
    print_message("%ld flips, %ld of them show, %ld missed\n", flips, changed, missed);
    assert_true(changed > 0);
    assert_int_equal(missed, 0);
}

/* Changes sealed anew by somebody who has the hash: what the rows say must still fit the arrays. */
static void a_fresh_seal_does_not_hide_it(void **state) {
    (void)state;
    static const char *const changes[] = {
        "UPDATE step SET token_count = token_count + 1 WHERE step_id = 9",
        "UPDATE step SET decode_count = 77 WHERE step_id = 20",
        "UPDATE step SET max_seq_len = 0 WHERE step_id = 29",
        "DELETE FROM step WHERE step_id = 29",
        "INSERT INTO step SELECT 30, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0",
        "UPDATE step_block SET step_count = step_count - 1",
        "DELETE FROM step_block",
        "INSERT INTO step_check VALUES(3, x'0000')",
        "INSERT INTO step_check VALUES(300, x'0000')"};
    const char *path = st_test_path("sealed.tape");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct st_verify_report report;
        struct st_error err;
        char hash[33], sql[128];
        sqlite3 *db;
        write_small_tape(path);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        sqlite3_exec(db, "DELETE FROM step_check WHERE step_id = 3", NULL, NULL, NULL);
        assert_int_equal(sqlite3_exec(db, changes[i], NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(st_db_content_hash(db, path, hash, &err), 0);
        snprintf(sql, sizeof sql, "UPDATE seal SET hash = '%s'", hash);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        if (st_tape_verify(path, &report, &err) != ST_ERR_CORRUPT)
            fail_msg("not found: %s", changes[i]);
    }
}

static void cut_off_anywhere(void **state) {
    (void)state;
    const char *path = st_test_path("cut.tape");
    struct st_verify_report report;
    struct st_error err;
    write_small_tape(path);
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    fclose(file);
    for (long cut = size - 1; cut > 0; cut -= cut > 4096 ? 4096 : 97) {
        assert_int_equal(truncate(path, cut), 0);
        int rc = st_tape_verify(path, &report, &err);
        if (rc != ST_ERR_CORRUPT && rc != ST_ERR_INPUT)
            fail_msg("cut at %ld: %d", cut, rc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flip_that_shows_is_found),
        cmocka_unit_test(a_fresh_seal_does_not_hide_it),
        cmocka_unit_test(cut_off_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
