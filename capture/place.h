/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a recording lies while it is made, and who has it.
 *
 *     x.tape.recording/     mode 0700
 *         NAME.ring         the ring; locked (flock) by the engine for as long as it records
 *         NAME.part         the unfinished tape
 *         NAME.recover      the tape that `recover` is making
 *
 * NAME is x, or x.PART, with .2, .3 ... behind it where the name is taken, by a tape or by the
 * remains of a recording; the finished tape is NAME.tape beside the folder.
 */
#ifndef ST_CAPTURE_PLACE_H
#define ST_CAPTURE_PLACE_H

#include <stdbool.h>

#include "capture/ring.h"
#include "traces/base/error.h"

/* st_place_take(): a live process records this path. */
#define ST_PLACE_BUSY 2

struct st_place {
    char *parent; /* folder of the tape, "." at least */
    char *folder; /* PARENT/x.tape.recording */
    char *base;   /* x, or x.PART */
    char *name;   /* base, or base.2 ... */
    int ring_fd;  /* locked; -1 */
};

/* path ends in .tape; part may be NULL. Opens nothing. */
int st_place_init(struct st_place *place, const char *path, const char *part, struct st_error *err);
/* Closes ring_fd, which gives the lock up. */
void st_place_fini(struct st_place *place);

/* Makes the folder and takes the first free name in it, with an empty ring, locked.
 * ST_PLACE_BUSY: err says who has it. */
int st_place_take(struct st_place *place, struct st_error *err);
/* Removes the ring and the part of its name, and the folder when it is empty. */
void st_place_clear(struct st_place *place);

/* "FOLDER/NAME.SUFFIX", the caller's to free; NULL: no memory. */
char *st_place_file(const struct st_place *place, const char *suffix);
/* Gives FOLDER/NAME.suffix the tape's name, or that with the first number that is free.  *path: the
 * name it got, the caller's to free. */
int st_place_publish(const struct st_place *place, const char *suffix, char **path,
                     struct st_error *err);

/* Fails with ST_ERR_IO: a live process has it; pid 0: nobody knows which. */
int st_place_fail_busy(const char *path, int64_t pid, struct st_error *err);

/* Fills pid, pid_started, pid_space and boot_id of this process. */
void st_place_sign(struct st_ring_head *head);
/* Is the process that signed a ring certainly gone? */
bool st_place_is_dead(const struct st_ring_head *head);

#endif
