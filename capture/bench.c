/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/bench.h"
#include "capture/commands.h"

const struct st_bench_command st_capture_benches[] = {
    {"recorder", "what a step costs the engine's thread, beside a bare copy of its bytes",
     st_bench_recorder},
    {"plugin", "what the vLLM plug-in adds to a step, on a fake engine; needs python3 with numpy",
     st_bench_plugin},
    {0},
};
