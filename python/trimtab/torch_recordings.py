# SPDX-License-Identifier: Apache-2.0
"""Recordings that torch saved. They are read with weights_only, so that a file can bring data but no code.

SGLang (sglang/srt/eplb/expert_distribution.py): modes stat and stat_approx dump {"rank", "logical_count" [steps, layers,
experts], ...}, summed over the ranks already; steps of the buffer that nothing filled are left out, and several dumps
follow one another. Modes per_pass and per_token dump, on every rank, {"records": [{"forward_pass_id", "rank",
"gatherer_key", "global_physical_count" [layers, slots], ...}], "last_physical_to_logical_map" [layers, slots]}: they are
summed over ranks and gatherers (microbatches) pass by pass, and a slot counts for the expert it last held.
vLLM-Ascend: a tensor [layers, experts], or [steps, layers, experts].
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ._core import Load, Placement, PlacementFile, Recording


def read(files: Sequence[str | os.PathLike], num_experts: int = 0) -> Recording:
    """The loads of all files. See trimtab.read_recording."""
    contents = [(os.fspath(file), _load(file)) for file in files]
    kinds = {_kind(name, content) for name, content in contents}
    if len(kinds) > 1:
        raise ValueError(f"{', '.join(sorted(kinds))}: only dumps of one kind make a recording")
    kind = kinds.pop()
    steps, ids = _read_records(contents, num_experts) if kind == "records" else _read_counts(contents, kind)
    if num_experts not in (0, steps.shape[2]):
        raise ValueError(f"{contents[0][0]}: loads of {steps.shape[2]} experts; {num_experts} asked for")
    return Recording(Load(steps), step_ids=ids, file=contents[0][0])


def read_placement(
    file: str | os.PathLike, num_ranks: int, slots_per_rank: Sequence[int], num_experts: int
) -> PlacementFile:
    """See trimtab.read_placement."""
    name, content = os.fspath(file), _load(file)
    if not isinstance(content, dict) or "physical_to_logical_map" not in content:
        raise ValueError(f"{name}: no placement: no key physical_to_logical_map")
    if not num_ranks and not slots_per_rank:
        raise ValueError(f"{name}: does not say how many ranks there are; give num_ranks")
    logical = _numbers(name, "physical_to_logical_map", content["physical_to_logical_map"], 2)
    return PlacementFile(
        Placement(
            logical,
            num_experts=num_experts or None,
            num_ranks=num_ranks or None,
            slots_per_rank=list(slots_per_rank) or None,
        )
    )


def _load(file: str | os.PathLike):
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{os.fspath(file)} was saved by torch, which is not installed: pip install torch") from error
    import pickle

    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{os.fspath(file)}: torch can't read it as data: {error}") from error


def _kind(name: str, content) -> str:
    import torch

    if isinstance(content, torch.Tensor):
        return "a tensor"
    if isinstance(content, dict):
        for key in ("records", "logical_count"):
            if key in content:
                return key
        raise ValueError(f"{name}: neither logical_count nor records among its keys {', '.join(map(str, content))}")
    raise ValueError(f"{name}: a {type(content).__name__}, not a recorder's dump or a tensor")


def _numbers(name: str, what: str, value, dimensions: int) -> np.ndarray:
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != dimensions or value.is_complex():
        shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValueError(f"{name}: {what} is {shape}, not a tensor of {dimensions} dimensions")
    if value.dtype == torch.bfloat16:
        value = value.float()
    return value.numpy()


def _read_counts(contents, kind: str) -> tuple[np.ndarray, list[int]]:
    parts = []
    for name, content in contents:
        counts = content if kind == "a tensor" else content["logical_count"]
        if getattr(counts, "ndim", 0) == 2:
            counts = counts.unsqueeze(0)
        parts.append(_numbers(name, "the tensor" if kind == "a tensor" else kind, counts, 3))
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            layers, experts = parts[-1].shape[1:]
            raise ValueError(f"{name} has {layers} layers of {experts} experts, {contents[0][0]} {parts[0].shape[1:]}")
    steps = np.concatenate(parts)
    filled = np.flatnonzero(steps.any(axis=(1, 2)))
    if filled.size == 0:
        raise ValueError(f"{contents[0][0]}: no tokens were recorded")
    return steps[filled], filled.tolist()


def _read_records(contents, num_experts: int) -> tuple[np.ndarray, list[int]]:
    first_name, first = contents[0]
    experts_of_slots = _numbers(first_name, "last_physical_to_logical_map", first.get("last_physical_to_logical_map"), 2)
    layers, slots = experts_of_slots.shape
    experts = max(num_experts, int(experts_of_slots.max(initial=-1)) + 1)
    passes: dict[int, np.ndarray] = {}
    seen = set()
    for name, content in contents:
        if not np.array_equal(content.get("last_physical_to_logical_map"), experts_of_slots):
            raise ValueError(f"{name} and {first_name} have different placements; read them one by one")
        for record in content["records"]:
            where = tuple(record.get(key) for key in ("forward_pass_id", "rank", "gatherer_key"))
            counts = _numbers(name, f"global_physical_count of pass {where[0]}", record.get("global_physical_count"), 2)
            if not isinstance(where[0], int) or counts.shape != (layers, slots):
                raise ValueError(f"{name}: pass {where[0]} has counts {list(counts.shape)}, not [{layers}, {slots}]")
            if where in seen:
                raise ValueError(f"{name}: pass {where[0]} of rank {where[1]}, gatherer {where[2]} is there twice")
            seen.add(where)
            passes.setdefault(where[0], np.zeros((layers, slots), np.int64))
            passes[where[0]] += counts
    if not passes:
        raise ValueError(f"{first_name}: no records")
    ids = sorted(passes)
    steps = np.zeros((len(ids), layers, experts), np.int64)
    by_slot = np.stack([passes[one] for one in ids])
    for layer in range(layers):
        np.add.at(steps[:, layer].T, experts_of_slots[layer], by_slot[:, layer].T)
    return steps, ids


