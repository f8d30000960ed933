/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "traces/base/program.h"

static char folder[] = "/tmp/steptape-program-XXXXXX";

static const char *write_file(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(name, 0755), 0);
    return name;
}

static void expect(char *found, const char *wanted) {
    if (wanted)
        assert_string_equal(found, wanted);
    else
        assert_null(found);
    free(found);
}

static void what_a_name_stands_for(void **state) {
    (void)state;
    char path[128], wanted[128];
    assert_int_equal(mkdir("a", 0755) | mkdir("a/vllm", 0755) | mkdir("b", 0755), 0);
    write_file("b/vllm", "");
    snprintf(path, sizeof path, ":%s/a:%s/b", folder, folder);
    snprintf(wanted, sizeof wanted, "%s/b/vllm", folder);
    expect(st_program_find(path, "vllm"), wanted); /* a folder of that name is none */
    expect(st_program_find(path, "sglang"), NULL);
    expect(st_program_find(path, ""), NULL);
    expect(st_program_find(path, "./a"), NULL);
    expect(st_program_find(path, "b/vllm"), "b/vllm");
}

static void the_python_of_a_script(void **state) {
    (void)state;
    assert_int_equal(mkdir("c d", 0755), 0);
    write_file("c d/python3", "");
    write_file("python3", "");
    static const char *const cases[][2] = {
        {"#!./python3\nimport sys\n", "./python3"},
        {"#! ./python3 -I\n", "./python3"},
        {"#!/bin/sh\n'''exec' \"./c d/python3\" \"$0\" \"$@\"\n", "./c d/python3"},
        {"#!/bin/sh\n'''exec' ./python3 \"$0\" \"$@\"\n", "./python3"},
        {"#!/bin/sh\nexec ./python3\n", NULL},
        {"#!/bin/sh\n'''exec' ", NULL},
        {"#!/bin/sh\n'''exec' \"./python3", "./python3"},
        {"#!/usr/bin/env\n", NULL},
        {"#!", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(st_program_python_of("/nowhere", write_file("script", cases[i][0])), cases[i][1]);
    expect(st_program_python_of("/nowhere", "not there"), NULL);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_name_stands_for),
        cmocka_unit_test(the_python_of_a_script),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
