/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs on the engine's threads: counting calls, marking steps, and one table from the number
 * of a call to its step.  Each thread writes its own counters; the table is written by whoever
 * makes the call, and CUPTI gives no number twice.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture/cupti/inject_i.h"

enum {
    GRAPHS_MAX = 1 << 16, /* graphs and instances that are known at a time */
    STEP_BITS = 52        /* of a word of the table; the rest is the call's number, cut */
};
#define STEP_MASK ((UINT64_C(1) << STEP_BITS) - 1)

static struct st_inject *_Atomic attached;
static struct st_inject_thread *_Atomic threads;
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
/* A pointer fits into the room that the loader keeps for late libraries. */
static __thread struct st_inject_thread *self __attribute__((tls_model("initial-exec")));

int64_t st_inject_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- threads */

static void leave_thread(void *thread) {
    struct st_inject_thread *t = thread;
    self = NULL;
    atomic_store_explicit(&t->used, false, memory_order_release);
}

static void make_key(void) {
    (void)pthread_key_create(&key, leave_thread);
}

static struct st_inject_thread *reuse_thread(void) {
    for (struct st_inject_thread *t = atomic_load(&threads); t; t = t->next) {
        bool unused = false;
        if (!atomic_load_explicit(&t->used, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&t->used, &unused, true))
            return t;
    }
    return NULL;
}

/* A thread's first call allocates; NULL when it cannot. */
static struct st_inject_thread *enter_thread(void) {
    pthread_once(&key_once, make_key);
    struct st_inject_thread *t = reuse_thread();
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t)
            return NULL;
        atomic_init(&t->used, true);
        t->next = atomic_load(&threads);
        while (!atomic_compare_exchange_weak(&threads, &t->next, t))
            ;
    }
    t->in_call = false;
    t->sequence = ST_LAUNCH_OUTSIDE;
    t->step.start_ns = 0;
    (void)pthread_setspecific(key, t);
    return self = t;
}

static inline struct st_inject_thread *this_thread(void) {
    return self ? self : enter_thread();
}

void st_inject_calls_forked(void) {
    atomic_store(&attached, NULL);
    atomic_store(&threads, NULL); /* theirs is the parent's memory, copied: left alone */
    self = NULL;
    pthread_once(&key_once, make_key);
    (void)pthread_setspecific(key, NULL);
}

void st_inject_calls_attach(struct st_inject *inject) {
    atomic_store(&attached, inject);
}

static inline int64_t get(const _Atomic int64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Only the owner writes: no locked instruction. */
static inline void add(_Atomic int64_t *counter, int64_t more) {
    atomic_store_explicit(counter, get(counter) + more, memory_order_relaxed);
}

/* ---- graphs: how many kernels a launch of each runs */

struct graph {
    uint64_t handle; /* 0: empty */
    int64_t kernels; /* -1: not known */
};

static struct {
    pthread_mutex_t lock;
    struct graph *slot; /* open addressing, [2 * GRAPHS_MAX] */
    int32_t count;
} graphs = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t place_of(uint64_t handle) {
    return (size_t)((handle * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & (2 * GRAPHS_MAX - 1);
}

static struct graph *find_graph(uint64_t handle) {
    if (!graphs.slot || !handle)
        return NULL;
    size_t k = place_of(handle);
    while (graphs.slot[k].handle && graphs.slot[k].handle != handle)
        k = (k + 1) & (2 * GRAPHS_MAX - 1);
    return &graphs.slot[k];
}

/* NULL: no room, so its kernels stay unknown. */
static struct graph *set_graph(uint64_t handle, int64_t kernels) {
    if (!graphs.slot)
        graphs.slot = calloc(2 * (size_t)GRAPHS_MAX, sizeof *graphs.slot);
    struct graph *g = find_graph(handle);
    if (!g || (!g->handle && graphs.count == GRAPHS_MAX))
        return NULL;
    graphs.count += !g->handle;
    *g = (struct graph){handle, kernels};
    return g;
}

/* Those behind it in its run move up. */
static void drop_graph(uint64_t handle) {
    struct graph *g = find_graph(handle);
    if (!g || !g->handle)
        return;
    graphs.count--;
    size_t hole = (size_t)(g - graphs.slot), k = hole;
    for (;;) {
        k = (k + 1) & (2 * GRAPHS_MAX - 1);
        if (!graphs.slot[k].handle)
            break;
        size_t home = place_of(graphs.slot[k].handle);
        bool stays = hole <= k ? home > hole && home <= k : home > hole || home <= k;
        if (stays)
            continue;
        graphs.slot[hole] = graphs.slot[k];
        hole = k;
    }
    graphs.slot[hole].handle = 0;
}

static int64_t kernels_of(uint64_t handle) {
    pthread_mutex_lock(&graphs.lock);
    const struct graph *g = find_graph(handle);
    int64_t kernels = g && g->handle ? g->kernels : -1;
    pthread_mutex_unlock(&graphs.lock);
    return kernels;
}

static void add_node(const struct st_cupti_graph_event *e) {
    struct graph *g = find_graph(e->graph);
    if (!g || !g->handle)
        g = set_graph(e->graph, 0);
    if (!g || g->kernels < 0)
        return;
    g->kernels = e->nested ? -1 : g->kernels + (e->kernel != 0);
}

void st_inject_on_graph(const struct st_cupti_graph_event *e) {
    struct st_inject_thread *t = this_thread();
    /* A launching call that adds a node captures: nothing runs. */
    if (e->change == ST_CUPTI_NODE_ADDED && t && t->in_call)
        t->captured = true;
    pthread_mutex_lock(&graphs.lock);
    const struct graph *from;
    switch (e->change) {
    case ST_CUPTI_NODE_ADDED:
        add_node(e);
        break;
    case ST_CUPTI_GRAPH_CLONED:
        from = find_graph(e->original);
        (void)set_graph(e->graph, from && from->handle ? from->kernels : -1);
        break;
    case ST_CUPTI_GRAPH_INSTANCE:
        from = find_graph(e->graph);
        (void)set_graph(e->exec, from && from->handle ? from->kernels : -1);
        break;
    case ST_CUPTI_GRAPH_GONE:
        drop_graph(e->graph);
        break;
    case ST_CUPTI_INSTANCE_GONE:
        drop_graph(e->exec);
        break;
    }
    pthread_mutex_unlock(&graphs.lock);
}

void st_inject_set_graph(uint64_t exec, int64_t kernels) {
    pthread_mutex_lock(&graphs.lock);
    (void)set_graph(exec, kernels);
    pthread_mutex_unlock(&graphs.lock);
}

/* ---- calls */

static void remember_call(const struct st_inject *inject, uint32_t id, int64_t sequence) {
    uint64_t word =
        (uint64_t)(id / ST_INJECT_CALLS) << STEP_BITS | ((uint64_t)(sequence + 2) & STEP_MASK);
    atomic_store_explicit(&inject->calls[id % ST_INJECT_CALLS], word, memory_order_relaxed);
}

int64_t st_inject_step_of(const struct st_inject *inject, uint32_t id) {
    uint64_t word =
        atomic_load_explicit(&inject->calls[id % ST_INJECT_CALLS], memory_order_relaxed);
    uint64_t step = word & STEP_MASK;
    if (step == 0 || word >> STEP_BITS != id / ST_INJECT_CALLS)
        return ST_LAUNCH_UNATTRIBUTED;
    return (int64_t)step - 2;
}

static void count_call(struct st_inject_thread *t) {
    if (t->call == ST_CUPTI_CALL_KERNEL) {
        add(&t->kernel_launches, 1);
        return;
    }
    add(&t->graph_launches, 1);
    int64_t kernels = kernels_of(t->exec);
    if (kernels < 0)
        add(&t->graphs_unknown, 1);
    else
        add(&t->graph_kernels, kernels);
}

void st_inject_on_call(enum st_cupti_call call, uint32_t correlation_id, uint64_t exec) {
    struct st_inject_thread *t = this_thread();
    if (!t)
        return;
    if (call != ST_CUPTI_CALL_DONE && call != ST_CUPTI_CALL_FAILED) {
        const struct st_inject *inject = atomic_load_explicit(&attached, memory_order_acquire);
        if (inject && inject->calls)
            remember_call(inject, correlation_id, t->sequence);
        t->in_call = call != ST_CUPTI_CALL_MEMORY;
        t->captured = false;
        t->call = call;
        t->exec = exec;
        return;
    }
    if (t->in_call && !t->captured && call == ST_CUPTI_CALL_DONE)
        count_call(t);
    t->in_call = false;
}

/* ---- steps */

static void end_step(struct st_inject_thread *t, const struct st_inject *inject, int64_t now_ns) {
    uint64_t head = atomic_load_explicit(&t->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&t->tail, memory_order_acquire);
    if (head - tail == ST_INJECT_STEP_RING) {
        add(&t->steps_lost, 1);
        return;
    }
    struct st_launch_step *s = &t->ring[head % ST_INJECT_STEP_RING];
    bool unknown = get(&t->graphs_unknown) != t->unknown_before;
    *s = t->step;
    s->duration_ns = now_ns - s->start_ns;
    s->changed =
        (t->step_generation & 1) ||
        t->step_generation != atomic_load_explicit(&inject->generation, memory_order_acquire);
    s->kernel_launches = s->level ? get(&t->kernel_launches) - t->kernels_before : -1;
    s->graph_launches = s->level ? get(&t->graph_launches) - t->graphs_before : -1;
    s->graph_kernels = s->level && !unknown ? get(&t->graph_kernels) - t->graph_kernels_before : -1;
    atomic_store_explicit(&t->head, head + 1, memory_order_release);
}

int st_inject_mark(int64_t sequence) {
    struct st_inject_thread *t = this_thread();
    if (!t)
        return -1;
    struct st_inject *inject = atomic_load_explicit(&attached, memory_order_acquire);
    int64_t before = t->sequence;
    t->sequence = sequence < 0 ? ST_LAUNCH_OUTSIDE : sequence;
    if (!inject) {
        t->step.start_ns = 0;
        return 0;
    }
    int64_t now_ns = st_inject_now_ns();
    if (before >= 0 && t->step.start_ns)
        end_step(t, inject, now_ns);
    /* Once a window: the new step begins behind it. */
    if (atomic_load_explicit(&inject->wanted, memory_order_relaxed) >= 0) {
        st_inject_apply_level(inject);
        now_ns = st_inject_now_ns();
    }
    t->step = (struct st_launch_step){
        .sequence = t->sequence,
        .start_ns = now_ns,
        .level = atomic_load_explicit(&inject->level, memory_order_relaxed)};
    t->step_generation = atomic_load_explicit(&inject->generation, memory_order_acquire);
    t->kernels_before = get(&t->kernel_launches);
    t->graphs_before = get(&t->graph_launches);
    t->graph_kernels_before = get(&t->graph_kernels);
    t->unknown_before = get(&t->graphs_unknown);
    return 0;
}

int64_t st_inject_take_steps(struct st_launch_step *step, int64_t room) {
    int64_t count = 0;
    for (struct st_inject_thread *t = atomic_load(&threads); t; t = t->next) {
        uint64_t tail = atomic_load_explicit(&t->tail, memory_order_relaxed);
        uint64_t head = atomic_load_explicit(&t->head, memory_order_acquire);
        for (; tail != head && count < room; tail++)
            step[count++] = t->ring[tail % ST_INJECT_STEP_RING];
        atomic_store_explicit(&t->tail, tail, memory_order_release);
    }
    return count;
}

void st_inject_calls_total(struct st_inject_calls_total *total) {
    memset(total, 0, sizeof *total);
    for (const struct st_inject_thread *t = atomic_load(&threads); t; t = t->next) {
        total->kernel_launches += get(&t->kernel_launches);
        total->graph_launches += get(&t->graph_launches);
        total->graph_kernels += get(&t->graph_kernels);
        total->graphs_unknown += get(&t->graphs_unknown);
        total->steps_lost += get(&t->steps_lost);
    }
}
