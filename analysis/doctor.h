/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine can do: a list of findings, each with what to do about it when it is no good.
 *
 * Nothing is linked for this: the CUDA driver and CUPTI are opened as a replay opens them.
 */
#ifndef ST_ANALYSIS_DOCTOR_H
#define ST_ANALYSIS_DOCTOR_H

#include <stdbool.h>

enum { ST_DOCTOR_MAX_FINDINGS = 32, ST_DOCTOR_TEXT_BYTES = 320 };

struct st_finding {
    const char *what;   /* "backend cuda" */
    const char *status; /* "yes", "no", "info" */
    char detail[ST_DOCTOR_TEXT_BYTES];
};

struct st_doctor {
    int count;
    struct st_finding finding[ST_DOCTOR_MAX_FINDINGS];
};

/* cuda_home: the value of CUDA_HOME, or NULL. */
void st_doctor_examine(struct st_doctor *doctor, const char *cuda_home);

#endif
