/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/device.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/embedded.h"

static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    {"sm_count", offsetof(struct st_device, sm_count)},
    {"dram_bytes_per_s", offsetof(struct st_device, dram_bytes_per_s)},
    {"fp32_flops_per_s", offsetof(struct st_device, fp32_flops_per_s)},
    {"bf16_flops_per_s", offsetof(struct st_device, bf16_flops_per_s)},
    {"min_kernel_ns", offsetof(struct st_device, min_kernel_ns)},
    {"block_ps", offsetof(struct st_device, block_ps)},
    {"stream_gap_ns", offsetof(struct st_device, stream_gap_ns)},
    {"host_issue_ns", offsetof(struct st_device, host_issue_ns)},
    {"graph_launch_ns", offsetof(struct st_device, graph_launch_ns)},
    {"graph_node_ns", offsetof(struct st_device, graph_node_ns)},
};
enum { NUMBER_COUNT = sizeof numbers / sizeof numbers[0] };

static double *number_of(struct st_device *device, int i) {
    return (double *)(void *)((char *)device + numbers[i].offset);
}

static void copy_text(const json_t *root, const char *key, char *out, size_t size) {
    const char *text = json_string_value(json_object_get(root, key));
    snprintf(out, size, "%s", text ? text : "");
}

static int fill(const char *file, const json_t *root, struct st_device *device,
                struct st_error *err) {
    if (!json_is_object(root))
        return ST_FAIL(err, ST_ERR_INPUT, "%s: a JSON object that describes a device expected",
                       file);
    copy_text(root, "name", device->name, sizeof device->name);
    copy_text(root, "device", device->device, sizeof device->device);
    copy_text(root, "origin", device->origin, sizeof device->origin);
    copy_text(root, "note", device->note, sizeof device->note);
    if (!device->name[0] || !device->origin[0])
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: \"name\" and \"origin\" (datasheet or measured) expected", file);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const json_t *value = json_object_get(root, numbers[i].name);
        if (!json_is_number(value) || !isfinite(json_number_value(value)) ||
            json_number_value(value) < 0)
            return ST_FAIL(err, ST_ERR_INPUT, "%s: \"%s\": a number from 0 expected", file,
                           numbers[i].name);
        *number_of(device, i) = json_number_value(value);
    }
    if (device->sm_count < 1 || device->dram_bytes_per_s <= 0 || device->fp32_flops_per_s <= 0 ||
        device->bf16_flops_per_s <= 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: sm_count, dram_bytes_per_s, fp32_flops_per_s and bf16_flops_per_s must "
                       "be above 0",
                       file);
    return 0;
}

static int load_bundled(const char *name, json_t **root, struct st_error *err) {
    char names[256] = "";
    for (const struct st_embedded *e = st_embedded_devices; e->name; e++) {
        size_t length = strlen(e->name) - strlen(".profile");
        if (strlen(name) == length && strncmp(name, e->name, length) == 0) {
            *root = json_loads(e->text, 0, NULL);
            return *root ? 0 : ST_FAIL(err, ST_ERR_INPUT, "%s: no JSON", e->name);
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "", (int)length,
                 e->name);
    }
    return ST_FAIL(err, ST_ERR_USAGE,
                   "--device: there is no profile '%s'; bundled profiles: %s (a file's name holds "
                   "a '/' or ends in .profile)",
                   name, names);
}

int st_device_load(const char *name, struct st_device *device, struct st_error *err) {
    json_t *root = NULL;
    json_error_t json_err;
    struct st_device result;
    memset(&result, 0, sizeof result);
    if (!name)
        name = "h200";
    if (strchr(name, '/') || strstr(name, ".profile")) {
        root = json_load_file(name, 0, &json_err);
        if (!root && json_err.line < 0)
            return ST_FAIL(err, ST_ERR_INPUT, "%s: it cannot be read; a device profile expected",
                           name);
        if (!root)
            return ST_FAIL(err, ST_ERR_INPUT, "%s: line %d: %s; a device profile expected", name,
                           json_err.line, json_err.text);
    } else {
        ST_TRY(load_bundled(name, &root, err));
    }
    int rc = fill(name, root, &result, err);
    json_decref(root);
    if (rc == 0)
        *device = result;
    return rc;
}

int st_device_set(struct st_device *device, const char *assignment, struct st_error *err) {
    const char *equals = strchr(assignment, '=');
    char *end = NULL, names[256] = "";
    double value = equals ? strtod(equals + 1, &end) : 0;
    if (!equals || end == equals + 1 || *end || !isfinite(value) || value < 0)
        return ST_FAIL(err, ST_ERR_USAGE, "--device-set %s: NAME=NUMBER expected", assignment);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        if (strlen(numbers[i].name) == (size_t)(equals - assignment) &&
            strncmp(assignment, numbers[i].name, (size_t)(equals - assignment)) == 0) {
            if (i < 4 && value <= 0)
                return ST_FAIL(err, ST_ERR_USAGE, "--device-set %s: above 0 expected", assignment);
            if (number_of(device, i) == &device->sm_count) {
                device->fp32_flops_per_s *= value / device->sm_count;
                device->bf16_flops_per_s *= value / device->sm_count;
                device->block_ps *= device->sm_count / value;
            }
            *number_of(device, i) = value;
            return 0;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", numbers[i].name);
    }
    return ST_FAIL(err, ST_ERR_USAGE, "--device-set: there is no '%.*s'; there are %s",
                   (int)(equals - assignment), assignment, names);
}
