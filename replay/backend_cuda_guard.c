/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards on the device (replay/guard.h): filled before a policy's launches, compared by a kernel
 * behind each launch, which a graph captures with it, and by more of them behind the last.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"

int st_cuda_open_guards(struct st_backend *b, struct st_error *err) {
    void *host = NULL;
    if (!b->poison)
        return 0;
    _Static_assert((int)ST_CUDA_DAMAGES == (int)ST_GUARD_DAMAGES, "all of them are handed on");
    _Static_assert(ST_CUDA_GUARD_WORD == ST_GUARD_BYTE * 0x01010101u, "filled by bytes");
    int64_t bytes = b->sets * (int64_t)sizeof *b->d_damages;
    ST_TRY(st_cuda_alloc(b, &b->d_damages, bytes, "what guards found", err));
    ST_CUDA(err, cudaMemsetAsync(b->d_damages, 0, (size_t)bytes, b->stream));
    ST_CUDA(err, cudaHostAlloc(&host, (size_t)bytes, cudaHostAllocDefault));
    b->h_damages = host;
    return 0;
}

void st_cuda_close_guards(struct st_backend *b) {
    if (b->h_damages)
        cudaFreeHost(b->h_damages);
}

int st_cuda_fill_guards(struct st_backend *b, int32_t set, struct st_error *err) {
    const struct st_guards *g = &b->guards;
    for (int32_t i = 0; i < g->first[ST_BUF_COUNT]; i++) {
        const struct st_guard_region *r = &g->region[i];
        for (int32_t copy = 0; copy < st_guard_copies(&b->buffers, r->buffer); copy++) {
            uint8_t *base = st_cuda_buffer(b, r->buffer, set, copy);
            ST_CUDA(err, cudaMemsetAsync(base + r->begin, ST_GUARD_BYTE,
                                         (size_t)(r->end - r->begin), b->stream));
        }
    }
    ST_CUDA(err, cudaMemsetAsync(&b->d_damages[set], 0, sizeof *b->d_damages, b->stream));
    return 0;
}

static int flush(struct st_backend *b, struct st_cuda_guards *args, struct st_error *err) {
    ST_CUDA(err, st_cuda_check_regions(args, b->stream));
    args->count = 0;
    return 0;
}

static int add_buffer(struct st_backend *b, enum st_buffer_id id, int32_t set, int32_t copy,
                      struct st_cuda_guards *args, struct st_error *err) {
    const struct st_guards *g = &b->guards;
    for (int32_t i = g->first[id]; i < g->first[id + 1]; i++) {
        const struct st_guard_region *r = &g->region[i];
        uint8_t *base = st_cuda_buffer(b, id, set, copy);
        args->region[args->count++] = (struct st_cuda_guard){
            .at = (uint32_t *)(void *)(base + r->begin),
            .begin = r->begin,
            .words = (int32_t)((r->end - r->begin) / 4),
            .buffer = id,
        };
        if (args->count == ST_CUDA_GUARDS)
            ST_TRY(flush(b, args, err));
    }
    return 0;
}

int st_cuda_check_guards(struct st_backend *b, const struct st_launch *launch, int32_t set,
                         struct st_error *err) {
    enum st_buffer_id out[ST_GUARD_OUTPUTS];
    int32_t count = st_guard_outputs(launch, out);
    int32_t copy = launch->ordinal < 0 ? 0 : launch->ordinal % b->buffers.layer_buffers;
    struct st_cuda_guards args;
    memset(&args, 0, sizeof args);
    args.op = launch->op;
    args.layer = launch->layer;
    args.out = &b->d_damages[set];
    for (int32_t i = 0; i < count; i++)
        ST_TRY(add_buffer(b, out[i], set, st_guard_copies(&b->buffers, out[i]) > 1 ? copy : 0,
                          &args, err));
    return flush(b, &args, err);
}

int st_cuda_check_all_guards(struct st_backend *b, int32_t set, struct st_error *err) {
    struct st_cuda_guards args;
    memset(&args, 0, sizeof args);
    args.layer = -1;
    args.foreign = 1;
    args.out = &b->d_damages[set];
    for (int i = 0; i < ST_BUF_COUNT; i++) {
        enum st_buffer_id id = (enum st_buffer_id)i;
        args.op = st_guard_owner(id);
        for (int32_t copy = 0; copy < st_guard_copies(&b->buffers, id); copy++)
            ST_TRY(add_buffer(b, id, set, copy, &args, err));
        ST_TRY(flush(b, &args, err)); /* the next buffer is another operator's */
    }
    ST_CUDA(err, cudaMemcpyAsync(&b->h_damages[set], &b->d_damages[set], sizeof *b->h_damages,
                                 cudaMemcpyDeviceToHost, b->stream));
    return 0;
}

static int in_order(const void *a, const void *b) {
    const struct st_guard_damage *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

int32_t st_cuda_get_damages(struct st_backend *b, int32_t policy,
                            const struct st_guard_damage **damage, int64_t *lost) {
    *damage = b->damage;
    *lost = 0;
    if (!b->h_damages)
        return 0;
    const struct st_cuda_damages *found = &b->h_damages[st_cuda_set(b, policy)];
    int32_t count = found->count < ST_CUDA_DAMAGES ? found->count : ST_CUDA_DAMAGES;
    *lost = found->count - count;
    for (int32_t i = 0; i < count; i++) {
        const struct st_cuda_damage *d = &found->damage[i];
        b->damage[i] = (struct st_guard_damage){.op = (uint8_t)d->op,
                                                .buffer = (uint8_t)d->buffer,
                                                .layer = (int16_t)d->layer,
                                                .foreign = d->foreign,
                                                .cut = d->cut,
                                                .first = d->first,
                                                .last = d->last,
                                                .words = d->words};
    }
    qsort(b->damage, (size_t)count, sizeof *b->damage, in_order); /* blocks end in any order */
    return count;
}
