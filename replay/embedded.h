/* SPDX-License-Identifier: Apache-2.0 */
/* Models, devices and scripts inside the program: made by st_embed() in CMakeLists.txt. */
#ifndef ST_REPLAY_EMBEDDED_H
#define ST_REPLAY_EMBEDDED_H

#include "traces/base/embedded.h"

extern const struct st_embedded st_embedded_models[];
extern const struct st_embedded st_embedded_devices[];
extern const struct st_embedded st_embedded_bench[];

#endif
