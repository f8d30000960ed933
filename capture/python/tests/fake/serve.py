# SPDX-License-Identifier: Apache-2.0
"""serve.py RUNNER WAY: a front end that runs its engine here ("inline"), in a child ("spawn",
"fork"), or is killed in the middle ("kill")."""

import multiprocessing
import os
import signal
import sys


def engine_core(runner, ranks, kill):
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    load_general_plugins()
    from steptape._fake.engine import Engine
    from steptape._fake.scheduler import Settings

    if runner == "V2":
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner as Runner
        from vllm.v1.worker.gpu_worker import Worker
    else:
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner as Runner
        from vllm.v1.worker.cpu_worker import CPUWorker as Worker
    made = Engine(Settings(runner=runner), Runner, Worker, **ranks)
    made.run(40)
    os.write(1, f"steps {made.steps}\n".encode())  # one write: another child writes too
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    runner, way = sys.argv[1:]
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # a front end loads them too, and never imports a runner
    if way in ("inline", "kill"):
        engine_core(runner, {}, way == "kill")
        return
    context = multiprocessing.get_context(way)
    children = [
        context.Process(target=engine_core, args=(runner, {"data_parallel_index": n}, False))
        for n in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(child.exitcode for child in children))


if __name__ == "__main__":
    main()
