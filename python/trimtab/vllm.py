# SPDX-License-Identifier: Apache-2.0
"""Trimtab's planner in vLLM: the entry point `vllm.general_plugins`.

vLLM looks its balancing policy up in vllm.distributed.eplb.policy.EPLB_POLICIES (0.14 and newer).
register() puts Trimtab's there as "default", so all options, --eplb-config and asynchronous
balancing included, stay as they are. Environment variables say how it plans:
trimtab.live_planning.Settings. VLLM_PLUGINS and TRIMTAB_EPLB_POLICY=off leave vLLM's own.
"""

from __future__ import annotations

import inspect
import logging

import numpy as np

from trimtab import live_planning, rank_agreement
from trimtab.formats import read_placement
from trimtab.planning import Load
from trimtab.vllm_recorder import VllmRecorder

logger = logging.getLogger("vllm.trimtab")  # vLLM shows its own loggers only


def register() -> None:
    """Puts Trimtab's policy into vLLM. May be called any number of times, in every process. In a
    vLLM that is too old it says so in the log and changes nothing. Raises ValueError for settings
    that can't be (see Settings)."""
    settings = live_planning.Settings.from_environment()
    if settings.policy == "off" and not settings.record and not settings.placement:
        return
    try:
        from vllm.distributed.eplb import policy as policies

        own = policies.EPLB_POLICIES["default"]
        inspect.signature(own.rebalance_experts).parameters["old_global_expert_indices"]
    except (ImportError, AttributeError, KeyError) as error:
        logger.warning(
            "Trimtab does not plan in this vLLM, but does in 0.14 and newer: there is no %s", error
        )
        return
    if not getattr(own, "is_trimtab", False):
        policies.EPLB_POLICIES["default"] = make_policy(policies.AbstractEplbPolicy, own, settings)
        logger.debug("Trimtab plans expert placements: %s", settings)


def make_policy(base: type, own: type, settings: live_planning.Settings) -> type:
    """A policy class for vLLM. base: vLLM's AbstractEplbPolicy. own: vLLM's default policy, which
    plans where Trimtab can't, and shows what this release wants returned."""
    returns_tables = _returns_tables(own)
    planner = _Planner(settings)

    class TrimtabEplbPolicy(base):
        is_trimtab = True
        vllm_policy = own

        @classmethod
        def rebalance_experts(
            cls,
            weight,
            num_replicas,
            num_groups,
            num_nodes,
            num_ranks,
            old_global_expert_indices=None,
        ):
            """A placement for these loads, as vLLM's AbstractEplbPolicy says.

            weight: tensor [layers, experts], tokens of each logical expert. num_replicas: slots of
            all ranks, a multiple of num_ranks. num_groups: expert groups, which only the policy
            deepseek heeds. num_nodes: ranks are numbered node by node. old_global_expert_indices:
            tensor [layers, slots], the placement in use; experts that stay on their rank stay in
            their slot.

            Returns physical_to_logical_map, int64 [layers, num_replicas] on weight's device; up to
            vLLM 0.18 also logical_to_physical_map [layers, experts, redundant + 1], -1 behind each
            expert's slots, and the number of slots of each expert. All ranks get the same: a plan
            of Trimtab is used when every rank has made it, else all ranks use vLLM's own.
            """
            import torch

            arguments = (
                *(weight, num_replicas, num_groups, num_nodes, num_ranks),
                old_global_expert_indices,
            )
            try:
                physical_to_logical = planner.plan(*arguments)
            except Exception:
                logger.exception("Trimtab could not plan; vLLM's own policy does")
                physical_to_logical = None
            ranks = rank_agreement.ranks_of_engine(
                "vllm.distributed.parallel_state", ("get_eplb_group", "get_ep_group"), num_ranks
            )
            if not rank_agreement.all_have(physical_to_logical, ranks, logger):
                return own.rebalance_experts(*arguments)
            tables = [physical_to_logical]
            if returns_tables:
                num_experts = weight.shape[1]
                width = num_replicas - num_experts + 1
                tables += live_planning.replica_tables(physical_to_logical, num_experts, width)
            tensors = tuple(torch.from_numpy(table).to(weight.device) for table in tables)
            return tensors if returns_tables else tensors[0]

    return TrimtabEplbPolicy


def _returns_tables(own: type) -> bool:
    """Whether this vLLM's policies return three tensors, not one."""
    import torch

    return isinstance(own.rebalance_experts(torch.ones(1, 2), 2, 1, 1, 1), tuple)


class _Planner:
    """Makes the placements of one rank, and records the loads where that was asked for."""

    def __init__(self, settings: live_planning.Settings):
        self._settings = settings
        self._fixed = _PlacementFromFile(settings.placement) if settings.placement else None
        self._recorder = VllmRecorder(settings.record, logger) if settings.record else None

    def plan(
        self, weight, num_replicas, num_groups, num_nodes, num_ranks, old
    ) -> np.ndarray | None:
        """int64 [layers, slots], or None when vLLM's own policy is to plan. The arguments are those
        of rebalance_experts()."""
        load = Load(live_planning.whole_tokens(weight.cpu().numpy()))
        if self._recorder is not None:
            self._recorder.append(load)
        placement = self._fixed.get(load, num_replicas) if self._fixed is not None else None
        if placement is None and self._settings.policy == "off":
            return None
        if placement is None:
            slots = num_replicas // num_ranks
            current = live_planning.current_placement(
                None if old is None else old.cpu().numpy(),
                *(load.num_layers, load.num_experts, num_ranks, slots),
            )
            nodes = num_nodes if num_ranks % num_nodes == 0 else 1
            plan = self._settings.plan(load, current, nodes, num_groups)
            if live_planning.is_first_rank():
                logger.info("%s", plan)
            placement = plan.placement
        return placement.logical.astype(np.int64)


class _PlacementFromFile:
    """A placement from a file in place of plans, for models that it fits. The file is read at once,
    so that one which is missing or bad stops vLLM at its start."""

    def __init__(self, file: str):
        self._file = file
        try:
            self._placement = read_placement(file).placement
        except ValueError:  # the format may not state the ranks, and here they do not matter
            self._placement = read_placement(file, num_ranks=1).placement

    def get(self, load: Load, num_replicas: int):
        """The placement, or None for a model that it does not fit."""
        placement = self._placement
        wanted = (load.num_layers, load.num_experts, num_replicas)
        if (placement.num_layers, placement.num_experts, placement.num_slots) == wanted:
            return placement
        logger.warning(
            "%s has %d layers of %d experts in %d slots, the model %d of %d in %d: planned instead",
            *(self._file, placement.num_layers, placement.num_experts, placement.num_slots),
            *wanted,
        )
        return None
