# SPDX-License-Identifier: Apache-2.0
"""`steptape bench plugin`: what the vLLM plug-in adds to a step on the engine's thread.

Two runners of a fake engine, one with the plug-in and one without, execute the same scheduler
outputs in turn (A B B A); a row is the paired difference of their times.  Its steps are those of
decoding with DeepSeek-V4's five KV cache groups: blocks are appended in most, requests come and go.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Optional

from steptape import vllm_plugin
from steptape._errors import StepTapeError
from steptape._fake import engine, runners
from steptape._fake.scheduler import Scheduler, SchedulerOutput, Settings
from steptape._version import __version__

BLOCK_SIZES = (64, 64, 256, 4, 8)
REQUESTS = (1, 16, 64, 256, 1024)


def _settings(kind: str, requests: int) -> Settings:
    return Settings(
        runner=kind,
        block_sizes=BLOCK_SIZES,
        num_blocks=200 * requests + 4096,
        max_num_seqs=requests,
        max_num_batched_tokens=max(8192, requests),
        capture_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    )


def _outputs(settings: Settings, steps: int) -> list[SchedulerOutput]:
    """Scheduler outputs: what fills the batch, then `steps` of decoding."""
    rng = random.Random(7)
    scheduler = Scheduler(settings)
    outputs: list[SchedulerOutput] = []
    added = 0
    decoding = -1
    while decoding < steps:
        while len(scheduler.requests) < settings.max_num_seqs:
            prompt = [0] * rng.randint(8, 64)
            scheduler.add(f"cmpl-{added:032x}-0", prompt, rng.randint(50, 400))
            added += 1
        output = scheduler.schedule()
        outputs.append(output)
        scheduler.update(output)
        if decoding >= 0 or len(scheduler.running) == settings.max_num_seqs:
            decoding += 1
    return outputs


def _runner(kind: str, settings: Settings, recorded: bool) -> Any:
    base = runners.FakeRunnerV1 if kind == "V1" else runners.FakeRunnerV2
    cls = type("GPUModelRunner", (), dict(base.__dict__))
    if recorded:
        name = next(n for n, k in vllm_plugin.RUNNERS.items() if k == kind)
        module = ModuleType(name)
        cls.__module__ = name
        module.GPUModelRunner = cls  # type: ignore[attr-defined]
        vllm_plugin._wrap_runner(kind, module)
    runner = cls(engine.vllm_config(settings))
    runner.keep_held = False
    runner.initialize_kv_cache(engine.cache_config(settings))
    return runner


def _time(runner: Any, output: SchedulerOutput) -> int:
    begin = time.perf_counter_ns()
    runner.execute_model(output)
    runner.sample_tokens(None)
    return time.perf_counter_ns() - begin


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(kind: str, requests: int, steps: int) -> dict[str, Any]:
    settings = _settings(kind, requests)
    with tempfile.TemporaryDirectory(prefix="steptape-bench-") as folder:
        os.environ["STEPTAPE_RECORD"] = os.path.join(folder, "bench.tape")
        outputs = _outputs(settings, steps)
        with_plugin = _runner(kind, settings, True)
        without = _runner(kind, settings, False)
        pair = (with_plugin, without)
        times: dict[int, list[int]] = {0: [], 1: []}
        for at, output in enumerate(outputs):
            # Workers get the scheduler's output over a queue: new objects in every step.
            sent = pickle.dumps(output)
            for which in (0, 1) if at % 2 else (1, 0):
                times[which].append(_time(pair[which], pickle.loads(sent)))
        session = getattr(with_plugin, vllm_plugin.SESSION)
        if not session.alive:
            raise StepTapeError("the plug-in turned itself off")
        stats = session.recorder().stats()
        session.close()
    added = [(a - b) / 1000 for a, b in zip(times[0][-steps:], times[1][-steps:])]
    return {
        "runner": kind,
        "requests": requests,
        "steps": steps,
        "added_us_median": round(_quantile(added, 0.5), 1),
        "added_us_p90": round(_quantile(added, 0.9), 1),
        "added_us_p99": round(_quantile(added, 0.99), 1),
        "c_call_us_median": round(stats.cost_median_ns / 1000, 2),
        "c_call_us_p999": round(stats.cost_p999_ns / 1000, 2),
        "dropped": int(stats.dropped_count),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    widths = [max(len(n), *(len(str(row[n])) for row in rows)) for n in names]
    for line in [names] + [[str(row[n]) for n in names] for row in rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="steptape bench plugin",
        description="What the vLLM plug-in adds to a step on the engine's thread.",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each row")
    parser.add_argument(
        "--requests", type=int, nargs="+", default=list(REQUESTS), help="batch sizes"
    )
    options = parser.parse_args(arguments)
    if options.steps < 1 or min(options.requests) < 1:
        parser.error("--steps and --requests are at least 1")
    rows = []
    try:
        for kind in ("V1", "V2"):
            for requests in options.requests:
                rows.append(measure(kind, requests, options.steps))
    except StepTapeError as error:
        print(f"steptape: {error}", file=sys.stderr)
        return 1
    if options.format == "json":
        print(json.dumps(rows))
        return 0
    print(f"steptape {__version__}, Python {platform.python_version()}, {platform.machine()}")
    _print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
