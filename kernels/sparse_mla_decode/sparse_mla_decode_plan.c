/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plans of sparse_mla_decode, on the host: what the plan kernels must leave, byte for byte.
 *
 * Plan variant 1 is a greedy walk, as upstream's: each part takes pieces until its share is used
 * up; a piece costs its tiles and a fixed overhead.
 *
 * Plan variant 2 has three ways to cut, each a closed formula (so that a thread a token and a
 * thread a part find theirs), and takes the one whose fullest part has the least to do:
 *   even   a part is a share of one token: the smallest L such that pieces of at most L tiles need
 *          no more parts than there are
 *   whole  a part is a run of whole tokens, the same number each
 *   line   tokens lie on a line, each as long as its overhead and its tiles; it is cut into parts
 *          of equal length
 */
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

#include "kernels/operator.h"

typedef struct steptape_sparse_mla_decode_args decode_args;

static int32_t tiles_of(const decode_args *args, int64_t t) {
    int64_t tiles = 0;
    for (int s = 0; s < 2; s++)
        tiles += st_ceil_div(st_decode_columns(&args->scope[s], t), ST_DECODE_TILE);
    return (int32_t)tiles;
}

static int32_t length_of(const decode_args *args, int64_t t) {
    int32_t tiles = tiles_of(args, t);
    return tiles > 0 ? tiles + ST_DECODE_OVERHEAD : 0;
}

static const struct st_decode_part no_work = {0, 0, -1, 0};

/* ---- variant 1 */

static void plan_serial(const decode_args *args, int32_t part_count, struct st_decode_part *parts,
                        struct st_decode_token *tokens) {
    const int32_t token_count = (int32_t)args->tokens;
    int64_t total = 0;
    for (int32_t t = 0; t < token_count; t++) {
        total += length_of(args, t);
        tokens[t] = (struct st_decode_token){0, 0};
    }
    const int32_t share = (int32_t)st_ceil_div(total, part_count) + ST_DECODE_OVERHEAD;
    int32_t t = 0, tile = 0;
    for (int32_t p = 0; p < part_count; p++) {
        struct st_decode_part part = no_work;
        int32_t left = share;
        while (t < token_count && left > ST_DECODE_OVERHEAD) {
            const int32_t rest = tiles_of(args, t) - tile;
            const int32_t take =
                rest < left - ST_DECODE_OVERHEAD ? rest : left - ST_DECODE_OVERHEAD;
            if (take > 0) {
                if (part.last_token < 0)
                    part = (struct st_decode_part){t, tile, t, 0};
                if (tile == 0)
                    tokens[t].first_slot = 2 * p + (part.first_token != t);
                tokens[t].pieces++;
                tile += take;
                part.last_token = t;
                part.end_tile = tile;
                left -= take + ST_DECODE_OVERHEAD;
            }
            if (take == rest) {
                t++;
                tile = 0;
            }
        }
        parts[p] = part;
    }
}

/* ---- variant 2 */

struct cut {
    int64_t total;    /* of lengths */
    int32_t nonempty; /* tokens */
    int32_t longest;  /* tiles */
    int64_t tiles;
};

static struct cut measure(const decode_args *args) {
    struct cut cut = {0, 0, 0, 0};
    for (int64_t t = 0; t < args->tokens; t++) {
        const int32_t tiles = tiles_of(args, t);
        cut.total += length_of(args, t);
        cut.nonempty += tiles > 0;
        cut.longest = tiles > cut.longest ? tiles : cut.longest;
        cut.tiles += tiles;
    }
    return cut;
}

/* Pieces of at most `most` tiles. */
static int64_t pieces_of(const decode_args *args, int32_t most) {
    int64_t pieces = 0;
    for (int64_t t = 0; t < args->tokens; t++)
        pieces += st_ceil_div(tiles_of(args, t), most);
    return pieces;
}

/* Pieces differ by at most one tile; the longer ones come first. */
static int32_t piece_begin(int32_t tiles, int32_t pieces, int32_t k) {
    const int32_t longer = tiles % pieces;
    return k * (tiles / pieces) + (k < longer ? k : longer);
}

static void cut_even(const decode_args *args, int32_t part_count, int32_t most,
                     struct st_decode_part *parts, struct st_decode_token *tokens) {
    int32_t p = 0;
    for (int32_t t = 0; t < args->tokens; t++) {
        const int32_t tiles = tiles_of(args, t);
        const int32_t pieces = (int32_t)st_ceil_div(tiles, most);
        tokens[t] = (struct st_decode_token){pieces > 0 ? 2 * p : 0, pieces};
        for (int32_t k = 0; k < pieces; k++)
            parts[p++] = (struct st_decode_part){t, piece_begin(tiles, pieces, k), t,
                                                 piece_begin(tiles, pieces, k + 1)};
    }
    while (p < part_count)
        parts[p++] = no_work;
}

static void cut_whole(const decode_args *args, int32_t part_count, int32_t run,
                      struct st_decode_part *parts, struct st_decode_token *tokens) {
    const int64_t count = args->tokens;
    for (int32_t p = 0; p < part_count; p++) {
        const int64_t first = (int64_t)p * run;
        const int64_t end = first + run < count ? first + run : count;
        parts[p] = no_work;
        if (first < end)
            parts[p] = (struct st_decode_part){(int32_t)first, 0, (int32_t)end - 1,
                                               tiles_of(args, end - 1)};
        for (int64_t t = first; t < end; t++)
            tokens[t] = (struct st_decode_token){0, tiles_of(args, t) > 0};
    }
}

/* The fullest run of cut_whole. */
static int64_t fullest_run(const decode_args *args, int32_t run) {
    int64_t most = 0;
    for (int64_t first = 0; first < args->tokens; first += run) {
        int64_t sum = 0;
        for (int64_t t = first; t < first + run && t < args->tokens; t++)
            sum += length_of(args, t);
        most = sum > most ? sum : most;
    }
    return most;
}

static void cut_line(const decode_args *args, int32_t part_count, int64_t share, int64_t total,
                     struct st_decode_part *parts, struct st_decode_token *tokens) {
    int64_t begin = 0; /* of token t on the line */
    for (int32_t p = 0; p < part_count; p++)
        parts[p] = no_work;
    for (int32_t t = 0; t < args->tokens; t++) {
        const int32_t length = length_of(args, t);
        const int64_t end = begin + length;
        tokens[t] = (struct st_decode_token){0, 0};
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
static int32_t at_least(int32_t tiles, int32_t most) {
    while ((int64_t)32 * (most + 1) * (most + 1) <= tiles)
        most++;
    return most;
}

static void plan_parallel(const decode_args *args, int32_t part_count, struct st_decode_part *parts,
                          struct st_decode_token *tokens) {
    const struct cut cut = measure(args);
    const int64_t share = cut.total > 0 ? st_ceil_div(cut.total, part_count) : 1;
    if (cut.nonempty <= part_count) {
        /* the smallest, by bisection: more tiles a piece never need more pieces */
        int32_t low = (int32_t)st_ceil_div(cut.tiles, part_count), high = cut.longest;
        low = low < 1 ? 1 : low;
        high = high < 1 ? 1 : high;
        while (low < high) {
            const int32_t middle = low + (high - low) / 2;
            if (pieces_of(args, middle) <= part_count)
                high = middle;
            else
                low = middle + 1;
        }
        if (high <= share) {
            high = at_least(cut.longest, high);
            cut_even(args, part_count, high, parts, tokens);
            return;
        }
    } else {
        const int32_t run = (int32_t)st_ceil_div(args->tokens, part_count);
        if (fullest_run(args, run) <= share + ST_DECODE_OVERHEAD) {
            cut_whole(args, part_count, run, parts, tokens);
            return;
        }
    }
    cut_line(args, part_count, share, cut.total, parts, tokens);
}

void st_sparse_mla_decode_plan_ref(const decode_args *args,
                                   const struct st_decode_geometry *geometry,
                                   struct st_decode_part *parts, struct st_decode_token *tokens) {
    if (geometry->plan_variant == 1)
        plan_serial(args, geometry->parts, parts, tokens);
    else
        plan_parallel(args, geometry->parts, parts, tokens);
}
