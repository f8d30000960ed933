/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena of the operators' tests.
 */
#include "kernels/testing_arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, GAP = 64, ARGS_MAX = 512 };

int st_test_arena_init(struct st_test_arena *arena, size_t capacity) {
    memset(arena, 0, sizeof(*arena));
    capacity = (capacity + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena->capacity = capacity;
    arena->host = aligned_alloc(ALIGNMENT, capacity);
    arena->before = malloc(capacity);
    arena->got = malloc(capacity);

    arena->device = st_test_device(NULL, capacity);
    if (arena->host == NULL || arena->before == NULL || arena->got == NULL ||
        arena->device == NULL || (uintptr_t)arena->device % ALIGNMENT != 0) {
        st_test_arena_fini(arena);
        return -1;
    }
    st_test_arena_reset(arena);
    return 0;
}

void st_test_arena_fini(struct st_test_arena *arena) {
    st_test_device_free(arena->device);
    free(arena->host);
    free(arena->before);
    free(arena->got);
    memset(arena, 0, sizeof(*arena));
}

void st_test_arena_reset(struct st_test_arena *arena) {
    arena->used = 0;
}

void *st_test_arena_take(struct st_test_arena *arena, size_t bytes, size_t offset) {
    size_t begin = (arena->used + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t end = begin + offset + bytes + GAP;
    if (end > arena->capacity) {
        fprintf(stderr, "a test arena of %zu bytes is too small\n", arena->capacity);
        abort();
    }
    memset(arena->host + arena->used, ST_TEST_POISON, end - arena->used);
    arena->used = end;
    return arena->host + begin + offset;
}

static void to_device(const struct st_test_arena *arena, const struct st_test_operator *op,
                      unsigned char *args) {
    for (size_t i = 0; i < ST_TEST_ARENA_POINTERS && op->pointers[i] != 0; i++) {
        unsigned char *pointer;
        unsigned char *member = args + op->pointers[i] - 1;
        memcpy(&pointer, member, sizeof(pointer));
        if (pointer != NULL)
            pointer = arena->device + (pointer - arena->host);
        memcpy(member, &pointer, sizeof(pointer));
    }
}

static int check_variant(struct st_test_arena *arena, const struct st_test_operator *op,
                         const struct st_kernel *kernel, const void *args, unsigned int variant,
                         const char *what) {
    unsigned char on_device[ARGS_MAX];
    const int is_served = op->is_served == NULL || op->is_served(args, variant);
    memcpy(on_device, args, op->args_size);
    memcpy(on_device + op->variant, &variant, sizeof(variant));
    to_device(arena, op, on_device);
    if (st_test_device_write(arena->device, arena->before, arena->used) != 0) {
        printf("%s: variant %u: the device takes no data\n", what, variant);
        return 1;
    }
    int rc = kernel->launch(on_device, NULL);
    if (!is_served && rc == STEPTAPE_ERR_UNSUPPORTED) {
        arena->refused_count++;
        return 0;
    }
    if (rc != 0 || !is_served) {
        printf("%s: variant %u: status %d\n", what, variant, rc);
        return 1;
    }
    if (st_test_device_copy(arena->got, arena->device, arena->used) != 0) {
        printf("%s: variant %u: CUDA error %d\n", what, variant, st_test_device_wait());
        return 1;
    }
    arena->checked_count++;
    for (size_t i = 0; i < arena->used; i++) {
        if (arena->got[i] == arena->host[i])
            continue;
        printf("%s: variant %u: byte %zu is %02x, not %02x\n", what, variant, i, arena->got[i],
               arena->host[i]);
        return 1;
    }
    return 0;
}

int st_test_arena_check(struct st_test_arena *arena, const struct st_test_operator *op,
                        const void *args, const char *what) {
    const struct st_kernel *kernel = st_kernel_find(op->name);
    int failures = 0;
    if (kernel == NULL || op->args_size > ARGS_MAX) {
        printf("%s: %s is no operator for this test\n", what, op->name);
        return 1;
    }
    memcpy(arena->before, arena->host, arena->used);
    int rc = kernel->ref(args);
    if (rc != 0) {
        printf("%s: the reference says %d\n", what, rc);
        return 1;
    }
    for (unsigned int v = 0; v <= kernel->variant_count; v++)
        failures += check_variant(arena, op, kernel, args, v, what);
    return failures;
}

int st_test_arena_main(int argc, char **argv, const struct st_test_cases *cases) {
    enum { ALL = 2000, MOST_FAILURES = 10 };
    const char *why;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const int64_t wanted = st_test_case_count(argc, argv, ALL);
    if (wanted < 0)
        return 2;
    const uint64_t count = (uint64_t)wanted;
    struct st_test_arena arena;
    int failures = 0;
    if (st_test_arena_init(&arena, cases->capacity) != 0) {
        printf("no memory for an arena of %zu bytes\n", cases->capacity);
        return 1;
    }
    for (uint64_t i = 0; i < count && failures < MOST_FAILURES; i++)
        failures += cases->small(&arena, i);
    if (count == ALL && cases->large != NULL)
        failures += cases->large(&arena);
    printf("%llu calls compared, %llu refused, %d wrong\n", (unsigned long long)arena.checked_count,
           (unsigned long long)arena.refused_count, failures);
    /* a test in which nothing was compared is none */
    const int passed = failures == 0 && arena.checked_count > count;
    st_test_arena_fini(&arena);
    return passed ? 0 : 1;
}
