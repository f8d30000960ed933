/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/drain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/streams.h"
#include "traces/interchange/check.h"

struct st_header st_drain_header(const struct st_header *given, const struct st_ring_head *head) {
    struct st_header header = *given;
    if (header.clock_monotonic_ns == ST_UNKNOWN || header.clock_realtime_ns == ST_UNKNOWN) {
        header.clock_monotonic_ns = head->clock_monotonic_ns;
        header.clock_realtime_ns = head->clock_realtime_ns;
    }
    return header;
}

int st_drain_open(struct st_drain *drain, const char *part, const struct st_header *header,
                  struct st_error *err) {
    memset(drain, 0, sizeof *drain);
    drain->group_count = header->group_count;
    st_rules_init(&drain->rules, header);
    const char *slash = strrchr(part, '/');
    drain->folder = slash ? strndup(part, (size_t)(slash - part) + 1) : strdup(".");
    if (!drain->folder)
        return ST_FAIL_NOMEM(err);
    return st_writer_open_part(part, header, &drain->writer, err);
}

void st_drain_close(struct st_drain *drain) {
    st_writer_leave(drain->writer);
    drain->writer = NULL;
    st_ring_scratch_fini(&drain->scratch);
    st_rules_fini(&drain->rules);
    free(drain->folder);
    drain->folder = NULL;
}

/* By the rules of import: what is recorded can be dumped and imported again. */
static int check_rules(struct st_drain *drain, const struct st_step *step, struct st_error *err) {
    struct st_rules_odd odd;
    struct st_rules_fault fault;
    int rc = st_rules_step(&drain->rules, step, &odd, &fault);
    if (rc == ST_ERR_NOMEM)
        return ST_FAIL_NOMEM(err);
    if (!rc)
        return ST_OK;
    drain->refused = true;
    return ST_FAIL(err, rc, "step %" PRId64 ": %s: %s", drain->next_sequence + step->dropped_before,
                   fault.place, fault.what);
}

/* One that import would refuse is left out, and a note says so: it is for tests, and no reason to
 * lose the step. */
static int take_check(struct st_drain *drain, const struct st_step *step, const char *check_json,
                      char **check, struct st_error *err) {
    struct st_error fault;
    int rc = check_json ? st_check_compact(check_json, check, &fault) : ST_OK;
    if (rc == ST_ERR_NOMEM)
        return ST_FAIL_NOMEM(err);
    return rc ? st_writer_note(drain->writer, drain->next_sequence + step->dropped_before,
                               ST_DRAIN_CHECK_NOTE, fault.msg, err)
              : ST_OK;
}

int st_drain_step(struct st_drain *drain, const struct st_step *step, const char *check_json,
                  struct st_error *err) {
    if (step->dropped_before > ST_STEP_ID_MAX - drain->next_sequence)
        return ST_FAIL(err, ST_ERR_CORRUPT, "a count of dropped steps is damaged");
    ST_TRY(check_rules(drain, step, err));
    char *check = NULL;
    ST_TRY(take_check(drain, step, check_json, &check, err));
    int rc = st_writer_add(drain->writer, step, check, err);
    free(check);
    ST_TRY(rc);
    drain->next_step++;
    drain->next_sequence += 1 + step->dropped_before;
    drain->dropped += step->dropped_before;
    return ST_OK;
}

int st_drain_record(struct st_drain *drain, const struct st_ring_record *record,
                    struct st_error *err) {
    struct st_step step;
    const char *check_json;
    if (record->sequence > (uint64_t)ST_STEP_ID_MAX)
        return ST_FAIL(err, ST_ERR_CORRUPT, "record of step %" PRIu64 ": its number is damaged",
                       record->sequence);
    if ((int64_t)record->sequence < drain->next_sequence)
        return ST_OK;
    ST_TRY(st_ring_decode(record, drain->group_count, &drain->scratch, &step, &check_json, err));
    step.step_id = drain->next_step;
    step.dropped_before = (int64_t)record->sequence - drain->next_sequence;
    return st_drain_step(drain, &step, check_json, err);
}

static int64_t load(const _Atomic uint64_t *from) {
    uint64_t value = atomic_load_explicit(from, memory_order_relaxed);
    return value > (uint64_t)ST_STEP_ID_MAX ? ST_STEP_ID_MAX : (int64_t)value;
}

static int write_notes(struct st_drain *drain, const struct st_ring_file *ring,
                       struct st_error *err) {
    struct st_ring_note note;
    uint64_t at = 0;
    while (st_ring_next_note(ring->notes, ring->note_size, &at, &note)) {
        char *key = strndup(note.key, note.key_size), *value = strndup(note.value, note.value_size);
        int rc = key && value ? st_writer_note(drain->writer, note.sequence, key, value, err)
                              : ST_FAIL_NOMEM(err);
        free(key);
        free(value);
        ST_TRY(rc);
    }
    return ST_OK;
}

static void read_costs(const struct st_ring_head *head, struct st_recorder_facts *facts) {
    bool measured = load(&head->counters.sequence) > 0;
    facts->ring_bytes = (int64_t)head->data_capacity;
    facts->byte_count = load(&head->counters.bytes);
    facts->cost_sum_ns = measured ? load(&head->counters.cost_sum_ns) : ST_UNKNOWN;
    facts->cost_median_ns = st_ring_cost_quantile(head, 0.5);
    facts->cost_p999_ns = st_ring_cost_quantile(head, 0.999);
    facts->cost_max_ns = measured ? load(&head->counters.cost_max_ns) : ST_UNKNOWN;
}

static int write_facts(struct st_drain *drain, const struct st_ring_file *ring, bool recovered,
                       const char *reason, struct st_error *err) {
    struct st_recorder_facts facts = {
        .recovered = recovered,
        .lost_reason = reason,
        .ring_bytes = ST_UNKNOWN,
        .byte_count = ST_UNKNOWN,
        .cost_sum_ns = ST_UNKNOWN,
        .cost_median_ns = ST_UNKNOWN,
        .cost_p999_ns = ST_UNKNOWN,
        .cost_max_ns = ST_UNKNOWN,
    };
    char *off = NULL;
    if (ring) {
        const struct st_ring_counters *counters = &ring->head->counters;
        /* The last steps may have been dropped. */
        int64_t last = load(&counters->sequence) - drain->next_sequence;
        if (last > 0) {
            ST_TRY(st_writer_gap(drain->writer, drain->next_step, last, err));
            drain->next_sequence += last;
            drain->dropped += last;
        }
        drain->torn = load(&counters->begun) - drain->next_sequence == 1;
        read_costs(ring->head, &facts);
        if (!reason && atomic_load_explicit(&counters->off, memory_order_relaxed)) {
            off = strndup(counters->reason, sizeof counters->reason - 1);
            if (!off)
                return ST_FAIL_NOMEM(err);
            facts.lost_reason = off;
        }
    }
    facts.torn_count = drain->torn;
    facts.sequence_count = drain->next_sequence + drain->torn;
    facts.dropped_count = drain->dropped;
    int rc = st_writer_recorder(drain->writer, &facts, err);
    free(off);
    return rc || !ring ? rc : write_notes(drain, ring, err);
}

int st_drain_finish(struct st_drain *drain, const struct st_ring_file *ring, bool recovered,
                    const char *reason, struct st_error *err) {
    char tool[] = "libsteptape_capture", close[] = "close", recover[] = "recover";
    char *argv[] = {tool, recovered ? recover : close, NULL};
    int rc = write_facts(drain, ring, recovered, reason, err);
    if (!rc && ring)
        rc = st_streams_import(drain->writer, drain->folder, ring->head->pid, drain->next_sequence,
                               err);
    if (!rc)
        rc = st_writer_operation(drain->writer, 2, argv, err);
    if (!rc) {
        rc = st_writer_seal(drain->writer, err);
        drain->writer = NULL;
    }
    st_drain_close(drain);
    return rc;
}
