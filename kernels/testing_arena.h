/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stretch of memory that holds all inputs and outputs of a call, on the host and on the device
 * at the same distances.  The reference writes into the host's, each variant into the device's, and
 * then the two must be the same in every byte: a stray write is found wherever it lands.  Device
 * memory is allocated once, so thousands of small cases take seconds.  Only tests link this.
 *
 *     st_test_arena_reset(arena);
 *     args.out = st_test_arena_take(arena, bytes, 0);      (poisoned; inputs: the test fills them)
 *     failures += st_test_arena_check(arena, &fill_operator, &args, "case 7");
 */
#ifndef ST_KERNELS_TESTING_ARENA_H
#define ST_KERNELS_TESTING_ARENA_H

#include "kernels/registry.h"
#include "kernels/testing.h"

#ifdef __cplusplus
extern "C" {
#endif

struct st_test_arena {
    unsigned char *host;   /* after the reference: what must be */
    unsigned char *before; /* what the device starts from */
    unsigned char *got;
    unsigned char *device;
    size_t capacity;
    size_t used;
    uint64_t refused_count; /* calls that said STEPTAPE_ERR_UNSUPPORTED, rightly */
    uint64_t checked_count; /* calls whose bytes were compared */
};

enum { ST_TEST_ARENA_POINTERS = 16 };

/* An operator as the arena sees it: where its args hold pointers and the variant. */
struct st_test_operator {
    const char *name;
    size_t args_size;
    size_t variant;                          /* offsetof */
    size_t pointers[ST_TEST_ARENA_POINTERS]; /* offsetof each + 1, then 0 */
    /* (optional) whether a variant serves args; without it every variant must */
    int (*is_served)(const void *args, unsigned int variant);
};

/* 0, or -1 when memory is short. */
int st_test_arena_init(struct st_test_arena *arena, size_t capacity);
void st_test_arena_fini(struct st_test_arena *arena);

void st_test_arena_reset(struct st_test_arena *arena);

/*
 * bytes bytes, `offset` past a multiple of 256, poisoned, with at least 64 poisoned bytes around.
 * Aborts when the arena is full.
 */
void *st_test_arena_take(struct st_test_arena *arena, size_t bytes, size_t offset);

/*
 * Runs the reference and then every variant and the default; args point into arena->host.
 * Returns how many went wrong, each with a line on stdout that starts with `what`.
 */
int st_test_arena_check(struct st_test_arena *arena, const struct st_test_operator *op,
                        const void *args, const char *what);

/* A test of random cases; each function returns how many calls went wrong. */
struct st_test_cases {
    size_t capacity; /* of the arena, bytes */
    int (*small)(struct st_test_arena *arena, uint64_t i);
    int (*large)(struct st_test_arena *arena); /* (optional) once, after the small ones */
};

/*
 * Its main: 2,000 small cases and the large ones, or as many small ones as the argument says (for a
 * run under compute-sanitizer).  Returns the exit status: 77 without a GPU.
 */
int st_test_arena_main(int argc, char **argv, const struct st_test_cases *cases);

#ifdef __cplusplus
}
#endif
#endif
