/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/backend.h"

#include <string.h>

static const struct st_backend_ops *const backends[] = {
    &st_backend_cpu,
    &st_backend_sim,
    &st_backend_cuda,
};

const struct st_backend_ops *st_backend_find(const char *name) {
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

const char *st_pass_name(enum st_pass pass) {
    static const char *const names[ST_PASS_KINDS] = {
        [ST_PASS_TIME] = "time", [ST_PASS_COUNT] = "count", [ST_PASS_VERIFY] = "verify"};
    return names[pass];
}
