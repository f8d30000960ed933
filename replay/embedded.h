/* SPDX-License-Identifier: Apache-2.0 */
/* Data files inside the program: tables made by embed.cmake, ended by a NULL name. */
#ifndef ST_REPLAY_EMBEDDED_H
#define ST_REPLAY_EMBEDDED_H

struct st_embedded {
    const char *name; /* file name without folders */
    const char *text;
};

extern const struct st_embedded st_embedded_models[];
extern const struct st_embedded st_embedded_devices[];

#endif
