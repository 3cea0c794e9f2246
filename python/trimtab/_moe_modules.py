# SPDX-License-Identifier: Apache-2.0
"""Finds the modules of a transformers model that hold experts, and says which Trimtab can run."""

import torch

from ._gates import find_gate

TENSORS = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def tensors_of(module):
    return TENSORS[: 4 if module.has_bias else 2]


def experts_modules(model):
    """The modules that transformers dispatches by the name of an implementation, and their
    names."""
    for name, module in model.named_modules():
        if all(
            hasattr(module, flag)
            for flag in ("has_gate", "has_bias", "is_transposed", "num_experts", "config")
        ):
            yield name, module


def _refusal(module):
    """Why Trimtab can't run this module, its gate apart, or None."""
    if not module.has_gate:
        return "its experts have no gate"
    if getattr(module, "has_post_expert_norm", False):
        return "its experts end in a norm"
    if getattr(module, "_is_expert_parallel", False):
        return "its experts are sharded over processes by transformers"
    for name in tensors_of(module):
        tensor = getattr(module, name, None)
        if tensor is None or tensor.dim() != (2 if name.endswith("bias") else 3):
            return f"it has no {name} of all experts in one tensor"
        if type(tensor) not in (torch.nn.Parameter, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}"
        if tensor.device.type != "cpu":
            return f"{name} is on {tensor.device}"
        if tensor.dtype not in FORMATS:
            return f"{name} is {tensor.dtype}"
    return None


def gate_or_reason(module):
    """The module's Gate and None, or None and why Trimtab can't run it."""
    reason = _refusal(module)
    gate = find_gate(module) if reason is None else None
    if gate is None:
        return None, reason or f"{type(module).__name__}._apply_gate is no activation of Trimtab's"
    return gate, None


def experts_that_are_not_dispatched(model):
    """Names of modules that hold experts in a form which transformers does not dispatch, and why
    they are left."""
    reason = "transformers does not dispatch it by experts_implementation"
    dispatched = [name for name, _ in experts_modules(model)]
    inside = tuple(name + "." for name in dispatched)
    found = []
    for name, module in model.named_modules():
        if name in dispatched or name.startswith((*inside, *(f + "." for f in found))):
            continue
        stacked = any(p.dim() == 3 for p in module.parameters(recurse=False))
        says_so = hasattr(module, "num_experts") or "expert" in type(module).__name__.lower()
        is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)) and len(module) > 1
        if (stacked and says_so) or (is_list and name.rpartition(".")[2].endswith("experts")):
            found.append(name)
            yield name, reason
