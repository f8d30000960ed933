# SPDX-License-Identifier: Apache-2.0
"""The vLLM plug-in: entry point `steptape` of the group `vllm.general_plugins`.

vLLM calls register() in every process it starts.  Without STEPTAPE_RECORD in the environment that
is all that happens; with it, methods of the model runners are wrapped when a process imports them,
and the first rank of each engine records its steps (STEPTAPE_ALL_RANKS=1: every rank).

No file of vLLM is changed, no device is read, and nothing here raises into the engine.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable, Optional

from steptape import _capture, _hooks, _vllm_config
from steptape._plugin import (
    close_at_end,
    is_recorded,
    logger,
    part_name,
    part_path,
    ring_bytes,
)
from steptape._version import __version__
from steptape._vllm_session import Session

RUNNERS = {
    "vllm.v1.worker.gpu_model_runner": "V1",
    "vllm.v1.worker.gpu.model_runner": "V2",
}
WORKERS = {
    "vllm.v1.worker.gpu_worker": "Worker",
    "vllm.v1.worker.cpu_worker": "CPUWorker",
    "vllm.v1.worker.xpu_worker": "XPUWorker",
}
# Where a runner's batch is seen: after it was prepared, before it runs.
MIDDLE = {"V1": "_determine_batch_execution_and_padding", "V2": "prepare_inputs"}
# What runs batches that no request asked for.
QUIET_RUNNER = ("_dummy_run", "profile_run", "capture_model", "profile_cudagraph_memory")
QUIET_WORKER = ("determine_available_memory", "compile_or_warm_up_model", "execute_dummy_batch")
SESSION = "_steptape_session"

_registered = False
_quiet = 0  # above 0: the engine profiles, warms up or captures


def register() -> None:
    """What vLLM calls, in every process and maybe more than once."""
    global _registered
    if _registered or not os.environ.get("STEPTAPE_RECORD"):
        return
    _registered = True
    try:
        for module, kind in RUNNERS.items():
            _hooks.after_import(module, functools.partial(_wrap_runner, kind))
        for module, name in WORKERS.items():
            _hooks.after_import(module, functools.partial(_wrap_worker, name))
    except Exception as error:
        logger.warning("steptape: nothing is recorded: %r", error)


# ---- wrapping


def _wrap(cls: type, name: str, make: Callable[[Any], Any]) -> bool:
    """Puts make(original) in the place of a method; where cls inherits it, in cls alone."""
    original = getattr(cls, name, None)
    if not callable(original):
        return False
    if not hasattr(original, "_steptape_original"):
        wrapped: Any = functools.wraps(original)(make(original))
        wrapped._steptape_original = original
        setattr(cls, name, wrapped)
    return True


def _wrap_runner(kind: str, module: ModuleType) -> None:
    cls: Any = module.GPUModelRunner
    has_sampling = callable(getattr(cls, "sample_tokens", None))
    found = {
        "execute_model": _wrap(cls, "execute_model", _execute_model(kind, has_sampling)),
        "sample_tokens": _wrap(cls, "sample_tokens", _sample_tokens),
        "initialize_kv_cache": callable(getattr(cls, "initialize_kv_cache", None)),
        MIDDLE[kind]: _wrap(cls, MIDDLE[kind], _middle(kind)),
        "shutdown": _wrap(cls, "shutdown", _shutdown),
    }
    for name in QUIET_RUNNER:
        found[name] = _wrap(cls, name, _quietly)
    cls._steptape_hooks = found
    if not found["execute_model"]:
        logger.warning("steptape: %s has no execute_model: nothing is recorded", module.__name__)


def _wrap_worker(name: str, module: ModuleType) -> None:
    cls = getattr(module, name)
    for method in QUIET_WORKER:
        make = _opening if method == "compile_or_warm_up_model" else _quietly
        _wrap(cls, method, make)


def _execute_model(kind: str, has_sampling: bool) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _quiet or kwargs.get("dummy_run"):
                return original(self, *args, **kwargs)
            session = getattr(self, SESSION, None) or _new_session(self, kind)
            if not session.alive:
                return original(self, *args, **kwargs)
            output = args[0] if args else kwargs.get("scheduler_output")
            if not session.begin(output):
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException:
                session.failed()
                raise
            session.end(result, has_sampling)
            return result

        return execute_model

    return make


def _sample_tokens(original: Any) -> Any:
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = getattr(self, SESSION, None)
        if session is None or not session.alive:
            return original(self, *args, **kwargs)
        session.begin_sampling()
        try:
            return original(self, *args, **kwargs)
        finally:
            session.end_sampling()

    return sample_tokens


def _middle(kind: str) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            session = getattr(self, SESSION, None)
            if session is not None:
                if kind == "V1":
                    session.saw(result, kwargs.get("num_scheduled_tokens_np"))
                else:
                    session.saw(result, (*args, *kwargs.values()))
            return result

        return seen

    return make


def _quietly(original: Any) -> Any:
    def quiet(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _quiet
        _quiet += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _quiet -= 1

    return quiet


def _opening(original: Any) -> Any:
    """The last thing before an engine serves: reserving the ring's file belongs here, not into the
    first step."""
    quiet = _quietly(original)

    def opening(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = quiet(self, *args, **kwargs)
        runner = getattr(self, "model_runner", None)
        kind = _kind_of(runner)
        if not _quiet and kind is not None and getattr(runner, "kv_cache_config", None) is not None:
            (getattr(runner, SESSION, None) or _new_session(runner, kind)).open()
        return result

    return opening


def _kind_of(runner: Any) -> Optional[str]:
    for cls in type(runner).__mro__:
        if cls.__module__ in RUNNERS:
            return RUNNERS[cls.__module__]
    return None


def _shutdown(original: Any) -> Any:
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = getattr(self, SESSION, None)
        if session is not None:
            session.close()
        return original(self, *args, **kwargs)

    return shutdown


# ---- a session and its recording


def _new_session(runner: Any, kind: str) -> Session:
    session = Session(runner, kind, _open_recording)
    setattr(runner, SESSION, session)
    return session


def _ranks(config: Any) -> tuple[int, int, int]:
    """(data, pipeline, within the stage) of this process.  The last counts tensor and context
    parallel ranks, which all run the same batch."""
    parallel = config.parallel_config
    data = getattr(parallel, "data_parallel_index", None)
    if data is None:
        data = getattr(parallel, "data_parallel_rank", 0)
    state = sys.modules.get("vllm.distributed.parallel_state")
    stages = int(getattr(parallel, "pipeline_parallel_size", 1) or 1)
    rank = int(getattr(parallel, "rank", 0) or 0)
    world = int(getattr(parallel, "world_size", stages) or stages)
    width = max(world // stages, 1)
    group = _group(state, "get_pp_group")
    pipeline = group if group is not None else rank // width % stages
    tensor = _group(state, "get_tp_group")
    prefill = _group(state, "get_pcp_group") or 0
    if tensor is None:
        return int(data or 0), pipeline, rank % width
    size = int(getattr(parallel, "tensor_parallel_size", 1) or 1)
    return int(data or 0), pipeline, prefill * size + tensor


def _group(state: Optional[ModuleType], name: str) -> Optional[int]:
    try:
        return int(getattr(state, name)().rank_in_group)
    except Exception:  # no such group in this version, or not set up
        return None


def _notes(session: Session) -> Iterator[tuple[str, str]]:
    runner = type(session.runner)
    hooks = getattr(runner, "_steptape_hooks", {})
    yield "plugin", f"steptape {__version__}"
    yield "runner", f"{runner.__module__}.{runner.__qualname__}"
    yield "hooks", " ".join(name for name, there in hooks.items() if there)
    missing = [name for name, there in hooks.items() if not there]
    if missing:
        yield "hooks missing", " ".join(missing)
    if session.inject_step is not None:
        yield "launches", "steps are announced to libsteptape_inject"


def _open_recording(session: Session) -> Optional[_capture.Handle]:
    """None: this rank is not recorded."""
    config = session.runner.vllm_config
    data, pipeline, rank = _ranks(config)
    if not is_recorded(rank):
        return None
    header = _vllm_config.header_json(
        config,
        session.runner.kv_cache_config,
        session.kind,
        int(getattr(config.parallel_config, "rank", 0) or 0),
    )
    path, part = os.environ["STEPTAPE_RECORD"], part_name(data, pipeline, rank)
    handle = _capture.Handle(path, header, ring_bytes=ring_bytes(), part=part)
    if handle.message:
        logger.warning("steptape: %s", handle.message)
    else:
        # Through vLLM's own logger: nobody prints what others say below a warning.
        log = logging.getLogger("vllm.steptape")
        log.info("steptape: recording into %s", part_path(path, part))
    handle.note("ranks", f"data {data}, pipeline {pipeline}, tensor {rank}")
    for key, value in _notes(session):
        handle.note(key, value)
    close_at_end(session, handle)
    return handle
