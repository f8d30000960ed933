/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row.  Included by steptape/kernels.h, whose rules hold here too.
 */
#ifndef STEPTAPE_KERNELS_TOPK_H
#define STEPTAPE_KERNELS_TOPK_H

#include "steptape/kernels_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How rows are selected, see flags. */
/* The library chain: a segmented radix sort (CUB) of whole rows and small kernels around it, 9
 * launches for as many rows as hold 2^27 columns.  Needs scratch. */
#define STEPTAPE_TOPK_LIBRARY 1u
/* With LIBRARY: indices stay absolute columns, as upstream's fallback left them (wrong unless the
 * row starts at 0). */
#define STEPTAPE_TOPK_ABSOLUTE 2u

/*
 * The k best columns of each row.  Row r considers columns [first, last):
 *   - prefill (row_ends != NULL): first = row_starts ? row_starts[r] : 0, last = row_ends[r]
 *   - decode (seq_lens != NULL): first = 0; b = r / next_n, j = r % next_n;
 *     last = seq_lens_2d ? seq_lens[b * next_n + j] : seq_lens[b] - next_n + j + 1
 *
 * both clamped to [0, num_columns].  With n = max(last - first, 0), out[r] holds, relative to
 * first:
 *   - n <= k: 0 .. n - 1 in order, then -1
 *   - n > k: the k best columns, ascending
 *
 * Order of values: +inf, finite, -inf, then every NaN (all NaN alike, below -inf); -0 equals +0; of
 * equal values the lower column wins.  Upstream leaves order, ties and NaN undefined; here a result
 * is a function of its input alone, so that what reads the list gives the same bits every time.
 * Every row of num_rows is written, padded ones too: a caller whose view is shorter is written
 * past.  Whatever a row of logits holds outside [first, last) may be read, but changes nothing.
 */
struct steptape_topk_per_row_args {
    const float *logits; /* [num_rows, logits_stride] */
    int32_t *out;        /* [num_rows, out_stride] */
    const int32_t *row_starts;
    const int32_t *row_ends;
    const int32_t *seq_lens;
    void *scratch; /* steptape_topk_per_row_scratch_bytes(), aligned to 16; NULL when that is 0 */
    uint64_t scratch_bytes;
    int64_t logits_stride; /* >= num_columns */
    int64_t out_stride;    /* >= k */
    int64_t num_rows;
    int32_t num_columns;
    int32_t k;      /* any >= 1; 512, 1024 and 2048 are fast */
    int32_t next_n; /* decode: tokens of a request, 1 without speculation */
    int32_t seq_lens_2d;
    uint32_t flags; /* STEPTAPE_TOPK_* */
    uint32_t variant;
};

/* counts->mapped: rows; counts->entries: columns of the rows with n > k, all together (the others
 * need not be read). */
STEPTAPE_OPERATOR(topk_per_row)
/* For these sizes, flags and variant (pointers are not looked at); 0 but for the library chain. */
STEPTAPE_API uint64_t
steptape_topk_per_row_scratch_bytes(const struct steptape_topk_per_row_args *args);

#ifdef __cplusplus
}
#endif
#endif
