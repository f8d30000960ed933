#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny.jsonl: 20 steps of a small DeepSeek-V4 layout in which everything that a recording
can hold happens once.

    python3 make_tiny.py >tiny.jsonl

Three groups (SWA, main KV, c128 state), two c128 layers; chunked prefill, boundaries of 128 on
purpose and their absence, rejected drafts, a preemption and its resume with replaced blocks, a free
block used again, steps in each graph mode, without CPU starts, with padding and without times, a
step without a request, and `check` objects computed from the block tables kept here.
"""
import json

BLOCK_SIZES = [64, 256, 8]
HEADER = {
    "kind": "steps", "version": 1, "engine": "vllm", "engine_version": "0.0-hand-made",
    "runner": "V1", "device": "none", "model": "tiny", "architecture": "DeepseekV4ForCausalLM",
    "compress_ratios": [0, 128, 4, 128], "max_model_len": 4096, "max_num_seqs": 8,
    "max_num_batched_tokens": 256, "num_blocks": 400, "prefix_caching": False,
    "async_scheduling": False, "speculative": {"method": "ngram", "num_speculative_tokens": 2},
    "rank": 0, "clock": {"monotonic_ns": 1000, "realtime_ns": 1700000000000000000},
    "scale": "made by hand", "groups": [
        {"id": 0, "block_size": 64, "members": [
            {"kind": "swa", "layers": 4, "ratio": 1, "window": 128, "page_bytes": 37440}]},
        {"id": 1, "block_size": 256, "members": [
            {"kind": "kv", "layers": 1, "ratio": 4, "window": None, "page_bytes": 37440},
            {"kind": "kv", "layers": 2, "ratio": 128, "window": None, "page_bytes": 1728}]},
        {"id": 2, "block_size": 8, "members": [
            {"kind": "state", "layers": 2, "ratio": 128, "window": 128, "page_bytes": 32832}]}]}


class Engine:
    """Block tables and a first-in, first-out queue of free blocks, as an engine keeps them."""

    def __init__(self):
        self.free = list(range(1, HEADER["num_blocks"]))
        self.table = {}
        self.prompt = {}
        self.steps = []

    def release(self, request):
        for row in self.table.pop(request):
            self.free.extend(reversed(row))

    def append(self, request, tokens):
        added = []
        for group, size in enumerate(BLOCK_SIZES):
            row = self.table[request][group]
            need = -(-tokens // size) - len(row)
            ids = [self.free.pop(0) for _ in range(max(0, need))]
            row.extend(ids)
            added.append(ids)
        return added

    def check(self, rows):
        positions = [p for _, start, n, *_ in rows for p in range(start, start + n)]
        bounds = [0]
        for _, _, n, *_ in rows:
            bounds.append(bounds[-1] + n)
        slots = []
        for group, size in enumerate(BLOCK_SIZES):
            slots.append([self.table[r][group][p // size] * size + p % size
                          for r, start, n, *_ in rows for p in range(start, start + n)])
        return {"query_start_loc": bounds, "positions": positions,
                "seq_lens": [start + n for _, start, n, *_ in rows],
                "block_table": [[self.table[r][g][:] for r, *_ in rows]
                                for g in range(len(BLOCK_SIZES))],
                "slot_mapping": slots}

    def step(self, rows, finished=(), preempted=(), resumed=(), new=(), **extra):
        """rows: (request, start, query_len[, draft])."""
        for request in (*finished, *preempted):
            self.release(request)
        for request, prompt in new:
            self.prompt[request] = prompt
        for request in (*resumed, *(r for r, _ in new)):
            self.table[request] = [[] for _ in BLOCK_SIZES]
        added = [self.append(r, start + n) for r, start, n, *_ in rows]
        number = len(self.steps)
        tokens = sum(n for _, _, n, *_ in rows)
        line = {"step": number, "t_ns": 1000 + 2000000 * number, "dur_ns": 1500000 + number,
                "mode": "NONE", "padded_tokens": tokens, "padded_reqs": None,
                "req": [r[0] for r in rows], "qlen": [r[2] for r in rows],
                "start": [r[1] for r in rows], "new": [r for r, _ in new],
                "prompt_len": [p for _, p in new], "finished": list(finished),
                "preempted": list(preempted), "resumed": list(resumed),
                "blocks": [[a[g] for a in added] for g in range(len(BLOCK_SIZES))]}
        if any(len(r) > 3 for r in rows):
            line["draft"] = [r[3] if len(r) > 3 else 0 for r in rows]
        if extra.pop("checked", False):
            line["check"] = self.check(rows)
        line.update(extra)
        self.steps.append(line)


def main():
    e = Engine()
    full = {"mode": "FULL", "padded_tokens": 4, "padded_reqs": 4}
    e.step([(0, 0, 100)], new=[(0, 300)], zeroed=16, checked=True)      # no boundary
    e.step([(0, 100, 100)], checked=True)                               # closes 127
    e.step([(0, 200, 100), (1, 0, 126)], new=[(1, 126)])                # closes 255
    e.step([(0, 300, 1), (1, 126, 1)], **full)                          # 126: none, in FULL
    e.step([(0, 301, 1), (1, 127, 1)], checked=True, **full)            # closes 127, in FULL
    e.step([(0, 302, 3, 2), (1, 128, 3, 2)], mode="PIECEWISE", padded_tokens=8)
    e.step([(0, 303, 3, 2), (1, 131, 1, 0)], checked=True)              # two drafts rejected
    e.step([(0, 306, 1), (1, 132, 1)], cpu_starts=False)                # the predicate is None
    e.step([(0, 307, 1), (2, 0, 200)], preempted=[1], new=[(2, 200)])   # 1 loses its blocks
    e.step([(0, 308, 1), (2, 200, 1)], t_ns=None, dur_ns=None, mode=None, padded_tokens=None)
    e.step([])                                                          # nothing to run
    e.step([(2, 201, 1), (1, 0, 133)], finished=[0], resumed=[1], replace=[1], checked=True)
    e.step([(2, 202, 1), (1, 133, 1)], **full)
    e.step([(2, 203, 1), (1, 134, 1), (3, 5, 40)], new=[(3, 45)])       # starts above 0
    e.step([(2, 204, 1), (1, 135, 1), (3, 45, 1)], **full)
    e.step([(1, 136, 1), (3, 46, 1)], finished=[2])
    e.step([(1, 137, 1), (3, 47, 81)], checked=True)                    # closes 127
    e.step([(1, 138, 1), (3, 128, 1)])
    e.step([(3, 129, 1)], finished=[1])
    e.step([(3, 130, 1)], checked=True, mode="FULL", padded_tokens=1, padded_reqs=1)
    for line in (HEADER, *e.steps):
        print(json.dumps(line, separators=(",", ":")))


main()
