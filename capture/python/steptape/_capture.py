# SPDX-License-Identifier: Apache-2.0
"""libsteptape_capture through ctypes: its structs, where it lies, and buffers that a step is
written into.

Nothing is allocated for a step: a StepBuffer owns the arrays and the struct that points at them,
and grows when a batch is larger than any before.  One thread records into one recorder.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import struct
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import numpy.typing as npt

from steptape._errors import StepTapeError

UNKNOWN = -(2**63)  # a time or size that nobody knows: NULL in the tape, never 0
MESSAGE_SIZE = 1024
LIBRARY = "libsteptape_capture.so"

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Signatures = dict[str, tuple[Any, list[Any]]]  # of functions: result and arguments
Numbers = Union[Sequence[int], npt.NDArray[Any]]


class StepBlocks(ctypes.Structure):
    """struct steptape_step_blocks: the block ids of one KV cache group."""

    _fields_ = [
        ("table", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("row_cell_count", ctypes.c_void_p),
        ("cells_per_block", ctypes.c_int32),
        ("run_count", ctypes.c_int32),
        ("run_row", ctypes.c_void_p),
        ("run_length", ctypes.c_void_p),
        ("block_id", ctypes.c_void_p),
    ]


class Step(ctypes.Structure):
    """struct steptape_step."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("graph_mode", ctypes.c_int32),
        ("cpu_starts", ctypes.c_int32),
        ("request_count", ctypes.c_int32),
        ("start_ns", ctypes.c_int64),
        ("duration_ns", ctypes.c_int64),
        ("padded_token_count", ctypes.c_int64),
        ("padded_request_count", ctypes.c_int64),
        ("zeroed_count", ctypes.c_int64),
        ("request_id", ctypes.c_void_p),
        ("query_len", ctypes.c_void_p),
        ("num_computed_tokens", ctypes.c_void_p),
        ("draft", ctypes.c_void_p),
        ("new_count", ctypes.c_int32),
        ("finished_count", ctypes.c_int32),
        ("preempted_count", ctypes.c_int32),
        ("resumed_count", ctypes.c_int32),
        ("replaced_count", ctypes.c_int32),
        ("new_request", ctypes.c_void_p),
        ("new_prompt_len", ctypes.c_void_p),
        ("finished", ctypes.c_void_p),
        ("preempted", ctypes.c_void_p),
        ("resumed", ctypes.c_void_p),
        ("replaced", ctypes.c_void_p),
        ("group_count", ctypes.c_int32),
        ("blocks", ctypes.POINTER(StepBlocks)),
        ("check_json", ctypes.c_char_p),
    ]


class Options(ctypes.Structure):
    """struct steptape_recorder_options."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("max_requests", ctypes.c_int32),
        ("ring_bytes", ctypes.c_int64),
        ("part", ctypes.c_char_p),
    ]


class RecorderStats(ctypes.Structure):
    """struct steptape_recorder_stats."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("state", ctypes.c_int32),
        ("step_count", ctypes.c_int64),
        ("dropped_count", ctypes.c_int64),
        ("committed_count", ctypes.c_int64),
        ("byte_count", ctypes.c_int64),
        ("cost_sum_ns", ctypes.c_int64),
        ("cost_median_ns", ctypes.c_int64),
        ("cost_p999_ns", ctypes.c_int64),
        ("cost_max_ns", ctypes.c_int64),
        ("message", ctypes.c_char * 256),
    ]


def find_library() -> str:
    """The path of the library: from the environment; from the build folder, the wheel or the
    installed tree that this package is part of; else the bare name, for the dynamic linker."""
    named = os.environ.get("STEPTAPE_LIBRARY")
    if named:
        return named
    built = pathlib.Path(__file__).absolute().parents[2] / "capture" / LIBRARY
    if built.is_file():
        return str(built)
    here = pathlib.Path(__file__).resolve().parent
    prefixes = [here / "_native"]  # of the wheel
    if here.parent.name == "python" and len(here.parents) > 3:
        prefixes.append(here.parents[3])  # of PREFIX/share/steptape/python/steptape
    for prefix in prefixes:
        for pattern in ("lib", "lib64", "lib/*-linux-gnu"):
            for folder in sorted(prefix.glob(pattern)):
                if (folder / LIBRARY).is_file():
                    return str(folder / LIBRARY)
    return LIBRARY


def encode_path(path: Union[str, bytes, os.PathLike[str]]) -> bytes:
    """A path, or a part of one, for C, which would take a NUL for its end."""
    data = os.fsencode(path)
    if b"\0" in data:
        raise ValueError("embedded null byte in a path")
    return data


_library: Optional[ctypes.CDLL] = None
_step_library: Optional[ctypes.PyDLL] = None


def library() -> ctypes.CDLL:
    """libsteptape_capture with its functions typed.  StepTapeError when it cannot be loaded."""
    global _library, _step_library
    if _library is None:
        path = find_library()
        try:
            lib, step_lib = ctypes.CDLL(path), ctypes.PyDLL(path)
        except OSError as error:
            raise StepTapeError(
                f"{path}: {error}; pip install steptape, or name its {LIBRARY} in STEPTAPE_LIBRARY"
            ) from error
        for each in (lib, step_lib):
            declare(each, SIGNATURES)
        _library, _step_library = lib, step_lib
    return _library


def step_library() -> ctypes.PyDLL:
    """The same for the calls of every step, which keep the GIL: they wait for nothing and are over
    in microseconds, while a thread that takes the GIL meanwhile keeps it for 5 ms."""
    library()
    assert _step_library is not None
    return _step_library


_text, _handle, _size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
SIGNATURES: Signatures = {
    "steptape_recorder_open": (
        ctypes.c_int,
        [_text, _text, ctypes.c_void_p, ctypes.POINTER(_handle), _text, _size],
    ),
    "steptape_recorder_sequence": (ctypes.c_int64, [_handle]),
    "steptape_recorder_record_step": (ctypes.c_int, [_handle, ctypes.c_void_p]),
    "steptape_recorder_note": (ctypes.c_int, [_handle, _text, _text]),
    "steptape_recorder_get_stats": (ctypes.c_int, [_handle, ctypes.POINTER(RecorderStats)]),
    "steptape_recorder_close": (ctypes.c_int, [_handle, _text, _size]),
    "steptape_recover": (ctypes.c_int, [_text, _text, _size]),
}


def declare(lib: ctypes.CDLL, signatures: Signatures) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments


class _Column:
    """A growing array and where the step's struct keeps its address."""

    def __init__(self, owner: ctypes.Structure, field: str, dtype: type, rows: int) -> None:
        self._owner, self._field = owner, field
        self.array: npt.NDArray[Any] = np.zeros(rows, dtype)
        self._publish()

    def reserve(self, rows: int) -> None:
        if rows > len(self.array):
            grown = np.zeros(max(rows, 2 * len(self.array)), self.array.dtype)
            grown[: len(self.array)] = self.array
            self.array = grown
            self._publish()

    def fill(self, values: Numbers, count: int) -> None:
        self.reserve(count)
        self.array[:count] = values

    def _publish(self) -> None:
        setattr(self._owner, self._field, self.array.ctypes.data)


class StepBuffer:
    """One step on its way into the recorder.

    query_len, start, request_id and draft are arrays to be filled in batch order, after reserve().
    """

    EVENTS = ("new_request", "finished", "preempted", "resumed", "replaced")
    _COUNTS = struct.Struct("5i")  # new_count to replaced_count

    def __init__(self, group_count: int, rows: int = 256) -> None:
        self.step = Step()
        self.step.struct_size = ctypes.sizeof(Step)
        self.address = ctypes.addressof(self.step)
        self.group_count = group_count
        self._blocks = (StepBlocks * max(group_count, 1))()
        self.step.group_count = group_count
        self.step.blocks = ctypes.cast(self._blocks, ctypes.POINTER(StepBlocks))
        for group in self._blocks:
            group.cells_per_block = 1
        self._batch = {
            "request_id": _Column(self.step, "request_id", np.int64, rows),
            "query_len": _Column(self.step, "query_len", np.int32, rows),
            "num_computed_tokens": _Column(self.step, "num_computed_tokens", np.int32, rows),
        }
        self._draft = np.zeros(rows, np.int32)
        self._events = [_Column(self.step, name, np.int64, 64) for name in self.EVENTS]
        self._prompt_len = _Column(self.step, "new_prompt_len", np.int32, 64)
        self._block_format = struct.Struct("PqPiiPPP" * group_count)
        self._make_room(256, 1024)
        self._kept: dict[int, Sequence[Any]] = {}
        self._publish_views()
        step = self.step
        step.start_ns = step.duration_ns = UNKNOWN
        step.padded_token_count = step.padded_request_count = step.zeroed_count = UNKNOWN
        step.graph_mode = step.cpu_starts = -1
        self.clear_events()

    def _publish_views(self) -> None:
        self.request_id: Int64s = self._batch["request_id"].array
        self.query_len: Int32s = self._batch["query_len"].array
        self.start: Int32s = self._batch["num_computed_tokens"].array

    @property
    def rows(self) -> int:
        return len(self.query_len)

    def reserve(self, rows: int) -> None:
        """Makes room for a batch; what was in the arrays stays."""
        if rows <= self.rows:
            return
        for column in self._batch.values():
            column.reserve(rows)
        self._publish_views()
        self._draft = np.zeros(self.rows, np.int32)

    def clear_events(self) -> None:
        self.set_events((), (), (), (), (), None)

    def set_events(
        self,
        new: Numbers,
        prompt_len: Numbers,
        finished: Numbers,
        preempted: Numbers,
        resumed: Numbers,
        replaced: Optional[Numbers],
    ) -> None:
        """The lists of a step; replaced None: the key is absent."""
        lists = (new, finished, preempted, resumed, () if replaced is None else replaced)
        counts = [len(values) for values in lists]
        self.dirty = any(counts) or replaced is not None
        for column, values, count in zip(self._events, lists, counts):
            if count:
                column.fill(values, count)
        if counts[0]:
            self._prompt_len.fill(prompt_len, counts[0])
        if replaced is None:
            counts[4] = -1
        self._COUNTS.pack_into(self.step, Step.new_count.offset, *counts)

    def set_draft(self, rows: int) -> Int32s:
        """The zeroed array of speculative tokens a row, which the step now has."""
        self._draft[:rows] = 0
        self.step.draft = self._draft.ctypes.data
        return self._draft

    def unset_draft(self) -> None:
        self.step.draft = None

    def set_table(
        self, group: int, table: Int32s, row_cell_count: Int32s, cells_per_block: int = 1
    ) -> None:
        """The table form: the arrays are read when the step is recorded, and kept alive here."""
        if table.dtype != np.int32 or row_cell_count.dtype != np.int32:
            raise TypeError("block tables and their lengths are int32")
        stride = table.strides
        if len(stride) != 2 or stride[1] != 4 or stride[0] % 4 or stride[0] < 0:
            raise ValueError("a block table has rows one after another, of cells side by side")
        if row_cell_count.ndim != 1 or not row_cell_count.flags.c_contiguous:
            raise ValueError("the lengths of a block table lie side by side")
        blocks = self._blocks[group]
        blocks.table = table.ctypes.data
        blocks.row_stride = stride[0] // 4
        blocks.row_cell_count = row_cell_count.ctypes.data
        blocks.cells_per_block = cells_per_block
        self._kept[group] = (table, row_cell_count)

    def runs(self, runs: int, ids: int) -> tuple[Int32s, Int32s, Int32s]:
        """Room for the runs of all groups, group after group: their rows, their lengths, and the
        block ids, run after run.  set_runs() when they are filled."""
        if runs > self._run_room or ids > len(self._block_id):
            self._make_room(max(runs, 2 * self._run_room), max(ids, 2 * len(self._block_id)))
        return self._run_row[:runs], self._run_length[:runs], self._block_id[:ids]

    def _make_room(self, runs: int, ids: int) -> None:
        self._run_room = runs
        self._run_row, self._run_length = np.zeros(runs, np.int32), np.zeros(runs, np.int32)
        self._block_id = np.zeros(ids, np.int32)
        arrays = self._run_row, self._run_length, self._block_id
        self._addresses = [array.ctypes.data for array in arrays]

    def set_runs(
        self, run_counts: Sequence[int], id_counts: Sequence[int], all_one: bool = False
    ) -> None:
        """The form of runs: how many of those in runs() and of its ids are of each group.  all_one:
        every run is one id, and the lengths are not read."""
        row, length, block_id = self._addresses
        words: list[int] = []
        for runs, ids in zip(run_counts, id_counts):
            # In the order of StepBlocks: no table.
            words += (0, 0, 0, 1, runs, row, 0 if all_one else length, block_id)
            row, length, block_id = row + 4 * runs, length + 4 * runs, block_id + 4 * ids
        self._block_format.pack_into(self._blocks, 0, *words)
        self._kept.clear()


class Handle:
    """An open recording.  Errors of open() and close() are StepTapeError; record() gives a code:
    0 recorded, 1 dropped and counted, below 0 recording has ended."""

    def __init__(
        self,
        path: str,
        header_json: str,
        max_requests: int = 0,
        ring_bytes: int = 0,
        part: Optional[str] = None,
    ) -> None:
        if not -(2**31) <= max_requests < 2**31 or not UNKNOWN <= ring_bytes < 2**63:
            raise ValueError("max_requests or ring_bytes is out of range")
        lib = library()
        handle = ctypes.c_void_p()
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        options = Options(
            struct_size=ctypes.sizeof(Options),
            max_requests=max_requests,
            ring_bytes=ring_bytes,
            part=None if part is None else encode_path(part),
        )
        rc = lib.steptape_recorder_open(
            encode_path(path),
            header_json.encode(),
            ctypes.addressof(options),
            ctypes.byref(handle),
            message,
            MESSAGE_SIZE,
        )
        self.message = message.value.decode(errors="replace")
        if rc != 0:
            raise StepTapeError(self.message or f"{path}: error {rc}")
        self._lib = lib
        self._handle: Optional[ctypes.c_void_p] = handle
        self._pid = os.getpid()
        self._record = step_library().steptape_recorder_record_step
        self._sequence = step_library().steptape_recorder_sequence

    def sequence(self) -> int:
        """The number of the step that record() takes next; dropped ones count."""
        return int(self._sequence(self._handle))

    def record(self, buffer: StepBuffer) -> int:
        return int(self._record(self._handle, buffer.address))

    def note(self, key: str, value: str) -> None:
        texts = [text.replace("\0", "?").encode(errors="replace") for text in (key, value)]
        self._lib.steptape_recorder_note(self._handle, *texts)

    def stats(self) -> RecorderStats:
        stats = RecorderStats(struct_size=ctypes.sizeof(RecorderStats))
        self._lib.steptape_recorder_get_stats(self._handle, ctypes.byref(stats))
        return stats

    def why(self) -> str:
        """Why recording has ended."""
        return bytes(self.stats().message).decode(errors="replace") or "the recorder is off"

    def close(self) -> str:
        """Finishes the tape and gives its path.  A child that was forked leaves its parent's
        recording alone."""
        handle, self._handle = self._handle, None
        if handle is None or self._pid != os.getpid():
            return ""
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        rc = self._lib.steptape_recorder_close(handle, message, MESSAGE_SIZE)
        text = message.value.decode(errors="replace")
        if rc != 0:
            raise StepTapeError(text or f"error {rc}")
        return text


def recover(path: str) -> str:
    """Makes the tapes of recordings that were interrupted, as `steptape recover` does; gives what
    was made."""
    message = ctypes.create_string_buffer(MESSAGE_SIZE)
    rc = library().steptape_recover(encode_path(path), message, MESSAGE_SIZE)
    text = message.value.decode(errors="replace")
    if rc != 0:
        raise StepTapeError(text or f"{path}: error {rc}")
    return text


def find_inject_step() -> Optional[Callable[[int], int]]:
    """What tells libsteptape_inject which step the launches belong to, when the driver has loaded
    it into this process; it is never loaded here."""
    path = os.environ.get("STEPTAPE_INJECT")
    if not path or not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        lib = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        function: Callable[[int], int] = lib.steptape_inject_step
    except (OSError, AttributeError):
        return None
    declare(lib, {"steptape_inject_step": (ctypes.c_int, [ctypes.c_int64])})
    return function
