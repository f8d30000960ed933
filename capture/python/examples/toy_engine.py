# SPDX-License-Identifier: Apache-2.0
"""Records an engine of one's own, and reads the tape back.

    python toy_engine.py x.tape
    steptape record -o x.tape -- python toy_engine.py

The engine below batches requests, gives them blocks of 16 tokens and "runs" a step in no time.  The
recorder is told of each step after it ran; the rest of the engine does not know of it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, field

import steptape

BLOCK_SIZE = 16
MAX_BATCH, MAX_TOKENS = 8, 64
MEMBERS = [{"kind": "attention", "layers": 24, "ratio": 1}]
GROUPS = [{"id": 0, "block_size": BLOCK_SIZE, "members": MEMBERS}]


@dataclass
class Request:
    number: int  # of our choice, and never the same for two requests
    prompt_len: int
    output_len: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.prompt_len + self.output_len - self.computed

    def tokens(self, budget: int) -> int:
        """What of it a step takes: a part of its prompt, or one token."""
        return min(max(1, self.prompt_len - self.computed), budget)


class Engine:
    def __init__(self, requests: int, seed: int) -> None:
        rng = random.Random(seed)
        self.waiting = [
            Request(n, rng.randint(5, 200), rng.randint(2, 50)) for n in range(requests)
        ]
        self.running: list[Request] = []
        self.finished: list[int] = []
        self.free = list(range(1, 400))

    def schedule(self) -> tuple[list[tuple[Request, int]], list[Request]]:
        """The batch with its lengths, and who is new in it."""
        budget, batch, new = MAX_TOKENS, [], []
        for request in self.running:
            if budget:
                batch.append((request, request.tokens(budget)))
                budget -= batch[-1][1]
        while budget and self.waiting and len(self.running) < MAX_BATCH:
            request = self.waiting.pop(0)
            self.running.append(request)
            new.append(request)
            batch.append((request, request.tokens(budget)))
            budget -= batch[-1][1]
        return batch, new

    def allocate(self, request: Request, length: int) -> list[int]:
        """Ids of the blocks that it gets for this step."""
        need = -(-(request.computed + length) // BLOCK_SIZE) - len(request.blocks)
        ids = [self.free.pop(0) for _ in range(need)]
        request.blocks += ids
        return ids

    def step(self, recorder: steptape.Recorder) -> None:
        batch, new = self.schedule()
        appended = [self.allocate(request, length) for request, length in batch]
        start_ns = time.monotonic_ns()
        # The model would run here.
        recorder.record(
            [request.number for request, _ in batch],
            [length for _, length in batch],
            [request.computed for request, _ in batch],
            blocks=[appended],
            new=[request.number for request in new],
            prompt_len=[request.prompt_len for request in new],
            finished=self.finished,
            graph_mode="NONE",
            start_ns=start_ns,
            duration_ns=time.monotonic_ns() - start_ns,
        )
        for request, length in batch:
            request.computed += length
        done = [request for request in self.running if request.left <= 0]
        self.finished = [request.number for request in done]
        for request in done:
            self.running.remove(request)
            self.free += request.blocks


def run(path: str, requests: int = 40, seed: int = 1) -> str:
    engine = Engine(requests, seed)
    with steptape.Recorder(
        path,
        groups=GROUPS,
        engine="toy",
        device="none",
        num_blocks=400,
        max_num_seqs=MAX_BATCH,
        max_num_batched_tokens=MAX_TOKENS,
    ) as recorder:
        while engine.waiting or engine.running:
            engine.step(recorder)
    return recorder.tape or path


def show(path: str) -> None:
    with steptape.Tape(path) as tape:
        print(f"{tape.path}: {tape.step_count} steps of {tape.header['engine']}")
        for steps in tape.read(0, 3):
            for step in steps:
                print(f"  step {step.step_id}: requests {step.request_id.tolist()}", end="")
                print(f" take {step.query_len.tolist()} from {step.num_computed_tokens.tolist()}")
        tokens = sum(int(steps.query_len.sum()) for steps in tape.read(blocks=False))
        print(f"  {tokens} tokens in all")


if __name__ == "__main__":
    tape = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("STEPTAPE_RECORD")
    if not tape:
        sys.exit("usage: toy_engine.py X.tape")
    show(run(tape))
