# SPDX-License-Identifier: Apache-2.0
"""The config objects of a fake vLLM, and the loop that drives scheduler, worker and runner."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Callable, Optional

from steptape._fake.scheduler import Scheduler, SchedulerOutput, Settings


class FullAttentionSpec:
    def __init__(self, block_size: int, page_size_bytes: int) -> None:
        self.block_size = block_size
        self.page_size_bytes = page_size_bytes
        self.sliding_window: Optional[int] = None


class SlidingWindowMLASpec(FullAttentionSpec):
    def __init__(self, block_size: int, page_size_bytes: int, window: int) -> None:
        super().__init__(block_size, page_size_bytes)
        self.sliding_window = window


class MLAAttentionSpec(FullAttentionSpec):
    """Its ratio is called as the version calls it."""

    def __init__(self, block_size: int, page_size_bytes: int, ratio: int, name: str) -> None:
        super().__init__(block_size, page_size_bytes)
        setattr(self, name, ratio)


class UniformTypeKVCacheSpecs:
    def __init__(self, block_size: int, specs: dict[str, Any]) -> None:
        self.block_size = block_size
        self.kv_cache_specs = specs


def cache_config(settings: Settings) -> Any:
    """One full-attention group; or, for five block sizes, the layout of a small DeepSeek-V4."""
    if len(settings.block_sizes) != 5:
        groups = [
            SimpleNamespace(
                layer_names=[f"model.layers.{group}.self_attn.attn"],
                kv_cache_spec=FullAttentionSpec(size, 4096 * size),
            )
            for group, size in enumerate(settings.block_sizes)
        ]
        return SimpleNamespace(num_blocks=settings.num_blocks, kv_cache_groups=groups)
    ratio = "tokens_per_state" if settings.number >= 32 else "compress_ratio"
    swa, main, state4, state128 = 64, 256, 4, 8

    def uniform(block_size: int, specs: dict[str, Any]) -> Any:
        return SimpleNamespace(
            layer_names=list(specs), kv_cache_spec=UniformTypeKVCacheSpecs(block_size, specs)
        )

    def window(layer: int) -> dict[str, Any]:
        return {f"model.layers.{layer}.attn.swa_cache": SlidingWindowMLASpec(swa, 37440, 128)}

    groups = [
        uniform(swa, {**window(0), **window(1)}),
        uniform(swa, {**window(2), **window(3)}),
        uniform(
            main,
            {
                "model.layers.1.attn.indexer.k_cache": MLAAttentionSpec(main, 8640, 4, ratio),
                "model.layers.1.attn": MLAAttentionSpec(main, 37440, 4, ratio),
                "model.layers.2.attn": MLAAttentionSpec(main, 1728, 128, ratio),
                "model.layers.3.attn.indexer.k_cache": MLAAttentionSpec(main, 8640, 4, ratio),
                "model.layers.3.attn": MLAAttentionSpec(main, 37440, 4, ratio),
            },
        ),
        uniform(
            state4,
            {
                f"model.layers.{layer}.attn.{part}compressor.state_cache": SlidingWindowMLASpec(
                    state4, page, 8
                )
                for layer in (1, 3)
                for part, page in (("indexer.", 8640), ("", 32832))
            },
        ),
        uniform(
            state128,
            {
                "model.layers.2.attn.compressor.state_cache": SlidingWindowMLASpec(
                    state128, 32832, 128
                )
            },
        ),
    ]
    return SimpleNamespace(num_blocks=settings.num_blocks, kv_cache_groups=groups)


def vllm_config(settings: Settings, **parallel: int) -> Any:
    ranks = {
        "rank": 0,
        "world_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_rank": 0,
        "data_parallel_index": 0,
        **parallel,
    }
    is_v4 = len(settings.block_sizes) == 5
    return SimpleNamespace(
        fake_settings=settings,
        model_config=SimpleNamespace(
            model="example/v4-tiny" if is_v4 else "example/dense-tiny",
            max_model_len=settings.max_model_len,
            hf_config=SimpleNamespace(
                architectures=["DeepseekV4ForCausalLM" if is_v4 else "LlamaForCausalLM"],
                compress_ratios=[0, 4, 128, 4] if is_v4 else None,
            ),
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            async_scheduling=settings.asynchronous,
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=settings.prefix_caching),
        parallel_config=SimpleNamespace(**ranks),
        device_config=SimpleNamespace(device_type="cpu"),
        speculative_config=(
            SimpleNamespace(method="ngram", num_speculative_tokens=settings.drafts)
            if settings.drafts
            else None
        ),
    )


class Engine:
    """Requests arrive, the worker warms up, steps run until nothing is left."""

    def __init__(
        self,
        settings: Settings,
        runner_class: Callable[[Any], Any],
        worker_class: Callable[[Any], Any],
        **parallel: int,
    ) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings)
        self.runner = runner_class(vllm_config(settings, **parallel))
        self.worker = worker_class(self.runner)
        self.worker.determine_available_memory()
        self.runner.initialize_kv_cache(cache_config(settings))
        self.worker.compile_or_warm_up_model()
        self._under_way: Optional[SchedulerOutput] = None
        self.steps = 0

    def step(self) -> None:
        output = self.scheduler.schedule()
        result = self.runner.execute_model(output)
        if result is None:
            self.runner.sample_tokens(None)
            self.steps += 1
        if not self.settings.asynchronous:
            self.scheduler.update(output)
            return
        if self._under_way is not None:
            self.scheduler.update(self._under_way)
        self._under_way = output

    def run(
        self, requests: int, steps: int = 10_000, abort_every: int = 0, reset_every: int = 0
    ) -> None:
        """Seeded traffic: prompts that share beginnings, a few in the queue at any time."""
        rng = random.Random(self.settings.seed + 1)
        sent = 0
        for step in range(steps):
            while sent < requests and (rng.random() < 0.4 or not self.scheduler.busy):
                shared = [1000 + sent % 3] * (3 * max(self.settings.block_sizes))
                own = [rng.randrange(2000, 9000) for _ in range(rng.randint(1, 150))]
                prompt = (shared if rng.random() < 0.5 else []) + own
                self.scheduler.add(f"request-{sent}-{rng.random()}", prompt, rng.randint(1, 40))
                sent += 1
            if abort_every and step % abort_every == abort_every - 1:
                alive = sorted(self.scheduler.requests)
                if alive:
                    self.scheduler.abort(rng.choice(alive))
            if reset_every and step % reset_every == reset_every - 1:
                self.scheduler.reset()
            if sent == requests and not self.scheduler.busy and self._under_way is None:
                break
            self.step()
            if not self.scheduler.busy and self._under_way is not None:
                self.scheduler.update(self._under_way)
                self._under_way = None


class Worker:
    """vLLM's Worker, as far as the plug-in looks at it."""

    def __init__(self, runner: Any) -> None:
        self.model_runner = runner

    def determine_available_memory(self) -> int:
        self.model_runner.profile_run()
        return 1 << 30

    def compile_or_warm_up_model(self) -> float:
        self.model_runner._dummy_run(2)
        self.model_runner.capture_model()
        # The V2 warm-up goes through the front door.
        warm = SchedulerOutput(num_scheduled_tokens={}, total_num_scheduled_tokens=0)
        self.model_runner.execute_model(warm)
        return 0.0

    def execute_dummy_batch(self) -> None:
        self.model_runner._dummy_run(1)
