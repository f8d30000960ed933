/* SPDX-License-Identifier: Apache-2.0 */
/* The coder: sites by hash, launches as differences from what their sites predict. */
#include "traces/format/launch_code.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL /* no library to carry into the engine's process */
#include <xxhash.h>

#include "traces/format/launch_i.h"

enum {
    NAMES_MAX = 1 << 16, /* names that are known at a time */
    DEFLATE_LEVEL = 4,   /* runs beside the engine: 9 takes four times as long for 3 % */
    HASH_EMPTY = -1
};

struct name {
    char *text;
    uint64_t hash;
};

struct site {
    struct st_launch_site key; /* key.name is one of ours */
    uint64_t hash;
    struct st_launch_memory memory;
};

/* Open addressing over numbers; room is a power of two. */
struct table {
    int32_t *slot;
    size_t room;
};

struct st_launch_encoder {
    struct name *name;
    struct site *site;
    int32_t name_count, name_room, site_count, site_room;
    int64_t name_base, site_base; /* numbers of those that were forgotten */
    struct table names, sites;
    int32_t last_site;                    /* found last: its successor is looked at first */
    int32_t defined_names, defined_sites; /* already given out */
    struct st_bytes column[ST_LAUNCH_COLUMNS];
    struct st_bytes scratch;
    uint64_t skip[ST_LAUNCH_EXCEPTIONS]; /* rows since the last exception */
    struct st_launch_state state;
    struct st_launch_block block;
    uint32_t epoch;
};

const char *st_launch_kind_name(int32_t kind) {
    static const char *const names[ST_LAUNCH_KINDS] = {"kernel", "graph", "memcpy", "memset",
                                                       "api"};
    return kind >= 0 && kind < ST_LAUNCH_KINDS ? names[kind] : "?";
}

static void table_clear(struct table *t) {
    for (size_t i = 0; i < t->room; i++)
        t->slot[i] = HASH_EMPTY;
}

static bool table_room(struct table *t, size_t room) {
    int32_t *slot = realloc(t->slot, room * sizeof *slot);
    if (!slot)
        return false;
    t->slot = slot;
    t->room = room;
    table_clear(t);
    return true;
}

static void begin_block(struct st_launch_encoder *e) {
    for (int c = 0; c < ST_LAUNCH_COLUMNS; c++)
        e->column[c].size = 0;
    memset(e->skip, 0, sizeof e->skip);
    e->state = (struct st_launch_state){.sequence = ST_LAUNCH_OUTSIDE, .site = -1};
    e->block = (struct st_launch_block){.first_sequence = -1, .last_sequence = -1};
    e->epoch++;
}

int st_launch_encoder_create(struct st_launch_encoder **encoder, struct st_error *err) {
    struct st_launch_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return ST_FAIL_NOMEM(err);
    e->last_site = -1;
    begin_block(e);
    if (!table_room(&e->names, 256) || !table_room(&e->sites, 1024)) {
        st_launch_encoder_destroy(e);
        return ST_FAIL_NOMEM(err);
    }
    *encoder = e;
    return 0;
}

static void forget(struct st_launch_encoder *e) {
    for (int32_t i = 0; i < e->name_count; i++)
        free(e->name[i].text);
    e->name_base += e->name_count;
    e->site_base += e->site_count;
    e->name_count = e->site_count = 0;
    e->defined_names = e->defined_sites = 0;
    e->last_site = -1;
    table_clear(&e->names);
    table_clear(&e->sites);
}

void st_launch_encoder_destroy(struct st_launch_encoder *e) {
    if (!e)
        return;
    forget(e);
    free(e->name);
    free(e->site);
    free(e->names.slot);
    free(e->sites.slot);
    for (int c = 0; c < ST_LAUNCH_COLUMNS; c++)
        st_bytes_fini(&e->column[c]);
    st_bytes_fini(&e->scratch);
    free(e);
}

void st_launch_encoder_room(struct st_launch_encoder *e) {
    bool defined = e->defined_sites == e->site_count && e->defined_names == e->name_count;
    if (defined && e->block.count == 0 &&
        (e->site_count > ST_LAUNCH_DICTIONARY_MAX || e->name_count > NAMES_MAX))
        forget(e);
}

/* ---- sites */

static int add_name(struct st_launch_encoder *e, const char *text, size_t size, uint64_t hash,
                    int32_t *number, struct st_error *err) {
    if (e->name_count == e->name_room) {
        int32_t room = e->name_room ? 2 * e->name_room : 64;
        void *p = realloc(e->name, (size_t)room * sizeof *e->name);
        if (!p)
            return ST_FAIL_NOMEM(err);
        e->name = p;
        e->name_room = room;
    }
    if (2 * ((size_t)e->name_count + 1) > e->names.room) {
        if (!table_room(&e->names, 2 * e->names.room))
            return ST_FAIL_NOMEM(err);
        for (int32_t i = 0; i < e->name_count; i++) {
            size_t k = e->name[i].hash & (e->names.room - 1);
            while (e->names.slot[k] != HASH_EMPTY)
                k = (k + 1) & (e->names.room - 1);
            e->names.slot[k] = i;
        }
    }
    char *copy = strndup(text, size);
    if (!copy)
        return ST_FAIL_NOMEM(err);
    size_t k = hash & (e->names.room - 1);
    while (e->names.slot[k] != HASH_EMPTY)
        k = (k + 1) & (e->names.room - 1);
    e->names.slot[k] = e->name_count;
    e->name[e->name_count] = (struct name){copy, hash};
    *number = e->name_count++;
    return 0;
}

static int intern_name(struct st_launch_encoder *e, const char *text, int32_t *number,
                       struct st_error *err) {
    size_t size = strnlen(text, ST_LAUNCH_NAME_MAX);
    uint64_t hash = XXH3_64bits(text, size);
    for (size_t k = hash & (e->names.room - 1); e->names.slot[k] != HASH_EMPTY;
         k = (k + 1) & (e->names.room - 1)) {
        const struct name *n = &e->name[e->names.slot[k]];
        if (n->hash == hash && strncmp(n->text, text, size) == 0 && n->text[size] == 0) {
            *number = e->names.slot[k];
            return 0;
        }
    }
    return add_name(e, text, size, hash, number, err);
}

/* All but the name. */
static bool same_place(const struct st_launch_site *a, const struct st_launch_site *b) {
    return a->graph_node_id == b->graph_node_id && a->graph_id == b->graph_id &&
           a->kind == b->kind && memcmp(a->grid, b->grid, sizeof a->grid) == 0 &&
           memcmp(a->block, b->block, sizeof a->block) == 0 && a->shared_bytes == b->shared_bytes &&
           a->stream_id == b->stream_id && a->device_id == b->device_id;
}

static bool same_site(const struct st_launch_site *known, const struct st_launch_site *site) {
    return same_place(known, site) &&
           strncmp(known->name, site->name ? site->name : "", ST_LAUNCH_NAME_MAX) == 0;
}

static uint64_t hash_site(const struct st_launch_site *s, uint64_t name_hash) {
    const uint64_t words[] = {
        name_hash,
        s->graph_node_id,
        (uint64_t)s->graph_id << 32 | (uint32_t)s->kind,
        (uint64_t)(uint32_t)s->grid[0] << 32 | (uint32_t)s->grid[1],
        (uint64_t)(uint32_t)s->grid[2] << 32 | (uint32_t)s->block[0],
        (uint64_t)(uint32_t)s->block[1] << 32 | (uint32_t)s->block[2],
        (uint64_t)(uint32_t)s->shared_bytes << 32 | s->stream_id,
        s->device_id,
    };
    return XXH3_64bits(words, sizeof words);
}

static int sites_grow(struct st_launch_encoder *e, struct st_error *err) {
    if (e->site_count == e->site_room) {
        int32_t room = e->site_room ? 2 * e->site_room : 256;
        void *p = realloc(e->site, (size_t)room * sizeof *e->site);
        if (!p)
            return ST_FAIL_NOMEM(err);
        e->site = p;
        e->site_room = room;
    }
    if (2 * ((size_t)e->site_count + 1) <= e->sites.room)
        return 0;
    if (!table_room(&e->sites, 2 * e->sites.room))
        return ST_FAIL_NOMEM(err);
    for (int32_t i = 0; i < e->site_count; i++) {
        size_t k = e->site[i].hash & (e->sites.room - 1);
        while (e->sites.slot[k] != HASH_EMPTY)
            k = (k + 1) & (e->sites.room - 1);
        e->sites.slot[k] = i;
    }
    return 0;
}

static int intern_site(struct st_launch_encoder *e, const struct st_launch_site *site,
                       int32_t *index, struct st_error *err) {
    int32_t name = 0;
    ST_TRY(intern_name(e, site->name ? site->name : "", &name, err));
    uint64_t hash = hash_site(site, e->name[name].hash);
    size_t k = hash & (e->sites.room - 1);
    for (; e->sites.slot[k] != HASH_EMPTY; k = (k + 1) & (e->sites.room - 1)) {
        const struct site *s = &e->site[e->sites.slot[k]];
        if (s->hash == hash && same_place(&s->key, site) && s->key.name == e->name[name].text) {
            *index = e->sites.slot[k];
            return 0;
        }
    }
    if (e->site_base + e->site_count >= ST_LAUNCH_SITES_MAX)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "more than %d different launches",
                       ST_LAUNCH_SITES_MAX);
    ST_TRY(sites_grow(e, err));
    k = hash & (e->sites.room - 1);
    while (e->sites.slot[k] != HASH_EMPTY)
        k = (k + 1) & (e->sites.room - 1);
    e->sites.slot[k] = e->site_count;
    struct site *s = &e->site[e->site_count];
    *s = (struct site){.key = *site, .hash = hash};
    s->key.name = e->name[name].text;
    *index = e->site_count++;
    return 0;
}

int st_launch_encoder_site(struct st_launch_encoder *e, const struct st_launch_site *site,
                           int32_t *number, struct st_error *err) {
    /* Launches come in much the same order again and again: no hash of a name of 500 bytes. */
    int32_t index = -1;
    if (e->last_site >= 0 && e->site[e->last_site].memory.successor_epoch) {
        int64_t next = e->site[e->last_site].memory.successor - e->site_base;
        if (next >= 0 && next < e->site_count && same_site(&e->site[next].key, site))
            index = (int32_t)next;
    }
    if (index < 0)
        ST_TRY(intern_site(e, site, &index, err));
    e->last_site = index;
    *number = (int32_t)(e->site_base + index);
    return 0;
}

/* ---- launches */

static int by_call_and_template(const void *a, const void *b) {
    const struct st_launch_record *x = a, *y = b;
    if (x->correlation_id != y->correlation_id) /* the counter may wrap around */
        return (int32_t)(x->correlation_id - y->correlation_id) < 0 ? -1 : 1;
    if (x->site != y->site)
        return x->site < y->site ? -1 : 1;
    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

static void sort_batch(struct st_launch_record *launch, int64_t count) {
    for (int64_t i = 1; i < count; i++) {
        if (by_call_and_template(&launch[i - 1], &launch[i]) > 0) {
            qsort(launch, (size_t)count, sizeof *launch, by_call_and_template);
            return;
        }
    }
}

/* A column that holds only where the value is not the predicted one. */
static void put_exception(struct st_launch_encoder *e, enum st_launch_column column,
                          int64_t difference) {
    st_bytes_put_varint(&e->column[column], e->skip[column]);
    e->skip[column] = 0;
    if (column != ST_LAUNCH_NO_TIME)
        st_bytes_put_zigzag(&e->column[column], difference);
}

static void put_predicted(struct st_launch_encoder *e, enum st_launch_column column,
                          int64_t difference) {
    if (difference)
        put_exception(e, column, difference);
    else
        e->skip[column]++;
}

static void put_times(struct st_launch_encoder *e, const struct st_launch_record *l,
                      struct st_launch_memory *memory, bool known) {
    if (l->start_ns == 0 || l->end_ns == 0) {
        put_exception(e, ST_LAUNCH_NO_TIME, 0);
        if (!known)
            memory->gap_ns = memory->duration_ns = 0;
        return;
    }
    e->skip[ST_LAUNCH_NO_TIME]++;
    if (e->block.first_start_ns == 0)
        e->block.first_start_ns = e->state.end_ns = l->start_ns;
    int64_t gap = (int64_t)((uint64_t)l->start_ns - (uint64_t)e->state.end_ns);
    int64_t duration = (int64_t)((uint64_t)l->end_ns - (uint64_t)l->start_ns);
    st_bytes_put_difference(&e->column[ST_LAUNCH_GAP], gap, known ? memory->gap_ns : 0);
    st_bytes_put_difference(&e->column[ST_LAUNCH_DURATION], duration,
                            known ? memory->duration_ns : 0);
    memory->gap_ns = gap;
    memory->duration_ns = duration;
    e->state.end_ns = l->end_ns;
}

static void note_sequence(struct st_launch_block *b, int64_t sequence) {
    b->count++;
    if (sequence < 0)
        return;
    if (b->first_sequence < 0 || sequence < b->first_sequence)
        b->first_sequence = sequence;
    if (sequence > b->last_sequence)
        b->last_sequence = sequence;
}

static void put_launch(struct st_launch_encoder *e, const struct st_launch_record *l) {
    struct st_launch_state *state = &e->state;
    struct st_launch_memory *memory = &e->site[l->site - e->site_base].memory;
    bool known = memory->epoch == e->epoch;
    int32_t predicted = state->site + 1;
    if (state->site >= 0) {
        struct st_launch_memory *last = &e->site[state->site - e->site_base].memory;
        if (last->successor_epoch == e->epoch)
            predicted = last->successor;
        last->successor = l->site;
        last->successor_epoch = e->epoch;
    }
    uint32_t delta = l->correlation_id - state->correlation_id;
    put_predicted(e, ST_LAUNCH_SITE, (int64_t)l->site - predicted);
    put_predicted(e, ST_LAUNCH_CALL,
                  (int32_t)(delta - (known ? memory->call_delta : state->call_delta)));
    put_predicted(e, ST_LAUNCH_SEQUENCE,
                  (int64_t)((uint64_t)l->sequence - (uint64_t)state->sequence));
    put_predicted(e, ST_LAUNCH_BYTES,
                  (int64_t)((uint64_t)l->bytes - (uint64_t)(known ? memory->bytes : 0)));
    put_times(e, l, memory, known);
    memory->call_delta = state->call_delta = delta;
    memory->bytes = l->bytes;
    memory->epoch = e->epoch;
    state->sequence = l->sequence;
    state->site = l->site;
    state->correlation_id = l->correlation_id;
    note_sequence(&e->block, l->sequence);
}

int st_launch_encoder_add(struct st_launch_encoder *e, struct st_launch_record *launch,
                          int64_t count, struct st_error *err) {
    if (e->block.count + count > ST_LAUNCH_BLOCK_MAX)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "more than %d launches in a block",
                       ST_LAUNCH_BLOCK_MAX);
    sort_batch(launch, count);
    for (int64_t i = 0; i < count; i++)
        put_launch(e, &launch[i]);
    return 0;
}

int64_t st_launch_encoder_count(const struct st_launch_encoder *e) {
    return e->block.count;
}

/* ---- chunks */

static void put_site(struct st_launch_encoder *e, struct st_bytes *out, const struct site *s,
                     uint64_t last_node) {
    const struct st_launch_site *k = &s->key;
    uint64_t hash = XXH3_64bits(k->name, strlen(k->name));
    size_t slot = hash & (e->names.room - 1);
    while (e->name[e->names.slot[slot]].text != k->name)
        slot = (slot + 1) & (e->names.room - 1);
    st_bytes_put_varint(out, (uint64_t)k->kind);
    st_bytes_put_varint(out, (uint64_t)(e->name_base + e->names.slot[slot]));
    st_bytes_put_varint(out, k->graph_id);
    st_bytes_put_difference(out, (int64_t)k->graph_node_id, (int64_t)last_node);
    for (int d = 0; d < 3; d++)
        st_bytes_put_varint(out, (uint32_t)k->grid[d]);
    for (int d = 0; d < 3; d++)
        st_bytes_put_varint(out, (uint32_t)k->block[d]);
    st_bytes_put_varint(out, (uint32_t)k->shared_bytes);
    st_bytes_put_varint(out, k->stream_id);
    st_bytes_put_varint(out, k->device_id);
}

int st_launch_encoder_definitions(struct st_launch_encoder *e, struct st_bytes *out,
                                  struct st_error *err) {
    if (e->defined_names == e->name_count && e->defined_sites == e->site_count)
        return 0;
    struct st_bytes *raw = &e->scratch;
    raw->size = 0;
    st_bytes_put_varint(raw, (uint64_t)(e->name_count - e->defined_names));
    for (int32_t i = e->defined_names; i < e->name_count; i++) {
        size_t size = strlen(e->name[i].text);
        st_bytes_put_varint(raw, size);
        st_bytes_put(raw, e->name[i].text, size);
    }
    st_bytes_put_varint(raw, (uint64_t)(e->site_count - e->defined_sites));
    uint64_t node = 0;
    for (int32_t i = e->defined_sites; i < e->site_count; i++) {
        put_site(e, raw, &e->site[i], node);
        node = e->site[i].key.graph_node_id;
    }
    if (raw->failed)
        return ST_FAIL_NOMEM(err);
    ST_TRY(st_bytes_deflate(out, raw->data, raw->size, err));
    e->defined_names = e->name_count;
    e->defined_sites = e->site_count;
    return 0;
}

int st_launch_encoder_block(struct st_launch_encoder *e, struct st_bytes *out,
                            struct st_error *err) {
    const struct st_launch_block *b = &e->block;
    st_bytes_put_varint(out, (uint64_t)b->count);
    st_bytes_put_zigzag(out, b->first_sequence);
    st_bytes_put_zigzag(out, b->last_sequence);
    st_bytes_put_zigzag(out, b->first_start_ns);
    int rc = st_columns_pack_level(e->column, ST_LAUNCH_COLUMNS, DEFLATE_LEVEL, out, err);
    begin_block(e);
    return rc;
}
