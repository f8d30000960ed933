# SPDX-License-Identifier: Apache-2.0
"""Where the batch of a step is read: the runner's own arrays, in its own order.

A reader is asked twice in a step: take() when the runner has prepared the batch and before it runs
(some of its arrays change afterwards), read() when the step is over.  What it reads goes into a
StepBuffer.  Budget: the engine's thread waits meanwhile, so there are no loops over requests but
those over the few that something happened to.
"""

from __future__ import annotations

import functools
import struct
from itertools import accumulate, chain, compress
from typing import Any, Optional

import numpy as np

from steptape._capture import UNKNOWN, StepBuffer

NO_MODE = -1


class Requests:
    """Names to numbers, and what happened to requests since the last recorded step."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.waiting: set[int] = set()
        self._next = 0
        self.begin()

    def begin(self) -> None:
        self.new: list[int] = []
        self.prompt_len: list[int] = []
        self.finished: list[int] = []
        self.preempted: list[int] = []
        self.resumed: list[int] = []
        self.replaced: list[int] = []  # whose block table is a new one
        self.any = False

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def apply(self, output: Any) -> bool:
        """Events of one scheduler output.  True: names may mean other requests than before."""
        finished, preempted = output.finished_req_ids, getattr(output, "preempted_req_ids", None)
        cached, arrived = output.scheduled_cached_reqs, output.scheduled_new_reqs
        resumed = cached.resumed_req_ids
        if not (finished or preempted or arrived or resumed):
            return False
        self.any = True
        for name in finished:
            number = self.number.pop(name, None)
            # Aborted before it ever ran: it stands in `finished` alone.
            number = self._take_number() if number is None else number
            self.waiting.discard(number)
            self.finished.append(number)
        for name in preempted or ():
            known = self.number.get(name)
            if known is not None:
                self._preempt(known)
        if resumed:
            for name in cached.req_ids:
                if name in resumed:
                    self._resume(self.number[name])
        for request in arrived:
            known = self.number.get(request.req_id)
            if known is not None:
                # The V2 runner gets a resumed request as a new one, and so does V1 an updated one.
                self._resume(known)
                continue
            self.number[request.req_id] = number = self._take_number()
            self.new.append(number)
            self.prompt_len.append(_prompt_len(request))
        return True

    def _preempt(self, number: int) -> None:
        if number not in self.waiting:
            self.waiting.add(number)
            self.preempted.append(number)

    def _resume(self, number: int) -> None:
        self.replaced.append(number)
        if number not in self.waiting:
            return  # it was updated, or a scheduler did not say that it preempted it
        self.waiting.discard(number)
        if number in self.preempted:
            # Preempted and back with no step between, as a reset of the prefix cache does it.
            self.preempted.remove(number)
        else:
            self.resumed.append(number)


def _prompt_len(request: Any) -> int:
    for name in ("prompt_token_ids", "prompt_embeds"):
        tokens = getattr(request, name, None)
        if tokens is not None:
            return len(tokens)
    return 0


class Reader:
    """What the readers of both runners share."""

    def __init__(self, runner: Any, buffer: StepBuffer, requests: Requests) -> None:
        self.runner = runner
        self.buffer = buffer
        self.requests = requests
        self.rows = -1  # of the open step; below 0: take() was not asked yet
        self.open = False  # a step is open: what the runner does belongs to it
        self.speculative = getattr(runner.vllm_config, "speculative_config", None) is not None

    def take(self, found: Any, context: Any) -> None:
        raise NotImplementedError

    def take_late(self) -> None:
        """The place in the middle of the step was not found in this version."""
        raise NotImplementedError

    def read(self, output: Any) -> None:
        changed = self.requests.apply(output)
        if self.requests.any:
            self._set_events()
        elif self.buffer.dirty:
            self.buffer.clear_events()
        self._read_numbers(output, changed)
        if self.speculative:
            self._read_draft(output)
        self._read_blocks(output)
        step = self.buffer.step
        step.request_count = self.rows
        zeroed = getattr(output, "new_block_ids_to_zero", None)
        step.zeroed_count = UNKNOWN if zeroed is None else len(zeroed)

    def _read_numbers(self, output: Any, changed: bool) -> None:
        raise NotImplementedError

    def _read_draft(self, output: Any) -> None:
        raise NotImplementedError

    def _read_blocks(self, output: Any) -> None:
        raise NotImplementedError

    def _set_events(self) -> None:
        r = self.requests
        self.buffer.set_events(
            r.new, r.prompt_len, r.finished, r.preempted, r.resumed, r.replaced or None
        )

    def _set_batch(self, rows: int, query_len: Any, start: Any) -> None:
        buffer = self.buffer
        if rows > buffer.rows:
            buffer.reserve(rows)
        buffer.query_len[:rows] = query_len[:rows]
        buffer.start[:rows] = start[:rows]
        self.rows = rows

    def _set_mode(
        self, mode: Any, padded_tokens: Optional[int], padded_requests: Optional[int]
    ) -> None:
        step = self.buffer.step
        step.graph_mode = NO_MODE if mode is None else int(getattr(mode, "value", mode))
        step.padded_token_count = UNKNOWN if padded_tokens is None else padded_tokens
        step.padded_request_count = UNKNOWN if padded_requests is None else padded_requests

    def _drafts_by_name(self, output: Any, row_of: Any) -> None:
        draft = self.buffer.set_draft(self.rows)
        for name, tokens in output.scheduled_spec_decode_tokens.items():
            row = row_of(name)
            if row is not None:
                draft[row] = len(tokens)


class ReaderV1(Reader):
    """A persistent batch, with block tables on the CPU."""

    def __init__(self, runner: Any, buffer: StepBuffer, requests: Requests) -> None:
        super().__init__(runner, buffer, requests)
        self._names: list[str] = []
        self._tables: Any = None

    def take(self, found: Any, context: Any) -> None:
        """found: what _determine_batch_execution_and_padding gave; context: query lengths."""
        self._take_batch(context)
        mode, descriptor = found[0], found[1]
        if getattr(self.runner, "calculate_kv_scales", False):
            mode = 0  # the runner goes eager once for it, after it has asked
        self._set_mode(mode, descriptor.num_tokens, descriptor.num_reqs)

    def take_late(self) -> None:
        self._take_batch(None)
        self._set_mode(None, None, None)

    def _take_batch(self, query_len: Any) -> None:
        batch = self.runner.input_batch
        rows = batch.num_reqs
        if query_len is None:
            loc = self.runner.query_start_loc.np
            query_len = loc[1 : rows + 1] - loc[:rows]
        self._set_batch(rows, query_len, batch.num_computed_tokens_cpu)

    def _read_numbers(self, output: Any, changed: bool) -> None:
        names = self.runner.input_batch.req_ids
        if changed or names != self._names:
            numbers = map(self.requests.number.__getitem__, names)
            self.buffer.request_id[: self.rows] = np.fromiter(numbers, np.int64, self.rows)
            self._names = list(names)

    def _read_draft(self, output: Any) -> None:
        self._drafts_by_name(output, self.runner.input_batch.req_id_to_index.get)

    def _read_blocks(self, output: Any) -> None:
        tables = self.runner.input_batch.block_table
        if tables is self._tables:
            return
        for group, table in enumerate(tables.block_tables):
            cells_per_block = int(getattr(table, "blocks_per_kv_block", 1))
            self.buffer.set_table(
                group, table.block_table.np, table.num_blocks_per_row, cells_per_block
            )
        self._tables = tables


class ReaderV2(Reader):
    """A batch sorted anew in each step, with block tables on the device: their ids are seen as
    the runner stages them, flat lists a group; where it has none, in the scheduler's output."""

    STAGED = ("_staged_write_indices", "_staged_write_contents", "_staged_write_cu_lens")

    def __init__(self, runner: Any, buffer: StepBuffer, requests: Requests) -> None:
        super().__init__(runner, buffer, requests)
        self._number_of_slot = np.zeros(256, np.int64)
        self._row_of_slot = np.zeros(256, np.int32)
        self._numbers = np.arange(256, dtype=np.int32)
        self._batch: Any = None
        self._staged: Any = None
        self.sees_staging = self._watch_staging()

    def _watch_staging(self) -> bool:
        tables: Any = getattr(self.runner, "block_tables", None)
        apply: Any = getattr(tables, "apply_staged_writes", None)
        inner = list(getattr(tables, "block_tables", ()))[: self.buffer.group_count]
        if not (apply and inner and all(hasattr(t, n) for t in inner for n in self.STAGED)):
            return False

        @functools.wraps(apply)
        def apply_staged_writes() -> Any:
            if self.open:
                self._staged = [
                    (
                        table._staged_write_indices.copy(),
                        table._staged_write_contents.copy(),
                        table._staged_write_cu_lens.copy(),
                    )
                    for table in inner
                ]
            return apply()

        tables.apply_staged_writes = apply_staged_writes
        return True

    def take(self, found: Any, context: Any) -> None:
        """found: what prepare_inputs gave; context: its arguments, a descriptor among them."""
        rows = found.num_reqs
        query_len = found.num_scheduled_tokens
        start = getattr(found, "num_computed_tokens_np", None)
        if start is None:
            start = np.asarray(found.seq_lens_cpu_upper_bound)[:rows] - query_len[:rows]
        self._set_batch(rows, query_len, start)
        self._batch = found
        descriptor = None
        for argument in context:
            if hasattr(argument, "cg_mode"):
                descriptor = argument
        self._set_mode(
            getattr(descriptor, "cg_mode", None),
            getattr(found, "num_tokens_after_padding", None),
            getattr(found, "num_reqs_after_padding", None),
        )

    def take_late(self) -> None:
        raise RuntimeError("prepare_inputs was not seen in a step that has tokens")

    def _slot(self, name: str) -> int:
        return int(self.runner.req_states.req_id_to_index[name])

    def _read_numbers(self, output: Any, changed: bool) -> None:
        for request in output.scheduled_new_reqs:
            slot = self._slot(request.req_id)
            if slot + 1 >= len(self._number_of_slot):
                self._number_of_slot = np.resize(self._number_of_slot, 2 * slot + 2)
                self._row_of_slot = np.resize(self._row_of_slot, 2 * slot + 2)
            self._number_of_slot[slot] = self.requests.number[request.req_id]
        slots = self._batch.idx_mapping_np[: self.rows]
        self._number_of_slot.take(slots, out=self.buffer.request_id[: self.rows], mode="clip")

    def _read_draft(self, output: Any) -> None:
        counts = getattr(self._batch, "num_draft_tokens_per_req", None)
        if counts is not None:
            self.buffer.set_draft(self.rows)[: self.rows] = counts[: self.rows]
        else:
            rows = {name: row for row, name in enumerate(self._batch.req_ids)}
            self._drafts_by_name(output, rows.get)

    def _read_blocks(self, output: Any) -> None:
        if self.sees_staging:
            staged, self._staged = self._staged, None
            if staged is None:
                raise RuntimeError("apply_staged_writes was not seen in a step that has tokens")
        else:
            staged = self._appended(output)
        slots: list[int] = []
        block_ids: list[int] = []
        ends: list[int] = []
        for indices, ids, cu_lens in staged:
            slots += indices
            block_ids += ids
            ends += cu_lens
        runs = [len(indices) for indices, _, _ in staged]
        id_counts = [len(ids) for _, ids, _ in staged]
        self._set_runs(runs, id_counts, slots, ends, block_ids)

    def _appended(self, output: Any) -> list[tuple[list[int], list[int], list[int]]]:
        """What is staged, from the scheduler's output: of each group slots that got ids, these ids,
        and where each slot's end among them."""
        cached, arrived = output.scheduled_cached_reqs, output.scheduled_new_reqs
        appended = cached.new_block_ids
        names = list(compress(cached.req_ids, appended)) + [r.req_id for r in arrived]
        given = [ids for ids in appended if ids] + [r.block_ids for r in arrived]
        by_name = [self._slot(name) for name in names]
        groups = []
        for group in range(self.buffer.group_count):
            lists = [ids[group] for ids in given]
            slots = list(compress(by_name, lists))
            ends = list(accumulate(map(len, filter(None, lists))))
            groups.append((slots, list(chain.from_iterable(lists)), ends))
        return groups

    def _set_runs(
        self,
        runs: list[int],
        id_counts: list[int],
        slots: list[int],
        ends: list[int],
        block_ids: list[int],
    ) -> None:
        buffer = self.buffer
        rows, lengths, room = buffer.runs(len(slots), len(block_ids))
        all_one = len(slots) == len(block_ids)
        buffer.set_runs(runs, id_counts, all_one)
        if not slots:
            return
        _pack(room, block_ids)
        _pack(rows, slots)
        self._row_of_slot.fill(-1)
        self._row_of_slot[self._batch.idx_mapping_np[: self.rows]] = self._arange(self.rows)
        # The last entry is of no slot; the recorder refuses what has no row.
        self._row_of_slot.take(rows, out=rows, mode="clip")
        if not all_one:
            _pack(lengths, ends)
            lengths[1:] -= lengths[:-1].copy()
            first = 0
            for run_count in runs:  # of each group the first end is its first length
                if run_count:
                    lengths[first] = ends[first]
                first += run_count

    def _arange(self, rows: int) -> Any:
        if rows > len(self._numbers):
            self._numbers = np.arange(2 * rows, dtype=np.int32)
        return self._numbers[:rows]


def _pack(room: Any, values: list[int]) -> None:
    """Fills an array of int32.  struct does in a third of the time what numpy does with a list."""
    struct.pack_into(f"{len(values)}i", room, 0, *values)


READERS = {"V1": ReaderV1, "V2": ReaderV2}
