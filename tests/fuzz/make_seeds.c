/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of fuzz_tape and fuzz_block, from the random engine that the tape's tests use:
 *     make_seeds tests/fuzz/corpus
 * Needs the writer with tiny blocks of steps, so that short tapes have keyframes.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/base/bytes.h"
#include "traces/format/reader.h"
#include "traces/format/testing.h"

static void put_u16(FILE *out, size_t value) {
    fputc((int)(value & 255), out);
    fputc((int)(value >> 8 & 255), out);
}

/* What fuzz_block takes, of a tape. */
static int write_blocks(const char *tape_path, const char *path) {
    struct st_tape *tape;
    struct st_error err;
    sqlite3_stmt *stmt;
    if (st_tape_open(tape_path, &tape, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    FILE *out = fopen(path, "wb");
    if (!out)
        return 1;
    int rc = sqlite3_prepare_v2(st_tape_db(tape),
                                "SELECT step_count, keyframe IS NOT NULL, facts, block_ids,"
                                " keyframe, allocator_model + (num_blocks IS NULL) * 8"
                                " FROM step_block, tape ORDER BY first_step LIMIT 8",
                                -1, &stmt, NULL);
    for (int b = 0; rc == SQLITE_OK && sqlite3_step(stmt) == SQLITE_ROW; b++) {
        struct st_bytes raw[3] = {{0}};
        if (b == 0)
            fputc(sqlite3_column_int(stmt, 5), out);
        fputc(sqlite3_column_int(stmt, 0), out);
        fputc(sqlite3_column_int(stmt, 1), out);
        for (int c = 0; c < 3; c++) {
            if (sqlite3_column_type(stmt, 2 + c) != SQLITE_NULL)
                st_bytes_inflate(&raw[c], sqlite3_column_blob(stmt, 2 + c),
                                 (size_t)sqlite3_column_bytes(stmt, 2 + c), 65535, NULL);
            put_u16(out, raw[c].size);
        }
        for (int c = 0; c < 3; c++) {
            fwrite(raw[c].data, 1, raw[c].size, out);
            st_bytes_fini(&raw[c]);
        }
    }
    fwrite("\x0b\x02\x09\x00", 1, 4, out);
    sqlite3_finalize(stmt);
    st_tape_close(tape);
    return fclose(out) != 0;
}

int main(int argc, char **argv) {
    for (uint64_t seed = 1; argc == 2 && seed <= 6; seed++) {
        struct st_test_engine_options options;
        char tape[512], block[512];
        struct st_error err;
        st_test_engine_options_init(&options, seed * 3);
        options.step_count = seed == 1 ? 3 : 14;
        options.group_count = 3;
        options.num_blocks = seed == 4 ? -1 : 64;
        options.max_running = 3;
        options.long_start = 40;
        options.check = seed == 2 ? 50 : 0;
        options.odd = seed == 6 ? 6 : 0;
        snprintf(tape, sizeof tape, "%s/tape/engine%d", argv[1], (int)seed);
        snprintf(block, sizeof block, "%s/block/engine%d", argv[1], (int)seed);
        struct st_test_recording *recording = st_test_record(&options);
        if (st_test_write(recording, tape, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        st_test_recording_destroy(recording);
        if (write_blocks(tape, block)) {
            fprintf(stderr, "%s: cannot be written\n", block);
            return 1;
        }
        if (seed > 2)
            remove(tape); /* two whole tapes are enough */
    }
    return argc != 2;
}
