/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite for code that is built twice: linked into the program (calls go to libsqlite3) and as part
 * of the loadable extension (calls go through the table that the loading SQLite hands over, so that
 * the extension never mixes two copies of the library).
 *
 * The extension's build also forces this header in front of the tape reader's sources
 * (analysis/CMakeLists.txt): they include <sqlite3.h> and know nothing of it.
 */
#ifndef ST_ANALYSIS_SQLITE_API_H
#define ST_ANALYSIS_SQLITE_API_H

#ifdef ST_SQLITE_EXTENSION
#include <sqlite3ext.h>
extern const sqlite3_api_routines *sqlite3_api;
#else
#include <sqlite3.h>
#endif

#endif
