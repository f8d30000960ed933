# SPDX-License-Identifier: Apache-2.0
"""A continuous-batching scheduler over one pool of blocks with several KV cache groups: chunked
prefill, prefix caching, preemption, aborts, speculation with rejections, one step ahead of its own
results when asynchronous."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: Optional[list[int]]
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    prefill_token_ids: Optional[list[int]] = None
    prompt_embeds: Any = None


@dataclass
class CachedRequestData:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_token_ids: list[list[int]] = field(default_factory=list)
    new_block_ids: list[Optional[tuple[list[int], ...]]] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: Optional[set[str]] = None
    new_block_ids_to_zero: Optional[list[int]] = None
    lives: dict[str, int] = field(default_factory=dict)  # not in vLLM: for Scheduler.update()


@dataclass
class Settings:
    version: str = "0.32.0"
    runner: str = "V1"
    block_sizes: tuple[int, ...] = (16,)
    kernel_block_size: int = 0  # of group 0, where the runner splits blocks; 0: it does not
    num_blocks: int = 4096
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 4096
    prefix_caching: bool = False
    asynchronous: bool = False
    drafts: int = 0
    zeroing: bool = False
    silent_preemption: bool = False  # a scheduler that does not say whom it preempted
    hidden_staging: bool = False  # a V2 runner whose staged block ids cannot be seen
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seed: int = 1

    @property
    def number(self) -> int:
        return int(self.version.split(".")[1])


@dataclass
class Request:
    name: str
    prompt: list[int]
    output_len: int
    computed: int = 0
    generated: int = 0
    blocks: tuple[list[int], ...] = ()
    sent: bool = False  # the runner knows it
    pending: int = 0  # tokens that steps under way will give
    life: int = 0  # grows when it is preempted: what was under way is void
    done: bool = False

    @property
    def known(self) -> int:
        """Tokens there are, or will be when the steps under way are done."""
        return len(self.prompt) + self.generated + self.pending


class Scheduler:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)
        self.free: deque[int] = deque(range(1, settings.num_blocks))
        self.users: dict[int, int] = {}
        self.cache: dict[tuple[int, ...], tuple[list[int], ...]] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.fresh: list[int] = []
        self.requests: dict[str, Request] = {}

    # ---- what a front end does

    def add(self, name: str, prompt: list[int], output_len: int) -> None:
        request = Request(name, prompt, output_len)
        self.requests[name] = request
        self.waiting.append(request)

    def abort(self, name: str) -> None:
        request = self.requests.get(name)
        if request is not None:
            self._finish(request)

    def reset(self) -> None:
        """Preempts everything, as a reset of the prefix cache does it."""
        for request in list(reversed(self.running)):
            self._preempt(request)

    # ---- blocks

    def _take(self, count: int) -> Optional[list[int]]:
        if len(self.free) < count:
            return None
        ids = [self.free.popleft() for _ in range(count)]
        for block in ids:
            self.users[block] = 1
        self.fresh.extend(ids)
        return ids

    def _give_back(self, request: Request) -> None:
        for table in request.blocks:
            for block in reversed(table):
                self.users[block] -= 1
                if self.users[block] == 0:
                    del self.users[block]
                    self.free.append(block)
                    self._forget(block)
        request.blocks = ()

    def _forget(self, block: int) -> None:
        stale = [key for key, tables in self.cache.items() if any(block in t for t in tables)]
        for key in stale:
            del self.cache[key]

    def _grow(self, request: Request, tokens: int) -> Optional[tuple[list[int], ...]]:
        """Blocks up to so many tokens; None when the pool has too few."""
        sizes = self.settings.block_sizes
        held = [len(t) for t in request.blocks] or [0] * len(sizes)
        need = [max(0, -(-tokens // size) - have) for size, have in zip(sizes, held)]
        if sum(need) > len(self.free):
            return None
        added = tuple(self._take(n) or [] for n in need)
        if not request.blocks:
            request.blocks = tuple([] for _ in sizes)
        for table, ids in zip(request.blocks, added):
            table.extend(ids)
        return added

    def _reuse(self, request: Request) -> None:
        """A cached prefix of two blocks' length, as prefix caching finds it."""
        span = max(self.settings.block_sizes)
        key = tuple(request.prompt[: 2 * span])
        tables = self.cache.get(key)
        if tables is None or len(request.prompt) <= 2 * span:
            return
        for table in tables:
            for block in table:
                self.users[block] += 1
        request.blocks = tuple(list(t) for t in tables)
        request.computed = 2 * span

    def _remember(self, request: Request) -> None:
        span = max(self.settings.block_sizes)
        if self.settings.prefix_caching and len(request.prompt) > 2 * span <= request.computed:
            key = tuple(request.prompt[: 2 * span])
            sizes = self.settings.block_sizes
            self.cache.setdefault(
                key, tuple(t[: 2 * span // size] for t, size in zip(request.blocks, sizes))
            )

    # ---- a step

    def schedule(self) -> SchedulerOutput:
        self.fresh = []
        output = SchedulerOutput()
        budget = self.settings.max_num_batched_tokens
        preempted = len(self.preempted)
        budget = self._schedule_running(output, budget)
        if len(self.preempted) == preempted:
            self._schedule_waiting(output, budget)
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.finished_req_ids, self.finished = self.finished, set()
        if not self.settings.silent_preemption:
            output.preempted_req_ids, self.preempted = self.preempted, set()
        if self.settings.zeroing:
            output.new_block_ids_to_zero = self.fresh or None
        output.lives = {}
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.computed += tokens
            # All drafts count as accepted until the results say otherwise.
            request.pending += max(0, request.computed + 1 - request.known)
            output.lives[name] = request.life
        return output

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        cached = output.scheduled_cached_reqs
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            drafts = self._drafts(request)
            tokens = min(request.known - request.computed + drafts, budget)
            limit = self.settings.max_model_len - request.computed
            tokens = min(tokens, limit)
            if tokens <= 0:
                index += 1
                continue
            before = request.computed
            added = self._grow(request, before + tokens)
            if added is None:
                self._preempt(self.running[-1])
                continue
            cached.req_ids.append(request.name)
            cached.new_block_ids.append(added if any(added) else None)
            cached.num_computed_tokens.append(before)
            output.num_scheduled_tokens[request.name] = tokens
            drafted = max(0, tokens - (request.known - before))
            if drafted:
                output.scheduled_spec_decode_tokens[request.name] = [7] * drafted
            budget -= tokens
            index += 1
        return budget

    def _drafts(self, request: Request) -> int:
        decoding = request.generated > 0 and request.computed == request.known - 1
        return self.random.randint(0, self.settings.drafts) if decoding else 0

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        cached = output.scheduled_cached_reqs
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if not request.blocks and self.settings.prefix_caching:
                self._reuse(request)
            tokens = min(request.known - request.computed, budget)
            if self._grow(request, request.computed + tokens) is None:
                self._give_back(request)
                request.computed = 0
                break
            self.waiting.popleft()
            self.running.append(request)
            output.num_scheduled_tokens[request.name] = tokens
            budget -= tokens
            whole = tuple(list(t) for t in request.blocks)
            if request.sent and self.settings.runner == "V1":
                cached.req_ids.append(request.name)
                cached.resumed_req_ids.add(request.name)
                cached.new_block_ids.append(whole)
                cached.num_computed_tokens.append(request.computed)
            else:
                output.scheduled_new_reqs.append(self._new_data(request, whole))
            request.sent = True

    def _new_data(self, request: Request, whole: tuple[list[int], ...]) -> NewRequestData:
        prefill = request.prompt + [3] * request.generated
        return NewRequestData(request.name, request.prompt, whole, request.computed, prefill)

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._give_back(request)
        request.computed = request.pending = 0
        request.life += 1
        self.preempted.add(request.name)
        self.waiting.appendleft(request)

    def update(self, output: SchedulerOutput) -> None:
        """The results of a step: sampled tokens, rejected drafts, finished requests."""
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.life != output.lives[name]:
                continue
            self._remember(request)
            drafted = len(output.scheduled_spec_decode_tokens.get(name, ()))
            if not request.pending:
                continue  # a part of a prompt
            accepted = self.random.randint(0, drafted)
            request.computed -= drafted - accepted
            request.pending -= 1 + drafted
            request.generated += 1 + accepted
            full = len(request.prompt) + request.generated >= self.settings.max_model_len
            if request.generated >= request.output_len or full:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        if request.done:
            return
        request.done = True
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        self._give_back(request)
        self.finished.add(request.name)
        del self.requests[request.name]

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self.finished)
