# SPDX-License-Identifier: Apache-2.0
"""Reading a tape: steps by columns as numpy arrays or Arrow record batches, in bounded memory."""

from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from steptape._capture import (
    MESSAGE_SIZE,
    UNKNOWN,
    Int32s,
    Int64s,
    Signatures,
    declare,
    encode_path,
    library,
)
from steptape._errors import StepTapeError

END = 1
BLOCKS, TABLES, SLOTS = 1, 2, 4
GRAPH_MODES = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}
LISTS = ("new", "finished", "preempted", "resumed", "replaced")

_int64_p = ctypes.POINTER(ctypes.c_int64)
_int32_p = ctypes.POINTER(ctypes.c_int32)


class _CList(ctypes.Structure):
    _fields_ = [("offset", _int64_p), ("value", _int64_p)]


class _CGroup(ctypes.Structure):
    _fields_ = [("offset", _int64_p), ("block_id", _int32_p), ("slot", _int64_p)]


class _CSteps(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("step_count", ctypes.c_int32),
        ("group_count", ctypes.c_int32),
        ("has_draft", ctypes.c_int32),
        ("step_id", _int64_p),
        ("start_ns", _int64_p),
        ("duration_ns", _int64_p),
        ("padded_token_count", _int64_p),
        ("padded_request_count", _int64_p),
        ("zeroed_count", _int64_p),
        ("graph_mode", _int32_p),
        ("cpu_starts", _int32_p),
        ("row_offset", _int64_p),
        ("token_offset", _int64_p),
        ("request_id", _int64_p),
        ("query_len", _int32_p),
        ("num_computed_tokens", _int32_p),
        ("prompt_len", _int32_p),
        ("draft", _int32_p),
        ("new", _CList),
        ("finished", _CList),
        ("preempted", _CList),
        ("resumed", _CList),
        ("replaced", _CList),
        ("new_prompt_len", _int32_p),
        ("appended", ctypes.POINTER(_CGroup)),
        ("tables", ctypes.POINTER(_CGroup)),
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    lib = library()
    text, handle, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
    int64, steps = ctypes.c_int64, ctypes.POINTER(ctypes.POINTER(_CSteps))
    signatures: Signatures = {
        "steptape_tape_open": (ctypes.c_int, [text, ctypes.POINTER(handle), text, size]),
        "steptape_tape_close": (None, [handle]),
        "steptape_tape_header": (text, [handle]),
        "steptape_tape_hash": (text, [handle]),
        "steptape_tape_step_count": (int64, [handle]),
        "steptape_tape_first_step": (int64, [handle]),
        "steptape_tape_seek": (ctypes.c_int, [handle, int64, ctypes.c_uint, text, size]),
        "steptape_tape_read": (ctypes.c_int, [handle, ctypes.c_int32, steps, text, size]),
        "steptape_tape_check": (
            ctypes.c_int,
            [handle, int64, ctypes.POINTER(text), text, size],
        ),
    }
    declare(lib, signatures)
    return lib


@dataclass(frozen=True)
class Ragged:
    """A list of numbers for each step, or each row: list i is values[offsets[i]:offsets[i + 1]]."""

    offsets: Int64s
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        index = range(len(self))[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class Steps:
    """Consecutive steps, a column an array.  steptape.UNKNOWN stands for what the tape does not
    know; rows of step s are row_offsets[s] up to row_offsets[s + 1], not included."""

    step_id: Int64s
    start_ns: Int64s
    duration_ns: Int64s
    padded_tokens: Int64s
    padded_requests: Int64s
    zeroed: Int64s
    graph_mode: Int32s  # -1 unknown, 0 NONE, 1 PIECEWISE, 2 FULL
    cpu_starts: Int32s  # 1, 0; -1 not said, which means 1
    row_offsets: Int64s
    token_offsets: Int64s
    request_id: Int64s
    query_len: Int32s
    num_computed_tokens: Int32s
    prompt_len: Int32s  # -1 unknown
    draft: Optional[Int32s]  # -1: the step does not say; None: no step says
    new: Ragged
    new_prompt_len: Int32s
    finished: Ragged
    preempted: Ragged
    resumed: Ragged
    replaced: Ragged
    blocks: tuple[Ragged, ...]  # a group; a list a row; () unless asked for
    tables: tuple[Ragged, ...]
    slots: tuple[Ragged, ...]  # a group; a list a step

    def __len__(self) -> int:
        return len(self.step_id)

    def __getitem__(self, index: int) -> Step:
        return Step(self, range(len(self))[index])

    def __iter__(self) -> Iterator[Step]:
        return (self[index] for index in range(len(self)))


class Step:
    """One step of Steps; what the tape does not know is None."""

    __slots__ = ("_steps", "_index")

    def __init__(self, steps: Steps, index: int) -> None:
        self._steps = steps
        self._index = index

    def __repr__(self) -> str:
        tokens = int(self.query_len.sum())
        return f"<Step {self.step_id}: {len(self.request_id)} requests, {tokens} tokens>"

    def _rows(self) -> slice:
        offsets = self._steps.row_offsets
        return slice(int(offsets[self._index]), int(offsets[self._index + 1]))

    def _number(self, name: str) -> Optional[int]:
        value = int(getattr(self._steps, name)[self._index])
        return None if value == UNKNOWN else value

    @property
    def step_id(self) -> int:
        return int(self._steps.step_id[self._index])

    @property
    def start_ns(self) -> Optional[int]:
        return self._number("start_ns")

    @property
    def duration_ns(self) -> Optional[int]:
        return self._number("duration_ns")

    @property
    def padded_tokens(self) -> Optional[int]:
        return self._number("padded_tokens")

    @property
    def padded_requests(self) -> Optional[int]:
        return self._number("padded_requests")

    @property
    def zeroed(self) -> Optional[int]:
        return self._number("zeroed")

    @property
    def graph_mode(self) -> Optional[str]:
        return GRAPH_MODES.get(int(self._steps.graph_mode[self._index]))

    @property
    def cpu_starts(self) -> bool:
        return int(self._steps.cpu_starts[self._index]) != 0

    @property
    def request_id(self) -> Int64s:
        return self._steps.request_id[self._rows()]

    @property
    def query_len(self) -> Int32s:
        return self._steps.query_len[self._rows()]

    @property
    def num_computed_tokens(self) -> Int32s:
        return self._steps.num_computed_tokens[self._rows()]

    @property
    def prompt_len(self) -> Int32s:
        return self._steps.prompt_len[self._rows()]

    @property
    def draft(self) -> Optional[Int32s]:
        draft = self._steps.draft
        if draft is None:
            return None
        rows = draft[self._rows()]
        return None if len(rows) and rows[0] < 0 else rows

    @property
    def new(self) -> Int64s:
        return self._steps.new[self._index]

    @property
    def new_prompt_len(self) -> Int32s:
        offsets = self._steps.new.offsets
        return self._steps.new_prompt_len[offsets[self._index] : offsets[self._index + 1]]

    @property
    def finished(self) -> Int64s:
        return self._steps.finished[self._index]

    @property
    def preempted(self) -> Int64s:
        return self._steps.preempted[self._index]

    @property
    def resumed(self) -> Int64s:
        return self._steps.resumed[self._index]

    @property
    def replaced(self) -> Int64s:
        return self._steps.replaced[self._index]

    def _of_group(self, what: str, group: int) -> Ragged:
        groups: tuple[Ragged, ...] = getattr(self._steps, what)
        if not groups:
            raise ValueError(f"not read: it takes read(..., {what}=True), and a tape with groups")
        return groups[group]

    def _of_rows(self, what: str, group: int) -> list[Int32s]:
        rows, lists = self._rows(), self._of_group(what, group)
        return [lists[row] for row in range(rows.start, rows.stop)]

    def blocks(self, group: int) -> list[Int32s]:
        """Block ids that each row got in this step."""
        return self._of_rows("blocks", group)

    def table(self, group: int) -> list[Int32s]:
        """The block table of each row.  Needs read(tables=True)."""
        return self._of_rows("tables", group)

    def slots(self, group: int) -> Int64s:
        """The cache slot of each token.  Needs read(slots=True)."""
        return self._of_group("slots", group)[self._index]


def _array(pointer: Any, count: int, dtype: type) -> npt.NDArray[Any]:
    if count == 0 or not pointer:
        return np.zeros(0, dtype)
    array: npt.NDArray[Any] = np.ctypeslib.as_array(pointer, (count,)).copy()
    return array


def _ragged(offset: Any, values: Any, lists: int, dtype: type) -> Ragged:
    offsets = _array(offset, lists + 1, np.int64)
    return Ragged(offsets, _array(values, int(offsets[-1]), dtype))


def _steps(c: _CSteps) -> Steps:
    count, groups = c.step_count, range(c.group_count)
    row_offsets = _array(c.row_offset, count + 1, np.int64)
    token_offsets = _array(c.token_offset, count + 1, np.int64)
    rows, tokens = int(row_offsets[-1]), int(token_offsets[-1])
    lists = {
        name: _ragged(getattr(c, name).offset, getattr(c, name).value, count, np.int64)
        for name in LISTS
    }

    def ids(kind: Any) -> tuple[Ragged, ...]:
        if not c.group_count or not kind[0].offset:
            return ()
        return tuple(_ragged(kind[g].offset, kind[g].block_id, rows, np.int32) for g in groups)

    slots: tuple[Ragged, ...] = ()
    if c.group_count and c.appended[0].slot:
        slots = tuple(
            Ragged(token_offsets, _array(c.appended[g].slot, tokens, np.int64)) for g in groups
        )
    return Steps(
        step_id=_array(c.step_id, count, np.int64),
        start_ns=_array(c.start_ns, count, np.int64),
        duration_ns=_array(c.duration_ns, count, np.int64),
        padded_tokens=_array(c.padded_token_count, count, np.int64),
        padded_requests=_array(c.padded_request_count, count, np.int64),
        zeroed=_array(c.zeroed_count, count, np.int64),
        graph_mode=_array(c.graph_mode, count, np.int32),
        cpu_starts=_array(c.cpu_starts, count, np.int32),
        row_offsets=row_offsets,
        token_offsets=token_offsets,
        request_id=_array(c.request_id, rows, np.int64),
        query_len=_array(c.query_len, rows, np.int32),
        num_computed_tokens=_array(c.num_computed_tokens, rows, np.int32),
        prompt_len=_array(c.prompt_len, rows, np.int32),
        draft=_array(c.draft, rows, np.int32) if c.has_draft else None,
        new_prompt_len=_array(c.new_prompt_len, int(lists["new"].offsets[-1]), np.int32),
        blocks=ids(c.appended),
        tables=ids(c.tables),
        slots=slots,
        **lists,
    )


class Tape:
    """A tape that is open for reading; one loop at a time.  Threads take turns.

    with steptape.Tape("x.tape") as tape:
        for step in tape:
            print(step.step_id, step.request_id, step.query_len)
    """

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self._lib = _library()
        self._message = ctypes.create_string_buffer(MESSAGE_SIZE)
        self._handle: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        self._reading = 0
        self._lock = threading.RLock()  # step() reads, and both take turns
        rc = self._lib.steptape_tape_open(
            encode_path(path), ctypes.byref(self._handle), self._message, MESSAGE_SIZE
        )
        if rc != 0:
            self._handle = None
            raise self._error()
        self.path = os.fspath(path)
        self.header: dict[str, Any] = json.loads(self._lib.steptape_tape_header(self._handle))
        self.hash: str = self._lib.steptape_tape_hash(self._handle).decode()
        self.step_count = int(self._lib.steptape_tape_step_count(self._handle))
        self.first_step = int(self._lib.steptape_tape_first_step(self._handle))

    def _error(self) -> StepTapeError:
        return StepTapeError(self._message.value.decode(errors="replace"))

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._lib.steptape_tape_close(handle)

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __len__(self) -> int:
        return self.step_count

    def __repr__(self) -> str:
        return f"<Tape {self.path}: {self.step_count} steps from {self.first_step}>"

    def read(
        self,
        first: Optional[int] = None,
        last: Optional[int] = None,
        *,
        batch: int = 1024,
        blocks: bool = True,
        tables: bool = False,
        slots: bool = False,
    ) -> Iterator[Steps]:
        """Steps first..last, both included, in batches of at most `batch`; fewer where they are
        large.  tables: whole block tables; slots: the slot of each token."""
        batch = operator.index(batch)
        if batch < 1:
            raise ValueError("batch is at least 1")
        end = self.first_step + self.step_count
        at = self.first_step if first is None else operator.index(first)
        stop = end if last is None else min(operator.index(last) + 1, end)
        if at < self.first_step:
            raise IndexError(f"step {at} is not on the tape: {self!r}")
        with self._lock:
            handle = self._open()
            if at >= stop:
                return
            what = BLOCKS * blocks | TABLES * tables | SLOTS * slots
            rc = self._lib.steptape_tape_seek(handle, at, what, self._message, MESSAGE_SIZE)
            if rc != 0:
                raise self._error()
            self._reading += 1
            mine = self._reading
        while at < stop:
            steps = self._next(mine, min(batch, stop - at, 2**31 - 1))
            if steps is None:
                return
            at += len(steps)
            yield steps

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError("the tape is closed")
        return self._handle

    def _next(self, reading: int, most: int) -> Optional[Steps]:
        out = ctypes.POINTER(_CSteps)()
        with self._lock:
            if self._handle is None or self._reading != reading:
                raise RuntimeError("the tape was closed, or another loop began to read it")
            rc = self._lib.steptape_tape_read(
                self._handle, most, ctypes.byref(out), self._message, MESSAGE_SIZE
            )
            if rc == END:
                return None
            if rc != 0:
                raise self._error()
            return _steps(out.contents)

    def __iter__(self) -> Iterator[Step]:
        for steps in self.read():
            yield from steps

    def step(self, step_id: int, *, tables: bool = False, slots: bool = False) -> Step:
        """One step, found without reading those before it."""
        at = self._index(step_id)
        with self._lock:
            return next(self.read(at, at, tables=tables, slots=slots))[0]

    def _index(self, step_id: int) -> int:
        at = operator.index(step_id)
        if not self.first_step <= at < self.first_step + self.step_count:
            raise IndexError(f"step {at} is not on the tape: {self!r}")
        return at

    def check(self, step_id: int) -> Optional[dict[str, Any]]:
        """The `check` object of a step: what the engine itself held; None where there is none."""
        at, text = self._index(step_id), ctypes.c_char_p()
        with self._lock:
            rc = self._lib.steptape_tape_check(
                self._open(), at, ctypes.byref(text), self._message, MESSAGE_SIZE
            )
            if rc != 0:
                raise self._error()
            value = text.value  # a copy
        try:
            return None if value is None else json.loads(value)
        except ValueError as error:  # whoever recorded it gave any text
            raise StepTapeError(f"{self.path}: step {step_id}: check is not JSON") from error

    def arrow(
        self,
        first: Optional[int] = None,
        last: Optional[int] = None,
        *,
        batch: int = 1024,
        blocks: bool = True,
        tables: bool = False,
        slots: bool = False,
    ) -> Any:
        """The same as a pyarrow.RecordBatchReader: a row a step, unknown is null."""
        from steptape import _arrow

        groups = len(self.header["groups"])
        batches = self.read(first, last, batch=batch, blocks=blocks, tables=tables, slots=slots)
        return _arrow.reader(batches, groups, blocks, tables, slots)
