# SPDX-License-Identifier: Apache-2.0
"""Runs a real vLLM in this process, or in its EngineCore process, over seeded traffic.

drive.py MODEL OPTIONS: OPTIONS is a JSON object, see TRAFFIC in test_engine.py.  Prints one line of
JSON.  Runs in the Python of the engine, which need not have the test's packages.
"""

import json
import os
import random
import sys


def settings(options):
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if options.get("processes") else "0"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    extra = {}
    if options.get("blocks"):
        extra["num_gpu_blocks_override"] = options["blocks"]
    if options.get("asynchronous"):
        extra["async_scheduling"] = True
    if options.get("tensor"):
        extra["tensor_parallel_size"] = options["tensor"]
    if options.get("drafts"):
        extra["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": options["drafts"],
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 1,
        }
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": options.get("max_model_len", 4096),
        "max_num_seqs": options.get("max_num_seqs", 16),
        "max_num_batched_tokens": options.get("max_num_batched_tokens", 512),
        "enable_chunked_prefill": True,
        "enable_prefix_caching": bool(options.get("prefix")),
        "seed": 1,
        **extra,
    }


def interpret_triton():
    """The V2 runner is made of Triton kernels: they run in Triton's own interpreter."""
    import types

    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    from triton.backends import backends

    driver = types.SimpleNamespace(is_active=lambda: True)
    backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)


def main():
    model, options = sys.argv[1], json.loads(sys.argv[2])
    arguments = settings(options)
    if options.get("v2"):
        interpret_triton()
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(EngineArgs(model=model, **arguments))
    rng = random.Random(options.get("seed", 1))
    beginnings = [[rng.randrange(8, 2000) for _ in range(700)] for _ in range(2)]
    sent = steps = aborted = 0
    alive = []
    requests = options.get("requests", 60)
    while steps < options.get("steps", 600):
        while sent < requests and rng.random() < 0.5:
            prompt = [rng.randrange(8, 2000) for _ in range(rng.randint(1, options["prompt"]))]
            if options.get("prefix") and rng.random() < 0.7:
                prompt = rng.choice(beginnings) + prompt
            if options.get("drafts"):
                prompt = (prompt[:5] * len(prompt))[: len(prompt)]
            engine.add_request(
                f"secret-name-{sent}",
                {"prompt_token_ids": prompt},
                SamplingParams(
                    max_tokens=rng.randint(1, options.get("output", 90)),
                    ignore_eos=True,
                    temperature=0.0,
                    detokenize=False,
                ),
            )
            alive.append(f"secret-name-{sent}")
            sent += 1
        if not engine.has_unfinished_requests():
            if sent == requests:
                break
            continue
        for output in engine.step():
            if output.finished and output.request_id in alive:
                alive.remove(output.request_id)
        steps += 1
        if options.get("abort_every") and steps % options["abort_every"] == 0 and alive:
            engine.abort_request([alive.pop(rng.randrange(len(alive)))])
            aborted += 1
    print(json.dumps({"steps": steps, "sent": sent, "aborted": aborted}), flush=True)


if __name__ == "__main__":
    main()
