# SPDX-License-Identifier: Apache-2.0
"""The plug-in as vLLM finds it: by entry point, in a front end and its children."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import SOURCE, notes_of, program

from steptape import Tape

FAKE = pathlib.Path(__file__).resolve().parent / "fake"


@pytest.fixture
def serve(tmp_path):
    """serve(runner, way, **environment): its steps as it printed them, and the finished process."""
    site = tmp_path / "site"
    info = site / "steptape-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: steptape\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nsteptape = steptape.vllm_plugin:register\n"
    )

    def run(runner, way, **environment):
        paths = [str(FAKE), str(SOURCE), str(site)]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STEPTAPE_RECORD": str(tmp_path / "x.tape"),
            **environment,
        }
        done = subprocess.run(
            [sys.executable, str(FAKE / "serve.py"), runner, way],
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        steps = [int(line.split()[1]) for line in done.stdout.splitlines()]
        return steps, done

    return run


@pytest.mark.parametrize("way", ("inline", "spawn", "fork"))
@pytest.mark.parametrize("runner", ("V1", "V2"))
def test_every_way_to_start_an_engine(serve, tmp_path, runner, way):
    steps, done = serve(runner, way)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    names = ["x.tape"] if way == "inline" else ["x.tape", "x.dp1.tape"]
    assert sorted(p.name for p in tmp_path.glob("*.tape")) == sorted(names)
    assert not list(tmp_path.glob("*.recording"))
    for name, count in zip(names, steps):
        with Tape(tmp_path / name) as tape:
            assert tape.step_count == count > 40
            assert tape.header["engine_version"] == "0.32.0"
        module = "gpu.model_runner.GPU" if runner == "V2" else "cpu_model_runner.CPU"
        assert notes_of(tmp_path / name)["runner"] == f"vllm.v1.worker.{module}ModelRunner"


@pytest.mark.parametrize("way", ["inline", "spawn"])
def test_steptape_record(tmp_path, way):
    """The command sets everything up, the package included, for a Python that lacks it."""
    env = {k: v for k, v in os.environ.items() if k not in ("STEPTAPE_LIBRARY", "STEPTAPE_RECORD")}
    env.update(PYTHONPATH=str(FAKE), PYTHONDONTWRITEBYTECODE="1", VLLM_PLUGINS="other")
    command = [sys.executable, str(FAKE / "serve.py"), "V1", way]
    done = program("record", "-o", tmp_path / "x.tape", "--launches=off", "--", *command, env=env)
    assert done.returncode == 0, done.stderr
    steps = [int(line.split()[1]) for line in done.stdout.splitlines()]
    names = ["x.tape"] if way == "inline" else ["x.tape", "x.dp1.tape"]
    assert sorted(p.name for p in tmp_path.glob("*.tape")) == sorted(names)
    for name, count in zip(names, steps):
        with Tape(tmp_path / name) as tape:
            assert tape.step_count == count
        assert name in done.stderr  # the summary


def test_vllm_plugins_can_leave_it_out(serve, tmp_path):
    steps, done = serve("V1", "inline", VLLM_PLUGINS="another")
    assert done.returncode == 0 and steps
    assert not list(tmp_path.glob("x.*"))


def test_killed(serve, tmp_path):
    """kill -9: the recording is there, and recover makes the tape of it."""
    steps, done = serve("V1", "kill")
    assert done.returncode != 0
    assert (tmp_path / "x.tape.recording").is_dir() and not (tmp_path / "x.tape").exists()
    recovered = program("recover", tmp_path / "x.tape")
    assert recovered.returncode == 0, recovered.stderr
    with Tape(tmp_path / "x.tape") as tape:
        assert tape.step_count == steps[0]
