# SPDX-License-Identifier: Apache-2.0
"""steptape.Recorder and steptape.Tape: what goes in comes out."""

import ctypes
import json
import os
import random
import signal
import sqlite3
import threading
import zlib

import numpy as np
import pytest
from conftest import notes_of, program

import steptape

GROUPS = [
    {"id": 0, "block_size": 4, "members": [{"kind": "attention", "layers": 2, "ratio": 1}]},
    {
        "id": 1,
        "block_size": 2,
        "members": [{"kind": "swa", "layers": 1, "ratio": 1, "window": 4, "page_bytes": 64}],
    },
]


def open_recorder(path, **options):
    options = {"groups": GROUPS, "engine": "mine", "num_blocks": 500, "max_num_seqs": 8, **options}
    return steptape.Recorder(path, **options)


def one_request(recorder, steps=3, **options):
    """A prompt of 5 tokens, then decoding; ids as an allocator would give them."""
    for number in range(steps):
        start, length = (0, 5) if number == 0 else (4 + number, 1)
        blocks = []
        for size in (4, 2):
            have, need = -(-start // size), -(-(start + length) // size)
            blocks.append([list(range(1 + 50 * size + have, 1 + 50 * size + need))])
        assert recorder.record(
            [7],
            [length],
            [start],
            new=[7] if number == 0 else (),
            prompt_len=[5] if number == 0 else (),
            blocks=blocks,
            **options,
        )


def test_round_trip(tmp_path):
    with open_recorder(tmp_path / "x.tape") as recorder:
        assert recorder.sequence == 0
        one_request(
            recorder,
            graph_mode="FULL",
            padded_tokens=8,
            padded_requests=8,
            start_ns=11,
            duration_ns=5,
            zeroed=2,
            cpu_starts=False,
            check={"positions": None},
        )
        recorder.record([], [], [], finished=[7], blocks=[[], []])
        recorder.note("key", "a value")
        assert recorder.stats().steps == 4 and recorder.stats().recording
    assert recorder.tape == str(tmp_path / "x.tape")
    assert notes_of(recorder.tape) == {"key": "a value"}
    with steptape.Tape(recorder.tape) as tape:
        assert len(tape) == 4 and tape.first_step == 0 and len(tape.hash) == 32
        assert tape.header["engine"] == "mine" and len(tape.header["groups"]) == 2
        first, second, _, last = list(tape)
        assert first.new.tolist() == [7] and first.new_prompt_len.tolist() == [5]
        assert (first.graph_mode, first.padded_tokens, first.padded_requests) == ("FULL", 8, 8)
        assert (first.start_ns, first.duration_ns, first.zeroed) == (11, 5, 2)
        assert first.cpu_starts is False and first.draft is None
        assert [ids.tolist() for ids in first.blocks(0)] == [[201, 202]]
        assert second.num_computed_tokens.tolist() == [5] and second.prompt_len.tolist() == [5]
        assert [ids.tolist() for ids in second.blocks(0)] == [[]]
        assert last.graph_mode is None and last.start_ns is None and last.zeroed is None
        assert last.finished.tolist() == [7] and len(last.request_id) == 0
        assert tape.check(0) == {"positions": None} and tape.check(3) is None
        whole = tape.step(2, tables=True, slots=True)
        assert [ids.tolist() for ids in whole.table(1)] == [[101, 102, 103, 104]]
        assert whole.slots(0).tolist() == [202 * 4 + 2]
        with pytest.raises(IndexError, match="step 4 is not on the tape: .*x.tape: 4 steps from 0"):
            tape.step(4)
        assert repr(whole) == "<Step 2: 1 requests, 1 tokens>"
        for read in (first.table, first.slots):
            with pytest.raises(ValueError, match="not read: it takes"):
                read(0)
        steps = next(tape.read())
        assert steps[-1].step_id == 3 and steps.finished[-1].tolist() == [7]
        for beyond in (4, -5):
            with pytest.raises(IndexError):
                steps[beyond]


def test_threads_take_turns_at_a_tape(tmp_path):
    """A loop that another thread's broke says so; nothing is read from freed memory."""
    steps = 3000
    with open_recorder(tmp_path / "x.tape") as recorder:
        recorder.record([7], [5], [0], new=[7], prompt_len=[5], blocks=[[[1, 2]], [[3, 4, 5]]])
        for step in range(1, steps):
            recorder.record([7], [1], [4 + step], blocks=[[[]], [[]]])
    wrong = []
    with steptape.Tape(recorder.tape) as tape:

        def look(number):
            for at in range(number, steps, 7):
                step = tape.step(at, tables=True)
                if step.step_id != at or step.table(0)[0].tolist() != [1, 2]:
                    wrong.append(at)

        def loop():
            for _ in range(100):
                try:
                    for batch in tape.read(batch=100):
                        len(batch)
                except RuntimeError:
                    pass

        threads = [threading.Thread(target=look, args=(n,)) for n in range(2)]
        threads += [threading.Thread(target=loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_numbers_of_steps_that_do_not_fit(tmp_path):
    with open_recorder(tmp_path / "x.tape") as recorder:
        recorder.record(
            [7], [5], [0], new=[7], prompt_len=[5], blocks=[[[]], [[]]], check={"positions": None}
        )
    with steptape.Tape(recorder.tape) as tape:
        for number in (2**64, -(2**64), -1, 1):
            with pytest.raises(IndexError):
                tape.check(number)
            with pytest.raises(IndexError):
                tape.step(number)
        with pytest.raises(IndexError):
            list(tape.read(-(2**64)))
        for wrong in (0.0, "0"):
            with pytest.raises(TypeError):
                tape.check(wrong)
            with pytest.raises(TypeError):
                list(tape.read(wrong))


def test_a_check_that_is_no_json(tmp_path):
    with open_recorder(tmp_path / "x.tape") as recorder:
        recorder.record([7], [5], [0], new=[7], prompt_len=[5], blocks=[[[1, 2]], [[3, 4, 5]]])
    text = b'{"a":'
    with sqlite3.connect(recorder.tape) as db:
        row = (0, bytes([len(text)]) + zlib.compress(text))
        db.execute("INSERT INTO step_check VALUES(?, ?)", row)
    db.close()
    tape = steptape.Tape(recorder.tape)
    with pytest.raises(steptape.StepTapeError, match="step 0: check is not JSON"):
        tape.check(0)
    tape.close()


def test_tables_are_read_as_they_are(tmp_path):
    """The table form gives the same tape as the lists of ids."""
    with open_recorder(tmp_path / "ids.tape", clock={"monotonic_ns": 1, "realtime_ns": 2}) as one:
        one_request(one, 9)
    tables = [np.zeros((8, 16), np.int32) for _ in GROUPS]
    cells = [np.zeros(8, np.int32) for _ in GROUPS]
    with open_recorder(tmp_path / "table.tape", clock={"monotonic_ns": 1, "realtime_ns": 2}) as two:
        for number in range(9):
            start, length = (0, 5) if number == 0 else (4 + number, 1)
            for size, table, used in zip((4, 2), tables, cells):
                used[0] = -(-(start + length) // size)
                table[0, : used[0]] = np.arange(used[0]) + 1 + 50 * size
            two.record(
                [7],
                np.array([length], np.int32),
                np.array([start], np.int32),
                new=[7] if number == 0 else [],
                prompt_len=[5] if number == 0 else [],
                blocks=[steptape.BlockTable(t, c) for t, c in zip(tables, cells)],
            )
    a, b = (program("dump", tmp_path / f"{n}.tape").stdout for n in ("ids", "table"))
    assert a == b and a.count("\n") == 10


def test_reading_in_batches(tmp_path):
    with open_recorder(tmp_path / "x.tape") as recorder:
        one_request(recorder, 100)
    with steptape.Tape(tmp_path / "x.tape") as tape:
        for size in (1, 7, 100, 1000):
            batches = list(tape.read(batch=size, slots=True))
            assert [len(b) for b in batches] == [min(size, 100 - at) for at in range(0, 100, size)]
            ids = np.concatenate([b.step_id for b in batches])
            assert ids.tolist() == list(range(100))
        some = [step.step_id for batch in tape.read(30, 39, batch=4) for step in batch]
        assert some == list(range(30, 40))
        assert list(tape.read(200, 300)) == []
        begun = tape.read(batch=10)
        next(begun)
        list(tape.read())
        with pytest.raises(RuntimeError, match="another loop"):
            next(begun)
        with pytest.raises(ValueError):
            next(tape.read(batch=0))
    with pytest.raises(ValueError, match="closed"):
        next(tape.read())


def test_random_batches_come_back(tmp_path):
    rng = random.Random(3)
    kept, next_start, given = [], {}, 1
    with open_recorder(tmp_path / "x.tape", num_blocks=100_000, max_num_seqs=64) as recorder:
        for number in range(300):
            new = [1000 * number + k for k in range(rng.randint(0, 2))]
            gone = [r for r in next_start if rng.random() < 0.05]
            for request in gone:
                del next_start[request]
            next_start.update((request, 0) for request in new)
            rows = [r for r in next_start if r in new or rng.random() < 0.9]
            rng.shuffle(rows)
            rows = rows[:64] if len(rows) > 64 else rows
            new = [r for r in new if r in rows]
            lengths = [rng.randint(1, 9) for _ in rows]
            starts = [next_start[r] for r in rows]
            blocks = []
            for size in (4, 2):
                group = []
                for start, length in zip(starts, lengths):
                    count = -(-(start + length) // size) - -(-start // size)
                    group.append(list(range(given, given + count)))
                    given += count
                blocks.append(group)
            drafts = [rng.randint(0, length - 1) for length in lengths] if number % 3 else None
            row = (rows, lengths, starts, new, gone, blocks, drafts)
            for request, start, length in zip(rows, starts, lengths):
                next_start[request] = start + length
            assert recorder.record(
                rows,
                lengths,
                starts,
                new=new,
                prompt_len=[5] * len(new),
                finished=gone,
                blocks=blocks,
                draft=drafts,
            ), recorder.stats().message
            kept.append(row)
    with steptape.Tape(tmp_path / "x.tape") as tape:
        for step, (rows, lengths, starts, new, gone, blocks, drafts) in zip(tape, kept):
            assert step.request_id.tolist() == rows and step.query_len.tolist() == lengths
            assert step.num_computed_tokens.tolist() == starts and step.new.tolist() == new
            assert step.finished.tolist() == gone
            if rows:  # a step without rows cannot say whether it has drafts
                assert (None if step.draft is None else step.draft.tolist()) == drafts
            for group in (0, 1):
                assert [ids.tolist() for ids in step.blocks(group)] == blocks[group]


def test_arrow(tmp_path):
    pa = pytest.importorskip("pyarrow")
    with open_recorder(tmp_path / "x.tape") as recorder:
        one_request(recorder, 50, draft=[0])
        recorder.record([7], [1], [54], blocks=[[[]], [[]]])
    with steptape.Tape(tmp_path / "x.tape") as tape:
        reader = tape.arrow(batch=16, tables=True, slots=True)
        assert isinstance(reader, pa.RecordBatchReader)
        rows = reader.read_all().to_pylist()
        assert len(rows) == 51
        for row, step in zip(rows, tape):
            assert row["step_id"] == step.step_id and row["graph_mode"] is None
            assert row["query_len"] == step.query_len.tolist()
            assert row["new_prompt_len"] == step.new_prompt_len.tolist()
            assert row["blocks_1"] == [ids.tolist() for ids in step.blocks(1)]
            assert row["padded_tokens"] is None and row["cpu_starts"] is None
        assert rows[0]["draft"] == [0] and rows[50]["draft"] is None
        assert rows[2]["table_0"] == [[201, 202]] and rows[2]["slots_0"] == [202 * 4 + 2]


def test_what_is_refused(tmp_path):
    with open_recorder(tmp_path / "x.tape") as recorder:
        with pytest.raises(ValueError, match="length"):
            recorder.record([1, 2], [1], [0], blocks=[[], []])
        with pytest.raises(ValueError, match="groups"):
            recorder.record([1], [1], [0], blocks=[[[]]])
        with pytest.raises(ValueError, match="rows"):
            recorder.record([1], [1], [0], blocks=[[[]], []])
        with pytest.raises(KeyError):
            recorder.record([1], [1], [0], blocks=[[[]], [[]]], graph_mode="HALF")
        with pytest.raises(ValueError, match="prompt_len"):
            recorder.record([1], [1], [0], blocks=[[[]], [[]]], new=[1])
        with pytest.raises(steptape.StepTapeError):
            open_recorder(tmp_path / "x.tape")
        assert recorder.record([9], [1], [0], blocks=[[[]], [[]]]) is False  # 9 was never new
        assert "step 0" in recorder.stats().message and not recorder.stats().recording
    with pytest.raises(ValueError, match="closed"):
        recorder.record([1], [1], [0], blocks=[[[]], [[]]])
    with pytest.raises(steptape.StepTapeError):
        open_recorder(tmp_path / "y.tape", engine=5)
    with pytest.raises(steptape.StepTapeError, match="nowhere.tape"):
        steptape.Tape(tmp_path / "nowhere.tape")
    (tmp_path / "no.tape").write_text("this is no tape")
    with pytest.raises(steptape.StepTapeError, match="no.tape"):
        steptape.Tape(tmp_path / "no.tape")


def test_a_batch_larger_than_any_before(tmp_path):
    with open_recorder(tmp_path / "x.tape", max_num_seqs=2000, num_blocks=None) as recorder:
        for rows in (1, 300, 1500):
            ids = list(range(rows * 10_000, rows * 10_000 + rows))
            assert recorder.record(
                ids,
                [1] * rows,
                [0] * rows,
                new=ids,
                prompt_len=[1] * rows,
                blocks=[[[n % 5 + 1] for n in range(rows)], [[3]] * rows],
            ), recorder.stats().message
    with steptape.Tape(tmp_path / "x.tape") as tape:
        assert [len(step.request_id) for step in tape] == [1, 300, 1500]
        assert tape.step(2).blocks(0)[1499].tolist() == [1499 % 5 + 1]


def test_the_version_is_the_projects():
    shown = program("--version").stdout.splitlines()[0]
    assert shown == f"steptape {steptape.__version__}"


def test_headers_of_the_interchange_format(tmp_path):
    """What a tape says of its engine is line 1, with nothing lost."""
    options = {"engine_version": "1", "max_model_len": 9, "speculative": {"k": 1}, "rank": 3}
    with open_recorder(tmp_path / "x.tape", **options) as recorder:
        one_request(recorder)
    line = json.loads(program("dump", tmp_path / "x.tape").stdout.splitlines()[0])
    with steptape.Tape(tmp_path / "x.tape") as tape:
        assert tape.header == line
        assert {key: line[key] for key in options} == options


TABLE = np.arange(20, dtype=np.int32).reshape(4, 5)
CELLS = np.array([2, 3], np.int32)

REFUSED = {
    "too large": {"num_computed_tokens": np.array([2**32 + 5, 0])},
    "too large in a list": {"num_computed_tokens": [2**32 + 5, 0]},
    "unsigned": {"request_id": np.array([2**63 + 1, 2], np.uint64)},
    "floats": {"query_len": [3.9, 4.0]},
    "not a number": {"num_computed_tokens": np.array([np.nan, 0])},
    "texts": {"query_len": ["3", "4"]},
    "truths": {"query_len": np.array([True, True])},
    "two dimensions": {"request_id": np.array([[1], [2]])},
    "few drafts": {"draft": [1]},
    "draft floats": {"draft": np.array([0.5, 1.5])},
    "new floats": {"new": [1.0, 2.0]},
    "prompt floats": {"prompt_len": [2.5, 1]},
    "block id too large": {"blocks": [[[1], np.array([2**32 + 2])]]},
    "block id floats": {"blocks": [[[1.5], [2]]]},
    "block ids of two dimensions": {"blocks": [np.zeros((2, 1, 1), np.int32)]},
    "check that is no JSON": {"check": {"positions": [float("nan")]}},
    "time too large": {"start_ns": 2**70},
    "time of a float": {"duration_ns": 1.5},
    "no such mode": {"graph_mode": "full"},
    "table of 64 bits": {"blocks": [steptape.BlockTable(TABLE.astype(np.int64), CELLS)]},
    "table of few rows": {"blocks": [steptape.BlockTable(TABLE[:1], CELLS)]},
    "rows backwards": {"blocks": [steptape.BlockTable(TABLE[::-1], CELLS)]},
    "columns first": {"blocks": [steptape.BlockTable(np.asfortranarray(TABLE), CELLS)]},
    "one dimension": {"blocks": [steptape.BlockTable(TABLE[0], CELLS)]},
    "cells beyond the table": {"blocks": [steptape.BlockTable(TABLE[:, :2], CELLS)]},
    "cells of two dimensions": {"blocks": [steptape.BlockTable(TABLE, np.zeros((2, 0), np.int32))]},
    "cells apart": {"blocks": [steptape.BlockTable(TABLE, np.arange(8, dtype=np.int32)[::2])]},
    "no cells a block": {"blocks": [steptape.BlockTable(TABLE, CELLS, 0)]},
    "cells a block too large": {"blocks": [steptape.BlockTable(TABLE, CELLS, 2**33 + 1)]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, name):
    """It is not wrapped, cut off or read beyond its end; the recording goes on."""
    path = tmp_path / "x.tape"
    step = {
        "request_id": [1, 2],
        "query_len": [3, 4],
        "num_computed_tokens": [0, 0],
        "new": [1, 2],
        "prompt_len": [3, 4],
        "blocks": [[[1], [2]]],
    }
    with steptape.Recorder(path, groups=GROUPS[:1], ring_bytes=1 << 20) as recorder:
        with pytest.raises((KeyError, TypeError, ValueError)):
            recorder.record(**{**step, **REFUSED[name]})
        assert recorder.record(**step)
    with steptape.Tape(path) as tape:
        assert [list(s.request_id) for s in tape] == [[1, 2]]
        assert [list(ids) for ids in tape.step(0).blocks(0)] == [[1], [2]]


def test_arrays_of_other_forms(tmp_path):
    """Strides and byte orders are numpy's own affair."""
    path = tmp_path / "x.tape"
    nothing = []
    none = steptape.BlockTable(np.zeros((0, 0), np.int32), np.zeros(0, np.int32))
    with steptape.Recorder(path, groups=GROUPS[:1], ring_bytes=1 << 20) as recorder:
        assert recorder.record(
            np.arange(10)[1:3],
            np.arange(20, dtype=np.int32)[8:4:-2],
            np.array([0, 0], ">i4"),
            new=(1, 2),
            prompt_len=np.array([3, 4], np.uint8),
            blocks=[steptape.BlockTable(TABLE[::2, 1:], CELLS)],
        )
        assert recorder.record(np.array([]), nothing, nothing, blocks=[none])
    with steptape.Tape(path) as tape:
        step = tape.step(0)
        assert list(step.request_id) == [1, 2]
        assert list(step.query_len) == [8, 6]
        assert [list(ids) for ids in step.blocks(0)] == [[1, 2], [11, 12, 13]]
        assert len(tape) == 2


def test_a_path_with_a_nul(tmp_path):
    """C would take it for the end, and another file."""
    path = str(tmp_path / "x.tape")
    steptape.Recorder(path, groups=[]).close()
    with pytest.raises(ValueError):
        steptape.Tape(path + "\0y")
    with pytest.raises(ValueError):
        steptape.Recorder(path + "\0y.tape", groups=[])
    with pytest.raises(ValueError):
        steptape.Recorder(path, groups=[], part="a\0b")
    with steptape.Recorder(path, groups=[]) as recorder:
        recorder.note("a\0b", "c\0d")
    assert notes_of(recorder.tape) == {"a?b": "c?d"}


@pytest.mark.parametrize("options", [{"max_requests": 2**40}, {"ring_bytes": 2**70}])
def test_options_that_do_not_fit(tmp_path, options):
    with pytest.raises(ValueError):
        steptape.Recorder(tmp_path / "x.tape", groups=[], **options)
    assert not list(tmp_path.iterdir())


def test_threads_take_turns(tmp_path):
    """Each step comes out as its thread gave it, until one of them closes."""
    path, rows, each = tmp_path / "x.tape", 40, 50
    recorder = steptape.Recorder(path, groups=GROUPS[:1], ring_bytes=8 << 20)
    failures = []

    def record(thread):
        first = thread * 1000
        ids = list(range(first, first + rows))
        try:
            for number in range(each):
                tables = [[first + number] for _ in ids] if number else [[first] for _ in ids]
                new = () if number else ids
                blocks, lengths = [tables], [thread + 1] * rows
                recorder.record(ids, lengths, [0] * rows, new=new, prompt_len=new, blocks=blocks)
                recorder.stats()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert not failures
    with steptape.Tape(path) as tape:
        assert len(tape) == 4 * each
        for step in tape:
            thread = int(step.request_id[0]) // 1000
            assert list(step.request_id) == list(range(thread * 1000, thread * 1000 + rows))
            assert set(step.query_len) == {thread + 1}
            assert {int(ids[0]) // 1000 for ids in step.blocks(0)} == {thread}


def test_a_handler_closes_while_a_step_is_recorded(tmp_path):
    recorder = steptape.Recorder(tmp_path / "x.tape", groups=GROUPS[:1], ring_bytes=1 << 20)

    class Interrupted(list):
        def __len__(self):
            signal.raise_signal(signal.SIGUSR1)
            return super().__len__()

    before = signal.signal(signal.SIGUSR1, lambda *_: recorder.close())
    try:
        ids = Interrupted([1])
        assert not recorder.record([7], [1], [0], new=[7], prompt_len=[1], blocks=[[ids]])
    finally:
        signal.signal(signal.SIGUSR1, before)
    with steptape.Tape(recorder.tape) as tape:
        assert len(tape) == 0


def test_a_child_waits_for_no_thread_of_its_parent(tmp_path):
    recorder = steptape.Recorder(tmp_path / "x.tape", groups=GROUPS[:1], ring_bytes=1 << 20)
    taken, done = threading.Event(), threading.Event()

    def hold():
        with recorder._lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(300)
        recorded = recorder.record([7], [1], [0], new=[7], prompt_len=[1], blocks=[[[1]]])
        os._exit(1 if recorded or recorder.close() else 0)
    assert os.waitpid(pid, 0)[1] == 0
    done.set()
    thread.join()
    assert recorder.record([7], [1], [0], new=[7], prompt_len=[1], blocks=[[[1]]])
    recorder.close()


def test_a_step_keeps_the_gil(tmp_path):
    """A thread that takes it meanwhile keeps the engine waiting for 5 ms."""
    from steptape import _capture

    with steptape.Recorder(tmp_path / "x.tape", groups=[], ring_bytes=1 << 20) as recorder:
        lib = _capture.step_library()
        assert isinstance(lib, ctypes.PyDLL)
        assert recorder._handle._record is lib.steptape_recorder_record_step
        assert recorder._handle._sequence is lib.steptape_recorder_sequence
