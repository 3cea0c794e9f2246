# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks of an engine add up their loads, and compare the placements that they have
planned.

Each rank of vLLM and SGLang plans by itself, and all must take the same placement: with different
ones they send tokens to the wrong experts. A rank plans otherwise than the rest when an environment
variable, a file or a package differs on its host, or when it fails. So a plan is used only when all
ranks have the same one.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import logging
from collections.abc import Sequence

import numpy as np

# A rank without the plug-in never answers. The others wait this long, once, and from then on leave
# the planning to the engine.
TIMEOUT = datetime.timedelta(seconds=60)

_DIGEST_BYTES = 32

# The process group of each set of ranks, None for ranks that could not be brought together.
_process_groups: dict[tuple, object | None] = {}


def ranks_of_engine(
    parallel_state: str, getters: Sequence[str], num_ranks: int
) -> list[int] | None:
    """The ranks that plan together, by their numbers in torch.distributed.

    parallel_state: the engine's module that has its groups. getters: functions of it that return a
        group with `ranks`; the first one that this release has is asked.
    num_ranks: all ranks of torch.distributed are meant where the engine has no group, if there are
        as many.

    Returns None when nobody knows.
    """
    import torch.distributed

    try:
        groups = importlib.import_module(parallel_state)
    except ImportError:
        groups = None
    for getter in getters:
        try:
            return list(getattr(groups, getter)().ranks)
        except (AttributeError, AssertionError):  # an older release, or the group is not made yet
            continue
    if _started() and torch.distributed.get_world_size() == num_ranks:
        return list(range(num_ranks))
    return None


def all_have(
    physical_to_logical: np.ndarray | None, ranks: Sequence[int] | None, logger: logging.Logger
) -> bool:
    """Whether every rank has the same placement. All ranks must call it equally often.

    physical_to_logical: integers [layers, slots] that this rank has planned. None when it has no
        plan: then the answer is False on all ranks.
    ranks: as ranks_of_engine() returns them.
    logger: gets the reason when the answer is False.

    Where torch.distributed was not started there is nobody to compare with.
    """
    if not _started() or (ranks is not None and len(ranks) == 1):
        return physical_to_logical is not None
    if ranks is None:
        logger.error("the ranks that plan together are not known; the engine's own plan is used")
        return False
    try:
        digests = _gather(_digest(physical_to_logical), tuple(ranks))
    except Exception:
        _process_groups[_key(ranks)] = None
        logger.exception("ranks %s can't compare their plans; the engine's own is used", ranks)
        return False
    without = [rank for rank, digest in zip(ranks, digests) if not any(digest)]
    if without:
        level = logging.DEBUG if len(without) == len(ranks) else logging.ERROR
        logger.log(level, "ranks %s have no plan; all ranks use the engine's own", without)
        return False
    others = [rank for rank, digest in zip(ranks, digests) if digest != digests[0]]
    if others:
        logger.error(
            "ranks %s have planned otherwise than rank %d, so all ranks use the engine's own plan; "
            "are the variables TRIMTAB_EPLB_..., files and packages the same on all hosts?",
            *(others, ranks[0]),
        )
    return not others


def sum_over_ranks(
    tokens: np.ndarray | None, ranks: Sequence[int] | None, logger: logging.Logger
) -> np.ndarray | None:
    """The sum of what all ranks bring, the same on each of them. All ranks must call it equally
    often, and before all_have().

    tokens: int64, of one shape on all ranks; None when this rank has none.
    ranks: as ranks_of_engine() returns them. logger: gets the reason where there is no sum.

    Returns None on all ranks when one of them has none, or another shape.
    """
    if not _started() or (ranks is not None and len(ranks) == 1):
        return tokens
    if ranks is None:
        return None
    try:
        # The shape alone, so that no rank waits for tokens that another does not have.
        shape = None if tokens is None else np.array(tokens.shape)
        shapes = _gather(_digest(shape), tuple(ranks))
        if any(one != shapes[0] for one in shapes):
            logger.error("ranks %s have loads of different shapes, so only sums are used", ranks)
        if not any(shapes[0]) or any(one != shapes[0] for one in shapes):
            return None
        return _all_reduce(tokens, tuple(ranks))
    except Exception:
        _process_groups[_key(ranks)] = None
        logger.exception("ranks %s can't add up their loads; only sums are used", ranks)
        return None


def _started() -> bool:
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _digest(physical_to_logical: np.ndarray | None) -> bytes:
    """Zeros when there is no plan."""
    if physical_to_logical is None:
        return bytes(_DIGEST_BYTES)
    table = np.ascontiguousarray(physical_to_logical, np.int64)
    return hashlib.sha256(repr(table.shape).encode() + table.tobytes()).digest()


def _key(ranks: Sequence[int]) -> tuple:
    import torch.distributed

    return (id(torch.distributed.group.WORLD), *ranks)


def _all_reduce(tokens: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
    import torch
    import torch.distributed

    total = torch.from_numpy(np.array(tokens, np.int64))
    torch.distributed.all_reduce(total, group=_group(ranks))
    return total.numpy()


def _gather(digest: bytes, ranks: tuple[int, ...]) -> list[list[int]]:
    """The digests of the ranks, in their order."""
    import torch
    import torch.distributed

    group = _group(ranks)
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    digests = [torch.empty_like(mine) for _ in ranks]
    torch.distributed.all_gather(digests, mine, group=group)
    return [one.tolist() for one in digests]


def _group(ranks: tuple[int, ...]):
    """The process group of these ranks. Raises RuntimeError when they could not be brought together
    before."""
    import torch.distributed

    if _key(ranks) not in _process_groups:
        # A group of our own: the engine may use its groups in another thread at the same time, and
        # ranks would take one collective for another.
        _process_groups[_key(ranks)] = torch.distributed.new_group(
            list(ranks), timeout=TIMEOUT, backend="gloo", use_local_synchronization=True
        )
    group = _process_groups[_key(ranks)]
    if group is None:
        raise RuntimeError("these ranks could not be brought together before")
    return group
