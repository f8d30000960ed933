# SPDX-License-Identifier: Apache-2.0
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class CPUModelRunner(GPUModelRunner):
    def initialize_kv_cache(self, kv_cache_config, is_profiling=False):
        super().initialize_kv_cache(kv_cache_config, is_profiling)
