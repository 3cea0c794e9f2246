# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins for vLLM and SGLang share: settings from the environment, and a plan as the
maps that engines keep.

An engine calls its planner on every rank and expects the same map from each, so nothing here
depends on the machine, on earlier calls or on time: there is no time budget to set.
"""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np

from trimtab.planning import (
    History,
    Load,
    Placement,
    Plan,
    default_placement,
    make_policy,
    plan,
    policy_names,
)

_PREFIX = "TRIMTAB_EPLB_"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an engine's plans are made, from variables of the environment. Each field is the variable
    TRIMTAB_EPLB_ and its name in capitals; docs/python.md has the list."""

    policy: str = "trim"  # "off": the engine's own planner stays
    preset: str | None = None  # of trim: fast, balanced, deep
    move_price: float | None = None  # of trim: PAR that a move must gain
    max_moves_per_layer: int | None = None
    max_receive_per_rank: int | None = None  # in one layer
    max_layers: int | None = None  # that change
    record: str | None = None  # vLLM: a file to which the loads of every replanning are appended
    record_steps: int | None = None  # vLLM: at most so many records for each; 16 without it
    placement: str | None = None  # vLLM: a file, used from the start
    stall_seconds: float | None = None  # vLLM: when its thread counts as stalled; 120 without it

    @staticmethod
    def from_environment(environment: dict[str, str] | None = None) -> Settings:
        """Raises ValueError, naming the variable, for values out of range and for names that are
        none of these."""
        environment = dict(os.environ) if environment is None else environment
        given = {
            name: text for name, text in environment.items() if name.startswith(_PREFIX) and text
        }
        values = {}
        for field in dataclasses.fields(Settings):
            text = given.pop(_PREFIX + field.name.upper(), None)
            if text is not None:
                values[field.name] = _parse(_PREFIX + field.name.upper(), text, field.type)
        if given:
            known = ", ".join(
                _PREFIX + field.name.upper() for field in dataclasses.fields(Settings)
            )
            raise ValueError(f"{', '.join(sorted(given))}: no such setting; there are {known}")
        settings = Settings(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        known = ("off", *policy_names())
        if self.policy not in known:
            raise ValueError(f"{_PREFIX}POLICY={self.policy}: there are {', '.join(known)}")
        if self.record_steps is not None and not self.record:
            raise ValueError(
                f"{_PREFIX}RECORD_STEPS: {_PREFIX}RECORD is not set, so it has no effect"
            )
        for name in ("preset", "move_price"):
            if getattr(self, name) is None:
                continue
            if self.policy == "off":
                raise ValueError(
                    f"{_PREFIX}{name.upper()}: {_PREFIX}POLICY is off, so it has no effect"
                )
            try:
                make_policy(self.policy, **{name: getattr(self, name)})
            except ValueError as error:
                raise ValueError(
                    f"{_PREFIX}{name.upper()}={getattr(self, name)}: {error}"
                ) from None

    def plan(
        self,
        load: Load,
        current: Placement,
        num_nodes: int,
        num_groups: int,
        history: History | None = None,
    ) -> Plan:
        return plan(
            load,
            current,
            history=history,
            policy=self.policy,
            preset=self.preset,
            move_price=self.move_price,
            nodes=num_nodes,
            groups=num_groups,
            max_moves_per_layer=self.max_moves_per_layer,
            max_receive_per_rank=self.max_receive_per_rank,
            max_layers=self.max_layers,
        )


def _parse(variable: str, text: str, kind: str):
    if kind.startswith("str"):
        return text
    convert = int if kind.startswith("int") else float
    try:
        value = convert(text)
    except ValueError:
        raise ValueError(
            f"{variable}={text}: not {'a whole number' if convert is int else 'a number'}"
        ) from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{variable}={text}: must be 0 or more")
    return value


def whole_tokens(tokens: np.ndarray) -> np.ndarray:
    """Loads of any type as whole numbers; those that are integers stay as they are. Fractions
    (rates, shares) are scaled so that rounding does not matter."""
    if tokens.dtype.kind in "iu":
        return tokens
    if tokens.dtype.kind == "b":
        return tokens.astype(np.int64)
    tokens = tokens.astype(np.float64)
    if not np.isfinite(tokens).all():
        raise ValueError("a load is not a finite number")
    if (tokens != np.rint(tokens)).any():
        tokens = tokens * (2.0**32 / np.abs(tokens).max())
    return np.rint(tokens).astype(np.int64)


def current_placement(
    old: np.ndarray | None, num_layers: int, num_experts: int, num_ranks: int, slots: int
) -> Placement:
    """The map in use as a Placement of num_ranks x slots a rank; old: [layers, slots] or None.

    Ranks come and go in elastic engines, and slots may be empty (-1). Then ranks are taken in
    order, as far as they are; experts that are nowhere get empty slots first, then those of
    replicas; what is still empty gets replicas in the order of the experts.
    """
    total = num_ranks * slots
    if old is None:
        return default_placement(num_layers, num_experts, [slots] * num_ranks)
    if old.ndim != 2 or old.shape[0] != num_layers:
        raise ValueError(f"the map in use is {list(old.shape)}, not [{num_layers} layers, slots]")
    logical = np.full((num_layers, total), -1, np.int32)
    kept = min(total, old.shape[1])
    logical[:, :kept] = old[:, :kept]
    if logical.max(initial=0) >= num_experts or logical.min(initial=0) < -1:
        wrong = logical[(logical >= num_experts) | (logical < -1)][0]
        raise ValueError(f"the map in use has expert {wrong} of {num_experts}")
    there = np.zeros((num_layers, num_experts + 1), bool)  # the last column: empty slots
    there[np.arange(num_layers)[:, None], logical] = True
    for layer in np.flatnonzero(there[:, -1] | ~there[:, :-1].all(axis=1)):
        _fill(logical[layer], num_experts)
    return Placement(logical, num_experts=num_experts, num_ranks=num_ranks)


def _fill(row: np.ndarray, num_experts: int) -> None:
    copies = np.bincount(row[row >= 0], minlength=num_experts)
    missing = np.flatnonzero(copies == 0)
    places = list(np.flatnonzero(row < 0))
    for slot in reversed(range(row.size)):
        if len(places) >= missing.size:
            break
        if row[slot] >= 0 and copies[row[slot]] > 1:
            copies[row[slot]] -= 1
            places.append(slot)
    if len(places) < missing.size:
        raise ValueError(f"{row.size} slots are too few for {num_experts} experts")
    row[places[: missing.size]] = missing
    for i, slot in enumerate(places[missing.size :]):
        row[slot] = i % num_experts


def replica_tables(
    physical_to_logical: np.ndarray,
    num_experts: int,
    width: int = 0,
    used: np.ndarray | None = None,
):
    """physical_to_logical: [layers, slots]. Returns logical_to_physical [layers, experts, width],
    each expert's slots ascending, then -1, and the number of slots of each expert, [layers,
    experts]; int64. width 0: the most slots that an expert has. used: [slots], False for slots that
    hold nothing."""
    slots = np.arange(physical_to_logical.shape[1]) if used is None else np.flatnonzero(used)
    held = physical_to_logical[:, slots]
    layers = held.shape[0]
    order = np.argsort(held, axis=1, kind="stable")
    experts = np.take_along_axis(held, order, axis=1)
    count = np.zeros((layers, num_experts), np.int64)
    np.add.at(count, (np.arange(layers)[:, None], held), 1)
    first = np.cumsum(count, axis=1) - count
    replica = np.arange(slots.size) - np.take_along_axis(first, experts, axis=1)
    table = np.full((layers, num_experts, max(width, int(count.max(initial=0)))), -1, np.int64)
    table[np.arange(layers)[:, None], experts, replica] = slots[order]
    return table, count


def is_first_rank() -> bool:
    """For what one rank says for all. A plan must never depend on it."""
    import torch.distributed

    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
