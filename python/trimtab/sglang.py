# SPDX-License-Identifier: Apache-2.0
"""Trimtab's planner in SGLang: the entry point `sglang.srt.plugins`.

register() replaces sglang.srt.eplb.eplb_algorithms.rebalance_experts through SGLang's HookRegistry
(0.5.11 and newer have it). What calls it, and when, stays SGLang's: --enable-eplb while serving,
--init-expert-location with recorded loads at the start. Environment variables say how it plans:
trimtab.live_planning.Settings. SGLANG_PLUGINS and TRIMTAB_EPLB_POLICY=off leave SGLang's own.
"""

from __future__ import annotations

import logging
import pkgutil

import numpy as np

from trimtab import live_planning, rank_agreement
from trimtab.planning import Load, Plan

logger = logging.getLogger(__name__)

_hooked: set[type] = set()  # the registries that have the hook

TARGET = "sglang.srt.eplb.eplb_algorithms.rebalance_experts"


def register() -> None:
    """Registers the hook. May be called any number of times. Raises ValueError for settings that
    can't be (see Settings), ImportError where SGLang has no hooks."""
    settings = live_planning.Settings.from_environment()
    for name in ("record", "record_steps", "placement", "stall_seconds"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"TRIMTAB_EPLB_{name.upper()} is for vLLM; "
                "SGLang has a recorder and --init-expert-location"
            )
    if settings.policy == "off":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if HookRegistry not in _hooked:  # a second hook would be a warning in SGLang's log
        own = pkgutil.resolve_name(TARGET)  # applying the hook imports it too
        HookRegistry.register(TARGET, make_rebalance_experts(own, settings), HookType.REPLACE)
        _hooked.add(HookRegistry)


def make_rebalance_experts(own, settings: live_planning.Settings):
    """The function that replaces SGLang's of that name. own: SGLang's, which plans where Trimtab
    can't."""

    def rebalance_experts(
        tokens_per_expert,
        num_physical_experts,
        num_local_physical_experts,
        num_groups,
        num_nodes,
        algorithm,
    ):
        """A placement for these loads, as SGLang's function of this name.

        tokens_per_expert: tensor [steps, layers, experts], tokens of each logical expert.
        num_physical_experts: slots of all ranks, num_local_physical_experts those of one.
        num_groups: expert groups or None, which only the policy deepseek heeds. num_nodes: ranks
        are numbered node by node. algorithm: SGLang's EplbAlgorithm; those with elasticity_aware
        plan for the ranks that are alive, the slots of the others hold expert 0 and serve nobody.

        Returns int64 CPU tensors: physical_to_logical_map [layers, slots];
        logical_to_all_physical_map [layers, experts, X], -1 behind each expert's slots; the number
        of slots of each expert [layers, experts]. Starts from the placement that SGLang uses, where
        there is one, so that experts which stay on their rank stay in their slot. All ranks get the
        same: a plan of Trimtab is used when every rank has made it, else all use SGLang's own.
        """
        import torch

        num_ranks = num_physical_experts // num_local_physical_experts
        alive = np.ones(num_ranks, bool)
        physical_to_logical = None
        try:
            alive = _alive_ranks(algorithm, num_ranks)
            used = np.repeat(alive, num_local_physical_experts)
            tokens = live_planning.whole_tokens(tokens_per_expert.cpu().numpy())
            load = Load(_recorded_steps(tokens))
            nodes = num_nodes if alive.all() else 1
            plan = _plan(settings, load, used, int(alive.sum()), nodes, num_groups or 1)
            if live_planning.is_first_rank():
                logger.info("%s", plan)
            physical_to_logical = np.zeros((load.num_layers, num_physical_experts), np.int64)
            physical_to_logical[:, used] = plan.placement.logical
        except Exception:
            logger.exception("Trimtab could not plan; SGLang's own algorithm does")
        if not rank_agreement.all_have(physical_to_logical, _planning_ranks(alive), logger):
            return own(
                *(tokens_per_expert, num_physical_experts, num_local_physical_experts),
                *(num_groups, num_nodes, algorithm),
            )
        tables = live_planning.replica_tables(physical_to_logical, load.num_experts, used=used)
        return tuple(torch.from_numpy(one) for one in (physical_to_logical, *tables))

    return rebalance_experts


def _planning_ranks(alive: np.ndarray) -> list[int] | None:
    """The ranks of torch.distributed that plan now. alive: [ranks] of bool."""
    ranks = rank_agreement.ranks_of_engine(
        "sglang.srt.distributed.parallel_state", ("get_tp_group",), alive.size
    )
    if ranks is None or len(ranks) != alive.size:
        return ranks
    return [rank for rank, is_alive in zip(ranks, alive) if is_alive]


def _plan(
    settings, load: Load, used: np.ndarray, num_ranks: int, num_nodes: int, num_groups: int
) -> Plan:
    """used: [slots] of all ranks, True for those of ranks that are alive."""
    old = _map_in_use(load.num_layers, used.size)
    slots = int(used.sum()) // num_ranks
    current = live_planning.current_placement(
        None if old is None else old[:, used], load.num_layers, load.num_experts, num_ranks, slots
    )
    nodes = num_nodes if num_ranks % num_nodes == 0 else 1
    return settings.plan(load, current, nodes, num_groups)


def _recorded_steps(tokens: np.ndarray) -> np.ndarray:
    """Without the rows of SGLang's buffer that no step has filled yet. tokens: [steps, layers,
    experts]; a copy only where there are such rows."""
    # Most rows show it in their first layer, which is far less to read.
    filled = tokens[:, 0].any(axis=1)
    for step in np.flatnonzero(~filled):
        filled[step] = tokens[step].any()
    if filled.all():
        return tokens
    return tokens[filled] if filled.any() else tokens[:1]


def _alive_ranks(algorithm, num_ranks: int) -> np.ndarray:
    """[ranks] of bool."""
    if "elasticity_aware" in algorithm.name:
        from sglang.srt.elastic_ep.elastic_ep import ElasticEPStateManager

        state = ElasticEPStateManager.instance()
        ranks = ElasticEPStateManager.healthy_rank_state() if state is None else state.active_ranks
        return ranks.cpu().numpy().astype(bool)
    return np.ones(num_ranks, bool)


def _map_in_use(num_layers: int, num_slots: int) -> np.ndarray | None:
    """[layers, slots], or None: at the start, and after the number of ranks changed."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    metadata = get_global_expert_location_metadata()
    if metadata is None:
        return None
    in_use = metadata.physical_to_logical_map_cpu
    return in_use.numpy() if tuple(in_use.shape) == (num_layers, num_slots) else None
