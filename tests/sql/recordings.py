#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arrays that engines held against the SQL tables, over the recordings in $STEPTAPE_RECORDINGS.

    STEPTAPE_RECORDINGS=folder[:folder...] recordings.py --program build/steptape

A recording is NAME.jsonl or NAME.jsonl.gz.  Steps with a `check` object are compared, from the whole
tape in one query a table; exits 77 without recordings.
"""
import argparse
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

MAX_CHECKS = 60


def recordings():
    folders = [pathlib.Path(f) for f in os.environ.get("STEPTAPE_RECORDINGS", "").split(":") if f]
    return [p for f in folders for p in sorted(f.glob("*.jsonl*")) if p.suffix in (".jsonl", ".gz")]


def checks(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
        next(lines)
        for line in lines:
            if '"check"' in line:
                step = json.loads(line)
                yield step["step"], step["check"], len(step["req"])


def query(program, tape, sql):
    process = subprocess.Popen([program, "query", tape, sql, "--format=csv"], text=True,
                               stdout=subprocess.PIPE)
    next(process.stdout)
    for line in process.stdout:
        yield tuple(map(int, line.split(",")))
    if process.wait():
        sys.exit(f"query failed: {sql[:100]}")


def compare(program, tape, wanted):
    steps = ",".join(map(str, wanted))
    starts, positions = collections.defaultdict(lambda: [0]), collections.defaultdict(list)
    for step, qlen, computed in query(
            program, tape, "SELECT step_id, query_len, num_computed_tokens FROM request_step "
                           f"WHERE step_id IN ({steps}) ORDER BY step_id, row"):
        starts[step].append(starts[step][-1] + qlen)
        positions[step] += range(computed, computed + qlen)
    tables, slots = collections.defaultdict(list), collections.defaultdict(list)
    for step, group, row, block in query(
            program, tape, "SELECT step_id, group_id, row, block_id FROM block_table "
                           f"WHERE step_id IN ({steps}) ORDER BY step_id, group_id, row, ordinal"):
        tables[step, group, row].append(block)
    for step, group, position, slot in query(
            program, tape, "SELECT step_id, group_id, position, slot FROM slot_mapping "
                           f"WHERE step_id IN ({steps}) ORDER BY step_id, group_id, token"):
        slots[step, group].append((position, slot))
    for step, check in wanted.items():
        compare_step(step, check, starts[step], positions[step], tables, slots)


def compare_step(step, check, starts, positions, tables, slots):
    def same(what, got, want):
        if got != want:
            sys.exit(f"step {step}: {what}: {got[:20]} is not {want[:20]}")

    tokens = starts[-1]
    if check.get("query_start_loc") is not None:
        same("query_start_loc", starts, check["query_start_loc"])
    if check.get("positions") is not None:
        same("positions", positions, check["positions"][:tokens])
    for group, rows in enumerate(check.get("block_table") or []):
        for row, want in rows.items() if isinstance(rows, dict) else enumerate(rows):
            if want is None:
                continue
            got = tables[step, group, int(row)]
            same(f"block table of group {group}, row {row}", got, want[:len(got)])
            same(f"block table of group {group}, row {row}, rest", [i for i in want[len(got):] if i], [])
    for group, want in enumerate(check.get("slot_mapping") or []):
        if want is not None:
            got = slots[step, group]
            same(f"slot mapping of group {group}", [s for _, s in got][:len(want)], want[:len(got)])
            same(f"positions of group {group}", [p for p, _ in got], positions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    program = parser.parse_args().program
    found = recordings()
    if not found:
        print("STEPTAPE_RECORDINGS names no folder with recordings", file=sys.stderr)
        sys.exit(77)
    total = 0
    for path in found:
        with tempfile.TemporaryDirectory(prefix="steptape-recordings-") as folder:
            tape = str(pathlib.Path(folder, "x.tape"))
            subprocess.run([program, "-q", "import", path, "-o", tape], check=True)
            all_checks = {step: check for step, check, rows in checks(path) if rows}
            stride = max(1, len(all_checks) // MAX_CHECKS)
            wanted = dict(list(all_checks.items())[::stride])
            if wanted:
                compare(program, tape, wanted)
            total += len(wanted)
            print(f"{path.name}: {len(wanted)} steps as the engine had them")
    if not total:
        sys.exit("no recording has check objects")


if __name__ == "__main__":
    main()
