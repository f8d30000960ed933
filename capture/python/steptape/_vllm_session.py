# SPDX-License-Identifier: Apache-2.0
"""One model runner's steps on their way to the tape.

A step is opened when execute_model begins, its batch is read in the middle (when the runner has
prepared it and before it runs), and it is recorded when sample_tokens ends, or execute_model where
that gives a result itself.

Invariants
 1. No method raises into the engine: an error turns the session off, with one line of log and the
    reason in the tape.
 2. No device is read: only the scheduler's output and the runner's own numpy arrays
    (_vllm_batch.py).
 3. A request's name never leaves this process: a tape has dense numbers, in order of arrival.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Optional

from steptape import _capture, _vllm_config
from steptape._plugin import close, log_stop, logger
from steptape._vllm_batch import READERS, Reader, Requests

FILLING = 1  # steptape/capture.h: the writer has failed
LOOK_EVERY = 256  # steps from one look at the writer to the next


class Session:
    """A runner that is being recorded."""

    def __init__(self, runner: Any, kind: str, open_recording: Callable[[Session], Any]) -> None:
        self.runner = runner
        self.kind = kind
        self._open_recording = open_recording
        self._recorder: Optional[_capture.Handle] = None
        self.inject_step: Optional[Callable[[int], int]] = None
        self.alive = True
        self._requests = Requests()
        self._reader: Optional[Reader] = None
        self._output: Any = None  # of the open step
        self._pending = False  # a step was read and waits for its end
        self._sequence = -1
        self._until_look = LOOK_EVERY
        self._warned = False

    # ---- the recording

    def open(self) -> None:
        """Opens the recording, unless it is open."""
        if self._recorder is None and self.alive:
            try:
                self._open()
            except Exception as error:
                self.turn_off(error)

    def _open(self) -> None:
        self.inject_step = _capture.find_inject_step()
        self._recorder = recorder = self._open_recording(self)
        if recorder is None:
            self.alive = False  # not a rank that is recorded
            return
        config = self.runner.vllm_config
        groups = _vllm_config.cache_groups(self.runner.kv_cache_config)
        limit = getattr(config.scheduler_config, "max_num_seqs", 256)
        self.buffer = _capture.StepBuffer(len(groups), max(int(limit), 1))
        self._reader = reader = READERS[self.kind](self.runner, self.buffer, self._requests)
        self.buffer.step.cpu_starts = 0 if self._starts_are_guesses(reader.speculative) else 1

    def _starts_are_guesses(self, speculative: bool) -> bool:
        """Whether the engine's own predicates find no exact starts on the CPU: with speculation
        under asynchronous scheduling, and in the V2 runner of versions whose metadata still had a
        field for them, which V2 left empty."""
        scheduler = self.runner.vllm_config.scheduler_config
        if speculative and getattr(scheduler, "async_scheduling", False):
            return True
        return self.kind == "V2" and metadata_has_starts()

    def turn_off(self, reason: object) -> None:
        """The engine goes on unrecorded.  The tape is made in close(): it may take seconds."""
        if not self.alive:
            return
        self.alive = self._pending = False
        text = log_stop(reason)
        try:
            self._leave_step()
            if self._recorder is not None:
                self._recorder.note("stopped", text)
        except Exception as error:
            logger.warning("steptape: %s", error)

    def recorder(self) -> _capture.Handle:
        """The open recording."""
        if self._recorder is None:
            raise RuntimeError("nothing is being recorded")
        return self._recorder

    def close(self) -> None:
        """Records what is pending and finishes the tape."""
        self.flush()
        self.alive = False
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            close(recorder)

    # ---- a step, as the wrapped methods see it

    def begin(self, output: Any) -> bool:
        """execute_model begins.  True: a real step, which end() or failed() will close."""
        try:
            self.flush()
            if not output.total_num_scheduled_tokens:
                self._requests.apply(output)
                return False
            if self._recorder is None:
                self._open()
                if self._recorder is None:
                    return False
            reader = self._reader
            assert reader is not None
            self._output = output
            reader.open, reader.rows = True, -1
            self._start_ns = time.monotonic_ns()
            if self.inject_step is not None:
                self._sequence = self._recorder.sequence()
                self.inject_step(self._sequence)
            return True
        except Exception as error:
            self.turn_off(error)
            return False

    def saw(self, found: Any, context: Any) -> None:
        """The runner has prepared the batch of the open step."""
        reader = self._reader
        if self._output is None or reader is None or reader.rows >= 0 or not self.alive:
            return
        try:
            reader.take(found, context)
        except Exception as error:
            self.turn_off(error)

    def end(self, result: Any, more: bool) -> None:
        """execute_model ends; more: sample_tokens will follow when it gave no result."""
        try:
            if not self.alive:
                return
            self._leave_step()
            self._read()
            if result is not None or not more:
                self._commit(time.monotonic_ns() - self._start_ns)
        except Exception as error:
            self.turn_off(error)
        finally:
            self._output = None

    def failed(self) -> None:
        """execute_model raised, which is the engine's affair: what ran is recorded if it can be."""
        try:
            self._leave_step()
            if self.alive and self._reader is not None and self._reader.rows >= 0:
                self._read()
                self.flush()
        except Exception as error:
            self.turn_off(error)
        finally:
            self._output = None

    def _read(self) -> None:
        reader = self._reader
        assert reader is not None
        reader.open = False
        if reader.rows < 0:
            reader.take_late()
        reader.read(self._output)
        self._pending = True

    def begin_sampling(self) -> None:
        if self._pending and self.inject_step is not None:
            try:
                self.inject_step(self._sequence)
            except Exception as error:
                self.turn_off(error)

    def end_sampling(self) -> None:
        if not self._pending:
            return
        try:
            self._leave_step()
            self._commit(time.monotonic_ns() - self._start_ns)
        except Exception as error:
            self.turn_off(error)

    def flush(self) -> None:
        """Records a step whose end nobody saw: its duration is not known."""
        if self._pending:
            try:
                self._commit(_capture.UNKNOWN)
            except Exception as error:
                self.turn_off(error)

    def _leave_step(self) -> None:
        if self.inject_step is not None:
            self.inject_step(-1)

    def _commit(self, duration_ns: int) -> None:
        self._pending = False
        recorder = self._recorder
        if recorder is None:
            return
        step = self.buffer.step
        step.start_ns = self._start_ns
        step.duration_ns = duration_ns
        if recorder.record(self.buffer) < 0:
            self.turn_off(recorder.why())
        self._until_look -= 1
        if not self._until_look:
            self._until_look = LOOK_EVERY
            self._look(recorder)
        requests = self._requests
        if requests.any:
            requests.begin()

    def _look(self, recorder: _capture.Handle) -> None:
        """Steps are taken until the ring is full when the tape cannot be written: whoever reads the
        log should not learn it then."""
        if self._warned or recorder.stats().state != FILLING:
            return
        self._warned = True
        logger.warning(
            "steptape: the tape cannot be written, and steps are kept only until the ring is full:"
            " %s; `steptape recover %s` makes a tape of them when the engine has ended",
            recorder.why(),
            os.environ.get("STEPTAPE_RECORD", "X.tape"),
        )


def metadata_has_starts() -> bool:
    for name in ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils"):
        metadata = getattr(sys.modules.get(name), "CommonAttentionMetadata", None)
        if metadata is not None:
            return "_num_computed_tokens_cpu" in getattr(metadata, "__dataclass_fields__", ())
    return False
