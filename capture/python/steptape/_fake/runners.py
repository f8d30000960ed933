# SPDX-License-Identifier: Apache-2.0
"""Model runners without a model: V1 with a persistent batch and CPU block tables, V2 with a batch
sorted by length and its tables out of reach.  `held` is what the engine itself had in each step:
what a recording of it is compared with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from steptape._fake.scheduler import SchedulerOutput, Settings


class GraphMode:
    """A member of vLLM's CUDAGraphMode."""

    def __init__(self, value: int) -> None:
        self.value = value


@dataclass
class Held:
    """A step as the engine saw it; block tables as allocator ids, group by group, row by row."""

    names: list[str]
    query_len: list[int]
    start: list[int]
    tables: list[list[list[int]]]
    mode: int
    padded_tokens: int
    padded_requests: Optional[int]
    draft: list[int]
    finished: set[str]
    new: list[str]


def _dispatch(settings: Settings, query_len: npt.NDArray[np.int32]) -> tuple[GraphMode, Any]:
    tokens = int(query_len.sum())
    size = next((s for s in settings.capture_sizes if s >= tokens), None)
    if size is None:
        return GraphMode(0), SimpleNamespace(num_tokens=tokens, num_reqs=None)
    if int(query_len.max()) == 1:
        return GraphMode(2), SimpleNamespace(num_tokens=size, num_reqs=size)
    return GraphMode(1), SimpleNamespace(num_tokens=size, num_reqs=None)


class _Buffer:
    """CpuGpuBuffer without a GPU."""

    def __init__(self, *shape: int, dtype: type = np.int32) -> None:
        self.np: Any = np.zeros(shape, dtype)


class _BlockTable:
    def __init__(self, settings: Settings, block_size: int, split: int) -> None:
        width = -(-settings.max_model_len // block_size) * split
        self.block_table = _Buffer(settings.max_num_seqs, width)
        self.num_blocks_per_row = np.zeros(settings.max_num_seqs, np.int32)
        self.split = split
        if settings.number < 32:
            self.blocks_per_kv_block = split

    def append_row(self, ids: list[int], row: int) -> None:
        cells = [i * self.split + k for i in ids for k in range(self.split)]
        at = self.num_blocks_per_row[row]
        self.block_table.np[row, at : at + len(cells)] = cells
        self.num_blocks_per_row[row] += len(cells)

    def move(self, source: int, target: int) -> None:
        self.block_table.np[target] = self.block_table.np[source]
        self.num_blocks_per_row[target] = self.num_blocks_per_row[source]
        self.block_table.np[source] = 0
        self.num_blocks_per_row[source] = 0


class _InputBatch:
    def __init__(self, settings: Settings) -> None:
        self._req_ids: list[Optional[str]] = []
        self.req_id_to_index: dict[str, int] = {}
        self.num_computed_tokens_cpu = np.zeros(settings.max_num_seqs, np.int32)
        splits = [1] * len(settings.block_sizes)
        if settings.kernel_block_size and settings.number < 32:
            splits[0] = settings.block_sizes[0] // settings.kernel_block_size
        self.block_table = SimpleNamespace(
            block_tables=[
                _BlockTable(settings, size, split)
                for size, split in zip(settings.block_sizes, splits)
            ]
        )

    @property
    def req_ids(self) -> Any:
        return self._req_ids

    @property
    def num_reqs(self) -> int:
        return len(self.req_id_to_index)

    def remove(self, name: str) -> None:
        row = self.req_id_to_index.pop(name, None)
        if row is not None:
            self._req_ids[row] = None
            for table in self.block_table.block_tables:
                table.num_blocks_per_row[row] = 0

    def add(self, name: str, computed: int, blocks: Any) -> None:
        if None in self._req_ids:
            row = self._req_ids.index(None)
            self._req_ids[row] = name
        else:
            row = len(self._req_ids)
            self._req_ids.append(name)
        self.req_id_to_index[name] = row
        self.num_computed_tokens_cpu[row] = computed
        for table, ids in zip(self.block_table.block_tables, blocks):
            table.num_blocks_per_row[row] = 0
            table.append_row(ids, row)

    def condense(self) -> None:
        while None in self._req_ids:
            last = self._req_ids.pop()
            if last is None:
                continue
            row = self._req_ids.index(None)
            self._req_ids[row] = last
            self.req_id_to_index[last] = row
            self.num_computed_tokens_cpu[row] = self.num_computed_tokens_cpu[len(self._req_ids)]
            for table in self.block_table.block_tables:
                table.move(len(self._req_ids), row)


class FakeRunnerV1:
    """Give it the name GPUModelRunner before it is wrapped."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.settings: Settings = vllm_config.fake_settings
        self.kv_cache_config: Any = None
        self.input_batch = _InputBatch(self.settings)
        self.query_start_loc = _Buffer(self.settings.max_num_seqs + 1)
        self.held: list[Held] = []
        self.keep_held = True
        self._blocks: dict[str, Any] = {}
        self._random = random.Random(99)

    def initialize_kv_cache(self, kv_cache_config: Any, is_profiling: bool = False) -> None:
        self.kv_cache_config = kv_cache_config

    def _update_states(self, output: SchedulerOutput) -> None:
        batch, cached = self.input_batch, output.scheduled_cached_reqs
        for name in output.finished_req_ids:
            self._blocks.pop(name, None)
            batch.remove(name)
        scheduled = output.num_scheduled_tokens.keys() - cached.resumed_req_ids
        for name in list(batch.req_id_to_index):
            if name not in scheduled:
                batch.remove(name)
        joining = []
        for request in output.scheduled_new_reqs:
            self._blocks[request.req_id] = request.block_ids
            joining.append((request.req_id, request.num_computed_tokens))
        for name, ids, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            if name in cached.resumed_req_ids:
                self._blocks[name] = ids
            elif ids is not None:
                for table, added in zip(self._blocks[name], ids):
                    table.extend(added)
            row = batch.req_id_to_index.get(name)
            if row is None:
                joining.append((name, computed))
                continue
            batch.num_computed_tokens_cpu[row] = computed
            if ids is not None:
                for table, added in zip(batch.block_table.block_tables, ids):
                    table.append_row(added, row)
        for name, computed in joining:
            batch.add(name, computed, self._blocks[name])
        batch.condense()

    def _determine_batch_execution_and_padding(
        self, num_tokens: int, num_reqs: int, num_scheduled_tokens_np: Any, **_: Any
    ) -> Any:
        mode, descriptor = _dispatch(self.settings, num_scheduled_tokens_np)
        return mode, descriptor, False, None, None

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        self._update_states(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return "empty"
        batch = self.input_batch
        rows = batch.num_reqs
        tokens = [scheduler_output.num_scheduled_tokens[name] for name in batch.req_ids]
        query_len = np.array(tokens, np.int32)
        query_len.cumsum(out=self.query_start_loc.np[1 : rows + 1])
        mode, descriptor = self._determine_batch_execution_and_padding(
            num_tokens=scheduler_output.total_num_scheduled_tokens,
            num_reqs=rows,
            num_scheduled_tokens_np=query_len,
            max_num_scheduled_tokens=int(query_len.max()),
        )[:2]
        if self.keep_held:
            self._hold(scheduler_output, tokens, mode, descriptor)
        if self.settings.asynchronous and self.settings.drafts:
            # The rejections of the step before arrive once this one is launched.
            batch.num_computed_tokens_cpu[:rows] -= self._random.randint(0, self.settings.drafts)
        return None

    def _hold(self, output: Any, tokens: list[int], mode: GraphMode, descriptor: Any) -> None:
        batch = self.input_batch
        names = list(batch.req_ids)
        self.held.append(
            Held(
                names=names,
                query_len=tokens,
                start=batch.num_computed_tokens_cpu[: len(names)].tolist(),
                tables=[
                    [list(self._blocks[name][group]) for name in names]
                    for group in range(len(self.settings.block_sizes))
                ],
                mode=mode.value,
                padded_tokens=descriptor.num_tokens,
                padded_requests=descriptor.num_reqs,
                draft=[len(output.scheduled_spec_decode_tokens.get(n, ())) for n in names],
                finished=set(output.finished_req_ids),
                new=[r.req_id for r in output.scheduled_new_reqs],
            )
        )

    def sample_tokens(self, grammar_output: Any) -> Any:
        return "tokens"

    def _dummy_run(self, num_tokens: int, **_: Any) -> None:
        self._determine_batch_execution_and_padding(
            num_tokens=num_tokens,
            num_reqs=1,
            num_scheduled_tokens_np=np.array([num_tokens], np.int32),
            max_num_scheduled_tokens=num_tokens,
        )

    def profile_run(self) -> None:
        self._dummy_run(8)

    def capture_model(self) -> int:
        for size in self.settings.capture_sizes:
            self._dummy_run(size)
        return 0

    def shutdown(self) -> None:
        self.input_batch = None  # type: ignore[assignment]


class _StagedTables:
    """Block tables on a device that is not there: only what is staged for them can be seen."""

    def __init__(self, groups: int, visible: bool) -> None:
        self.block_tables = [SimpleNamespace() for _ in range(groups)]
        self.visible = visible
        self._clear()

    def _clear(self) -> None:
        for table in self.block_tables if self.visible else ():
            table._staged_write_indices = []
            table._staged_write_contents = []
            table._staged_write_cu_lens = []

    def append_block_ids(self, slot: int, ids: Any) -> None:
        for table, added in zip(self.block_tables, ids) if self.visible else ():
            if added:
                table._staged_write_indices.append(slot)
                table._staged_write_contents.extend(added)
                table._staged_write_cu_lens.append(len(table._staged_write_contents))

    def apply_staged_writes(self) -> None:
        self._clear()


class FakeRunnerV2:
    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.settings: Settings = vllm_config.fake_settings
        self.kv_cache_config: Any = None
        self.req_states = SimpleNamespace(req_id_to_index={})
        self.block_tables = _StagedTables(
            len(self.settings.block_sizes), not self.settings.hidden_staging
        )
        self._arrived: list[str] = []  # in this step for the first time, and not after a preemption
        self._free_slots = list(range(self.settings.max_num_seqs))
        self.held: list[Held] = []
        self.keep_held = True
        self._blocks: dict[str, Any] = {}
        self._computed: dict[str, int] = {}

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        self.kv_cache_config = kv_cache_config

    def _remove(self, name: str) -> None:
        slot = self.req_states.req_id_to_index.pop(name, None)
        if slot is not None:
            self._free_slots.append(slot)

    def _update(self, output: SchedulerOutput) -> None:
        index = self.req_states.req_id_to_index
        for name in sorted(output.finished_req_ids | (output.preempted_req_ids or set())):
            self._remove(name)
        for name in output.finished_req_ids:
            self._blocks.pop(name, None)
        arrived = [request.req_id for request in output.scheduled_new_reqs]
        self._arrived = [name for name in arrived if name not in self._blocks]
        for request in output.scheduled_new_reqs:
            self._remove(request.req_id)
            index[request.req_id] = self._free_slots.pop()
            self._blocks[request.req_id] = tuple(list(ids) for ids in request.block_ids)
            self._computed[request.req_id] = request.num_computed_tokens
            self.block_tables.append_block_ids(index[request.req_id], request.block_ids)
        cached = output.scheduled_cached_reqs
        for name, ids, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            self._computed[name] = computed
            if ids is not None:
                self.block_tables.append_block_ids(index[name], ids)
                for table, added in zip(self._blocks[name], ids):
                    table.extend(added)
        self.block_tables.apply_staged_writes()

    def prepare_inputs(self, scheduler_output: Any, *rest: Any) -> Any:
        descriptor = rest[-2] if len(rest) > 1 else rest[0]
        lengths = scheduler_output.num_scheduled_tokens
        names = sorted(lengths, key=lengths.__getitem__)
        query_len = np.fromiter((lengths[n] for n in names), np.int32, len(names))
        start = np.fromiter((self._computed[n] for n in names), np.int32, len(names))
        drafts = scheduler_output.scheduled_spec_decode_tokens
        index = self.req_states.req_id_to_index
        batch = SimpleNamespace(
            req_ids=names,
            idx_mapping_np=np.fromiter((index[n] for n in names), np.int32, len(names)),
            num_reqs=len(names),
            num_scheduled_tokens=query_len,
            num_reqs_after_padding=descriptor.num_reqs or len(names),
            num_tokens_after_padding=descriptor.num_tokens,
            seq_lens_cpu_upper_bound=start + query_len,
        )
        if self.settings.number >= 26:
            batch.num_computed_tokens_np = start
            batch.num_draft_tokens_per_req = (
                np.array([len(drafts.get(n, ())) for n in names], np.int32) if drafts else None
            )
        return batch

    def execute_model(
        self,
        scheduler_output: Any,
        intermediate_tensors: Any = None,
        dummy_run: bool = False,
        **_: Any,
    ) -> Any:
        if not dummy_run:
            self._update(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return "empty"
        lengths = np.array(list(scheduler_output.num_scheduled_tokens.values()), np.int32)
        mode, descriptor = _dispatch(self.settings, lengths)
        descriptor.cg_mode = mode
        if dummy_run:
            return None
        if self.settings.number < 32:
            batch = self.prepare_inputs(scheduler_output, descriptor)
        else:
            batch = self.prepare_inputs(scheduler_output, SimpleNamespace(), descriptor, 0)
        if self.keep_held:
            self._hold(scheduler_output, batch, mode)
        return None

    def _hold(self, output: Any, batch: Any, mode: GraphMode) -> None:
        names = list(batch.req_ids)
        self.held.append(
            Held(
                names=names,
                query_len=batch.num_scheduled_tokens.tolist(),
                start=[self._computed[n] for n in names],
                tables=[
                    [list(self._blocks[name][group]) for name in names]
                    for group in range(len(self.settings.block_sizes))
                ],
                mode=mode.value,
                padded_tokens=batch.num_tokens_after_padding,
                padded_requests=batch.num_reqs_after_padding,
                draft=[len(output.scheduled_spec_decode_tokens.get(n, ())) for n in names],
                finished=set(output.finished_req_ids),
                new=self._arrived,
            )
        )

    def sample_tokens(self, grammar_output: Any) -> Any:
        return "tokens"

    def _dummy_run(self, num_tokens: int) -> None:
        fake = SchedulerOutput(
            num_scheduled_tokens={"req_0": num_tokens}, total_num_scheduled_tokens=num_tokens
        )
        self.execute_model(fake, dummy_run=True)

    def profile_run(self) -> None:
        self._dummy_run(8)

    def capture_model(self) -> int:
        self._dummy_run(4)
        return 0

    def shutdown(self) -> None:
        self._blocks.clear()
