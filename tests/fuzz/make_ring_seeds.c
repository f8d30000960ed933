/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of fuzz_ring: rings of short recordings that were not closed, cut down to what
 * is used of them. make_ring_seeds tests/fuzz/corpus/ring
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture/ring.h"
#include "capture/testing.h"

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc((size_t)4 << 20);
    *size = file && bytes ? fread(bytes, 1, (size_t)4 << 20, file) : 0;
    if (file)
        fclose(file);
    return bytes;
}

/* The same ring with no room that is not used. */
static int write_small(const uint8_t *bytes, const char *path) {
    struct st_ring_head head;
    memcpy(&head, bytes, sizeof head);
    const uint8_t *data = bytes + head.data_at, *notes = bytes + head.note_at;
    uint64_t used = atomic_load(&head.counters.head), noted = atomic_load(&head.counters.note_size);
    FILE *out = fopen(path, "wb");
    if (!out)
        return 1;
    head.note_at = (head.text_at + head.text_size + 7) & ~(uint64_t)7;
    head.note_capacity = noted;
    head.data_at = head.note_at + noted;
    head.data_capacity = used;
    memset(head.boot_id, 0, sizeof head.boot_id);
    head.pid = head.pid_started = 0;
    head.pid_space = 0;
    fputc(1, out);
    fwrite(&head, 1, sizeof head, out);
    fwrite(bytes + head.text_at, 1, head.note_at - head.text_at, out);
    fwrite(notes, 1, noted, out);
    fwrite(data, 1, used, out);
    return fclose(out) != 0;
}

int main(int argc, char **argv) {
    for (uint64_t seed = 1; argc == 2 && seed <= 6; seed++) {
        struct st_test_engine_options options;
        struct steptape_recorder *recorder;
        struct steptape_recorder_options small = {.struct_size = sizeof small,
                                                  .ring_bytes = 1 << 20};
        char message[256], path[512];
        st_test_engine_options_init(&options, seed * 3);
        options.step_count = seed == 1 ? 2 : 8;
        options.group_count = 2;
        options.num_blocks = 64;
        options.max_running = 3;
        options.long_start = 40;
        options.random_id = 0;
        options.check = seed == 2 ? 50 : 0;
        struct st_test_recording *r = st_test_record(&options);
        const char *tape = st_test_path("seed.tape");
        if (steptape_recorder_open(tape, st_test_header_json(&r->header), &small, &recorder,
                                   message, sizeof message)) {
            fprintf(stderr, "%s\n", message);
            return 1;
        }
        if (seed == 3)
            steptape_recorder_note(recorder, "key", "value");
        for (int32_t i = 0; i < r->step_count; i++) {
            struct st_test_call call;
            st_test_call_init(&call, &r->step[i], seed % ST_TEST_FORMS);
            if (i != 4 || seed != 5)
                steptape_recorder_record_step(recorder, &call.step);
        }
        size_t size;
        snprintf(path, sizeof path, "%s.recording/seed.ring", tape);
        uint8_t *bytes = read_file(path, &size);
        snprintf(path, sizeof path, "%s/engine%d", argv[1], (int)seed);
        if (!size || write_small(bytes, path))
            return 1;
        steptape_recorder_close(recorder, message, sizeof message);
        unlink(message);
    }
    return argc != 2;
}
