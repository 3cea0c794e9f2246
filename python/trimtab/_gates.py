# SPDX-License-Identifier: Apache-2.0
"""Which of Trimtab's activations a transformers module of experts has: found by trying, not by the
model's name."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Gate:
    """The arguments of ExpertWeights that say how gate and up become one."""

    activation: str
    interleaved: bool
    parameters: dict = field(default_factory=dict)

    def __call__(self, gate_up):
        if self.interleaved:
            gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        else:
            gate, up = gate_up.chunk(2, dim=-1)
        if self.activation == "swiglu_clamp":
            limit = self.parameters["limit"]
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return (up + 1) * gate * torch.sigmoid(self.parameters["alpha"] * gate)
        return _PLAIN[self.activation](gate) * up


_PLAIN = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def _candidates(module):
    for interleaved in (False, True):
        for activation in _PLAIN:
            yield Gate(activation, interleaved)
        alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
        if isinstance(alpha, (int, float)) and isinstance(limit, (int, float)):
            yield Gate("swiglu_clamp", interleaved, {"alpha": float(alpha), "limit": float(limit)})


@torch.no_grad()
def find_gate(module):
    """The Gate that gives what module._apply_gate gives, or None. Values reach beyond the limits of
    clamped forms."""
    generator = torch.Generator().manual_seed(0)
    trial = torch.randn(64, 16, generator=generator) * torch.logspace(-1, 1.5, 64)[:, None]
    try:
        wanted = module._apply_gate(trial.clone())
    except Exception:  # whatever a strange module does with it, it is not one of ours
        return None
    for gate in _candidates(module):
        found = gate(trial)
        if found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=1e-6):
            return gate
    return None
