# SPDX-License-Identifier: Apache-2.0
"""A second plug-in of SGLang, for the test alone: what its model runner is given in each step.

It shares nothing with the one under test, which looks at the scheduler: it copies the tensors of
ForwardBatch, and notes which requests were retracted and which had finished when the result of a
batch was processed.  It reads tensors as it likes: the engine is on a CPU.
"""

import os
import pickle

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
out = None


def write(**entry):
    global out
    if out is None:
        out = open(f"{os.environ['HELD']}.{os.getpid()}", "ab")  # noqa: SIM115 - as the engine
    pickle.dump(entry, out)
    out.flush()


def forward(original, runner, batch, *args, **kwargs):
    if batch.rids and not batch.forward_mode.is_idle():
        rows = len(batch.rids)
        write(
            names=list(batch.rids),
            mode=batch.forward_mode.name,
            seq_lens=batch.seq_lens[:rows].tolist(),
            positions=batch.positions.tolist(),
            inputs=len(batch.input_ids),
            slots=len(batch.out_cache_loc),
        )
    return original(runner, batch, *args, **kwargs)


def retract(result, *args, **kwargs):
    write(retracted=[request.rid for request in result[0]])


def result_of(result, scheduler, batch, *args, **kwargs):
    write(finished=[request.rid for request in batch.reqs if request.finished()])


def register():
    if not os.environ.get("HELD"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    batch = "sglang.srt.managers.schedule_batch.ScheduleBatch"
    HookRegistry.register(f"{runner}.forward", forward, HookType.AROUND)
    HookRegistry.register(f"{batch}.retract_decode", retract, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.process_batch_result", result_of, HookType.AFTER)
