/* SPDX-License-Identifier: Apache-2.0 */
/* Private to doctor*.c. */
#ifndef ST_ANALYSIS_DOCTOR_I_H
#define ST_ANALYSIS_DOCTOR_I_H

#include <stddef.h>

#include "analysis/doctor.h"

void st_doctor_add(struct st_doctor *doctor, const char *what, const char *status,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

/* First line of a file, e.g. of /proc, without its end; false without it. */
bool st_doctor_first_line(const char *path, char *line, size_t size);

/* Each returns whether nothing is missing.  The engine's Python, its packages and plug-in. */
bool st_doctor_examine_engine(struct st_doctor *doctor, const struct st_doctor_places *places);
/* Libraries that are loaded into an engine. */
bool st_doctor_examine_library(struct st_doctor *doctor, const struct st_doctor_places *places);
bool st_doctor_examine_inject(struct st_doctor *doctor, const struct st_doctor_places *places);
/* Where a recording is written, and what this process may use. */
bool st_doctor_examine_folder(struct st_doctor *doctor, const struct st_doctor_places *places);
/* What else wants to look into the engine. */
bool st_doctor_examine_tools(struct st_doctor *doctor, const struct st_doctor_places *places);

#endif
