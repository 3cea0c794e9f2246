# SPDX-License-Identifier: Apache-2.0
"""Live balancing of a MoeRuntime: experts move between its ranks while it serves.

It is the balancer of `trimtab run --eplb dynamic` (docs/live.md), with its settings, its gate and
its metrics. The runtime's ranks share one copy of the weights, so a move copies nothing; what
balancing costs is the plan, which a thread in the background makes, and a new table of slots for
each layer that changes. The output does not change.
"""

from __future__ import annotations

import json
import logging

from ._core import MoeRuntime, RuntimeBalancer

__all__ = ["Balancer"]

_TROUBLE = ("failed", "late", "rolled back", "left out")

_logger = logging.getLogger("trimtab.balancer")


class Balancer(RuntimeBalancer):
    """Keeps the ranks of a runtime level.

    runtime: all of its layers; at the moment of the call their experts are placed anew, with the
        redundant ones.
    redundant: slots of each rank beside its share of the experts, which the planner fills with
        replicas.
    settings: the keys of docs/live.md, such as interval=64, policy="trim", preset="short",
        gate=False. Plans are made for the runtime's split rule, and in time where the runtime has
        a cost.

    Raises ValueError for values that are impossible. Call step() before each step, which is a pass
    through all layers. Any thread may, one at a time.
    """

    def __init__(self, runtime: MoeRuntime, *, redundant: int = 1, **settings):
        settings = {"split": runtime.split, **settings}
        super().__init__(runtime, json.dumps(settings), redundant)

    def step(self, phase: str = "decode", *, counts: bool = True) -> None:
        """Between two steps: the one before ends and one of this phase ("prefill" or "decode")
        begins; layers may take new places. counts: False when the step that ends was no load, such
        as a trial run. Never waits, unless use_async=False says so."""
        super().step(phase, counts)
        self._tell()

    def finish(self, *, counts: bool = True) -> None:
        """Ends the last step and the balancing; the metrics then count every step. step() raises
        ValueError afterwards."""
        super().finish(counts)
        self._tell()

    def _tell(self):
        for kind, text in self._take_events():
            if kind != "switched":
                _logger.log(logging.WARNING if kind in _TROUBLE else logging.INFO, "%s", text)
