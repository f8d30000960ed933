/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of a tape, format version 2.  Comments inside CREATE TABLE survive in `.schema`.
 * A released table or meaning is never changed, only superseded: see FORMAT.md.
 */
#ifndef ST_FORMAT_SCHEMA_H
#define ST_FORMAT_SCHEMA_H

#define ST_APPLICATION_ID 0x53745470 /* "StTp" */
#define ST_FORMAT_VERSION 2
#define ST_FORMAT_VERSION_TEXT "2"

/* Shared by tapes and result tapes. */
extern const char st_schema_common_sql[];
/* What only a tape holds: packed blocks of steps, check objects. */
extern const char st_schema_tape_sql[];

#endif
