/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine can do: a list of findings, each with what to do about it when it is no good.
 *
 * Nothing is linked for this: the CUDA driver and CUPTI are opened as a replay opens them.  The
 * engine's Python and the libraries that an engine loads are asked in child processes.
 */
#ifndef ST_ANALYSIS_DOCTOR_H
#define ST_ANALYSIS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

enum { ST_DOCTOR_MAX_FINDINGS = 64, ST_DOCTOR_TEXT_BYTES = 480 };

struct st_finding {
    const char *what;   /* "backend cuda" */
    const char *status; /* "ok", "warning", "missing", "info" */
    char detail[ST_DOCTOR_TEXT_BYTES];
};

struct st_doctor {
    int count;
    struct st_finding finding[ST_DOCTOR_MAX_FINDINGS];
    bool can_record, can_record_launches; /* nothing that is needed is missing */
};

/* What the caller was told and what its environment says; strings may be NULL. */
struct st_doctor_places {
    const char *python; /* of the engine; NULL: that of the `vllm` on PATH, else python3 */
    const char *folder; /* where tapes will be written */
    int64_t ring_bytes; /* what a recorder reserves there */
    int timeout_ms;     /* for each child process */
    const char *path, *cuda_home, *library, *inject, *cuda_injection, *vllm_plugins, *ld_preload,
        *blocking; /* PATH, CUDA_HOME, STEPTAPE_LIBRARY, STEPTAPE_INJECT, CUDA_INJECTION64_PATH,
                      VLLM_PLUGINS, LD_PRELOAD, CUDA_LAUNCH_BLOCKING */
    /* Where a part of the installation lies, as `steptape record` looks for it; the caller's to
     * free.  NULL: it is not there. */
    char *(*find_part)(const char *installed, const char *built);
};

void st_doctor_examine(struct st_doctor *doctor, const struct st_doctor_places *places);

#endif
