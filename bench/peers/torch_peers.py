# SPDX-License-Identifier: Apache-2.0
"""torch's own products and the experts backends of transformers. Weights lie as checkpoints have
them."""

import torch
from torch.nn import functional


class Loop:
    """functional.linear for each active expert, as most model code does it."""

    own_threads = False

    def __init__(self, shape, dtype, gate_up, down):
        self.gate_up, self.down = gate_up, down

    def __call__(self, x, ids, weights):
        out = torch.zeros(x.shape, dtype=torch.float32)
        for expert in ids.unique().tolist():
            token, pick = torch.where(ids == expert)
            gate, up = functional.linear(x[token], self.gate_up[expert]).chunk(2, dim=-1)
            y = functional.linear(functional.silu(gate) * up, self.down[expert])
            out.index_add_(0, token, y.float() * weights[token, pick, None])
        return out


class GroupedMM:
    """functional.grouped_mm over rows sorted by expert."""

    own_threads = False

    def __init__(self, shape, dtype, gate_up, down):
        self.experts = shape.experts
        self.gate_up, self.down = gate_up.transpose(-2, -1), down.transpose(-2, -1)

    def __call__(self, x, ids, weights):
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        token = order // ids.shape[1]
        ends = torch.bincount(flat, minlength=self.experts).cumsum(0).to(torch.int32)
        gate, up = functional.grouped_mm(x[token], self.gate_up, offs=ends).chunk(2, dim=-1)
        y = functional.grouped_mm(functional.silu(gate) * up, self.down, offs=ends)
        out = torch.zeros(x.shape, dtype=torch.float32)
        return out.index_add_(0, token, y.float() * weights.flatten()[order, None])


class Transformers:
    """The experts of Qwen3-MoE under one of transformers' backends."""

    own_threads = False
    backend = None

    def __init__(self, shape, dtype, gate_up, down):
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

        config = Qwen3MoeConfig(hidden_size=shape.hidden, moe_intermediate_size=shape.intermediate,
                                num_experts=shape.experts, num_experts_per_tok=shape.top_k)
        config._experts_implementation = self.backend
        with torch.device("meta"):
            self.experts = Qwen3MoeExperts(config)
        self.experts.gate_up_proj = torch.nn.Parameter(gate_up, requires_grad=False)
        self.experts.down_proj = torch.nn.Parameter(down, requires_grad=False)

    def __call__(self, x, ids, weights):
        return self.experts(x, ids, weights.to(x.dtype))


class TransformersEager(Transformers):
    """A loop over the active experts."""

    backend = "eager"


class TransformersBatchedMM(Transformers):
    """Copies each pick's weights into one batch."""

    backend = "batched_mm"


class TransformersGroupedMM(Transformers):
    """torch's grouped_mm."""

    backend = "grouped_mm"
