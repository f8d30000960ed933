/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of an observation as elements: what a column is, and how a difference is told.
 */
#include <string.h>

#include "replay/verify_i.h"

enum { ENTRY_BYTES = STEPTAPE_KV_ENTRY_BYTES, NOPE = 448, KEY_DIM = 128 };

enum element { ELEMENT_SLOT, ELEMENT_INDEX, ELEMENT_FLOAT, ELEMENT_BF16, ELEMENT_BYTE };

static enum element element_of(const struct st_launch *launch) {
    switch ((enum st_view)launch->view) {
    case ST_VIEW_KV_SLOT:
        return ELEMENT_SLOT;
    case ST_VIEW_STATE:
        return ELEMENT_FLOAT;
    case ST_VIEW_ENTRY:
        return ELEMENT_BYTE;
    case ST_VIEW_OUT:
        return ELEMENT_BF16;
    default:
        return ELEMENT_INDEX;
    }
}

/* Lists carry their length behind their indices. */
static bool is_list(const struct st_launch *launch) {
    return element_of(launch) == ELEMENT_INDEX && launch->view != ST_VIEW_GATHER_LENS;
}

static int32_t largest(int32_t a, int32_t b) {
    return a > b ? a : b;
}

int32_t st_row_room(const struct st_model *model, const struct st_buffers *buffers) {
    int32_t room = 4 * 2 * ST_REFERENCE_MAX_WIDTH;
    room = largest(room, model->heads * model->value_dim * 2);
    room = largest(room, 4 * (int32_t)(buffers->combined_stride + 1));
    return largest(room, 4 * (buffers->c128a_capacity + 1));
}

/* The channel that a byte of an entry belongs to. */
static int64_t channel_of(const struct st_launch *launch, int32_t byte) {
    if (launch->cache == ST_CACHE_KV_INDEXER)
        return byte < KEY_DIM ? byte : KEY_DIM;
    if (byte < NOPE)
        return byte;
    return byte < STEPTAPE_KV_ENTRY_DATA_BYTES
               ? NOPE + (byte - NOPE) / 2
               : (int64_t)(byte - STEPTAPE_KV_ENTRY_DATA_BYTES) * 64;
}

static int32_t int_at(const struct st_row *row, int64_t word) {
    int32_t value = 0;
    if (4 * (word + 1) <= row->length)
        memcpy(&value, row->bytes + 4 * word, 4);
    return value;
}

static void describe_byte(const struct st_row *mine, const struct st_row *theirs, int32_t byte,
                          const char *whose, char *what, size_t size) {
    snprintf(what, size, "byte %d of the entry is 0x%02x, %s has 0x%02x", byte, mine->bytes[byte],
             whose, theirs->bytes[byte]);
}

static void describe_element(enum element element, const struct st_row *mine,
                             const struct st_row *theirs, int64_t column, const char *whose,
                             char *what, size_t size) {
    if (element == ELEMENT_SLOT) {
        int64_t a, b;
        memcpy(&a, mine->bytes + 8 * column, 8);
        memcpy(&b, theirs->bytes + 8 * column, 8);
        snprintf(what, size, "slot %lld, %s has %lld", (long long)a, whose, (long long)b);
    } else if (element == ELEMENT_INDEX) {
        snprintf(what, size, "index %d, %s has %d", int_at(mine, column), whose,
                 int_at(theirs, column));
    } else if (element == ELEMENT_FLOAT) {
        float a, b;
        memcpy(&a, mine->bytes + 4 * column, 4);
        memcpy(&b, theirs->bytes + 4 * column, 4);
        snprintf(what, size, "state %.9g, %s has %.9g", (double)a, whose, (double)b);
    } else {
        uint16_t a, b;
        memcpy(&a, mine->bytes + 2 * column, 2);
        memcpy(&b, theirs->bytes + 2 * column, 2);
        snprintf(what, size, "output %.9g, %s has %.9g", (double)steptape_bf16_to_float(a), whose,
                 (double)steptape_bf16_to_float(b));
    }
}

static int32_t first_byte(const struct st_row *a, const struct st_row *b, int32_t length) {
    for (int32_t i = 0; i < length; i++)
        if (a->bytes[i] != b->bytes[i])
            return i;
    return -1;
}

int64_t st_row_difference(const struct st_launch *launch, const struct st_row *mine,
                          const struct st_row *theirs, const char *whose, char *what, size_t size) {
    static const int32_t bytes_of[] = {
        [ELEMENT_SLOT] = 8, [ELEMENT_INDEX] = 4, [ELEMENT_FLOAT] = 4, [ELEMENT_BF16] = 2};
    enum element element = element_of(launch);
    int32_t shorter = mine->length < theirs->length ? mine->length : theirs->length;
    int32_t common = is_list(launch) && shorter >= 4 ? shorter - 4 : shorter;
    int32_t byte = first_byte(mine, theirs, common);
    if (byte < 0) {
        if (mine->length == theirs->length)
            return -1;
        snprintf(what, size, "length %d, %s has %d", mine->length / 4 - 1, whose,
                 theirs->length / 4 - 1);
        return common / 4;
    }
    if (element == ELEMENT_BYTE) {
        describe_byte(mine, theirs, byte, whose, what, size);
        return channel_of(launch, byte);
    }
    int64_t column = byte / bytes_of[element];
    describe_element(element, mine, theirs, column, whose, what, size);
    return column;
}

void st_row_describe(const struct st_launch *launch, const struct st_row *mine,
                     const struct st_row *theirs, int64_t column, const char *whose, char *what,
                     size_t size) {
    enum element element = element_of(launch);
    if (element != ELEMENT_BYTE) {
        describe_element(element, mine, theirs, column, whose, what, size);
        return;
    }
    int32_t shorter = mine->length < theirs->length ? mine->length : theirs->length;
    for (int32_t i = 0; i < shorter; i++) {
        if (mine->bytes[i] == theirs->bytes[i] || channel_of(launch, i) != column)
            continue;
        describe_byte(mine, theirs, i, whose, what, size);
        return;
    }
}
