# SPDX-License-Identifier: Apache-2.0
"""Trimtab's planner in vLLM: the entry point `vllm.general_plugins`.

vLLM looks its balancing policy up in vllm.distributed.eplb.policy.EPLB_POLICIES (0.14 and newer).
register() puts Trimtab's there as "default", so all options, --eplb-config and asynchronous
balancing included, stay as they are. It hooks EplbState as well (trimtab.vllm_windows), for the
loads of single steps, from which plans are made that are level in every step, not in the sum alone.
Environment variables say how it plans: trimtab.live_planning.Settings. VLLM_PLUGINS and
TRIMTAB_EPLB_POLICY=off leave vLLM's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging

import numpy as np

from trimtab import live_planning, rank_agreement
from trimtab.formats import read_placement
from trimtab.planning import History, Load
from trimtab.vllm_recorder import VllmRecorder
from trimtab.vllm_watchdog import STALL_SECONDS, Watchdog
from trimtab.vllm_windows import LoadWindows, hook

logger = logging.getLogger("vllm.trimtab")  # vLLM shows its own loggers only

# Runs of steps of a window that a plan tells apart. Ranks send each other so many times the loads
# of one step.
PLANNED_RUNS = 64
_EPLB_STATE = "vllm.distributed.eplb.eplb_state"


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
        ours = make_policy(policies.AbstractEplbPolicy, own, settings)
        policies.EPLB_POLICIES["default"] = ours
        hook_state(ours)
        logger.debug("Trimtab plans expert placements: %s", settings)


def hook_state(policy: type) -> None:
    """Hooks vLLM's EplbState for a policy that make_policy() has made. Where that is impossible the
    log says so, and plans are made from sums over the window, as vLLM hands them over."""
    planner = policy.planner
    try:
        state_class = importlib.import_module(_EPLB_STATE).EplbState
        hook(state_class, planner.windows, planner.before_step, planner.watchdog.look)
    except (ImportError, AttributeError) as error:
        logger.warning(
            "Trimtab sees no loads of single steps in this vLLM and plans from their sum: %s", error
        )


def make_policy(base: type, own: type, settings: live_planning.Settings) -> type:
    """A policy class for vLLM. base: vLLM's AbstractEplbPolicy. own: vLLM's default policy, which
    plans where Trimtab can't, and shows what this release wants returned."""
    returns_tables = _returns_tables(own)
    planner = _Planner(settings)

    class TrimtabEplbPolicy(base):
        is_trimtab = True
        vllm_policy = own
        planner = None  # the _Planner of this process, set below

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
            ranks = _planning_ranks(num_ranks)
            model, runs = planner.next_loads(weight, ranks)
            plan = None
            try:
                plan = planner.plan(model, runs, *arguments)
            except Exception:
                logger.exception("Trimtab could not plan; vLLM's own policy does")
            physical_to_logical = None if plan is None else plan.physical_to_logical
            agreed = rank_agreement.all_have(physical_to_logical, ranks, logger)
            planner.remember(model, plan if agreed else None)
            if not agreed:
                return own.rebalance_experts(*arguments)
            tables = [physical_to_logical]
            if returns_tables:
                num_experts = weight.shape[1]
                width = num_replicas - num_experts + 1
                tables += live_planning.replica_tables(physical_to_logical, num_experts, width)
            tensors = tuple(torch.from_numpy(table).to(weight.device) for table in tables)
            return tensors if returns_tables else tensors[0]

    TrimtabEplbPolicy.planner = planner
    return TrimtabEplbPolicy


def _planning_ranks(num_ranks: int) -> list[int] | None:
    return rank_agreement.ranks_of_engine(
        "vllm.distributed.parallel_state", ("get_eplb_group", "get_ep_group"), num_ranks
    )


def _returns_tables(own: type) -> bool:
    """Whether this vLLM's policies return three tensors, not one."""
    import torch

    return isinstance(own.rebalance_experts(torch.ones(1, 2), 2, 1, 1, 1), tuple)


@dataclasses.dataclass(frozen=True)
class _Planned:
    physical_to_logical: np.ndarray  # int64 [layers, slots]
    history: History | None  # for the next plan of the model


class _Planner:
    """Makes the placements of one rank, and records the loads where that was asked for.

    It remembers, for each model, the history that trim's last plan returned. All ranks have the
    same one: it comes from loads that were added up over the ranks and is kept only when all had
    the same plan.
    """

    def __init__(self, settings: live_planning.Settings):
        self._settings = settings
        self._fixed = _PlacementFromFile(settings.placement) if settings.placement else None
        records = 16 if settings.record_steps is None else max(1, settings.record_steps)
        self._recorder = (
            VllmRecorder(settings.record, logger, records) if settings.record else None
        )
        runs = max(PLANNED_RUNS, records) if settings.record else PLANNED_RUNS
        self.windows = LoadWindows(runs)
        stall = STALL_SECONDS if settings.stall_seconds is None else settings.stall_seconds
        self.watchdog = Watchdog(stall, logger)
        self._histories: dict[int, History] = {}
        self._sums_differ = False

    def next_loads(self, weight, ranks: list[int] | None) -> tuple[int | None, Load | None]:
        """The number of the model that is planned for, and its loads in runs of steps, added up
        over the ranks. (None, None) where there are none. Every rank calls it once for each plan.
        """
        try:
            model, tokens = self.windows.next_window(tuple(weight.shape))
        except Exception:
            logger.exception("Trimtab can't read the loads of steps and plans from their sum")
            model, tokens = None, None
        total = rank_agreement.sum_over_ranks(tokens, ranks, logger)
        if total is None or not total.any():
            return None, None
        if not np.array_equal(total.sum(axis=0), weight.cpu().numpy()):
            if not self._sums_differ:
                logger.warning(
                    "the loads of single steps do not add up to those that vLLM plans for, so the "
                    "plans are made from the latter"
                )
            self._sums_differ = True
            return None, None
        return model, Load(total[total.any(axis=(1, 2))])

    def plan(
        self, model, runs, weight, num_replicas, num_groups, num_nodes, num_ranks, old
    ) -> _Planned | None:
        """None when vLLM's own policy is to plan. model, runs: of next_loads(). The other arguments
        are those of rebalance_experts()."""
        load = Load(live_planning.whole_tokens(weight.cpu().numpy())) if runs is None else runs
        if self._recorder is not None:
            self._recorder.append(load, self.windows.phase)
        placement = self._fixed.get(load, num_replicas) if self._fixed is not None else None
        if placement is not None:
            return _Planned(placement.logical.astype(np.int64), None)
        if self._settings.policy == "off":
            return None
        slots = num_replicas // num_ranks
        current = live_planning.current_placement(
            None if old is None else old.cpu().numpy(),
            *(load.num_layers, load.num_experts, num_ranks, slots),
        )
        nodes = num_nodes if num_ranks % num_nodes == 0 else 1
        history = None if runs is None else self._histories.get(model)
        if history is not None and not _fits(history, load):
            history = None
        plan = self._settings.plan(load, current, nodes, num_groups, history)
        if live_planning.is_first_rank():
            logger.info("%s", plan)
        kept = plan.history if runs is not None else None
        return _Planned(plan.placement.logical.astype(np.int64), kept)

    def remember(self, model: int | None, plan: _Planned | None) -> None:
        """plan: None when the ranks did not agree on it."""
        if model is None:
            return
        if plan is None or plan.history is None:
            self._histories.pop(model, None)
        else:
            self._histories[model] = plan.history

    def forget(self) -> None:
        """Plans as if there had been no plan before."""
        self._histories.clear()

    def before_step(self, state) -> None:
        if self._fixed is not None:
            self._fixed.apply_at_start(state)


def _fits(history: History, load: Load) -> bool:
    episodes = history.episodes
    return (episodes.num_layers, episodes.num_experts) == (load.num_layers, load.num_experts)


class _PlacementFromFile:
    """A placement from a file in place of plans, for models that it fits. The file is read at once,
    so that one which is missing or bad stops vLLM at its start.

    vLLM loads its weights in an order of its own, so the placement comes by a rearrangement: the
    first step is made to end with one, on all ranks or on none.
    """

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

    def apply_at_start(self, state) -> None:
        """Before the first step of vLLM's EplbState, profile runs aside: lets that step end with a
        rearrangement, if all ranks have the same file and it fits a model."""
        if getattr(state, "trimtab_started", False) or not state.model_states:
            return
        state.trimtab_started = True
        shapes = []
        for model in state.model_states.values():
            layers, slots = model.physical_to_logical_map.shape
            shapes.append((layers, model.model.num_logical_experts, slots))
        placement = self._placement
        own = (placement.num_layers, placement.num_experts, placement.num_slots)
        ranks = _planning_ranks(placement.num_ranks)
        if rank_agreement.all_have(placement.logical if own in shapes else None, ranks, logger):
            state.expert_rearrangement_step = state.expert_rearrangement_step_interval - 1
            if live_planning.is_first_rank():
                logger.info("the first step brings the placement of %s", self._file)
