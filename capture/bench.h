/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmarks that capture/ brings: rows of the table in bench.c. */
#ifndef ST_CAPTURE_BENCH_H
#define ST_CAPTURE_BENCH_H

int st_bench_recorder(int argc, char **argv);
int st_bench_plugin(int argc, char **argv);

#endif
