/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's buffers: a fixed number at the most, cleared before they are handed out.  CUPTI asks on
 * the thread that launches, so that one is taken from a store that the worker fills, and made on
 * the spot only where the worker is late; when all are in use, CUPTI drops records and counts them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture/cupti/inject_i.h"

enum { SPARE_BUFFERS = 3 }; /* clean ones that the worker keeps in store */

/* CUPTI's callbacks carry no user pointer. */
static struct st_inject_pool *_Atomic active;

static struct st_inject_buffer *create(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, ST_CUPTI_BUFFER_ALIGN, ST_CUPTI_BUFFER_ALIGN + bytes) != 0)
        return NULL;
    memset(p, 0, ST_CUPTI_BUFFER_ALIGN + bytes); /* and every page is there */
    return p;
}

uint8_t *st_inject_buffer_bytes(struct st_inject_buffer *buffer) {
    return (uint8_t *)buffer + ST_CUPTI_BUFFER_ALIGN;
}

int st_inject_pool_init(struct st_inject_pool *pool, size_t bytes, int32_t most,
                        struct st_error *err) {
    memset(pool, 0, sizeof *pool);
    pool->bytes = bytes;
    pool->most = most;
    pool->spare = most < SPARE_BUFFERS ? most : SPARE_BUFFERS;
    pool->ready_tail = &pool->ready;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    st_inject_pool_prepare(pool);
    if (pool->free_count == pool->spare)
        return 0;
    st_inject_pool_close(pool);
    return ST_FAIL_NOMEM(err);
}

static void free_list(struct st_inject_buffer *list) {
    while (list) {
        struct st_inject_buffer *next = list->next;
        free(list);
        list = next;
    }
}

void st_inject_pool_close(struct st_inject_pool *pool) {
    free_list(pool->free_list);
    free_list(pool->ready);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
}

void st_inject_pool_attach(struct st_inject_pool *pool) {
    atomic_store(&active, pool);
}

void st_inject_on_request(uint8_t **bytes, size_t *size, size_t *max_records) {
    struct st_inject_pool *pool = atomic_load(&active);
    *bytes = NULL;
    *size = 0;
    *max_records = 0;
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    struct st_inject_buffer *b = pool->free_list;
    if (b) {
        pool->free_list = b->next;
        pool->free_count--;
        *bytes = st_inject_buffer_bytes(b);
        *size = pool->bytes;
    }
    bool late = !b && pool->made < pool->most;
    pool->made += late;
    bool low = pool->free_count < pool->spare;
    pthread_mutex_unlock(&pool->lock);
    if (late && (b = create(pool->bytes))) {
        *bytes = st_inject_buffer_bytes(b);
        *size = pool->bytes;
    } else if (late || !b) {
        pthread_mutex_lock(&pool->lock);
        pool->made -= late;
        pool->refused++;
        pthread_mutex_unlock(&pool->lock);
    }
    if (low)
        pthread_cond_signal(&pool->wake);
}

void st_inject_on_complete(void *context, uint32_t stream, uint8_t *bytes, size_t size,
                           size_t valid) {
    (void)context, (void)stream, (void)size;
    if (!bytes)
        return;
    struct st_inject_buffer *b = (struct st_inject_buffer *)(void *)(bytes - ST_CUPTI_BUFFER_ALIGN);
    struct st_inject_pool *pool = atomic_load(&active);
    if (!pool) {
        free(b);
        return;
    }
    b->next = NULL;
    b->valid = valid;
    pthread_mutex_lock(&pool->lock);
    *pool->ready_tail = b;
    pool->ready_tail = &b->next;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_signal(&pool->wake);
}

struct st_inject_buffer *st_inject_pool_take(struct st_inject_pool *pool, int64_t wait_ns) {
    int64_t until_ns = st_inject_now_ns() + wait_ns;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_mutex_lock(&pool->lock);
    if (!pool->ready && !pool->poked && wait_ns > 0)
        (void)pthread_cond_timedwait(&pool->wake, &pool->lock, &until);
    pool->poked = false;
    struct st_inject_buffer *b = pool->ready;
    if (b) {
        pool->ready = b->next;
        if (!pool->ready)
            pool->ready_tail = &pool->ready;
    }
    pthread_mutex_unlock(&pool->lock);
    return b;
}

void st_inject_pool_give(struct st_inject_pool *pool, struct st_inject_buffer *b) {
    memset(st_inject_buffer_bytes(b), 0, b->valid < pool->bytes ? b->valid : pool->bytes);
    b->valid = 0;
    pthread_mutex_lock(&pool->lock);
    b->next = pool->free_list;
    pool->free_list = b;
    pool->free_count++;
    pthread_mutex_unlock(&pool->lock);
}

void st_inject_pool_prepare(struct st_inject_pool *pool) {
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        bool wanted = pool->free_count < pool->spare && pool->made < pool->most;
        pool->made += wanted;
        pthread_mutex_unlock(&pool->lock);
        if (!wanted)
            return;
        struct st_inject_buffer *b = create(pool->bytes);
        if (!b) {
            pthread_mutex_lock(&pool->lock);
            pool->made--;
            pthread_mutex_unlock(&pool->lock);
            return;
        }
        b->valid = 0;
        st_inject_pool_give(pool, b);
    }
}

void st_inject_pool_poke(struct st_inject_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->poked = true;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_signal(&pool->wake);
}
