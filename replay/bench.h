/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmarks that replay/ brings: rows of the table in cmd_bench.c. */
#ifndef ST_REPLAY_BENCH_H
#define ST_REPLAY_BENCH_H

int st_bench_graph_skip_command(int argc, char **argv);
int st_bench_kernels_command(int argc, char **argv);
int st_bench_published_command(int argc, char **argv);
int st_bench_predicate_command(int argc, char **argv);

#endif
