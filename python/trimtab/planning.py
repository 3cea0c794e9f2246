# SPDX-License-Identifier: Apache-2.0
"""From recorded loads to placements: loads, placements, policies, plans, and sharing tokens out
over replicas."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence

from ._core import (
    CostModel,
    History,
    Load,
    Placement,
    Plan,
    Policy,
    SplitTable,
    default_placement,
    even_nodes,
    is_worth_planning,
    make_policy,
    noise_floor,
    par,
    par_per_step,
    policy_names,
)
from .formats import PlacementFile, Recording

if typing.TYPE_CHECKING:
    import numpy.typing

    Loads: typing.TypeAlias = Load | Recording | numpy.typing.ArrayLike

__all__ = [
    "CostModel",
    "History",
    "Load",
    "Placement",
    "Plan",
    "Policy",
    "SplitTable",
    "default_placement",
    "even_nodes",
    "is_worth_planning",
    "make_policy",
    "noise_floor",
    "par",
    "par_per_step",
    "plan",
    "policy_names",
]


def plan(
    loads: Loads,
    current: Placement | PlacementFile | None = None,
    *,
    ranks: int | None = None,
    slots: int | None = None,
    policy: str | Policy = "trim",
    preset: str | None = None,
    time_budget_s: float | None = None,
    move_price: float | None = None,
    keep_slots: bool = True,
    split: str = "equal",
    cost: CostModel | None = None,
    nodes: int = 1,
    groups: int = 1,
    node_rules: Sequence[str] = (),
    max_moves_per_layer: int | None = None,
    max_receive_per_rank: int | None = None,
    max_layers: int | None = None,
    max_bytes: int | None = None,
    expert_bytes: int = 0,
    history: History | None = None,
) -> Plan:
    """A better placement for these loads.

    loads: Load, Recording, or an int array [steps, layers, experts] or [layers, experts].
    current: what the engine runs now; only what pays moves. Without it give ranks and slots (of
        each rank, replicas included): the plan starts from the experts in order, replicas behind.
    policy: a name of policy_names(), or a Policy. preset (fast, balanced, deep), time_budget_s
        (seconds, about) and move_price (PAR that a move must gain) are options of trim; keep_slots
        of deepseek.
    split: the rule that will share tokens out over replicas: equal (each gets the same part,
        fractions included), static, round_robin, split or time. cost: what rows cost; time needs
        it, and with it loads are those of single steps.
    nodes: ranks are numbered node by node. groups: expert groups of the router, for deepseek and
        the rule groups. node_rules: what every layer keeps to on several nodes: groups (all
        replicas of a group's experts on one node), even (replicas spread evenly), all (each node
        has every expert). trim keeps to all of them, deepseek to groups, others raise.
    max_moves_per_layer, max_receive_per_rank (experts, in each layer), max_layers, max_bytes (needs
        expert_bytes, of one expert's weights): what the plan may cost.
    history: of the plan before (Plan.history); loads then holds only the steps since.

    Returns a Plan. The GIL is released, and Ctrl-C ends the call. Raises ValueError for sizes that
    do not fit, unknown names and options of another policy. How trim plans: docs/policies.md.
    """
    task = Task.of(
        loads,
        current,
        ranks=ranks,
        slots=slots,
        policy=policy,
        preset=preset,
        time_budget_s=time_budget_s,
        move_price=move_price,
        keep_slots=keep_slots,
        split=split,
        cost=cost,
        nodes=nodes,
        groups=groups,
        node_rules=node_rules,
        max_moves_per_layer=max_moves_per_layer,
        max_receive_per_rank=max_receive_per_rank,
        max_layers=max_layers,
        max_bytes=max_bytes,
        expert_bytes=expert_bytes,
    )
    return task.policy.rebalance(task.load, task.current, history=history, **task.settings)


@dataclasses.dataclass(frozen=True)
class Task:
    """What plan() and compare() hand to a policy: their arguments, checked and in the words of
    Policy."""

    policy: Policy
    load: Load
    current: Placement
    settings: dict[str, typing.Any]

    @staticmethod
    def of(
        loads: Loads,
        current: Placement | PlacementFile | None,
        *,
        ranks: int | None = None,
        slots: int | None = None,
        policy: str | Policy = "trim",
        preset: str | None = None,
        time_budget_s: float | None = None,
        move_price: float | None = None,
        keep_slots: bool = True,
        split: str = "equal",
        cost: CostModel | None = None,
        nodes: int = 1,
        groups: int = 1,
        node_rules: Sequence[str] = (),
        **limits: int | None,
    ) -> Task:
        """Raises ValueError as plan()."""
        load, names = load_and_names(loads)
        if current is None:
            if ranks is None or slots is None:
                raise ValueError(
                    "give current, the placement in use, or ranks and slots (of each rank)"
                )
            current = default_placement(load.num_layers, load.num_experts, [slots] * ranks)
        else:
            if isinstance(current, PlacementFile):
                names.setdefault("layer_ids", current.layer_ids)
                current = current.placement
            _check_ranks(current, ranks, slots)
        return Task(
            policy=_policy(policy, preset, time_budget_s, move_price, keep_slots),
            load=load,
            current=current,
            settings={
                "split": split,
                "cost": cost,
                "node_of_rank": even_nodes(current.num_ranks, nodes) if nodes != 1 else None,
                "num_groups": groups,
                "node_rules": node_rules,
                **limits,
                **names,
            },
        )


def load_and_names(loads: Loads) -> tuple[Load, dict[str, Sequence[int]]]:
    """Any form of loads as a Load, with the numbers of its layers and steps where they are
    known."""
    if isinstance(loads, Recording):
        return loads.load, {"layer_ids": loads.layer_ids, "step_ids": loads.step_ids}
    return loads if isinstance(loads, Load) else Load(loads), {}


def _check_ranks(current: Placement, ranks: int | None, slots: int | None) -> None:
    if ranks is not None and ranks != current.num_ranks:
        raise ValueError(
            f"ranks is {ranks}, and the current placement has {current.num_ranks}; "
            "a plan keeps them"
        )
    if slots is not None and any(of_rank != slots for of_rank in current.slots_per_rank):
        raise ValueError(
            f"slots is {slots}, and the current placement has {current.slots_per_rank}; "
            "a plan keeps them"
        )


def _policy(policy, preset, time_budget_s, move_price, keep_slots) -> Policy:
    if not isinstance(policy, Policy):
        return make_policy(
            policy,
            preset=preset,
            time_budget_s=time_budget_s,
            move_price=move_price,
            keep_slots=keep_slots,
        )
    given = {
        "preset": preset is not None,
        "time_budget_s": time_budget_s is not None,
        "move_price": move_price is not None,
        "keep_slots": not keep_slots,
    }
    for option, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{option}: policy is a Policy ({policy.name}), which was made with its own"
            )
    return policy
