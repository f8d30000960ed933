# SPDX-License-Identifier: Apache-2.0
"""Recording the steps of any engine: numpy arrays in, a tape out."""

from __future__ import annotations

import json
import operator
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from steptape._capture import UNKNOWN, Handle, Int32s, Numbers, StepBuffer
from steptape._errors import StepTapeError

MODES = {None: -1, "NONE": 0, "PIECEWISE": 1, "FULL": 2}


@dataclass(frozen=True)
class BlockTable:
    """A runner's block table: table[row, cell], of which row_cells[row] cells are used, both int32
    and rows in batch order.  The recorder takes what is new since the last step.  cells_per_block:
    into how many cells of consecutive ids the runner splits a block of the allocator."""

    table: Int32s
    row_cells: Int32s
    cells_per_block: int = 1


# Of one KV cache group: the runner's table, or the ids that each row got in this step.
Blocks = Union[BlockTable, Sequence[Numbers]]


@dataclass(frozen=True)
class Stats:
    steps: int
    dropped: int
    committed: int
    bytes: int
    cost_sum_ns: int
    cost_median_ns: Optional[int]
    cost_p999_ns: Optional[int]
    cost_max_ns: int
    recording: bool
    message: str


def _numbers(name: str, values: Numbers, dtype: type) -> npt.NDArray[Any]:
    """The values as an array that fits dtype; numpy would wrap and cut off what does not."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} is a list of numbers, not of {array.ndim} dimensions")
    if array.dtype == dtype or not array.size:
        return array
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}: integers were expected")
    limits: np.iinfo[Any] = np.iinfo(dtype)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"{name} holds {low if low < limits.min else high}: {limits.bits} bits")
    return array


def _number(name: str, value: Optional[int]) -> int:
    number = UNKNOWN if value is None else operator.index(value)
    if not UNKNOWN <= number < 2**63:
        raise ValueError(f"{name} is {number}: 64 bits")
    return number


class Recorder:
    """Records into path while it is open; close() makes the tape, and so does leaving `with`.

        members = [{"kind": "attention", "layers": 32, "ratio": 1}]
        groups = [{"id": 0, "block_size": 16, "members": members}]
        with steptape.Recorder("x.tape", groups=groups, max_num_seqs=256) as recorder:
            recorder.record([7], [12], [0], new=[7], prompt_len=[12], blocks=[[[1]]])

    Settings are the keys of line 1 of the interchange format.  Requests are numbers, never the same
    for two requests.  record() does not raise when recording has ended, on a full disk for example:
    it returns False, and stats().message says why.  Threads take turns.
    """

    def __init__(
        self,
        path: Union[str, os.PathLike[str]],
        *,
        groups: Sequence[Mapping[str, Any]],
        max_requests: int = 0,
        ring_bytes: int = 0,
        part: Optional[str] = None,
        **settings: Any,
    ) -> None:
        settings.setdefault(
            "clock", {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
        )
        settings["groups"] = [dict(group) for group in groups]
        header = {"kind": "steps", "version": 1, **settings}
        self._buffer = StepBuffer(len(groups))
        self._lock = threading.RLock()  # a signal's handler may close what it interrupts
        self._pid = os.getpid()
        self._handle: Optional[Handle] = Handle(
            os.fspath(path), json.dumps(header), max_requests, ring_bytes, part
        )
        self.message = self._handle.message  # what a log should say: another name was taken
        self.tape: Optional[str] = None  # the path of the tape, once close() has made it

    def _turn(self) -> AbstractContextManager[Any]:
        """In a forked child, where all calls do nothing, who held the lock is not there."""
        if os.getpid() != self._pid:
            return nullcontext()
        return self._lock

    def _open(self) -> Handle:
        if self._handle is None:
            raise ValueError("the recorder is closed")
        return self._handle

    @property
    def sequence(self) -> int:
        """The number of the step that record() takes next; dropped ones count."""
        with self._turn():
            return self._open().sequence()

    def record(
        self,
        request_id: Numbers,
        query_len: Numbers,
        num_computed_tokens: Numbers,
        *,
        blocks: Sequence[Blocks],
        new: Numbers = (),
        prompt_len: Numbers = (),
        finished: Numbers = (),
        preempted: Numbers = (),
        resumed: Numbers = (),
        replaced: Optional[Numbers] = None,
        draft: Optional[Numbers] = None,
        graph_mode: Optional[str] = None,
        padded_tokens: Optional[int] = None,
        padded_requests: Optional[int] = None,
        start_ns: Optional[int] = None,
        duration_ns: Optional[int] = None,
        zeroed: Optional[int] = None,
        cpu_starts: Optional[bool] = None,
        check: Optional[Mapping[str, Any]] = None,
    ) -> bool:
        """One step, after it ran: rows in batch order, then what happened to requests before it.
        blocks: one entry a group.  start_ns is time.monotonic_ns().  False: it was not recorded."""
        buffer, rows = self._buffer, len(request_id)
        if len(query_len) != rows or len(num_computed_tokens) != rows:
            raise ValueError("request_id, query_len and num_computed_tokens differ in length")
        if draft is not None and len(draft) != rows:
            raise ValueError("request_id and draft differ in length")
        if len(new) != len(prompt_len):
            raise ValueError("new and prompt_len differ in length")
        if len(blocks) != buffer.group_count:
            raise ValueError(f"blocks has {len(blocks)} groups, the recorder {buffer.group_count}")
        with self._turn():
            handle = self._open()
            buffer.reserve(rows)
            buffer.request_id[:rows] = _numbers("request_id", request_id, np.int64)
            buffer.query_len[:rows] = _numbers("query_len", query_len, np.int32)
            buffer.start[:rows] = _numbers("num_computed_tokens", num_computed_tokens, np.int32)
            buffer.set_events(
                _numbers("new", new, np.int64),
                _numbers("prompt_len", prompt_len, np.int32),
                _numbers("finished", finished, np.int64),
                _numbers("preempted", preempted, np.int64),
                _numbers("resumed", resumed, np.int64),
                None if replaced is None else _numbers("replaced", replaced, np.int64),
            )
            self._set_blocks(blocks, rows)
            if draft is None:
                buffer.unset_draft()
            else:
                buffer.set_draft(rows)[:rows] = _numbers("draft", draft, np.int32)
            step = buffer.step
            step.request_count = rows
            step.graph_mode = MODES[graph_mode]
            step.cpu_starts = -1 if cpu_starts is None else int(bool(cpu_starts))
            step.padded_token_count = _number("padded_tokens", padded_tokens)
            step.padded_request_count = _number("padded_requests", padded_requests)
            step.start_ns = _number("start_ns", start_ns)
            step.duration_ns = _number("duration_ns", duration_ns)
            step.zeroed_count = _number("zeroed", zeroed)
            step.check_json = None if check is None else json.dumps(check, allow_nan=False).encode()
            return handle.record(buffer) == 0

    def _set_blocks(self, blocks: Sequence[Blocks], rows: int) -> None:
        tables = [isinstance(group, BlockTable) for group in blocks]
        if tables and all(tables):
            if not rows:
                return  # none is read
            for number, group in enumerate(blocks):
                assert isinstance(group, BlockTable)
                if len(group.table) < rows or len(group.row_cells) < rows:
                    raise ValueError(f"the table of group {number} has fewer rows than the batch")
                if not 1 <= group.cells_per_block < 2**31:
                    raise ValueError(f"cells_per_block of group {number} is at least 1")
                self._buffer.set_table(number, group.table, group.row_cells, group.cells_per_block)
                if int(group.row_cells[:rows].max()) > group.table.shape[1]:
                    raise ValueError(f"the table of group {number} has fewer cells than row_cells")
            return
        if any(tables):
            raise ValueError("all groups as tables, or all as lists of ids")
        self._set_lists([group for group in blocks if not isinstance(group, BlockTable)], rows)

    def _set_lists(self, blocks: Sequence[Sequence[Numbers]], rows: int) -> None:
        row: list[int] = []
        given: list[Numbers] = []
        runs: list[int] = []
        for number, group in enumerate(blocks):
            if len(group) != rows:
                raise ValueError(f"group {number} has {len(group)} lists of ids for {rows} rows")
            got = [at for at, ids in enumerate(group) if len(ids)]
            runs.append(len(got))
            row += got
            given += [group[at] for at in got]
        length = [len(ids) for ids in given]
        rows_of, lengths, block_id = self._buffer.runs(len(row), sum(length))
        rows_of[:], lengths[:] = row, length
        at = 0
        for ids in given:
            block_id[at : at + len(ids)] = _numbers("blocks", ids, np.int32)
            at += len(ids)
        ends = list(accumulate(runs))
        id_counts = [sum(length[end - count : end]) for end, count in zip(ends, runs)]
        self._buffer.set_runs(runs, id_counts)

    def note(self, key: str, value: str) -> None:
        """A line about the recording that the tape should carry; short."""
        with self._turn():
            self._open().note(key, value)

    def stats(self) -> Stats:
        with self._turn():
            c = self._open().stats()

        def known(value: int) -> Optional[int]:
            return None if value == UNKNOWN else value

        return Stats(
            steps=c.step_count,
            dropped=c.dropped_count,
            committed=c.committed_count,
            bytes=c.byte_count,
            cost_sum_ns=c.cost_sum_ns,
            cost_median_ns=known(c.cost_median_ns),
            cost_p999_ns=known(c.cost_p999_ns),
            cost_max_ns=c.cost_max_ns,
            recording=c.state == 0,
            message=bytes(c.message).decode(errors="replace"),
        )

    def close(self) -> Optional[str]:
        """Makes the tape and gives its path; StepTapeError when it cannot be made."""
        with self._turn():
            handle, self._handle = self._handle, None
            if handle is not None:
                self.tape = handle.close()
            return self.tape

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.close()
        except StepTapeError:
            if error is None:
                raise
