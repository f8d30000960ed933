/* SPDX-License-Identifier: Apache-2.0 */
/* The other way of launch_code.c.  The bytes may be anybody's: everything is checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/launch_code.h"
#include "traces/format/launch_i.h"

#define DEFINITIONS_LIMIT ((size_t)256 << 20)

struct st_launch_decoder {
    struct st_launch_memory *memory; /* [room], by site */
    int64_t room, site_count;
    struct st_bytes scratch;
    struct st_bytes_reader column[ST_LAUNCH_COLUMNS];
    uint64_t skip[ST_LAUNCH_EXCEPTIONS]; /* rows until the next exception; UINT64_MAX: no more */
    struct st_launch_state state;
    struct st_launch_block block;
    int64_t given;
    uint32_t epoch;
};

int st_launch_decoder_create(struct st_launch_decoder **decoder, struct st_error *err) {
    *decoder = calloc(1, sizeof **decoder);
    return *decoder ? 0 : ST_FAIL_NOMEM(err);
}

void st_launch_decoder_destroy(struct st_launch_decoder *d) {
    if (!d)
        return;
    free(d->memory);
    st_bytes_fini(&d->scratch);
    free(d);
}

static int read_head(struct st_bytes_reader *r, struct st_launch_block *block,
                     struct st_error *err) {
    block->count = st_bytes_get_within(r, 0, ST_LAUNCH_BLOCK_MAX);
    block->first_sequence = st_bytes_get_zigzag(r);
    block->last_sequence = st_bytes_get_zigzag(r);
    block->first_start_ns = st_bytes_get_zigzag(r);
    if (r->bad || block->first_sequence < -1 || block->last_sequence < block->first_sequence)
        return ST_FAIL(err, ST_ERR_CORRUPT, "a block of launches has a damaged head");
    return 0;
}

int st_launch_block_head(const void *data, size_t size, struct st_launch_block *block,
                         struct st_error *err) {
    struct st_bytes_reader r = {data, (const uint8_t *)data + size, size == 0};
    return read_head(&r, block, err);
}

static int make_room(struct st_launch_decoder *d, int64_t site_count, struct st_error *err) {
    if (site_count > ST_LAUNCH_SITES_MAX)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%" PRId64 " kinds of launches, at most %d expected",
                       site_count, ST_LAUNCH_SITES_MAX);
    d->site_count = site_count;
    if (site_count <= d->room)
        return 0;
    int64_t room = d->room ? d->room : 256;
    while (room < site_count)
        room *= 2;
    void *p = realloc(d->memory, (size_t)room * sizeof *d->memory);
    if (!p)
        return ST_FAIL_NOMEM(err);
    d->memory = p;
    memset(d->memory + d->room, 0, (size_t)(room - d->room) * sizeof *d->memory);
    d->room = room;
    return 0;
}

/* A column that is at its end has no more exceptions. */
static void next_exception(struct st_launch_decoder *d, int column) {
    struct st_bytes_reader *r = &d->column[column];
    d->skip[column] = r->at < r->end ? st_bytes_get_varint(r) : UINT64_MAX;
}

int st_launch_decoder_begin(struct st_launch_decoder *d, const void *data, size_t size,
                            int64_t site_count, struct st_error *err) {
    struct st_bytes_reader r = {data, (const uint8_t *)data + size, size == 0};
    d->given = d->block.count = 0;
    ST_TRY(make_room(d, site_count, err));
    ST_TRY(read_head(&r, &d->block, err));
    int64_t count = d->block.count;
    d->block.count = 0; /* nothing to give when what follows fails */
    ST_TRY(st_columns_unpack(r.at, (size_t)(r.end - r.at), &d->scratch, d->column,
                             ST_LAUNCH_COLUMNS, err));
    d->block.count = count;
    for (int c = 0; c < ST_LAUNCH_EXCEPTIONS; c++)
        next_exception(d, c);
    d->state = (struct st_launch_state){
        .sequence = ST_LAUNCH_OUTSIDE, .site = -1, .end_ns = d->block.first_start_ns};
    d->epoch++;
    return 0;
}

/* Whether this row is an exception, and its difference. */
static bool take_exception(struct st_launch_decoder *d, int column, int64_t *difference) {
    *difference = 0;
    if (d->skip[column] == UINT64_MAX)
        return false;
    if (d->skip[column]-- > 0)
        return false;
    if (column != ST_LAUNCH_NO_TIME)
        *difference = st_bytes_get_zigzag(&d->column[column]);
    next_exception(d, column);
    return true;
}

static void take_times(struct st_launch_decoder *d, struct st_launch_record *l,
                       struct st_launch_memory *memory, bool known) {
    int64_t unused;
    l->start_ns = l->end_ns = 0;
    if (take_exception(d, ST_LAUNCH_NO_TIME, &unused)) {
        if (!known)
            memory->gap_ns = memory->duration_ns = 0;
        return;
    }
    memory->gap_ns = st_bytes_get_difference(&d->column[ST_LAUNCH_GAP], known ? memory->gap_ns : 0);
    memory->duration_ns =
        st_bytes_get_difference(&d->column[ST_LAUNCH_DURATION], known ? memory->duration_ns : 0);
    l->start_ns = (int64_t)((uint64_t)d->state.end_ns + (uint64_t)memory->gap_ns);
    l->end_ns = (int64_t)((uint64_t)l->start_ns + (uint64_t)memory->duration_ns);
    d->state.end_ns = l->end_ns;
}

static int take_site(struct st_launch_decoder *d, int32_t *site, struct st_error *err) {
    struct st_launch_memory *last = d->state.site >= 0 ? &d->memory[d->state.site] : NULL;
    int64_t difference;
    int64_t predicted = (int64_t)d->state.site + 1;
    if (last && last->successor_epoch == d->epoch)
        predicted = last->successor;
    (void)take_exception(d, ST_LAUNCH_SITE, &difference);
    uint64_t number = (uint64_t)predicted + (uint64_t)difference;
    if (number >= (uint64_t)d->site_count)
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "launch %" PRId64 " of a block names a site that is not defined", d->given);
    *site = (int32_t)number;
    if (last) {
        last->successor = *site;
        last->successor_epoch = d->epoch;
    }
    return 0;
}

int st_launch_decoder_next(struct st_launch_decoder *d, struct st_launch_record *l,
                           struct st_error *err) {
    if (d->given == d->block.count)
        return ST_DONE;
    struct st_launch_state *state = &d->state;
    int32_t site = -1;
    int64_t difference;
    ST_TRY(take_site(d, &site, err));
    struct st_launch_memory *memory = &d->memory[site];
    bool known = memory->epoch == d->epoch;
    (void)take_exception(d, ST_LAUNCH_CALL, &difference);
    uint32_t delta = (known ? memory->call_delta : state->call_delta) + (uint32_t)difference;
    l->site = site;
    l->correlation_id = state->correlation_id + delta;
    (void)take_exception(d, ST_LAUNCH_SEQUENCE, &difference);
    l->sequence = (int64_t)((uint64_t)state->sequence + (uint64_t)difference);
    (void)take_exception(d, ST_LAUNCH_BYTES, &difference);
    l->bytes = (int64_t)((uint64_t)(known ? memory->bytes : 0) + (uint64_t)difference);
    take_times(d, l, memory, known);
    for (int c = 0; c < ST_LAUNCH_COLUMNS; c++)
        if (d->column[c].bad)
            return ST_FAIL(err, ST_ERR_CORRUPT, "launch %" PRId64 " of a block passes its end",
                           d->given);
    if (l->start_ns < 0 || l->end_ns < 0)
        return ST_FAIL(err, ST_ERR_CORRUPT, "launch %" PRId64 " of a block has an impossible time",
                       d->given);
    if (l->sequence < ST_LAUNCH_UNATTRIBUTED ||
        (l->sequence >= 0 &&
         (l->sequence < d->block.first_sequence || l->sequence > d->block.last_sequence)))
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "launch %" PRId64 " of a block is in a step that its head does not name",
                       d->given);
    memory->call_delta = state->call_delta = delta;
    memory->bytes = l->bytes;
    memory->epoch = d->epoch;
    state->sequence = l->sequence;
    state->site = site;
    state->correlation_id = l->correlation_id;
    d->given++;
    return 0;
}

/* ---- definitions */

static int read_names(struct st_bytes_reader *r, int64_t *names,
                      const struct st_launch_definitions *to, struct st_error *err) {
    int64_t count = st_bytes_get_within(r, 0, r->end - r->at);
    for (; count && !r->bad; count--) {
        int64_t size = st_bytes_get_within(r, 0, ST_LAUNCH_NAME_MAX);
        if (r->bad || size > r->end - r->at)
            break;
        ST_TRY(to->on_name(to->user, *names, (const char *)r->at, (size_t)size, err));
        r->at += size;
        ++*names;
    }
    return count ? ST_FAIL(err, ST_ERR_CORRUPT, "the names of kernels pass their end") : 0;
}

static int read_sites(struct st_bytes_reader *r, int64_t names, int64_t *sites,
                      const struct st_launch_definitions *to, struct st_error *err) {
    int64_t count = st_bytes_get_within(r, 0, r->end - r->at);
    uint64_t node = 0;
    for (; count && !r->bad; count--) {
        struct st_launch_site s = {0};
        s.kind = (int32_t)st_bytes_get_within(r, 0, ST_LAUNCH_KINDS - 1);
        int64_t name = st_bytes_get_within(r, 0, names ? names - 1 : 0);
        s.graph_id = (uint32_t)st_bytes_get_within(r, 0, UINT32_MAX);
        s.graph_node_id = node = (uint64_t)st_bytes_get_difference(r, (int64_t)node);
        for (int d = 0; d < 3; d++)
            s.grid[d] = (int32_t)st_bytes_get_within(r, 0, INT32_MAX);
        for (int d = 0; d < 3; d++)
            s.block[d] = (int32_t)st_bytes_get_within(r, 0, INT32_MAX);
        s.shared_bytes = (int32_t)st_bytes_get_within(r, 0, INT32_MAX);
        s.stream_id = (uint32_t)st_bytes_get_within(r, 0, UINT32_MAX);
        s.device_id = (uint32_t)st_bytes_get_within(r, 0, UINT32_MAX);
        if (r->bad || !names || *sites >= ST_LAUNCH_SITES_MAX)
            break;
        ST_TRY(to->on_site(to->user, *sites, &s, name, err));
        ++*sites;
    }
    if (count || r->bad)
        return ST_FAIL(err, ST_ERR_CORRUPT, "the definition of a launch is damaged");
    return r->at == r->end ? 0 : ST_FAIL(err, ST_ERR_CORRUPT, "definitions of launches go on");
}

int st_launch_read_definitions(const void *data, size_t size, int64_t *names, int64_t *sites,
                               const struct st_launch_definitions *to, struct st_error *err) {
    struct st_bytes raw = {0};
    int rc = st_bytes_inflate(&raw, data, size, DEFINITIONS_LIMIT, err);
    struct st_bytes_reader r = {raw.data, raw.data + raw.size, false};
    if (!rc)
        rc = read_names(&r, names, to, err);
    if (!rc)
        rc = read_sites(&r, *names, sites, to, err);
    st_bytes_fini(&raw);
    return rc;
}
