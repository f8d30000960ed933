# SPDX-License-Identifier: Apache-2.0
"""What a tape says of a vLLM engine: line 1 of the interchange format, from its own config objects.

Names differ between versions (`compress_ratio` became `tokens_per_state`, groups became
`UniformTypeKVCacheSpecs`), so everything is read where it is and left out where it is not.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from typing import Any, Optional

from steptape._plugin import get, model_name

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def compress_ratios(vllm_config: Any) -> Optional[list[int]]:
    for place in ("model_config.hf_text_config", "model_config.hf_config"):
        ratios = get(vllm_config, f"{place}.compress_ratios")
        if ratios:
            return [int(ratio) for ratio in ratios]
    return None


def cache_groups(kv_cache_config: Any) -> list[Any]:
    """Groups that have a block table: those of encoder-only layers have none."""
    return [
        group
        for group in kv_cache_config.kv_cache_groups
        if "EncoderOnly" not in type(group.kv_cache_spec).__name__
    ]


def _layer_specs(group: Any) -> Iterable[tuple[str, Any]]:
    per_layer = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    for name in group.layer_names:
        yield name, group.kv_cache_spec if per_layer is None else per_layer.get(name)


def _stored_ratio(spec: Any) -> int:
    for name in ("tokens_per_state", "compress_ratio"):
        value = getattr(spec, name, None)
        if value is not None:
            return max(1, int(value))
    return 1


def _state_ratio(name: str, window: Optional[int], ratios: Optional[list[int]]) -> int:
    """Tokens that a compressor's state is for: the layer's ratio; else from its window, which is
    the ratio, or twice it for overlapping groups of 4."""
    layer = LAYER.search(name)
    if layer and ratios and int(layer.group(1)) < len(ratios):
        return max(1, ratios[int(layer.group(1))])
    return {8: 4, 128: 128}.get(window or 0, 1)


def _member(
    name: str, spec: Any, ratios: Optional[list[int]]
) -> tuple[str, int, Optional[int], Any]:
    kind_of_spec = type(spec).__name__
    window = getattr(spec, "sliding_window", None)
    window = int(window) if window else None
    indexer = "indexer" in name
    if "compressor" in name or "state_cache" in name:
        return (
            "indexer_state" if indexer else "state",
            _state_ratio(name, window, ratios),
            window,
            getattr(spec, "page_size_bytes", None),
        )
    page = getattr(spec, "page_size_bytes", None)
    ratio = _stored_ratio(spec)
    if "Mamba" in kind_of_spec:
        return "state", 1, window, page
    if indexer:
        return "indexer_kv", ratio, window, page
    if "SlidingWindowMLA" in kind_of_spec:
        return "swa", ratio, window, page
    return ("kv" if ratio > 1 else "attention"), ratio, window, page


def groups(vllm_config: Any, kv_cache_config: Any) -> list[dict[str, Any]]:
    ratios = compress_ratios(vllm_config)
    result = []
    for number, group in enumerate(cache_groups(kv_cache_config)):
        members: dict[Any, int] = {}
        for name, spec in _layer_specs(group):
            if spec is not None:
                key = _member(name, spec, ratios)
                members[key] = members.get(key, 0) + 1
        result.append(
            {
                "id": number,
                "block_size": int(group.kv_cache_spec.block_size),
                "members": [
                    {
                        "kind": kind,
                        "layers": layers,
                        "ratio": ratio,
                        "window": window,
                        "page_bytes": None if page is None else int(page),
                    }
                    for (kind, ratio, window, page), layers in members.items()
                ],
            }
        )
    return result


def _speculative(vllm_config: Any) -> Optional[dict[str, Any]]:
    config = getattr(vllm_config, "speculative_config", None)
    if config is None:
        return None
    tokens = getattr(config, "num_speculative_tokens", None)
    return {"method": str(getattr(config, "method", None)), "k": tokens}


def _scale(vllm_config: Any) -> Optional[str]:
    """What makes block tables mean something else: said in words, since nothing else can."""
    said = []
    for name, words in (
        ("decode_context_parallel_size", "decode context parallel"),
        ("prefill_context_parallel_size", "prefill context parallel"),
    ):
        size = get(vllm_config, f"parallel_config.{name}", 1)
        if size > 1:
            said.append(f"{words} over {size} ranks: a block holds that many times its tokens")
    return "; ".join(said) or None


def _optional_int(value: Any) -> Optional[int]:
    return None if value is None else int(value)


def header(vllm_config: Any, kv_cache_config: Any, runner: str, rank: int) -> dict[str, Any]:
    vllm = sys.modules.get("vllm")
    config = getattr(vllm_config, "model_config", None)
    architectures = get(config, "hf_config.architectures") or []
    prefix = get(vllm_config, "cache_config.enable_prefix_caching")
    asynchronous = get(vllm_config, "scheduler_config.async_scheduling")
    return {
        "kind": "steps",
        "version": 1,
        "engine": "vllm",
        "engine_version": getattr(vllm, "__version__", None),
        "runner": runner,
        "device": get(vllm_config, "device_config.device_type"),
        "model": model_name(getattr(config, "model", None)),
        "architecture": architectures[0]
        if architectures
        else getattr(config, "architecture", None),
        "compress_ratios": compress_ratios(vllm_config),
        "max_model_len": _optional_int(getattr(config, "max_model_len", None)),
        "max_num_seqs": _optional_int(get(vllm_config, "scheduler_config.max_num_seqs")),
        "max_num_batched_tokens": _optional_int(
            get(vllm_config, "scheduler_config.max_num_batched_tokens")
        ),
        "num_blocks": _optional_int(getattr(kv_cache_config, "num_blocks", None)),
        "prefix_caching": None if prefix is None else bool(prefix),
        "async_scheduling": None if asynchronous is None else bool(asynchronous),
        "speculative": _speculative(vllm_config),
        "rank": rank,
        "clock": {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()},
        "scale": _scale(vllm_config),
        "groups": groups(vllm_config, kv_cache_config),
    }


def header_json(vllm_config: Any, kv_cache_config: Any, runner: str, rank: int) -> str:
    return json.dumps(header(vllm_config, kv_cache_config, runner, rank))
