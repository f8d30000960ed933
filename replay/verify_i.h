/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the pass `verify`: verify.c (the walk, policies against the first), verify_row.c (rows
 * as elements of a type, in words), verify_reference.c (rows against the CPU reference).
 */
#ifndef ST_REPLAY_VERIFY_I_H
#define ST_REPLAY_VERIFY_I_H

#include "replay/bind.h"
#include "replay/reference.h"
#include "replay/replay_i.h"

/* One observation of a step: the same rows under every policy. */
struct st_observation {
    const struct st_walk_step *at;
    const struct st_step_input *input;
    const struct st_launch *launch; /* OBSERVE, of the first policy's plan */
    int32_t number;                 /* among the plan's observations */
    int32_t count;                  /* rows */
    uint64_t *const *hash;          /* [policy_count][count]; 0: no such row */
};

/* Bytes of one row, as read_row gives them. */
struct st_row {
    uint8_t *bytes;
    int32_t length;
};

/* ---- verify_row.c */

/* Enough for a row of any observation. */
int32_t st_row_room(const struct st_model *model, const struct st_buffers *buffers);
/* The first element that differs: its column, and in words what `mine` has and what theirs, whose
 * name is `whose`.  -1: they are equal. */
int64_t st_row_difference(const struct st_launch *launch, const struct st_row *mine,
                          const struct st_row *theirs, const char *whose, char *what, size_t size);
/* The same for a given column. */
void st_row_describe(const struct st_launch *launch, const struct st_row *mine,
                     const struct st_row *theirs, int64_t column, const char *whose, char *what,
                     size_t size);

/* ---- verify.c */

int st_verify_hazard(struct st_replay *replay, const struct st_observation *o, int32_t policy,
                     int32_t row, int64_t column, const char *what, struct st_error *err);
int st_verify_read(struct st_replay *replay, const struct st_observation *o, int32_t policy,
                   int32_t row, int32_t room, struct st_row *out, struct st_error *err);

/* ---- verify_reference.c */

struct st_verify_reference;

int st_verify_reference_open(struct st_replay *replay, struct st_verify_reference **out,
                             struct st_error *err);
void st_verify_reference_close(struct st_verify_reference *reference); /* accepts NULL */
/* Once a step, after the policies ran. */
int st_verify_reference_step(struct st_replay *replay, struct st_verify_reference *reference,
                             const struct st_walk_step *at, const struct st_step_input *input,
                             struct st_error *err);
/* One observation of that step. */
int st_verify_reference_check(struct st_replay *replay, struct st_verify_reference *reference,
                              const struct st_observation *o, struct st_error *err);

#endif
