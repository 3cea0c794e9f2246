# SPDX-License-Identifier: Apache-2.0
"""What policies are worth on a recording: each plans on a window and is measured on the next."""

from __future__ import annotations

import dataclasses
import html
import typing
from collections.abc import Sequence

from . import planning
from ._core import default_window
from .planning import Placement, Plan

if typing.TYPE_CHECKING:
    from .formats import PlacementFile
    from .planning import Loads


@dataclasses.dataclass(frozen=True)
class PolicyResult:
    """Of one policy; `trimtab replay --json` has the same keys."""

    policy: str
    # The PAR of a step in the window after a plan: mean over steps, windows and layers.
    par_next_mean: float
    par_next_worst: float  # the worst step of any layer
    first_plan_moves: int  # all layers
    moves_per_layer_per_replan: float  # mean over the later plans; 0 when there are none
    plan_seconds_per_replan: float
    plans: tuple[Plan, ...] = dataclasses.field(repr=False)
    # With cost: the same in time, and the time of a step's busiest rank, all layers together.
    par_time_next_mean: float | None = None
    step_seconds_next_mean: float | None = None


_COLUMNS = {
    "policy": ("policy", "{}"),
    "par_next_mean": ("PAR of a step", "{:.4f}"),
    "par_next_worst": ("worst", "{:.4f}"),
    "first_plan_moves": ("first moves", "{}"),
    "moves_per_layer_per_replan": ("moves a layer, replan", "{:.2f}"),
    "plan_seconds_per_replan": ("seconds a replan", "{:.4f}"),
}


class Comparison(dict[str, PolicyResult]):
    """PolicyResult by name of the policy. Prints as a table, in a notebook too."""

    def _table(self) -> list[list[str]]:
        return [
            [form.format(getattr(result, key)) for key, (_, form) in _COLUMNS.items()]
            for result in self.values()
        ]

    def __repr__(self) -> str:
        rows = [[label for label, _ in _COLUMNS.values()], *self._table()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(row, widths))
            )
            for row in rows
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(label)}</th>" for label, _ in _COLUMNS.values())
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._table()
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>Each plan is "
            "made on one window and measured on the next; PAR (peak-to-average rank load, 1 is "
            "level) is the mean over steps, windows and layers.</p>"
        )


def compare(
    loads: Loads,
    current: Placement | PlacementFile | None = None,
    *,
    window: int | None = None,
    split: str = "equal",
    policies: Sequence[str] = ("trim", "deepseek", "static"),
    options: dict[str, dict[str, typing.Any]] | None = None,
    **common: typing.Any,
) -> Comparison:
    """Replays a recording: every policy plans on each window of steps, from its own last placement
    and with what it remembers, and is measured on the window after.

    loads, current: as in plan(). window: steps; an eighth of all when left out. split: the rule
    that plans are made for and windows measured with: equal, static, round_robin, split or
    time. policies: names of policy_names(). options: by policy, what plan() takes for it alone,
    e.g. {"trim": {"preset": "fast"}}. common: what plan() takes for all: ranks, slots, nodes,
    cost, limits.

    Returns a Comparison, in the order of policies. Raises ValueError as plan(), and when two
    windows do not fit.
    """
    unknown = set(options or {}) - set(policies)
    if unknown:
        raise ValueError(
            f"options for {', '.join(sorted(unknown))}, and the policies are {', '.join(policies)}"
        )
    return Comparison(
        {
            name: _replay(
                name, loads, current, window, split, {**common, **(options or {}).get(name, {})}
            )
            for name in policies
        }
    )


def _replay(
    name: str,
    loads: Loads,
    current,
    window: int | None,
    split: str,
    arguments: dict[str, typing.Any],
) -> PolicyResult:
    task = planning.Task.of(loads, current, policy=name, split=split, **arguments)
    window = default_window(task.load) if window is None else window
    figures, plans = task.policy.replay(task.load, task.current, window=window, **task.settings)
    return PolicyResult(policy=name, plans=tuple(plans), **figures)
