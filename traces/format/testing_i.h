/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ST_FORMAT_TESTING_I_H
#define ST_FORMAT_TESTING_I_H

#include <stddef.h>

/* Zeroed; aborts when there is no memory. */
void *st_test_alloc(size_t size);
void *st_test_copy(const void *data, size_t size);

#endif
