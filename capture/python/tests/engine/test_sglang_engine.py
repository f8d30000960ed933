# SPDX-License-Identifier: Apache-2.0
"""A real SGLang on a CPU is recorded, and every step compared with what its model runner was given.

    STEPTAPE_SGLANG=/path/of/venv/bin/python ctest -L engine

STEPTAPE_SGLANG is a Python that has SGLang; the model is made here, with dummy weights.  Its kernel
library needs a GPU: without_gpu/ stands for it.  Scheduler and batches are SGLang's own.
"""

import json
import os
import pathlib
import pickle

import numpy as np
import pytest
from conftest import notes_of, program
from test_engine import DENSE

from steptape import Tape

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = os.environ.get("STEPTAPE_SGLANG")
TRAFFIC = {
    "plain": {"prompt": 200},
    "in turn": {"prompt": 200, "engine": {"disable_overlap_schedule": True}},
    "chunked": {
        "prompt": 900,
        "abort_every": 7,
        "engine": {"chunked_prefill_size": 128, "enable_mixed_chunk": True},
    },
    "prefix": {"prompt": 200, "prefix": True, "abort_every": 29},
    "retracting": {
        "prompt": 150,
        "output": 400,
        "rate": 400,
        "engine": {"max_total_tokens": 1000, "schedule_conservativeness": 0.02},
    },
    "tensor": {"prompt": 200, "requests": 30, "engine": {"tp_size": 2}},
    "pipeline": {"prompt": 200, "requests": 30, "engine": {"pp_size": 2}},
    "data": {"prompt": 200, "engine": {"dp_size": 2}},
}
TAPES = {"pipeline": ["x.pp1.tape", "x.tape"], "data": ["x.dp1.tape", "x.tape"]}


def entries(path):
    with open(path, "rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except EOFError:
                return


def read_tape(path):
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stderr
    assert "stopped" not in notes_of(path)
    with Tape(path) as tape:
        return tape.header, [step for batch in tape.read(batch=64) for step in batch]


class Compared:
    """The steps of one tape beside what one model runner was given."""

    def __init__(self, aborted):
        self.aborted = set(aborted)
        self.number = {}  # of a name, until its request has finished
        self.finished, self.retracted = [], []  # since the last step
        self.cached, self.retractions = {}, {}
        self.seen = dict.fromkeys(("steps", "finished", "preempted", "resumed", "replaced"), 0)

    def apply(self, entry, steps):
        if "names" in entry:
            self.step(next(steps), entry)
        self.finished += entry.get("finished", ())
        self.retracted += entry.get("retracted", ())

    def left(self, step, names):
        """Who is not in the batch any more, as the tape says and as was seen."""
        name_of = {number: name for name, number in self.number.items()}
        gone = {name for name in self.finished if name in self.number and name not in names}
        told = {name_of[number] for number in step.finished.tolist()}
        assert gone <= told
        assert told - gone <= self.aborted  # which end without a result
        for name in told:
            del self.number[name]
        preempted = {name_of[number] for number in step.preempted.tolist()}
        assert preempted == {name for name in self.retracted if name not in names} - told
        self.retracted = []

    def step(self, step, held):
        names = held["names"]
        self.left(step, names)
        new = [name for name in names if name not in self.number]
        rows = step.request_id.tolist()
        assert [self.number.setdefault(name, row) for name, row in zip(names, rows)] == rows
        assert len(rows) == len(names) and len(set(self.number.values())) == len(self.number)
        assert step.new.tolist() == [self.number[name] for name in new]
        starts = step.num_computed_tokens
        assert (starts + step.query_len).tolist() == held["seq_lens"]
        positions = [np.arange(s, s + n) for s, n in zip(starts, step.query_len)]
        assert np.concatenate(positions).tolist() == held["positions"]
        assert held["inputs"] == held["slots"] == sum(step.query_len)
        assert step.graph_mode == "NONE"
        begun = dict(zip(names, starts.tolist()))
        for name, prompt in zip(new, step.new_prompt_len.tolist()):
            self.cached[name] = (begun[name], prompt)
        name_of = {number: name for name, number in self.number.items()}
        for number in [*step.preempted.tolist(), *step.replaced.tolist()]:
            name = name_of[number]
            self.retractions[name] = self.retractions.get(name, 0) + 1
        self.seen["steps"] += 1
        for event in ("finished", "preempted", "resumed", "replaced"):
            self.seen[event] += len(getattr(step, event))


def compare(tape, held, told):
    header, steps = read_tape(tape)
    compared, left = Compared(told["aborted"]), iter(steps)
    for entry in entries(held):
        compared.apply(entry, left)
    assert compared.seen["steps"] == len(steps) > 20
    return header, compared


def tokens_of(path):
    return [entry["inputs"] for entry in entries(path) if "names" in entry]


def run(traffic, tmp_path):
    """Records an engine; gives what its client was told, and each tape with what was held."""
    model = tmp_path / "dense-tiny"
    model.mkdir()
    # No token is the last: with `ignore_eos` a scheduler plans for the longest answer.
    (model / "config.json").write_text(json.dumps({**DENSE, "eos_token_id": 2**20}))
    info = tmp_path / "site" / "held_sglang-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: held_sglang\nVersion: 0\n")
    entry = "[sglang.srt.plugins]\nheld = held_sglang:register\n"
    (info / "entry_points.txt").write_text(entry)
    path = [str(tmp_path / "site"), str(HERE), str(HERE / "without_gpu")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HELD": str(tmp_path / "held")}
    command = [ENGINE, HERE / "drive_sglang.py", model, json.dumps(TRAFFIC[traffic])]
    done = program("record", "-o", tmp_path / "x.tape", "--", *command, env=env, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(x for x in done.stdout.splitlines() if x.startswith('{"requests"')))
    tapes = sorted(tmp_path.glob("*.tape"))
    assert [tape.name for tape in tapes] == TAPES.get(traffic, ["x.tape"])
    helds = sorted(tmp_path.glob("held.*"))
    if traffic == "data":  # whose process was whose
        counts = [int(step.query_len.sum()) for step in read_tape(tapes[0])[1]]
        helds.sort(key=lambda held: tokens_of(held) != counts)
    return told, list(zip(tapes, helds))


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_every_step(tmp_path, traffic):
    if not ENGINE:
        pytest.skip("STEPTAPE_SGLANG does not name a Python that has SGLang")
    told, pairs = run(traffic, tmp_path)
    compared = []
    for tape, held in pairs:
        header, result = compare(tape, held, told)
        compared.append(result)
        overlaps = traffic not in ("in turn", "pipeline")
        assert header["async_scheduling"] is overlaps and header["engine"] == "sglang"
        assert header["max_model_len"] == 4096 and header["max_num_seqs"] == 16
        assert b"secret-name" not in tape.read_bytes()
    for result in compared if traffic != "data" else ():
        for request in told["requests"]:
            if request["name"] not in told["aborted"]:
                begun = (request["cached"], request["prompt"])
                assert result.cached[request["name"]] == begun
                assert result.retractions.get(request["name"], 0) == request["retracted"]
    seen = compared[0].seen
    if traffic == "retracting":
        assert seen["preempted"] > 0 and seen["resumed"] > 0
    if traffic == "prefix":
        assert any(begun > 0 for begun, _ in compared[0].cached.values())
    if TRAFFIC[traffic].get("abort_every"):
        assert told["aborted"]
    requests = [len(result.cached) for result in compared]
    print(f"\n{traffic}: {[result.seen for result in compared]}, requests {requests}")
