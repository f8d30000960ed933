/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which file a command's name stands for.
 */
#ifndef ST_BASE_PROGRAM_H
#define ST_BASE_PROGRAM_H

/* path: the value of PATH, or NULL; an empty element is not the current folder.  The caller frees
 * the result; NULL: there is none. */
char *st_program_find(const char *path, const char *name);

/* The Python that the first line of a script names, found as above; NULL: it names none. */
char *st_program_python_of(const char *path, const char *script);

#endif
