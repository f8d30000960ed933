/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/known.h"

#include <stdlib.h>

static size_t hash(uint64_t number) {
    return (size_t)((number * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

/* ---- live requests */

static size_t slot_of(const struct st_known *known, int64_t request_id) {
    size_t i = hash((uint64_t)request_id) & known->mask;
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

static bool grow(struct st_known *known) {
    size_t old_count = known->slot ? known->mask + 1 : 0;
    size_t new_count = old_count ? 2 * old_count : 256;
    struct st_known bigger = {.mask = new_count - 1};
    bigger.slot = calloc(new_count, sizeof *bigger.slot);
    if (!bigger.slot)
        return false;
    for (size_t i = 0; i < old_count; i++)
        if (known->slot[i].state)
            bigger.slot[slot_of(&bigger, known->slot[i].request_id)] = known->slot[i];
    free(known->slot);
    known->slot = bigger.slot;
    known->mask = bigger.mask;
    return true;
}

struct st_known_request *st_known_add(struct st_known *known, int64_t request_id) {
    if (!known->slot || 2 * (known->count + 1) > known->mask + 1)
        if (!grow(known))
            return NULL;
    struct st_known_request *added = &known->slot[slot_of(known, request_id)];
    *added = (struct st_known_request){
        .request_id = request_id, .scheduled_step = -1, .state = ST_KNOWN_RUNNING};
    known->count++;
    return added;
}

/* Empties a slot and moves up what was pushed on behind it. */
static void remove_slot(struct st_known *known, size_t hole) {
    for (size_t i = (hole + 1) & known->mask; known->slot[i].state; i = (i + 1) & known->mask) {
        size_t want = hash((uint64_t)known->slot[i].request_id) & known->mask;
        if (((i - want) & known->mask) < ((i - hole) & known->mask))
            continue;
        known->slot[hole] = known->slot[i];
        hole = i;
    }
    known->slot[hole].state = 0;
    known->count--;
}

/* ---- finished ones */

static size_t page_of(const struct st_known *known, uint64_t at) {
    size_t i = hash(at) & known->page_mask;
    while (known->page[i].at && known->page[i].at != at)
        i = (i + 1) & known->page_mask;
    return i;
}

static bool grow_pages(struct st_known *known) {
    size_t old_count = known->page ? known->page_mask + 1 : 0;
    size_t new_count = old_count ? 2 * old_count : 64;
    struct st_known bigger = {.page_mask = new_count - 1};
    bigger.page = calloc(new_count, sizeof *bigger.page);
    if (!bigger.page)
        return false;
    for (size_t i = 0; i < old_count; i++)
        if (known->page[i].at)
            bigger.page[page_of(&bigger, known->page[i].at)] = known->page[i];
    free(known->page);
    known->page = bigger.page;
    known->page_mask = bigger.page_mask;
    return true;
}

bool st_known_is_finished(const struct st_known *known, int64_t request_id) {
    if (!known->page)
        return false;
    uint64_t n = (uint64_t)request_id;
    const struct st_known_page *page = &known->page[page_of(known, n / ST_KNOWN_PAGE + 1)];
    return page->bit[n % ST_KNOWN_PAGE / 64] >> n % 64 & 1;
}

bool st_known_finish(struct st_known *known, int64_t request_id) {
    if (!known->page || 2 * (known->page_count + 1) > known->page_mask + 1)
        if (!grow_pages(known))
            return false;
    uint64_t n = (uint64_t)request_id, at = n / ST_KNOWN_PAGE + 1;
    struct st_known_page *page = &known->page[page_of(known, at)];
    known->page_count += page->at == 0;
    page->at = at;
    page->bit[n % ST_KNOWN_PAGE / 64] |= UINT64_C(1) << n % 64;
    struct st_known_request *live = st_known_find(known, request_id);
    if (live)
        remove_slot(known, (size_t)(live - known->slot));
    return true;
}

void st_known_fini(struct st_known *known) {
    free(known->slot);
    free(known->page);
    *known = (struct st_known){0};
}
