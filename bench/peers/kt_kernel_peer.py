# SPDX-License-Identifier: Apache-2.0
"""The bf16 experts of kt-kernel (ktransformers), on the AVX-512 path where there is no AMX."""

import torch


class KtKernel:
    """Weights are repacked by the library."""

    own_threads = True

    def __init__(self, shape, dtype, gate_up, down):
        if dtype != "bf16":
            raise RuntimeError(f"kt-kernel: {dtype} is not tried here, only bf16")
        from kt_kernel import kt_kernel_ext

        pool = kt_kernel_ext.WorkerPoolConfig()
        pool.subpool_count = 1
        pool.subpool_numa_map = [0]
        pool.subpool_thread_count = [shape.threads]
        self.infer = kt_kernel_ext.CPUInfer(pool)
        self.top_k = shape.top_k
        self.on_gpu = torch.zeros(shape.experts, dtype=torch.bool)
        config = kt_kernel_ext.moe.MOEConfig(shape.experts, shape.top_k, shape.hidden,
                                             shape.intermediate, self.on_gpu.data_ptr())
        config.max_len = shape.max_tokens
        config.pool = self.infer.backend_
        size = shape.intermediate
        self.weights = gate_up, down
        config.gate_projs = [[gate_up[e, :size].data_ptr() for e in range(shape.experts)]]
        config.up_projs = [[gate_up[e, size:].data_ptr() for e in range(shape.experts)]]
        config.down_projs = [[down[e].data_ptr() for e in range(shape.experts)]]
        config.gate_scales = config.up_scales = config.down_scales = [[0] * shape.experts]
        self.moe = kt_kernel_ext.moe.AMXBF16_MOE(config)
        self.experts = torch.arange(shape.experts)
        self.infer.submit(self.moe.load_weights_task(self.experts.data_ptr()))
        self.infer.sync()

    def __call__(self, x, ids, weights):
        out = torch.empty_like(x)
        tokens = torch.tensor([x.shape[0]], dtype=torch.int32)
        self.infer.submit(
            self.moe.forward_task(tokens.data_ptr(), self.top_k, ids.data_ptr(), weights.data_ptr(),
                                  x.data_ptr(), out.data_ptr(), False))
        self.infer.sync()
        return out
