# SPDX-License-Identifier: Apache-2.0
"""A second plug-in, for the test alone: what the engine itself hands to its attention layers.

It shares nothing with the one under test: it copies the tensors that metadata is built from, and
writes each step to the file that HELD names.  It reads tensors as it likes: the engine is on a CPU.
"""

import importlib.abc
import os
import pickle
import sys

MODULES = {
    "vllm.v1.worker.gpu_model_runner": "_build_attention_metadata",
    "vllm.v1.worker.gpu.model_runner": "prepare_attn",
}


class Watch:
    def __init__(self):
        self.out = None
        self.output = None

    def begin(self, runner, output):
        if self.out is None:
            path = f"{os.environ['HELD']}.rank{runner.vllm_config.parallel_config.rank}"
            self.out = open(path, "ab")  # noqa: SIM115 - open as long as the engine
        self.output = output

    def write(self, **step):
        output = self.output
        step["finished"] = sorted(output.finished_req_ids)
        step["preempted"] = sorted(output.preempted_req_ids or ())
        step["drafts"] = {n: len(t) for n, t in output.scheduled_spec_decode_tokens.items()}
        pickle.dump(step, self.out)
        self.out.flush()

    def events(self, runner, output):
        self.begin(runner, None)
        pickle.dump(
            {
                "names": None,
                "finished": sorted(output.finished_req_ids),
                "preempted": sorted(output.preempted_req_ids or ()),
            },
            self.out,
        )
        self.out.flush()


def numbers(tensor):
    """As what any version of numpy reads: it need not be the engine's."""
    array = tensor.clone().numpy()
    return array.dtype.str, array.shape, array.tobytes()


def flat(buffer):
    return getattr(buffer, "gpu", buffer)


def wrap(module):
    watch = Watch()
    cls = module.GPUModelRunner
    execute, name = cls.execute_model, MODULES[module.__name__]
    middle = getattr(cls, name)

    def execute_model(self, scheduler_output, *args, **kwargs):
        if kwargs.get("dummy_run"):
            return execute(self, scheduler_output, *args, **kwargs)
        if not scheduler_output.total_num_scheduled_tokens:
            watch.events(self, scheduler_output)
            return execute(self, scheduler_output, *args, **kwargs)
        watch.begin(self, scheduler_output)
        try:
            return execute(self, scheduler_output, *args, **kwargs)
        finally:
            watch.output = None

    def build_attention_metadata(self, *args, **kwargs):
        if watch.output is not None:
            rows, tokens = kwargs["num_reqs"], kwargs["num_tokens"]
            tables = self.input_batch.block_table.block_tables
            watch.write(
                names=list(self.input_batch.req_ids),
                query_start_loc=numbers(flat(self.query_start_loc)[: rows + 1]),
                positions=numbers(flat(self.positions)[:tokens]),
                seq_lens=numbers(flat(self.seq_lens)[:rows]),
                tables=[numbers(t.get_device_tensor(rows)) for t in tables],
                slots=[numbers(s[:tokens]) for _, s in sorted(kwargs["slot_mappings"].items())],
            )
        return middle(self, *args, **kwargs)

    def prepare_attn(self, batch):
        tables, slots = middle(self, batch)
        if watch.output is not None:
            rows, tokens = batch.num_reqs, batch.num_tokens
            watch.write(
                names=list(batch.req_ids),
                query_start_loc=numbers(batch.query_start_loc[: rows + 1]),
                positions=numbers(batch.positions[:tokens]),
                seq_lens=numbers(batch.seq_lens[:rows]),
                tables=[numbers(t[:rows]) for t in tables],
                slots=[numbers(s[:tokens]) for s in slots],
            )
        return tables, slots

    cls.execute_model = execute_model
    setattr(cls, name, prepare_attn if name == "prepare_attn" else build_attention_metadata)


class Finder(importlib.abc.MetaPathFinder):
    looking = False

    def find_spec(self, fullname, path, target=None):
        if fullname not in MODULES or self.looking:
            return None
        self.looking = True
        try:
            others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
            spec = next((s for f in others if (s := f.find_spec(fullname, path, target))), None)
        finally:
            self.looking = False
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                wrap(module)

            spec.loader.exec_module = exec_module
        return spec


def register():
    if os.environ.get("HELD") and not any(isinstance(f, Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, Finder())
