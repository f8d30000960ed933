/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/command.h"
#include "traces/base/log.h"

int st_command_fail(const struct st_error *err) {
    st_log(ST_LOG_ERROR, "%s", err->msg);
    return st_error_exit_status(err->code);
}
