/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the recorder: what the random engine of traces/format/testing.h did, as the calls
 * that a plug-in makes.
 */
#ifndef ST_CAPTURE_TESTING_H
#define ST_CAPTURE_TESTING_H

#include "steptape/capture.h"
#include "traces/format/testing.h"

enum st_test_form {
    ST_TEST_RUNS,  /* new ids alone, in runs from the last row to the first, some cut in two */
    ST_TEST_TABLE, /* the runner's table */
    ST_TEST_SPLIT, /* the same, each block two kernel blocks of the runner */
    ST_TEST_FORMS
};

struct st_test_call {
    struct steptape_step step;
    struct steptape_step_blocks blocks[ST_MAX_GROUPS];
    int32_t *table[ST_MAX_GROUPS], *cells[ST_MAX_GROUPS];
    int32_t *run[ST_MAX_GROUPS]; /* rows, lengths and ids */
};

void st_test_call_init(struct st_test_call *call, const struct st_test_step *s,
                       enum st_test_form form);
void st_test_call_fini(struct st_test_call *call);

/* Line 1 of the interchange format; the caller's to free. */
char *st_test_header_json(const struct st_header *header);

/* What a tape, which must be whole, answers: the first value, as a number or as text ("" for NULL)
 * that is good until the next call. */
int64_t st_test_ask(const char *path, const char *sql);
const char *st_test_ask_text(const char *path, const char *sql);

#endif
