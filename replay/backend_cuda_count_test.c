/* SPDX-License-Identifier: Apache-2.0 */
/* From kernel records to launches: made-up records, no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/registry.h"
#include "replay/backend_cuda_count.h"

static const char *function_of(const char *operator_name) {
    const struct st_kernel *kernel = st_kernel_find(operator_name);
    assert_non_null(kernel);
    return st_kernel_variant_find(kernel, 0)->functions[0];
}

static struct st_kernel_record record(const char *name, int64_t start_ns, int64_t end_ns,
                                      int32_t grid, int32_t block) {
    struct st_kernel_record r = {.name = name,
                                 .start_ns = start_ns,
                                 .end_ns = end_ns,
                                 .grid = {grid, 1, 1},
                                 .block = {block, 1, 1}};
    return r;
}

static void counts_by_operator(void **state) {
    (void)state;
    const char *save = function_of("save_partial_states"), *pool = function_of("compress_pool");
    const char *store = function_of("compress_norm_rope_store");
    struct st_kernel_record r[] = {
        record("st_cuda_fill_inputs_kernel", 10, 90, 1, 1),
        record(save, 100, 110, 4, 256),
        record(pool, 120, 150, 32, 256),
        record(store, 140, 160, 4, 256), /* began before the pool had ended: 10 ns of its own */
        record(save, 170, 175, 4, 256),
        record("somebody_else", 180, 190, 1, 1),
    };
    struct st_step_result result;
    st_cuda_count(r, 6, &result);
    assert_int_equal(result.launches[ST_OP_SAVE_PARTIAL_STATES], 2);
    assert_int_equal(result.launches[ST_OP_COMPRESS_POOL], 1);
    assert_int_equal(result.launches[ST_OP_COMPRESS_NORM_ROPE_STORE], 1);
    assert_int_equal(result.launches[ST_OP_COMPRESSED_SLOT_MAPPING], 0);
    assert_int_equal(result.other_launches, 1);
    assert_int_equal(result.op_kernel_ns[ST_OP_SAVE_PARTIAL_STATES], 15);
    assert_int_equal(result.op_kernel_ns[ST_OP_COMPRESS_POOL], 30);
    assert_int_equal(result.op_kernel_ns[ST_OP_COMPRESS_NORM_ROPE_STORE], 10);
    assert_int_equal(result.kernel_ns, 65);
    assert_int_equal(st_cuda_count_foreign(r, 6), 5);

    r[1].start_ns = r[1].end_ns = 0; /* CUPTI had no room for the times: unknown, not less */
    st_cuda_count(r, 6, &result);
    assert_int_equal(result.launches[ST_OP_SAVE_PARTIAL_STATES], 2);
    assert_true(result.kernel_ns == ST_UNKNOWN);
    assert_true(result.op_kernel_ns[ST_OP_COMPRESS_POOL] == ST_UNKNOWN);

    st_cuda_count(r, 0, &result);
    assert_int_equal(result.kernel_ns, 0);
    assert_int_equal(result.launches[ST_OP_COMPRESS_POOL], 0);
}

/* Kernels of a conditional body come without a correlation id, in front of what ran before them. */
static void order_is_that_of_time(void **state) {
    (void)state;
    const char *save = function_of("save_partial_states");
    struct st_kernel_record r[] = {record(save, 120, 130, 4, 128),
                                   record("steptape_graph_condition", 100, 110, 1, 256)};
    struct st_step_result result;
    st_cuda_order(r, 2);
    assert_int_equal(r[0].start_ns, 100);
    st_cuda_count(r, 2, &result);
    assert_int_equal(result.launches[ST_OP_GRAPH_CONDITION], 1);
    assert_int_equal(result.launches[ST_OP_SAVE_PARTIAL_STATES], 1);
    assert_int_equal(result.other_launches, 0);
    assert_int_equal(result.kernel_ns, 20);
}

static void checks_shapes(void **state) {
    (void)state;
    const char *save = function_of("save_partial_states"), *pool = function_of("compress_pool");
    struct st_launch launch[] = {
        {.op = ST_OP_COMPRESSED_SLOT_MAPPING, .grid = 9, .block = 64, .launch_count = 1},
        {.op = ST_OP_SAVE_PARTIAL_STATES, .layer = 3, .grid = 4, .block = 256, .launch_count = 1},
        {.op = ST_OP_COMPRESS_POOL, .disabled = true, .grid = 7, .block = 7, .launch_count = 1},
        {.op = ST_OP_OBSERVE},
        {.op = ST_OP_SAVE_PARTIAL_STATES, .layer = 5, .grid = 4, .block = 256, .launch_count = 1},
        {.op = ST_OP_COMPRESS_POOL, .layer = 6, .grid = 8, .block = 32, .launch_count = 2},
    };
    const struct st_plan plan = {.launch = launch, .launch_count = 6};
    struct st_kernel_record r[] = {record("st_cuda_x", 1, 2, 7, 7), record(save, 1, 2, 4, 256),
                                   record(save, 3, 4, 4, 256),      record(pool, 5, 6, 99, 99),
                                   record(pool, 7, 8, 8, 32),       record(save, 9, 10, 4, 256)};
    struct st_error err;
    assert_int_equal(st_cuda_check_shapes(r, 5, &plan, &err), 0);
    r[1].grid[0] = 2;
    r[1].grid[1] = 2; /* the plan knows the number of blocks */
    assert_int_equal(st_cuda_check_shapes(r, 5, &plan, &err), 0);
    r[2].grid[0] = 5;
    assert_int_equal(st_cuda_check_shapes(r, 5, &plan, &err), ST_ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "layer 5"));
    r[2].grid[0] = 4;
    r[4].block[0] = 64; /* the last of the launch of two */
    assert_int_equal(st_cuda_check_shapes(r, 5, &plan, &err), ST_ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "layer 6"));
    r[4].block[0] = 32;
    assert_int_equal(st_cuda_check_shapes(r, 6, &plan, &err), 0); /* the count tells of a third */
    r[2].grid[0] = 5;
    r[0].start_ns = 0; /* no times, no order, no verdict */
    assert_int_equal(st_cuda_check_shapes(r, 5, &plan, &err), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_by_operator),
                                       cmocka_unit_test(order_is_that_of_time),
                                       cmocka_unit_test(checks_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
