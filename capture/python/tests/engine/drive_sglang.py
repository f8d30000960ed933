# SPDX-License-Identifier: Apache-2.0
"""Runs a real SGLang over seeded traffic, on the CPU.

drive_sglang.py MODEL OPTIONS: OPTIONS is a JSON object, see TRAFFIC in test_sglang_engine.py.
Prints one line of JSON: what the client of the engine was told about each request.
"""

import asyncio
import json
import os
import random
import sys


def settings(options):
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "context_length": 4096,
        "max_running_requests": 16,
        "max_total_tokens": 20000,
        "chunked_prefill_size": 512,
        "random_seed": 1,
        "log_level": "warning",
        **options.get("engine", {}),
    }


async def drive(engine, options):
    rng = random.Random(options.get("seed", 1))
    beginnings = [[rng.randrange(8, 2000) for _ in range(700)] for _ in range(2)]
    told, aborted, tasks = [], [], []

    async def one(name, prompt, tokens):
        answer = await engine.async_generate(
            input_ids=prompt,
            rid=name,
            sampling_params={"max_new_tokens": tokens, "temperature": 0},
        )
        meta = answer["meta_info"]
        told.append(
            {
                "name": name,
                "prompt": len(prompt),
                "cached": meta.get("cached_tokens", 0),
                "retracted": meta.get("num_retractions", 0),
                "completed": meta.get("completion_tokens", 0),
            }
        )

    def name_of(number):
        return f"secret-name-{number:03}"  # an abort takes all that begin with a name

    for number in range(options.get("requests", 60)):
        prompt = [rng.randrange(8, 2000) for _ in range(rng.randint(1, options["prompt"]))]
        if options.get("prefix") and rng.random() < 0.7:
            prompt = rng.choice(beginnings) + prompt
        tokens = rng.randint(1, options.get("output", 90))
        tasks.append(asyncio.ensure_future(one(name_of(number), prompt, tokens)))
        await asyncio.sleep(rng.expovariate(options.get("rate", 40)))
        if options.get("abort_every") and number % options["abort_every"] == 5:
            running = [t for t, task in enumerate(tasks) if not task.done()]
            if running:
                aborted.append(name_of(rng.choice(running)))
                engine.tokenizer_manager.abort_request(rid=aborted[-1])
    await asyncio.gather(*tasks)
    return {"requests": told, "aborted": aborted}


def main():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options = json.loads(sys.argv[2])
    if any(name in options.get("engine", {}) for name in ("tp_size", "pp_size", "dp_size")):
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "0|1")  # two ranks
        os.environ.setdefault("SGLANG_NCCL_SO_PATH", "none")  # there is no GPU: they use gloo
    import sglang

    engine = sglang.Engine(model_path=sys.argv[1], **settings(options))
    answer = asyncio.get_event_loop().run_until_complete(drive(engine, options))
    print(json.dumps(answer), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
