/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUPTI that the collector uses, as a table: the real library stands behind it
 * (api.c), and in tests a fake one that needs no GPU and no CUDA headers.
 *
 * Functions return CUPTI's result code, 0 is success.  No CUPTI type passes through.
 */
#ifndef ST_CUPTI_API_I_H
#define ST_CUPTI_API_I_H

#include <stddef.h>
#include <stdint.h>

#include "capture/cupti/collector.h"

enum {
    ST_CUPTI_SUCCESS = 0,
    ST_CUPTI_MAX_LIMIT_REACHED = 12,      /* no more records in the buffer */
    ST_CUPTI_MULTIPLE_SUBSCRIBERS = 39,   /* another tool is there */
    ST_CUPTI_SUBSCRIBER_NAME_BYTES = 128, /* CUPTI asks for at least 64 */
    ST_CUPTI_BUFFER_ALIGN = 64,
};

typedef void st_cupti_request_fn(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void st_cupti_complete_fn(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                  size_t valid);

struct st_cupti_api {
    /* What follows gets this as its first argument. */
    void *self;
    const char *library;
    uint32_t version;
    /* Takes CUPTI's single slot.  other: the tool that holds it, "" when CUPTI does not say. */
    int (*subscribe)(void *self, char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]);
    int (*unsubscribe)(void *self);
    /* Once per process is enough; the buffers that request gives are zeroed. */
    int (*register_callbacks)(void *self, st_cupti_request_fn *request,
                              st_cupti_complete_fn *complete);
    int (*enable_kernels)(void *self);
    int (*disable_kernels)(void *self);
    int (*flush)(void *self, int forced);
    int (*dropped)(void *self, size_t *count);
    int (*next_record)(void *self, uint8_t *buffer, size_t valid, void **record);
    /* 1 and *out when the record is a kernel, with name as CUPTI holds it (may be NULL); else 0. */
    int (*decode)(void *self, const void *record, struct st_kernel_record *out);
    /* Text of a result code; never NULL. */
    const char *(*text)(void *self, int result);
    void (*close)(void *self);
};

/* The real library. */
int st_cupti_api_open(const char *path, const char *cuda_home, struct st_cupti_api *api,
                      struct st_error *err);
/* Takes the table over (api->close is called by st_collector_close, also when this fails). */
int st_collector_open_api(const struct st_cupti_api *api, struct st_collector **collector,
                          struct st_error *err);

#endif
