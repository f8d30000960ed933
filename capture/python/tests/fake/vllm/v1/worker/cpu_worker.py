# SPDX-License-Identifier: Apache-2.0
from vllm.v1.worker.gpu_worker import Worker


class CPUWorker(Worker):
    def compile_or_warm_up_model(self):
        return super().compile_or_warm_up_model()
