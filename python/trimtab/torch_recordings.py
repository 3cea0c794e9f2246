# SPDX-License-Identifier: Apache-2.0
"""Recordings that torch saved. They are read with weights_only, so that a file can bring data but
no code.

SGLang (sglang/srt/eplb/expert_distribution.py):

- Modes stat and stat_approx dump {"rank", "logical_count" [steps, layers, experts], ...}, summed
  over the ranks already. Steps of the buffer that nothing filled are left out. Several dumps follow
  one another. The buffer is a ring unless its size is -1, and a ring is dumped from its first row
  on, wherever the oldest step is. A dump does not say whether the ring has wrapped, so the metadata
  of a recording whose steps may be out of order has the key step_order.
- Modes per_pass and per_token dump, on every rank, {"records": [{"forward_pass_id", "rank",
  "gatherer_key", "global_physical_count" [layers, slots], ...}], "last_physical_to_logical_map"
  [layers, slots]}. They are summed over ranks and gatherers (microbatches) pass by pass, and a slot
  counts for the expert that it held last. A slot that was empty then (-1) counts for none.

vLLM-Ascend saves a tensor [layers, experts], or [steps, layers, experts].
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Sequence

import numpy as np

from ._core import Load, Placement, PlacementFile, Recording

logger = logging.getLogger(__name__)

_MAX_EXPERTS = 1 << 20  # as in the readers of the other formats
_MAX_SUM = 1 << 62  # a bound that a sum in float64 can be compared with
_FULL_RING = "unsure: every row of the buffer is filled, and a ring may have wrapped"
_WRAPPED_RING = "wrong: the ring has wrapped, and the rows after the unfilled ones are the older"


def read(files: Sequence[str | os.PathLike], num_experts: int = 0) -> Recording:
    """The loads of all files. See trimtab.read_recording."""
    contents = [(os.fspath(file), _load(file)) for file in files]
    kinds = {_kind(name, content) for name, content in contents}
    if len(kinds) > 1:
        raise ValueError(f"{', '.join(sorted(kinds))}: only dumps of one kind make a recording")
    kind = kinds.pop()
    name = contents[0][0]
    if kind == "records":
        counts, ids = _read_records(contents, num_experts)
        order = None
    else:
        counts, ids, order = _read_counts(contents, kind)
    if num_experts not in (0, counts.shape[2]):
        raise ValueError(f"{name}: loads of {counts.shape[2]} experts; {num_experts} asked for")
    _check_sum(name, counts)
    metadata = {} if order is None else {"step_order": order}
    return Recording(Load(counts), step_ids=ids, metadata=metadata, file=name)


def read_placement(
    file: str | os.PathLike, num_ranks: int, slots_per_rank: Sequence[int], num_experts: int
) -> PlacementFile:
    """See trimtab.read_placement."""
    name, content = os.fspath(file), _load(file)
    if not isinstance(content, dict) or "physical_to_logical_map" not in content:
        raise ValueError(f"{name}: no placement: no key physical_to_logical_map")
    if not num_ranks and not slots_per_rank:
        raise ValueError(f"{name}: does not say how many ranks there are; give num_ranks")
    key = "physical_to_logical_map"
    logical = _whole_numbers(name, key, content[key], 2, 0, _MAX_EXPERTS - 1)
    return PlacementFile(
        Placement(
            logical,
            num_experts=num_experts or None,
            num_ranks=num_ranks or None,
            slots_per_rank=list(slots_per_rank) or None,
        )
    )


def _load(file: str | os.PathLike):
    name = os.fspath(file)
    if zipfile.is_zipfile(file) and any(
        member.endswith(".npy") for member in zipfile.ZipFile(file).namelist()
    ):
        raise ValueError(f"{name}: NumPy's .npz, which holds several arrays; save the one as .npy")
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{name} was saved by torch, which is not installed: pip install torch"
        ) from error
    import pickle

    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{name}: torch can't read it as data: {error}") from error


def _kind(name: str, content) -> str:
    import torch

    if isinstance(content, torch.Tensor):
        return "a tensor"
    if isinstance(content, dict):
        for key in ("records", "logical_count"):
            if key in content:
                return key
        keys = ", ".join(map(str, content))
        raise ValueError(f"{name}: neither logical_count nor records among its keys {keys}")
    raise ValueError(f"{name}: a {type(content).__name__}, not a recorder's dump or a tensor")


def _whole_numbers(
    name: str, what: str, value, dimensions: int, lowest: int = 0, highest: int = (1 << 63) - 1
) -> np.ndarray:
    """The tensor as int64. Raises ValueError for anything but whole numbers in the range."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != dimensions or value.is_complex():
        found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValueError(f"{name}: {what} is {found}, not a tensor of {dimensions} dimensions")
    if value.layout != torch.strided or value.is_quantized:
        raise ValueError(f"{name}: {what} is a sparse or quantised tensor")
    if value.is_floating_point():
        value = value.double()  # also from the types that numpy lacks
    numbers = value.detach().numpy()
    if numbers.dtype.kind == "f":  # 2^63 is a float64, and 2^63 - 1 is not
        good = (numbers >= lowest) & (numbers < float(highest + 1)) & (numbers == np.rint(numbers))
    else:
        good = (numbers >= lowest) & (numbers <= highest)
    if not good.all():
        place = [int(i) for i in np.argwhere(~good)[0]]
        raise ValueError(
            f"{name}: {what} {place} is {numbers[tuple(place)]}, not a whole number "
            f"from {lowest} to {highest}"
        )
    return numbers.astype(np.int64)


def _check_sum(name: str, counts: np.ndarray) -> None:
    if counts.astype(np.float64).sum() >= _MAX_SUM:
        raise ValueError(f"{name}: the counts sum to more than 62 bits hold")


def _read_counts(contents, kind: str) -> tuple[np.ndarray, list[int], str | None]:
    """Counts [steps, layers, experts], the ids of the steps, and what may be wrong about their
    order."""
    what = "the tensor" if kind == "a tensor" else kind
    parts = []
    for name, content in contents:
        value = content if kind == "a tensor" else content["logical_count"]
        if getattr(value, "ndim", 0) == 2:
            value = value.unsqueeze(0)
        parts.append(_whole_numbers(name, what, value, 3))
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            layers, experts = parts[-1].shape[1:]
            first_layers, first_experts = parts[0].shape[1:]
            raise ValueError(
                f"{name} has {layers} layers of {experts} experts, "
                f"{contents[0][0]} {first_layers} of {first_experts}"
            )
    steps = np.concatenate(parts)
    filled = steps.any(axis=(1, 2))
    if not filled.any():
        raise ValueError(f"{contents[0][0]}: no tokens were recorded")
    order = None
    if kind == "logical_count":
        orders = [_step_order(name, part) for (name, _), part in zip(contents, parts)]
        order = next((one for one in (_WRAPPED_RING, _FULL_RING) if one in orders), None)
    return steps[filled], np.flatnonzero(filled).tolist(), order


def _step_order(name: str, steps: np.ndarray) -> str | None:
    """What may be wrong about the order of the steps in one dump of SGLang's ring.

    A ring that was filled in part has its unfilled rows at the end. When the first and the last row
    are filled and some between them are not, the recording went on behind the end of the ring: a
    new start empties the ring, but does not return to its first row.
    """
    filled = steps.any(axis=(1, 2))
    if len(filled) > 1 and filled.all():
        return _FULL_RING
    if len(filled) > 1 and filled[0] and filled[-1]:
        logger.warning("%s: the order of its steps is %s", name, _WRAPPED_RING)
        return _WRAPPED_RING
    return None


def _read_records(contents, num_experts: int) -> tuple[np.ndarray, list[int]]:
    """Counts [passes, layers, experts] and the ids of the passes."""
    first_name, first = contents[0]
    key = "last_physical_to_logical_map"
    experts_of_slots = _whole_numbers(first_name, key, first.get(key), 2, -1, _MAX_EXPERTS - 1)
    layers, slots = experts_of_slots.shape
    experts = max(num_experts, int(experts_of_slots.max(initial=-1)) + 1)
    if experts == 0:
        raise ValueError(f"{first_name}: {key} has no expert")
    if experts > max(num_experts, slots):
        raise ValueError(f"{first_name}: {key} has expert {experts - 1} in {slots} slots")
    by_pass = _sum_by_pass(contents, experts_of_slots)
    ids = sorted(by_pass)
    by_slot = np.stack([by_pass[one] for one in ids])
    _check_sum(first_name, by_slot)
    empty = experts_of_slots < 0
    lost = by_slot[:, empty].sum()
    if lost > 0:
        raise ValueError(
            f"{first_name}: {lost} tokens went to slots that were empty at the end of the "
            "recording, so the placement changed in between and nobody knows their experts"
        )
    steps = np.zeros((len(ids), layers, experts), np.int64)
    for layer in range(layers):
        held = ~empty[layer]
        np.add.at(steps[:, layer].T, experts_of_slots[layer, held], by_slot[:, layer, held].T)
    return steps, ids


def _sum_by_pass(contents, experts_of_slots: np.ndarray) -> dict[int, np.ndarray]:
    """The counts [layers, slots] of each pass, summed over ranks and gatherers."""
    first_name = contents[0][0]
    by_pass: dict[int, np.ndarray] = {}
    seen = set()
    for name, content in contents:
        if not np.array_equal(content.get("last_physical_to_logical_map"), experts_of_slots):
            raise ValueError(
                f"{name} and {first_name} have different placements; read them one by one"
            )
        for record in _records(name, content):
            where = tuple(record.get(key) for key in ("forward_pass_id", "rank", "gatherer_key"))
            number = where[0]
            if type(number) is not int or not 0 <= number < 1 << 63:
                raise ValueError(f"{name}: pass {number}: forward_pass_id must be a number from 0")
            what = f"global_physical_count of pass {number}"
            counts = _whole_numbers(name, what, record.get("global_physical_count"), 2)
            if counts.shape != experts_of_slots.shape:
                raise ValueError(
                    f"{name}: pass {number} has counts {list(counts.shape)}, "
                    f"not {list(experts_of_slots.shape)}"
                )
            if where in seen:
                raise ValueError(
                    f"{name}: pass {number} of rank {where[1]}, gatherer {where[2]} "
                    "is there twice"
                )
            seen.add(where)
            _check_sum(name, counts)
            by_pass.setdefault(number, np.zeros(counts.shape, np.int64))
            by_pass[number] += counts
            _check_sum(name, by_pass[number])
    if not by_pass:
        raise ValueError(f"{first_name}: no records")
    return by_pass


def _records(name: str, content) -> list[dict]:
    records = content["records"]
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        raise ValueError(f"{name}: records is not a list of records")
    return records
