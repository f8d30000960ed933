/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_step, block_table and slot_mapping: the rows of a step as SQL tables.
 *
 * The three are one nest of loops (step, group, row or token, ordinal) of which each table has some
 * levels.  The first columns of a table are its levels, in the order of the nest; xBestIndex turns
 * constraints on them into a string of (column, operator) pairs, xFilter turns that and its
 * arguments into one range per level, and the loops run over those ranges only.
 */
#include "analysis/sql_i.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum level { LEVEL_STEP, LEVEL_GROUP, LEVEL_ROW, LEVEL_ORDINAL, LEVEL_COUNT };

enum kind { KIND_REQUEST_STEP, KIND_BLOCK_TABLE, KIND_SLOT_MAPPING };

struct table {
    enum kind kind;
    const char *name;
    const char *schema;
    unsigned what; /* ST_READ_ flags */
    int level_count;
    enum level level[LEVEL_COUNT]; /* of column 0, 1, ... */
    double rows[LEVEL_COUNT];      /* guess of rows a level adds, for the query planner */
};

static const struct table tables[] = {
    {
        .kind = KIND_REQUEST_STEP,
        .name = "request_step",
        .schema = "CREATE TABLE request_step("
                  "step_id INTEGER NOT NULL, row INTEGER NOT NULL, request_id INTEGER NOT NULL, "
                  "query_len INTEGER NOT NULL, num_computed_tokens INTEGER NOT NULL, "
                  "prompt_len INTEGER, PRIMARY KEY(step_id, row)) WITHOUT ROWID",
        .level_count = 2,
        .level = {LEVEL_STEP, LEVEL_ROW},
        .rows = {0, 64},
    },
    {
        .kind = KIND_BLOCK_TABLE,
        .name = "block_table",
        .schema = "CREATE TABLE block_table("
                  "step_id INTEGER NOT NULL, group_id INTEGER NOT NULL, row INTEGER NOT NULL, "
                  "ordinal INTEGER NOT NULL, block_id INTEGER NOT NULL, "
                  "PRIMARY KEY(step_id, group_id, row, ordinal)) WITHOUT ROWID",
        .what = ST_READ_BLOCKS,
        .level_count = 4,
        .level = {LEVEL_STEP, LEVEL_GROUP, LEVEL_ROW, LEVEL_ORDINAL},
        .rows = {0, 6, 64, 200},
    },
    {
        .kind = KIND_SLOT_MAPPING,
        .name = "slot_mapping",
        .schema = "CREATE TABLE slot_mapping("
                  "step_id INTEGER NOT NULL, group_id INTEGER NOT NULL, token INTEGER NOT NULL, "
                  "position INTEGER NOT NULL, slot INTEGER NOT NULL, "
                  "PRIMARY KEY(step_id, group_id, token)) WITHOUT ROWID",
        .what = ST_READ_BLOCKS,
        .level_count = 3,
        .level = {LEVEL_STEP, LEVEL_GROUP, LEVEL_ROW},
        .rows = {0, 6, 500},
    },
};

struct module {
    struct st_sql *sql;
    const struct table *table;
};

struct vtab {
    sqlite3_vtab base;
    struct st_sql *sql;
    const struct table *table;
};

/* Both ends belong to the range. */
struct range {
    int64_t low, high;
};

struct vcursor {
    sqlite3_vtab_cursor base;
    struct st_sql_reader *reader;
    struct range range[LEVEL_COUNT];
    bool at_end;
    int64_t step_id, group, row, ordinal; /* where the loops stand; group is an index */
    int64_t row_count, ordinal_count;     /* of this group, of this row */
    const int32_t *block_id;              /* block_table: of this row */
    int64_t *slot;                        /* slot_mapping: of slot_step_id and slot_group */
    int64_t slot_capacity, slot_step_id, slot_group;
    int32_t request_row;       /* slot_mapping: the row that the token belongs to, */
    int64_t request_row_token; /* and the first token of that row */
};

static int vtab_connect(sqlite3 *db, void *aux, int argc, const char *const *argv,
                        sqlite3_vtab **out, char **message) {
    (void)argc, (void)argv;
    const struct module *module = aux;
    struct st_error err;
    struct vtab *vtab = sqlite3_malloc(sizeof *vtab);
    if (!vtab)
        return SQLITE_NOMEM;
    memset(vtab, 0, sizeof *vtab);
    if (st_sql_use(module->sql, &err)) {
        sqlite3_free(vtab);
        *message = sqlite3_mprintf("%s: %s", module->table->name, err.msg);
        return st_sql_code(&err);
    }
    vtab->sql = module->sql;
    vtab->table = module->table;
    int rc = sqlite3_declare_vtab(db, module->table->schema);
    if (rc != SQLITE_OK) {
        st_sql_unuse(vtab->sql);
        sqlite3_free(vtab);
        return rc;
    }
    /* Only this tape is read, nothing is written: safe in views of a schema that is not trusted. */
    sqlite3_vtab_config(db, SQLITE_VTAB_INNOCUOUS);
    *out = &vtab->base;
    return SQLITE_OK;
}

static int vtab_disconnect(sqlite3_vtab *base) {
    struct vtab *vtab = (struct vtab *)base;
    st_sql_unuse(vtab->sql);
    sqlite3_free(vtab);
    return SQLITE_OK;
}

static char operator_letter(unsigned char op) {
    switch (op) {
    case SQLITE_INDEX_CONSTRAINT_EQ:
        return '=';
    case SQLITE_INDEX_CONSTRAINT_GT:
        return '>';
    case SQLITE_INDEX_CONSTRAINT_GE:
        return 'g';
    case SQLITE_INDEX_CONSTRAINT_LT:
        return '<';
    case SQLITE_INDEX_CONSTRAINT_LE:
        return 'l';
    default:
        return 0;
    }
}

/* True when the rows come in the order that the query asks for. */
static bool order_is_ours(const sqlite3_index_info *info, int level_count) {
    if (info->nOrderBy > level_count)
        return false;
    for (int i = 0; i < info->nOrderBy; i++)
        if (info->aOrderBy[i].iColumn != i || info->aOrderBy[i].desc)
            return false;
    return true;
}

static int vtab_best_index(sqlite3_vtab *base, sqlite3_index_info *info) {
    const struct vtab *vtab = (const struct vtab *)base;
    const struct table *table = vtab->table;
    char *plan = sqlite3_malloc(2 * info->nConstraint + 1);
    if (!plan)
        return SQLITE_NOMEM;
    int argument_count = 0;
    bool equal[LEVEL_COUNT] = {false};
    double share[LEVEL_COUNT] = {1, 1, 1, 1};
    for (int i = 0; i < info->nConstraint; i++) {
        const struct sqlite3_index_constraint *constraint = &info->aConstraint[i];
        char letter = operator_letter(constraint->op);
        if (!constraint->usable || !letter || constraint->iColumn < 0 ||
            constraint->iColumn >= table->level_count)
            continue;
        plan[2 * argument_count] = (char)('0' + constraint->iColumn);
        plan[2 * argument_count + 1] = letter;
        /* SQLite checks the value again (omit stays 0): we only narrow, so that text, fractions and
         * the like compare as SQLite says. */
        info->aConstraintUsage[i].argvIndex = ++argument_count;
        if (letter == '=')
            equal[constraint->iColumn] = true;
        else
            share[constraint->iColumn] *= 0.25;
    }
    plan[2 * argument_count] = 0;
    info->idxStr = plan;
    info->needToFreeIdxStr = 1;

    double rows = 1;
    double steps = (double)st_tape_step_count(vtab->sql->tape) + 1;
    bool unique = true;
    for (int column = 0; column < table->level_count; column++) {
        double all = column == 0 ? steps : table->rows[column];
        rows *= equal[column] ? 1 : all * share[column] + 1;
        unique = unique && equal[column];
    }
    /* A step that is asked for costs a seek, which decodes what comes before it in its block. */
    info->estimatedCost = rows + (equal[0] ? 20 : 20 * steps * share[0]);
    info->estimatedRows = rows < 1e15 ? (sqlite3_int64)rows : (sqlite3_int64)1e15;
    if (unique)
        info->idxFlags |= SQLITE_INDEX_SCAN_UNIQUE;
    info->orderByConsumed = order_is_ours(info, table->level_count);
    return SQLITE_OK;
}

static int cursor_open(sqlite3_vtab *base, sqlite3_vtab_cursor **out) {
    (void)base;
    struct vcursor *cursor = sqlite3_malloc(sizeof *cursor);
    if (!cursor)
        return SQLITE_NOMEM;
    memset(cursor, 0, sizeof *cursor);
    cursor->at_end = true;
    cursor->slot_step_id = -1;
    *out = &cursor->base;
    return SQLITE_OK;
}

static int cursor_close(sqlite3_vtab_cursor *base) {
    struct vcursor *cursor = (struct vcursor *)base;
    st_sql_reader_give(cursor->reader);
    free(cursor->slot);
    sqlite3_free(cursor);
    return SQLITE_OK;
}

/* ---- constraints */

static void range_clear(struct range *range) {
    range->low = 1;
    range->high = 0;
}

static void range_above(struct range *range, int64_t low) {
    if (low > range->low)
        range->low = low;
}

static void range_below(struct range *range, int64_t high) {
    if (high < range->high)
        range->high = high;
}

static void narrow_integer(struct range *range, char op, int64_t value) {
    switch (op) {
    case '=':
        range_above(range, value);
        range_below(range, value);
        break;
    case '>':
        if (value == INT64_MAX)
            range_clear(range);
        else
            range_above(range, value + 1);
        break;
    case 'g':
        range_above(range, value);
        break;
    case '<':
        if (value == INT64_MIN)
            range_clear(range);
        else
            range_below(range, value - 1);
        break;
    default:
        range_below(range, value);
    }
}

/* Integers n with n OP value, value not a whole number or beyond 64 bits. */
static void narrow_real(struct range *range, char op, double value) {
    double floor_value = floor(value);
    if (op == '=') {
        if (floor_value != value || value < -9.2e18 || value > 9.2e18)
            range_clear(range);
        else
            narrow_integer(range, '=', (int64_t)value);
    } else if (op == '>' || op == 'g') {
        if (value > 9.2e18)
            range_clear(range);
        else if (value > -9.2e18)
            narrow_integer(range, floor_value == value ? op : '>', (int64_t)floor_value);
    } else {
        if (value < -9.2e18)
            range_clear(range);
        else if (value < 9.2e18)
            narrow_integer(range, floor_value == value ? op : 'l', (int64_t)floor_value);
    }
}

static void narrow(struct range *range, char op, sqlite3_value *value) {
    switch (sqlite3_value_numeric_type(value)) {
    case SQLITE_INTEGER:
        narrow_integer(range, op, sqlite3_value_int64(value));
        break;
    case SQLITE_FLOAT:
        narrow_real(range, op, sqlite3_value_double(value));
        break;
    case SQLITE_NULL:
        range_clear(range); /* nothing compares with NULL */
        break;
    default: /* text and blobs sort above numbers: left to SQLite */
        break;
    }
}

/* ---- the loops
 *
 * enter_X() goes to the first place of a level and below; it returns ST_DONE when there is none.
 * next_X() does the same from the place after the current one. */

static const struct st_group *group_at(const struct vtab *vtab, int64_t group) {
    return &st_tape_header(vtab->sql->tape)->groups[group];
}

/* The block table of the row.  Tables of window groups are held whole only by a reader that came
 * from far enough behind (ST_READ_TABLES); the others, and all of them near the tape's start, are
 * there after a seek to the last keyframe, which is much nearer. */
static int load_table(struct vcursor *cursor, int32_t *count, struct st_error *err) {
    struct vtab *vtab = (struct vtab *)cursor->base.pVtab;
    int rc = st_cursor_block_table(cursor->reader->cursor, (int32_t)cursor->group,
                                   (int32_t)cursor->row, &cursor->block_id, count, err);
    if (rc != ST_ERR_USAGE || cursor->reader->what == ST_READ_TABLES)
        return rc;
    struct st_sql_reader *whole;
    ST_TRY(st_sql_reader_take(vtab->sql, ST_READ_TABLES, cursor->step_id, &whole, err));
    st_sql_reader_give(cursor->reader);
    cursor->reader = whole;
    ST_TRY(st_sql_reader_move(whole, cursor->step_id, err));
    return st_cursor_block_table(whole->cursor, (int32_t)cursor->group, (int32_t)cursor->row,
                                 &cursor->block_id, count, err);
}

static int enter_row(struct vcursor *cursor, int64_t row, struct st_error *err) {
    const struct vtab *vtab = (const struct vtab *)cursor->base.pVtab;
    const struct range *rows = &cursor->range[LEVEL_ROW];
    for (; row < cursor->row_count && row <= rows->high; row++) {
        cursor->row = row;
        if (vtab->table->kind == KIND_SLOT_MAPPING) {
            const struct st_step *step = cursor->reader->step;
            while (row >= cursor->request_row_token + step->query_len[cursor->request_row])
                cursor->request_row_token += step->query_len[cursor->request_row++];
        }
        if (vtab->table->kind != KIND_BLOCK_TABLE)
            return 0;
        int32_t count;
        ST_TRY(load_table(cursor, &count, err));
        cursor->ordinal = cursor->range[LEVEL_ORDINAL].low;
        cursor->ordinal_count = count;
        if (cursor->ordinal < count && cursor->ordinal <= cursor->range[LEVEL_ORDINAL].high)
            return 0;
    }
    return ST_DONE;
}

static int load_slots(struct vcursor *cursor, const struct st_step *step, struct st_error *err) {
    if (step->token_count > cursor->slot_capacity) {
        int64_t *grown = realloc(cursor->slot, (size_t)step->token_count * sizeof *grown);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        cursor->slot = grown;
        cursor->slot_capacity = step->token_count;
    }
    cursor->request_row = 0;
    cursor->request_row_token = 0;
    if (step->token_count == 0 ||
        (cursor->slot_step_id == step->step_id && cursor->slot_group == cursor->group))
        return 0;
    cursor->slot_step_id = -1;
    ST_TRY(
        st_cursor_slot_mapping(cursor->reader->cursor, (int32_t)cursor->group, cursor->slot, err));
    cursor->slot_step_id = step->step_id;
    cursor->slot_group = cursor->group;
    return 0;
}

static int enter_group(struct vcursor *cursor, int64_t group, struct st_error *err) {
    const struct vtab *vtab = (const struct vtab *)cursor->base.pVtab;
    const struct st_step *step = cursor->reader->step;
    const struct range *groups = &cursor->range[LEVEL_GROUP];
    bool has_groups = vtab->table->kind != KIND_REQUEST_STEP;
    int64_t group_count = has_groups ? st_tape_header(vtab->sql->tape)->group_count : 1;
    for (; group < group_count; group++) {
        if (has_groups) {
            int64_t group_id = group_at(vtab, group)->group_id;
            if (group_id < groups->low || group_id > groups->high)
                continue;
        }
        cursor->group = group;
        cursor->row_count = step->request_count;
        if (vtab->table->kind == KIND_SLOT_MAPPING) {
            cursor->row_count = step->token_count;
            ST_TRY(load_slots(cursor, step, err));
        }
        int rc = enter_row(cursor, cursor->range[LEVEL_ROW].low, err);
        if (rc != ST_DONE)
            return rc;
    }
    return ST_DONE;
}

static int enter_step(struct vcursor *cursor, int64_t step_id, struct st_error *err) {
    for (; step_id <= cursor->range[LEVEL_STEP].high; step_id++) {
        cursor->step_id = step_id;
        ST_TRY(st_sql_reader_move(cursor->reader, step_id, err));
        int rc = enter_group(cursor, 0, err);
        if (rc != ST_DONE)
            return rc;
    }
    return ST_DONE;
}

static int next_place(struct vcursor *cursor, struct st_error *err) {
    const struct vtab *vtab = (const struct vtab *)cursor->base.pVtab;
    if (vtab->table->kind == KIND_BLOCK_TABLE && cursor->ordinal + 1 < cursor->ordinal_count &&
        cursor->ordinal < cursor->range[LEVEL_ORDINAL].high) {
        cursor->ordinal++;
        return 0;
    }
    int rc = enter_row(cursor, cursor->row + 1, err);
    if (rc == ST_DONE)
        rc = enter_group(cursor, cursor->group + 1, err);
    if (rc == ST_DONE)
        rc = enter_step(cursor, cursor->step_id + 1, err);
    return rc;
}

/* Turns the result of the loops into SQLite's. */
static int arrive(struct vcursor *cursor, int rc, const struct st_error *err) {
    cursor->at_end = rc != 0;
    if (rc >= 0)
        return SQLITE_OK;
    return st_sql_vtab_fail(cursor->base.pVtab, err);
}

static int cursor_filter(sqlite3_vtab_cursor *base, int plan_number, const char *plan, int argc,
                         sqlite3_value **argv) {
    (void)plan_number;
    struct vcursor *cursor = (struct vcursor *)base;
    const struct vtab *vtab = (const struct vtab *)base->pVtab;
    struct st_tape *tape = vtab->sql->tape;
    struct st_error err;
    cursor->at_end = true;
    for (int level = 0; level < LEVEL_COUNT; level++)
        cursor->range[level] = (struct range){0, INT64_MAX};
    for (int i = 0; i < argc; i++)
        narrow(&cursor->range[vtab->table->level[plan[2 * i] - '0']], plan[2 * i + 1], argv[i]);

    struct range *steps = &cursor->range[LEVEL_STEP];
    range_above(steps, st_tape_first_step(tape));
    range_below(steps, st_tape_first_step(tape) + st_tape_step_count(tape) - 1);
    for (int level = 0; level < LEVEL_COUNT; level++)
        if (cursor->range[level].low > cursor->range[level].high)
            return SQLITE_OK;
    int rc = 0;
    if (!cursor->reader)
        rc = st_sql_reader_take(vtab->sql, vtab->table->what, steps->low, &cursor->reader, &err);
    if (!rc)
        rc = enter_step(cursor, steps->low, &err);
    return arrive(cursor, rc, &err);
}

static int cursor_next(sqlite3_vtab_cursor *base) {
    struct vcursor *cursor = (struct vcursor *)base;
    struct st_error err;
    int rc = next_place(cursor, &err);
    return arrive(cursor, rc, &err);
}

static int cursor_eof(sqlite3_vtab_cursor *base) {
    return ((struct vcursor *)base)->at_end;
}

static int64_t request_column(const struct vcursor *cursor, int column) {
    const struct st_step *step = cursor->reader->step;
    switch (column) {
    case 0:
        return cursor->step_id;
    case 1:
        return cursor->row;
    case 2:
        return step->request_id[cursor->row];
    case 3:
        return step->query_len[cursor->row];
    case 4:
        return step->num_computed_tokens[cursor->row];
    default:
        return step->prompt_len && step->prompt_len[cursor->row] >= 0
                   ? step->prompt_len[cursor->row]
                   : ST_UNKNOWN;
    }
}

static int64_t array_column(const struct vcursor *cursor, int column) {
    const struct vtab *vtab = (const struct vtab *)cursor->base.pVtab;
    const struct st_step *step = cursor->reader->step;
    bool is_slot = vtab->table->kind == KIND_SLOT_MAPPING;
    switch (column) {
    case 0:
        return cursor->step_id;
    case 1:
        return group_at(vtab, cursor->group)->group_id;
    case 2:
        return cursor->row;
    case 3:
        return is_slot ? step->num_computed_tokens[cursor->request_row] + cursor->row -
                             cursor->request_row_token
                       : cursor->ordinal;
    default:
        return is_slot ? cursor->slot[cursor->row] : cursor->block_id[cursor->ordinal];
    }
}

static int cursor_column(sqlite3_vtab_cursor *base, sqlite3_context *context, int column) {
    const struct vcursor *cursor = (const struct vcursor *)base;
    const struct vtab *vtab = (const struct vtab *)base->pVtab;
    int64_t value = vtab->table->kind == KIND_REQUEST_STEP ? request_column(cursor, column)
                                                           : array_column(cursor, column);
    if (value == ST_UNKNOWN)
        sqlite3_result_null(context);
    else
        sqlite3_result_int64(context, value);
    return SQLITE_OK;
}

static int cursor_rowid(sqlite3_vtab_cursor *base, sqlite3_int64 *rowid) {
    (void)base;
    *rowid = 0; /* the tables are WITHOUT ROWID */
    return SQLITE_OK;
}

/* xCreate NULL: eponymous only, `CREATE VIRTUAL TABLE` is refused. */
static const sqlite3_module step_module = {
    .iVersion = 0,
    .xConnect = vtab_connect,
    .xBestIndex = vtab_best_index,
    .xDisconnect = vtab_disconnect,
    .xOpen = cursor_open,
    .xClose = cursor_close,
    .xFilter = cursor_filter,
    .xNext = cursor_next,
    .xEof = cursor_eof,
    .xColumn = cursor_column,
    .xRowid = cursor_rowid,
};

static void destroy_module(void *aux) {
    struct module *module = aux;
    st_sql_drop(module->sql);
    free(module);
}

int st_sql_register_step_tables(struct st_sql *sql) {
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        struct module *module = malloc(sizeof *module);
        if (!module)
            return SQLITE_NOMEM;
        module->sql = sql;
        module->table = &tables[i];
        sql->module_count++;
        int rc =
            sqlite3_create_module_v2(sql->db, tables[i].name, &step_module, module, destroy_module);
        if (rc != SQLITE_OK)
            return rc; /* SQLite has called destroy_module */
    }
    return SQLITE_OK;
}
