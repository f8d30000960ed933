/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/known.h"

#include <stdlib.h>

static size_t slot_of(const struct st_known *known, int64_t request_id) {
    uint64_t h = (uint64_t)request_id * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(h >> 32) & known->mask;
    while (known->slot[i].state && known->slot[i].request_id != request_id)
        i = (i + 1) & known->mask;
    return i;
}

struct st_known_request *st_known_find(const struct st_known *known, int64_t request_id) {
    if (!known->slot)
        return NULL;
    struct st_known_request *found = &known->slot[slot_of(known, request_id)];
    return found->state ? found : NULL;
}

static int grow(struct st_known *known) {
    size_t old_count = known->slot ? known->mask + 1 : 0;
    size_t new_count = old_count ? 2 * old_count : 256;
    struct st_known bigger = {.mask = new_count - 1, .count = known->count};
    bigger.slot = calloc(new_count, sizeof *bigger.slot);
    if (!bigger.slot)
        return -1;
    for (size_t i = 0; i < old_count; i++)
        if (known->slot[i].state)
            bigger.slot[slot_of(&bigger, known->slot[i].request_id)] = known->slot[i];
    free(known->slot);
    *known = bigger;
    return 0;
}

struct st_known_request *st_known_add(struct st_known *known, int64_t request_id) {
    if (!known->slot || 2 * (known->count + 1) > known->mask + 1)
        if (grow(known) != 0)
            return NULL;
    struct st_known_request *added = &known->slot[slot_of(known, request_id)];
    added->request_id = request_id;
    added->scheduled_step = -1;
    added->state = ST_KNOWN_RUNNING;
    known->count++;
    return added;
}

void st_known_fini(struct st_known *known) {
    free(known->slot);
    *known = (struct st_known){0};
}
