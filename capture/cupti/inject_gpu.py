#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Launch capture on a GPU: is every launch counted, and what does a launch cost at each level?

    inject_gpu.py --program inject_stress --library libsteptape_inject.so            the test
    inject_gpu.py ... --measure ROUNDS [--levels off,count] [--eager N] [--graph N]  the figures

The test runs known work at every level and compares the counts; it exits with 77 without a GPU.
The figures are medians over rounds; in each round the levels run one after the other, so that what
drifts meets all of them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

LEVELS = ["off", "count", "graph", "bare-graph", "node", "bare-node", "full"]
WARM = 1000
NODES = 200


def run(args, level, folder, *work):
    """One process; its JSON object."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STEPTAPE_", "CUDA_INJECTION"))}
    command = [args.program]
    if level.startswith("bare-"):
        command.append("--bare=" + level[5:])
    elif level != "off":
        env["CUDA_INJECTION64_PATH"] = args.library
        env["STEPTAPE_RECORD"] = os.path.join(folder, "x.tape")
        env["STEPTAPE_LAUNCHES"] = level
        if level == "count":
            env["LD_PRELOAD"] = args.library
    done = subprocess.run(command + [str(w) for w in work], env=env, capture_output=True, text=True,
                          timeout=args.limit, check=False)
    if done.returncode == 77:
        print(done.stderr.strip())
        sys.exit(77)
    if done.returncode != 0:
        sys.exit(f"{level} {work}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def expect(wrong, level, got, **want):
    for key, value in want.items():
        if got[key] != value:
            wrong.append(f"{level}: {key} is {got[key]}, expected {value}")


def test(args):
    """Counts of inject_stress mixed, which knows what it launches."""
    steps, wrong = 200, []
    kernels, graphs, nodes = WARM + 8 * steps, steps * 3 // 4, steps * 3 // 4 * 50
    with tempfile.TemporaryDirectory() as folder:
        for level in ("count", "graph", "node", "full"):
            got = run(args, level, folder, "mixed", steps)
            expect(wrong, level, got, flushed=0, state=1, steps=steps, kernel_launches=kernels,
                   graph_launches=graphs, dropped=0, untimed=0, reversed=0, unattributed=0, other=0,
                   message="")
            if level == "graph":
                expect(wrong, level, got, records=kernels + graphs)
            if level == "node":
                expect(wrong, level, got, records=kernels + nodes)
            # Copies, memory sets, and the calls: those that were captured too.
            if level == "full":
                expect(wrong, level, got,
                       records=kernels + nodes + 2 * steps + kernels + graphs + 50)
    print("\n".join(wrong) or "every launch is counted")
    return 1 if wrong else 0


def spread(values):
    values = sorted(values)
    return f"{statistics.median(values):,.0f} ({values[0]:,.0f} to {values[-1]:,.0f})"


def measure(args):
    levels = args.levels.split(",") if args.levels else LEVELS
    eager = {level: [] for level in levels}
    graph = {level: [] for level in levels}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.measure):
            order = levels if turn % 2 == 0 else levels[::-1]
            for level in order:
                eager[level].append(run(args, level, folder, "eager", args.eager))
                graph[level].append(run(args, level, folder, "graph", NODES, args.graph))
    print("| level | eager, ns a launch | graph of 200, host ns | and wall ns | records | bytes a "
          "record | dropped, untimed |")
    print("|---|---|---|---|---|---|---|")
    for level in levels:
        e, g = eager[level], graph[level]
        size = lost = records = "-"
        if level not in ("off", "count") and "records" in g[0]:
            records = f"{g[0]['records']:,}"
            size = f"{g[0]['bytes'] / g[0]['records']:.2f}, {e[0]['bytes'] / e[0]['records']:.2f}"
            lost = f"{sum(r['dropped'] for r in e + g)}, {sum(r['untimed'] for r in e + g)}"
        print(f"| {level} | {spread([r['launch_ns'][1] for r in e])} "
              f"| {spread([r['launch_ns'][1] for r in g])} | {spread([r['wall_ns'][1] for r in g])} "
              f"| {records} | {size} | {lost} |")
    compare(levels, eager, graph)
    return 0


def compare(levels, eager, graph):
    """What each level costs beyond the first, from the rounds' differences."""
    for level in levels[1:]:
        for what, runs, key in (("eager", eager, "launch_ns"), ("graph, host", graph, "launch_ns"),
                                ("graph, wall", graph, "wall_ns")):
            pairs = [(b[key][1] - a[key][1], a[key][1]) for a, b in zip(runs[levels[0]], runs[level])]
            extra = [d for d, _ in pairs]
            error = 1.25 * 2 * statistics.stdev(extra) / len(extra) ** 0.5 if len(extra) > 1 else 0
            base = statistics.median(a for _, a in pairs)
            print(f"{level} against {levels[0]}, {what}: {statistics.median(extra):+,.0f} "
                  f"+- {error:,.0f} ns ({100 * statistics.median(extra) / base:+.1f} %)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--measure", type=int, metavar="ROUNDS")
    parser.add_argument("--levels", help="in place of all; the first is what others are set against")
    parser.add_argument("--eager", type=int, default=100000)
    parser.add_argument("--graph", type=int, default=2000)
    parser.add_argument("--limit", type=int, default=60)
    args = parser.parse_args()
    return measure(args) if args.measure else test(args)


sys.exit(main())
