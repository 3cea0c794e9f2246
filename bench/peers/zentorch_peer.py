# SPDX-License-Identifier: Apache-2.0
"""The fused MoE operator of zentorch (AMD). It needs at least two active experts."""

import torch


class ZenTorch:
    """Weights lie as checkpoints have them."""

    own_threads = False

    def __init__(self, shape, dtype, gate_up, down):
        import zentorch  # noqa: F401  (registers the operators)

        self.gate_up, self.down = gate_up, down

    def __call__(self, x, ids, weights):
        out = torch.empty_like(x)
        torch.ops.zentorch.zentorch_fused_moe(out, x, self.gate_up, self.down, None, None, weights,
                                              ids.to(torch.int32), False, "silu", None, None)
        return out
