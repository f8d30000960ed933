# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in on a fake engine of each version's shapes: every step, every array."""

import json
import logging

import pytest
from conftest import compare, notes_of, program, session_of

from steptape import Tape
from steptape._fake.scheduler import Settings

VERSIONS = ("0.20.0", "0.26.0", "0.27.0", "0.32.0", "0.33.0")
V4 = {"block_sizes": (64, 64, 256, 4, 8), "num_blocks": 1500}
TRAFFIC = {
    "plain": {},
    "split-blocks": {"kernel_block_size": 8},
    "v4-prefix": {**V4, "prefix_caching": True},
    "preempting": {"num_blocks": 70, "max_num_seqs": 32},
    "silent-preemption": {"num_blocks": 70, "max_num_seqs": 32, "silent_preemption": True},
    "resets": {"prefix_caching": True, **V4},
    "speculative": {"drafts": 3},
    "async": {"asynchronous": True, "zeroing": True},
    "async-speculative": {"asynchronous": True, "drafts": 3, "num_blocks": 400},
    "hidden-staging": {**V4, "prefix_caching": True, "hidden_staging": True},
}


@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("runner", ("V1", "V2"))
def test_every_array(record, runner, version, traffic):
    settings = Settings(runner=runner, version=version, **TRAFFIC[traffic])
    engine = record(settings)
    engine.run(100, abort_every=9, reset_every=25 if traffic == "resets" else 0)
    engine.runner.shutdown()
    assert len(engine.runner.held) == engine.steps > 100
    seen = compare(engine.tape, engine.runner.held, settings.block_sizes)
    assert seen["modes"] == {"NONE", "PIECEWISE", "FULL"}
    assert seen["new"] > 50 and seen["finished"] > 50
    if traffic == "preempting":
        assert seen["preempted"] > 0 and seen["resumed"] > 0
    if traffic in ("resets", "silent-preemption"):
        assert seen["replaced"] > seen["resumed"]
    if traffic == "split-blocks" and runner == "V1" and settings.number < 32:
        table = engine.runner._steptape_session.buffer._blocks[0]
        assert table.cells_per_block == 2


@pytest.mark.parametrize("runner", ("V1", "V2"))
def test_the_program_agrees(record, runner):
    settings = Settings(runner=runner, prefix_caching=True, zeroing=True, **V4)
    engine = record(settings)
    engine.run(60, abort_every=5)
    engine.runner.shutdown()
    verified = program("verify", engine.tape)
    assert verified.returncode == 0, verified.stderr
    dumped = program("dump", engine.tape)
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert len(lines) == 1 + engine.steps
    for line, held in zip(lines[1:], engine.runner.held):
        assert line["qlen"] == held.query_len and line["start"] == held.start
    again = program("import", "-", "-o", engine.tape.with_name("again.tape"), input=dumped.stdout)
    assert again.returncode == 0, again.stderr


def test_header(record):
    for number, version in enumerate(("0.27.0", "0.32.0")):
        engine = record(Settings(version=version, drafts=2, **V4))
        engine.run(3)
        engine.runner.shutdown()
        with Tape(engine.tape if not number else engine.tape.with_name("x.2.tape")) as tape:
            header = tape.header
        assert header["engine"] == "vllm" and header["runner"] == "V1"
        assert header["model"] == "example/v4-tiny" and header["compress_ratios"] == [0, 4, 128, 4]
        assert header["speculative"] == {"method": "ngram", "k": 2}
        assert header["architecture"] == "DeepseekV4ForCausalLM"
        assert header["num_blocks"] == 1500 and header["max_num_seqs"] == 64
        members = [
            [(m["kind"], m["layers"], m["ratio"], m["window"]) for m in g["members"]]
            for g in header["groups"]
        ]
        assert members == [
            [("swa", 2, 1, 128)],
            [("swa", 2, 1, 128)],
            [("indexer_kv", 2, 4, None), ("kv", 2, 4, None), ("kv", 1, 128, None)],
            [("indexer_state", 2, 4, 8), ("state", 2, 4, 8)],
            [("state", 1, 128, 128)],
        ]
        assert [g["block_size"] for g in header["groups"]] == [64, 64, 256, 4, 8]
        assert header["groups"][2]["members"][0]["page_bytes"] == 8640


def test_starts_that_are_guesses(record):
    """cpu_starts is false where the engine itself could not know them."""
    for settings, known in (
        (Settings(), True),
        (Settings(drafts=2), True),
        (Settings(drafts=2, asynchronous=True), False),
        (Settings(asynchronous=True), True),
    ):
        engine = record(settings)
        engine.run(5)
        step = session_of(engine).buffer.step
        assert bool(step.cpu_starts) is known
        engine.runner.shutdown()


def test_what_is_not_traffic_is_not_recorded(record):
    for runner in ("V1", "V2"):
        engine = record(Settings(runner=runner))
        assert session_of(engine).recorder().sequence() == 0  # warm-up and capture are over
        engine.run(10)
        steps = engine.steps
        engine.worker.execute_dummy_batch()
        engine.runner._dummy_run(4)
        engine.runner.capture_model()
        assert session_of(engine).recorder().sequence() == steps
        engine.runner.shutdown()


def test_ranks(record, monkeypatch, tmp_path, caplog):
    """Rank 0 of each engine and stage; with STEPTAPE_ALL_RANKS every rank."""
    caplog.set_level(logging.INFO)

    def parts(**parallel):
        engine = record(Settings(), **parallel)
        engine.run(3)
        engine.runner.shutdown()
        found = set()
        for path in tmp_path.glob("*.tape"):
            found.add(path.name)
            assert notes_of(path)["ranks"].startswith("data ")
            assert str(path) in caplog.text
            path.unlink()
        caplog.clear()
        return found

    assert parts() == {"x.tape"}
    assert parts(rank=1, world_size=2, tensor_parallel_size=2) == set()
    assert parts(data_parallel_rank=1, data_parallel_index=1) == {"x.dp1.tape"}
    assert parts(rank=2, world_size=4, tensor_parallel_size=2, pipeline_parallel_size=2) == {
        "x.pp1.tape"
    }
    monkeypatch.setenv("STEPTAPE_ALL_RANKS", "1")
    assert parts(rank=1, world_size=2, tensor_parallel_size=2) == {"x.rank1.tape"}
    assert parts(
        rank=3,
        world_size=4,
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        data_parallel_index=2,
    ) == {"x.dp2-pp1-rank1.tape"}


def test_notes(record):
    engine = record(Settings(version="0.20.0"))
    engine.run(3)
    engine.runner.shutdown()
    notes = notes_of(engine.tape)
    assert notes["plugin"].startswith("steptape ")
    assert "_determine_batch_execution_and_padding" in notes["hooks"].split()
    assert notes["hooks missing"] == "profile_cudagraph_memory"
    assert "stopped" not in notes


def test_a_middle_that_is_gone(record, monkeypatch):
    """A version without the hook: V1 is recorded with modes unknown, and the tape says so."""
    from steptape import vllm_plugin

    monkeypatch.setitem(vllm_plugin.MIDDLE, "V1", "renamed_in_some_version")
    engine = record(Settings(prefix_caching=True, **V4))
    engine.run(20)
    engine.runner.shutdown()
    assert "renamed_in_some_version" in notes_of(engine.tape)["hooks missing"]
    with Tape(engine.tape) as tape:
        for step, held in zip(tape, engine.runner.held):
            assert step.graph_mode is None and step.padded_tokens is None
            assert step.query_len.tolist() == held.query_len
            assert step.num_computed_tokens.tolist() == held.start
