/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of report_<section>.sql, made into C by embed.cmake at build time. */
#ifndef ST_ANALYSIS_REPORT_SQL_H
#define ST_ANALYSIS_REPORT_SQL_H

extern const char st_report_run_sql[];
extern const char st_report_policy_sql[];
extern const char st_report_saving_sql[];
extern const char st_report_operator_sql[];
extern const char st_report_mode_sql[];
extern const char st_report_check_sql[];
extern const char st_report_hazard_sql[];

#endif
