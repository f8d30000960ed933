/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the columns of all tokens are cut into parts, one step after the other: the host's reference
 * and the serial plan kernel (plan variant 1) compile the same text, and plan variant 2 must leave
 * the same bytes.  One cut for all, so that the way a plan is made never shows in an output's bits.
 *
 * There are three ways to cut, each a closed formula (so that plan variant 2 finds a token's and a
 * part's place by a thread of their own); the one whose fullest part has the least to do is taken:
 *   even   a part is a share of one token: the smallest L such that pieces of at most L tiles need
 *          no more parts than there are
 *   whole  a part is a run of whole tokens, the same number each
 *   line   tokens lie on a line, each as long as its overhead and its tiles; it is cut into parts
 *          of equal length
 */
#ifndef ST_KERNELS_SPARSE_MLA_DECODE_CUT_H
#define ST_KERNELS_SPARSE_MLA_DECODE_CUT_H

#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

#ifdef __CUDACC__
#define ST_PLAN_FN static __host__ __device__
#else
#define ST_PLAN_FN static inline
#endif

ST_PLAN_FN int64_t st_plan_ceil(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit;
}

ST_PLAN_FN int32_t st_plan_length(int32_t tiles) {
    return tiles > 0 ? tiles + ST_DECODE_OVERHEAD : 0;
}

ST_PLAN_FN struct st_decode_part st_plan_part(int32_t first_token, int32_t first_tile,
                                              int32_t last_token, int32_t end_tile) {
    struct st_decode_part part = {first_token, first_tile, last_token, end_tile};
    return part;
}

ST_PLAN_FN struct st_decode_token st_plan_token(int32_t first_slot, int32_t pieces) {
    struct st_decode_token token = {first_slot, pieces};
    return token;
}

struct st_plan_measure {
    int64_t total;    /* of lengths */
    int32_t nonempty; /* tokens */
    int32_t longest;  /* tiles */
    int64_t tiles;
};

ST_PLAN_FN struct st_plan_measure st_plan_measure(const int32_t *tile, int32_t token_count) {
    struct st_plan_measure cut = {0, 0, 0, 0};
    for (int64_t t = 0; t < token_count; t++) {
        const int32_t tiles = tile[t];
        cut.total += st_plan_length(tile[t]);
        cut.nonempty += tiles > 0;
        cut.longest = tiles > cut.longest ? tiles : cut.longest;
        cut.tiles += tiles;
    }
    return cut;
}

/* Pieces of at most `most` tiles. */
ST_PLAN_FN int64_t st_plan_pieces_of(const int32_t *tile, int32_t token_count, int32_t most) {
    int64_t pieces = 0;
    for (int64_t t = 0; t < token_count; t++)
        pieces += st_plan_ceil(tile[t], most);
    return pieces;
}

/* Pieces differ by at most one tile; the longer ones come first. */
ST_PLAN_FN int32_t st_plan_piece_begin(int32_t tiles, int32_t pieces, int32_t k) {
    const int32_t longer = tiles % pieces;
    return k * (tiles / pieces) + (k < longer ? k : longer);
}

ST_PLAN_FN void st_plan_cut_even(const int32_t *tile, int32_t token_count, int32_t part_count,
                                 int32_t most, struct st_decode_part *parts,
                                 struct st_decode_token *tokens) {
    int32_t p = 0;
    for (int32_t t = 0; t < token_count; t++) {
        const int32_t tiles = tile[t];
        const int32_t pieces = (int32_t)st_plan_ceil(tiles, most);
        tokens[t] = st_plan_token(pieces > 0 ? 2 * p : 0, pieces);
        for (int32_t k = 0; k < pieces; k++)
            parts[p++] = st_plan_part(t, st_plan_piece_begin(tiles, pieces, k), t,
                                      st_plan_piece_begin(tiles, pieces, k + 1));
    }
    while (p < part_count)
        parts[p++] = st_plan_part(0, 0, -1, 0);
}

ST_PLAN_FN void st_plan_cut_whole(const int32_t *tile, int32_t token_count, int32_t part_count,
                                  int32_t run, struct st_decode_part *parts,
                                  struct st_decode_token *tokens) {
    const int64_t count = token_count;
    for (int32_t p = 0; p < part_count; p++) {
        const int64_t first = (int64_t)p * run;
        const int64_t end = first + run < count ? first + run : count;
        parts[p] = st_plan_part(0, 0, -1, 0);
        if (first < end)
            parts[p] = st_plan_part((int32_t)first, 0, (int32_t)end - 1, tile[end - 1]);
        for (int64_t t = first; t < end; t++)
            tokens[t] = st_plan_token(0, tile[t] > 0);
    }
}

/* The fullest run of cut_whole. */
ST_PLAN_FN int64_t st_plan_fullest_run(const int32_t *tile, int32_t token_count, int32_t run) {
    int64_t most = 0;
    for (int64_t first = 0; first < token_count; first += run) {
        int64_t sum = 0;
        for (int64_t t = first; t < first + run && t < token_count; t++)
            sum += st_plan_length(tile[t]);
        most = sum > most ? sum : most;
    }
    return most;
}

ST_PLAN_FN void st_plan_cut_line(const int32_t *tile, int32_t token_count, int32_t part_count,
                                 int64_t share, int64_t total, struct st_decode_part *parts,
                                 struct st_decode_token *tokens) {
    int64_t begin = 0; /* of token t on the line */
    for (int32_t p = 0; p < part_count; p++)
        parts[p] = st_plan_part(0, 0, -1, 0);
    for (int32_t t = 0; t < token_count; t++) {
        const int32_t length = st_plan_length(tile[t]);
        const int64_t end = begin + length;
        tokens[t] = st_plan_token(0, 0);
        if (length == 0)
            continue;
        const int64_t first = begin + ST_DECODE_OVERHEAD;
        const int64_t p = first / share;
        /* the tile before it is at begin - 1 */
        const int is_first = begin == 0 || (begin - 1) / share < p;
        tokens[t].pieces = (int32_t)((end - 1) / share - p + 1);
        if (tokens[t].pieces > 1)
            tokens[t].first_slot = (int32_t)(2 * p + !is_first);
        /* parts whose first or last place is in this token, overhead included */
        for (int64_t k = begin / share; k <= (end - 1) / share; k++) {
            const int64_t from = k * share;
            const int64_t to = from + share < total ? from + share : total;
            if (from >= begin) {
                parts[k].first_token = t;
                parts[k].first_tile = (int32_t)(from > first ? from - first : 0);
            }
            if (to <= end) {
                parts[k].last_token = t;
                parts[k].end_tile = (int32_t)(to > first ? to - first : 0);
            }
        }
        begin = end;
    }
}

/*
 * The tiles of a piece, `most` or more: n pieces cost their sum about n / 32 of a tile's time, so
 * that beyond the square root of a 32nd of the tiles shorter pieces only make more to add up.
 */
ST_PLAN_FN int32_t st_plan_at_least(int32_t tiles, int32_t most) {
    while ((int64_t)32 * (most + 1) * (most + 1) <= tiles)
        most++;
    return most;
}

/* tile: [token_count] tiles of each token; parts: [part_count]. */
ST_PLAN_FN void st_plan_cut(const int32_t *tile, int32_t token_count, int32_t part_count,
                            struct st_decode_part *parts, struct st_decode_token *tokens) {
    const struct st_plan_measure cut = st_plan_measure(tile, token_count);
    const int64_t share = cut.total > 0 ? st_plan_ceil(cut.total, part_count) : 1;
    if (cut.nonempty <= part_count) {
        /* the smallest, by bisection: more tiles a piece never need more pieces */
        int32_t low = (int32_t)st_plan_ceil(cut.tiles, part_count), high = cut.longest;
        low = low < 1 ? 1 : low;
        high = high < 1 ? 1 : high;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (st_plan_pieces_of(tile, token_count, middle) <= part_count)
                high = middle;
            else
                low = middle + 1;
        }
        if (high <= share) {
            high = st_plan_at_least(cut.longest, high);
            st_plan_cut_even(tile, token_count, part_count, high, parts, tokens);
            return;
        }
    } else {
        const int32_t run = (int32_t)st_plan_ceil(token_count, part_count);
        if (st_plan_fullest_run(tile, token_count, run) <= share + ST_DECODE_OVERHEAD) {
            st_plan_cut_whole(tile, token_count, part_count, run, parts, tokens);
            return;
        }
    }
    st_plan_cut_line(tile, token_count, part_count, share, cut.total, parts, tokens);
}

#endif
