/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker: reads CUPTI's buffers, codes, packs, writes, and keeps the budget.  Everything that
 * takes time happens here, never on a thread of the engine or in a callback.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture/cupti/inject_i.h"
#include "steptape_version.h"

enum {
    TICK_NS = 20000000,       /* between looks at steps and windows */
    BLOCK_AGE_NS = 500000000, /* a block is written when it is this old */
    TOTALS_NS = 1000000000,
    PATIENCE_NS = 1000000000 /* for a step mark, to change the level at */
};

/* ---- writing */

/* What is not written is lost, and the stream ends there: readers see no END. */
static void write_out(struct st_inject *in) {
    size_t at = 0;
    while (in->writing && at < in->out.size) {
        ssize_t wrote = write(in->fd, in->out.data + at, in->out.size - at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            in->writing = false;
            st_inject_message(in, "%s: %s: launches are recorded up to here", in->stream_path,
                              wrote < 0 ? strerror(errno) : "nothing could be written");
            break;
        }
        at += (size_t)wrote;
        in->counters.bytes += wrote;
    }
    in->out.size = 0;
}

/* Memory that is out loses this chunk alone; what it held is missing in the totals' difference. */
static void put_chunk(struct st_inject *in, enum st_launch_chunk type, struct st_bytes *payload) {
    if (payload->failed || st_chunk_put(&in->out, type, payload->data, payload->size, NULL) != 0)
        st_inject_message(in, "out of memory: a chunk of launches is lost");
    st_bytes_fini(payload);
    in->out.failed = false;
    write_out(in);
}

int st_inject_write_head(struct st_inject *in, struct st_error *err) {
    struct st_bytes text = {0};
    const struct st_inject_options *o = &in->options;
    st_chunk_text(&text, "tool", "steptape %s", ST_VERSION);
    st_chunk_text(&text, "pid", "%ld", (long)in->pid);
    st_chunk_text(&text, "started_ns", "%" PRId64, st_inject_now_ns());
    st_chunk_text(&text, "asked", "%s", st_launch_level_name(o->level));
    st_chunk_text(&text, "counted_by", "%s", in->has_api ? "CUPTI callbacks" : "hooks");
    if (in->has_api) {
        st_chunk_text(&text, "cupti_version", "%u", in->api.version);
        st_chunk_text(&text, "cupti", "%s", in->api.library);
    }
    if (o->budget > 0)
        st_chunk_text(&text, "budget", "%.6f", o->budget);
    if (in->note)
        st_chunk_text(&text, "note", "%s", in->note);
    int rc = text.failed ? ST_FAIL_NOMEM(err)
                         : st_chunk_put(&in->out, ST_CHUNK_HEAD, text.data, text.size, err);
    st_bytes_fini(&text);
    if (!rc)
        write_out(in);
    if (!rc && !in->writing)
        rc = ST_FAIL(err, ST_ERR_IO, "%s", in->message);
    return rc;
}

static void write_note(struct st_inject *in, const char *what, const char *text) {
    struct st_bytes note = {0};
    struct st_budget_estimate e;
    st_budget_estimate(&in->budget, &e);
    st_chunk_text(&note, "t_ns", "%" PRId64, st_inject_now_ns());
    st_chunk_text(&note, "what", "%s", what);
    st_chunk_text(&note, "level", "%s", st_launch_level_name(in->capture_level));
    if (text)
        st_chunk_text(&note, "text", "%s", text);
    if (in->options.budget > 0 && !isnan(e.share_error)) {
        st_chunk_text(&note, "cost_share", "%.6f", e.share);
        st_chunk_text(&note, "cost_share_error", "%.6f", e.share_error);
        st_chunk_text(&note, "cost_step_ns", "%.0f", e.ns_per_step);
        if (!isnan(e.ns_per_launch))
            st_chunk_text(&note, "cost_launch_ns", "%.1f", e.ns_per_launch);
        st_chunk_text(&note, "windows", "%" PRId64, e.pairs);
    }
    put_chunk(in, ST_CHUNK_NOTE, &note);
}

static void write_totals(struct st_inject *in, enum st_launch_chunk type) {
    struct st_bytes text = {0};
    struct st_inject_calls_total calls;
    const struct st_inject_counters *c = &in->counters;
    st_inject_calls_total(&calls);
    st_chunk_text(&text, "t_ns", "%" PRId64, st_inject_now_ns());
    st_chunk_text(&text, "kernel_launches", "%" PRId64, calls.kernel_launches);
    st_chunk_text(&text, "graph_launches", "%" PRId64, calls.graph_launches);
    st_chunk_text(&text, "graph_kernels", "%" PRId64, calls.graph_kernels);
    st_chunk_text(&text, "graphs_unknown", "%" PRId64, calls.graphs_unknown);
    st_chunk_text(&text, "steps", "%" PRId64, c->steps);
    st_chunk_text(&text, "steps_lost", "%" PRId64, calls.steps_lost);
    st_chunk_text(&text, "records", "%" PRId64, c->records);
    st_chunk_text(&text, "dropped", "%" PRId64, c->dropped);
    st_chunk_text(&text, "untimed", "%" PRId64, c->untimed);
    st_chunk_text(&text, "reversed", "%" PRId64, c->reversed);
    st_chunk_text(&text, "unattributed", "%" PRId64, c->unattributed);
    st_chunk_text(&text, "other", "%" PRId64, c->other);
    put_chunk(in, type, &text);
    in->last_totals_ns = st_inject_now_ns();
    in->totals_at = in->counters.bytes;
}

static void write_block(struct st_inject *in) {
    if (st_launch_encoder_count(in->encoder) == 0)
        return;
    struct st_bytes definitions = {0}, block = {0};
    struct st_error err = {0};
    int64_t count = st_launch_encoder_count(in->encoder);
    int rc = st_launch_encoder_definitions(in->encoder, &definitions, &err);
    if (!rc && definitions.size)
        put_chunk(in, ST_CHUNK_DEFINITIONS, &definitions);
    else
        st_bytes_fini(&definitions);
    if (!rc)
        rc = st_launch_encoder_block(in->encoder, &block, &err);
    if (rc) {
        in->counters.dropped += count;
        st_inject_message(in, "%" PRId64 " launches are lost: %s", count, err.msg);
        st_bytes_fini(&block);
        return;
    }
    put_chunk(in, ST_CHUNK_LAUNCHES, &block);
    in->last_block_ns = st_inject_now_ns();
    st_launch_encoder_room(in->encoder);
}

/* ---- reading */

static void add_batch(struct st_inject *in, int64_t count) {
    if (count == 0)
        return;
    if (st_launch_encoder_count(in->encoder) + count > ST_LAUNCH_BLOCK_MAX)
        write_block(in);
    if (st_launch_encoder_add(in->encoder, in->batch, count, NULL) != 0) {
        in->counters.dropped += count;
        return;
    }
    in->counters.records += count;
    if (st_launch_encoder_count(in->encoder) >= in->options.block_launches)
        write_block(in);
}

static bool take_record(struct st_inject *in, const void *record, struct st_launch_record *launch) {
    struct st_launch_site site;
    struct st_inject_counters *c = &in->counters;
    if (!in->api.decode_launch(in->api.self, record, &site, launch)) {
        c->other++;
        return false;
    }
    launch->sequence = st_inject_step_of(in, launch->correlation_id);
    /* GRAPHS stays on where it should be off: in windows without capture, and below its level. */
    if (site.kind == ST_LAUNCH_GRAPH && in->options.budget > 0 &&
        (launch->sequence == ST_LAUNCH_UNATTRIBUTED || in->capture_level < ST_LEVEL_GRAPH))
        return false;
    if (site.kind == ST_LAUNCH_MEMCPY && in->capture_level != ST_LEVEL_FULL)
        return false;
    if (st_launch_encoder_site(in->encoder, &site, &launch->site, NULL) != 0) {
        c->dropped++; /* too many kinds of launches, or no memory */
        return false;
    }
    c->unattributed += launch->sequence == ST_LAUNCH_UNATTRIBUTED;
    if (launch->start_ns == 0 || launch->end_ns == 0)
        c->untimed++;
    else if (launch->end_ns < launch->start_ns)
        c->reversed++;
    return true;
}

static void read_buffer(struct st_inject *in, struct st_inject_buffer *b) {
    void *record = NULL;
    int64_t count = 0;
    while (b->valid > 0) {
        int result =
            in->api.next_record(in->api.self, st_inject_buffer_bytes(b), b->valid, &record);
        if (result == ST_CUPTI_MAX_LIMIT_REACHED)
            break;
        if (result != ST_CUPTI_SUCCESS) {
            in->counters.other++; /* not whole: nothing behind it can be read */
            break;
        }
        count += take_record(in, record, &in->batch[count]);
        if (count == ST_INJECT_BATCH) {
            add_batch(in, count);
            count = 0;
        }
    }
    add_batch(in, count);
}

static bool read_ready(struct st_inject *in, int64_t wait_ns) {
    struct st_inject_buffer *b = st_inject_pool_take(&in->pool, wait_ns);
    bool any = b != NULL;
    for (; b; b = st_inject_pool_take(&in->pool, 0)) {
        read_buffer(in, b);
        st_inject_pool_give(&in->pool, b);
    }
    st_inject_pool_prepare(&in->pool);
    return any;
}

/* CUPTI hands over full buffers by itself: while it does, it is not asked. */
static void flush_cupti(struct st_inject *in, bool wanted, int forced) {
    size_t dropped = 0;
    if (wanted || st_inject_now_ns() - in->last_buffer_ns >= in->options.flush_ns) {
        int result = in->api.flush(in->api.self, forced);
        if (result != ST_CUPTI_SUCCESS)
            st_inject_message(in, "cuptiActivityFlushAll failed: %s (%d)",
                              in->api.text(in->api.self, result), result);
    }
    if (in->api.dropped(in->api.self, &dropped) == ST_CUPTI_SUCCESS)
        in->counters.dropped += (int64_t)dropped;
    (void)read_ready(in, 0);
    in->last_flush_ns = st_inject_now_ns();
}

/* ---- steps and budget */

static void take_steps(struct st_inject *in) {
    struct st_launch_step *step = in->steps;
    int64_t count;
    while ((count = st_inject_take_steps(step, ST_INJECT_STEPS)) > 0) {
        for (int64_t i = 0; i < count; i++)
            st_budget_add(&in->budget, &step[i]);
        in->counters.steps += count;
        if (st_chunk_put_steps(&in->out, step, count, NULL) != 0)
            st_inject_message(in, "out of memory: counts of %" PRId64 " steps are lost", count);
        in->out.failed = false;
        write_out(in);
    }
}

/* The next step mark does it; where none comes, nobody launches steps that it could disturb. */
static void change_level(struct st_inject *in, int32_t level) {
    st_inject_want_level(in, level);
    in->wanted_ns = st_inject_now_ns();
}

static void change_at_last(struct st_inject *in) {
    if (atomic_load(&in->wanted) >= 0 && st_inject_now_ns() - in->wanted_ns >= PATIENCE_NS)
        st_inject_apply_level(in);
}

/* Only the worker writes it. */
static void set_capture_level(struct st_inject *in, int32_t level) {
    pthread_mutex_lock(&in->lock);
    in->capture_level = level;
    pthread_mutex_unlock(&in->lock);
}

static void keep_budget(struct st_inject *in) {
    int64_t now_ns = st_inject_now_ns();
    change_at_last(in);
    if (in->capture_level == ST_LEVEL_OFF || atomic_load(&in->wanted) >= 0)
        return;
    switch (st_budget_look(&in->budget, now_ns)) {
    case ST_BUDGET_STAY:
        return;
    case ST_BUDGET_TURN_OFF:
        write_note(in, "window", "off");
        change_level(in, ST_LEVEL_OFF);
        break;
    case ST_BUDGET_TURN_ON:
        change_level(in, in->capture_level);
        break;
    case ST_BUDGET_STEP_DOWN:
        write_note(in, "over budget", NULL);
        set_capture_level(in, st_inject_lower_level(in->capture_level));
        change_level(in, in->capture_level);
        st_budget_restart(&in->budget, in->capture_level, st_inject_now_ns());
        write_note(in, "level", "stepped down");
        break;
    }
}

/* ---- the thread */

static void publish(struct st_inject *in) {
    struct st_budget_estimate e;
    st_budget_estimate(&in->budget, &e);
    pthread_mutex_lock(&in->lock);
    in->published = in->counters;
    in->estimate = e;
    if (!in->writing)
        in->state = STEPTAPE_INJECT_FAILED;
    pthread_mutex_unlock(&in->lock);
}

/* One look at everything; true: the last one. */
static bool turn(struct st_inject *in) {
    pthread_mutex_lock(&in->lock);
    bool stop = in->stop;
    uint64_t flush = in->flush_asked;
    pthread_mutex_unlock(&in->lock);
    bool wanted = stop || flush != in->flush_done;
    int64_t now_ns = st_inject_now_ns();
    if (in->has_api && (wanted || now_ns - in->last_flush_ns >= in->options.flush_ns))
        flush_cupti(in, wanted, stop);
    take_steps(in);
    if (in->has_api && (wanted || now_ns - in->last_block_ns >= BLOCK_AGE_NS))
        write_block(in);
    keep_budget(in);
    if (stop)
        write_totals(in, ST_CHUNK_END);
    else if ((wanted || now_ns - in->last_totals_ns >= TOTALS_NS) &&
             in->counters.bytes != in->totals_at)
        write_totals(in, ST_CHUNK_TOTALS);
    if (!in->writing && in->capture_level != ST_LEVEL_OFF) {
        set_capture_level(in, ST_LEVEL_OFF);
        change_level(in, ST_LEVEL_OFF);
    }
    publish(in);
    pthread_mutex_lock(&in->lock);
    in->flush_done = flush;
    in->finished = stop;
    pthread_cond_broadcast(&in->done);
    pthread_mutex_unlock(&in->lock);
    return stop;
}

void *st_inject_worker(void *inject) {
    struct st_inject *in = inject;
    in->last_flush_ns = in->last_block_ns = in->last_totals_ns = in->last_buffer_ns =
        st_inject_now_ns();
    do {
        if (read_ready(in, TICK_NS))
            in->last_buffer_ns = st_inject_now_ns();
    } while (!turn(in));
    return NULL;
}
