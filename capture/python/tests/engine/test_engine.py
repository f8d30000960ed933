# SPDX-License-Identifier: Apache-2.0
"""A real vLLM on a CPU is recorded, and every array of every step compared with what it held.

    STEPTAPE_ENGINE=/path/of/venv/bin/python [STEPTAPE_ENGINE_MODELS=folder] ctest -L engine

STEPTAPE_ENGINE is a Python that has vLLM; its dense model is made here, with dummy weights.  The
folder's v4-tiny/config.json is a small DeepSeek-V4, for an engine that runs one.
"""

import json
import os
import pathlib
import pickle
import subprocess

import numpy as np
import pytest
from conftest import SOURCE, notes_of, program

from steptape import Tape

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = os.environ.get("STEPTAPE_ENGINE")
DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TRAFFIC = {
    "plain": {"prompt": 200},
    "chunked": {"prompt": 900, "max_num_batched_tokens": 128, "abort_every": 11},
    "prefix": {"prompt": 200, "prefix": True, "abort_every": 29},
    "preempting": {"prompt": 500, "blocks": 24, "output": 300, "max_model_len": 2048},
    "speculative": {"prompt": 60, "drafts": 3, "output": 200},
    "processes": {"prompt": 200, "processes": True},
    "tensor": {"prompt": 200, "tensor": 2, "requests": 30},
    "async": {"prompt": 200, "asynchronous": True, "abort_every": 17},
    "v2": {"prompt": 200, "v2": True, "requests": 12, "prefix": True, "steps": 100},
    "v4": {"prompt": 500, "abort_every": 25},
    "v4-prefix": {"prompt": 300, "prefix": True},
    "v4-preempting": {"prompt": 400, "blocks": 450, "output": 200},
}
SHIMMED = ("v4", "v4-prefix", "v4-preempting", "async", "v2")  # what v4_on_cpu makes possible


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Both plug-ins as an installation has them."""
    folder = tmp_path_factory.mktemp("site")
    for name, value in (("steptape", "steptape.vllm_plugin"), ("held", "held")):
        info = folder / f"{name}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        entry = f"[vllm.general_plugins]\n{name} = {value}:register\n"
        (info / "entry_points.txt").write_text(entry)
    return os.pathsep.join([str(folder), str(SOURCE), str(HERE)])


def model_of(traffic, tmp_path):
    if not traffic.startswith("v4"):
        folder = tmp_path / "dense-tiny"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(DENSE))
        return folder
    folder = pathlib.Path(os.environ.get("STEPTAPE_ENGINE_MODELS", "")) / "v4-tiny"
    if not (folder / "config.json").is_file():
        pytest.skip("STEPTAPE_ENGINE_MODELS does not hold v4-tiny/config.json")
    return folder


def arrays(value):
    """The arrays of held.py, also in lists."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [arrays(entry) for entry in value]
    if isinstance(value, tuple):
        kind, shape, data = value
        return np.frombuffer(data, kind).reshape(shape)
    return value


def held_steps(path):
    """What the engine held, step by step; events of steps without tokens go to the next."""
    finished, preempted = [], []
    with open(path, "rb") as stream:
        while True:
            try:
                step = pickle.load(stream)
            except EOFError:
                return
            finished += step["finished"]
            preempted += step["preempted"]
            if step["names"] is not None:
                held = {name: arrays(value) for name, value in step.items()}
                yield {**held, "finished": finished, "preempted": preempted}
                finished, preempted = [], []


def compare_step(step, held, numbers, sizes):
    for name in held["finished"]:
        numbers.pop(name, None)
    rows = step.request_id.tolist()
    assert [numbers.setdefault(name, row) for name, row in zip(held["names"], rows)] == rows
    assert len(rows) == len(held["names"]) and len(set(numbers.values())) == len(numbers)
    ends = np.cumsum(step.query_len)
    assert held["query_start_loc"].tolist() == [0, *ends.tolist()]
    assert held["seq_lens"].tolist() == (step.num_computed_tokens + step.query_len).tolist()
    positions = [
        np.arange(start, start + length)
        for start, length in zip(step.num_computed_tokens, step.query_len)
    ]
    assert np.array_equal(np.concatenate(positions), held["positions"])
    drafts = [held["drafts"].get(name, 0) for name in held["names"]]
    assert (step.draft.tolist() if step.draft is not None else [0] * len(rows)) == drafts
    for group, size in enumerate(sizes):
        assert np.array_equal(step.slots(group), held["slots"][group])
        for row, ids in enumerate(step.table(group)):
            assert len(ids) * size >= held["seq_lens"][row]
            assert np.array_equal(ids, held["tables"][group][row, : len(ids)])
    return sum(
        len(step.table(group)[row]) for group in range(len(sizes)) for row in range(len(rows))
    )


def compare(path, held_file, traffic):
    """Every step of a tape with what its rank held; gives what was in them."""
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stderr
    assert "stopped" not in notes_of(path)
    numbers, seen = {}, dict.fromkeys(("cells", "preempted", "resumed", "finished", "prefilled"), 0)
    held = list(held_steps(held_file))
    with Tape(path) as tape:
        assert tape.step_count == len(held) > 40
        sizes = [group["block_size"] for group in tape.header["groups"]]
        batches = tape.read(batch=64, tables=True, slots=True)
        for step, want in zip((step for batch in batches for step in batch), held):
            seen["cells"] += compare_step(step, want, numbers, sizes)
            for name in ("preempted", "resumed", "finished"):
                seen[name] += len(getattr(step, name))
            seen["prefilled"] += int(
                (step.num_computed_tokens[np.isin(step.request_id, step.new)]).sum()
            )
        assert tape.header["async_scheduling"] is (traffic == "async")
        assert tape.header["runner"] == ("V2" if traffic == "v2" else "V1")
        rows = {r for batch in tape.read(blocks=False) for r in batch.request_id.tolist()}
    return {**seen, "steps": len(held), "requests": len(rows)}


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_every_array_of_every_step(site, tmp_path, traffic, record_property):
    if not ENGINE:
        pytest.skip("STEPTAPE_ENGINE does not name a Python that has vLLM")
    model, held_file, path = model_of(traffic, tmp_path), tmp_path / "held", tmp_path / "x.tape"
    env = {
        **os.environ,
        "PYTHONPATH": site,
        "STEPTAPE_RECORD": str(path),
        "STEPTAPE_ALL_RANKS": "1",
        "HELD": str(held_file),
        "VLLM_PLUGINS": "steptape,held,v4_on_cpu",
    }
    if traffic in SHIMMED:
        env["V4_ON_CPU"] = "1"
    if traffic == "async":
        env["V4_ON_CPU_FORCE_ASYNC"] = "1"
    done = subprocess.run(
        [ENGINE, str(HERE / "drive.py"), str(model), json.dumps(TRAFFIC[traffic])],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(next(x for x in done.stdout.splitlines() if x.startswith('{"steps"')))
    seen = compare(path, f"{held_file}.rank0", traffic)
    for rank in range(1, TRAFFIC[traffic].get("tensor", 1)):
        assert compare(tmp_path / f"x.rank{rank}.tape", f"{held_file}.rank{rank}", traffic) == seen
    secret = b"secret-name"
    assert not any(secret in tape.read_bytes() for tape in tmp_path.glob("*.tape"))
    if "preempting" in traffic:
        assert seen["preempted"] > 0 and seen["resumed"] > 0
    if "prefix" in traffic:
        assert seen["prefilled"] > 0  # a new request began behind a cached prefix
    if TRAFFIC[traffic].get("abort_every"):
        assert told["aborted"] > 0
    print(
        f"\n{traffic}: {seen['steps']} steps of {seen['requests']} requests, {seen['cells']} table "
        f"entries equal; preempted {seen['preempted']}, aborted {told['aborted']}"
    )
