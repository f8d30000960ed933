/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/header.h"

#include <stddef.h>

const char *st_graph_mode_name(enum st_graph_mode mode) {
    switch (mode) {
    case ST_GRAPH_MODE_NONE:
        return "NONE";
    case ST_GRAPH_MODE_PIECEWISE:
        return "PIECEWISE";
    case ST_GRAPH_MODE_FULL:
        return "FULL";
    case ST_GRAPH_MODE_UNKNOWN:
        break;
    }
    return NULL;
}

const char *st_member_kind_name(enum st_member_kind kind) {
    static const char *const names[] = {"swa",           "kv",       "indexer_kv", "state",
                                        "indexer_state", "attention"};
    return names[kind];
}

const struct st_group *st_header_find_group(const struct st_header *header,
                                            enum st_member_kind kind, int32_t ratio) {
    for (int32_t g = 0; g < header->group_count; g++)
        for (int32_t m = 0; m < header->groups[g].member_count; m++) {
            const struct st_member *member = &header->groups[g].members[m];
            if (member->kind == kind && (ratio < 0 || member->ratio == ratio))
                return &header->groups[g];
        }
    return NULL;
}
