/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is UTF-8 and what is not: names of files, and what a hostile tape calls text, may be any
 * bytes.
 */
#ifndef ST_BASE_UTF8_H
#define ST_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character that text begins with, 1 to 4; 0: it begins with none.  left is at least
 * 1. */
size_t st_utf8_length(const char *text, size_t left);

#endif
