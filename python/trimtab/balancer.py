# SPDX-License-Identifier: Apache-2.0
"""Live balancing of a MoeRuntime: experts move between its ranks while it serves.

The runtime's ranks share one copy of the weights, so a move copies nothing; what balancing costs is
the plan, which a thread in the background makes with the GIL released, and a new table of slots for
each layer that changes. The output does not change. For ranks that own their weights there is the
C++ Balancer (docs/live.md).
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time

import numpy as np

from ._core import MoeRuntime
from .planning import Load, Policy, default_placement, is_worth_planning, par_per_step, plan

__all__ = ["Balancer"]

_MOST_PARTS = 32  # of a window

_logger = logging.getLogger("trimtab.balancer")


class Balancer:
    """Keeps the ranks of a runtime level.

    runtime: all of its layers; at the moment of the call their experts are placed anew, with the
        redundant ones.
    interval: steps (forward passes through all layers) of a window, at least 1.
    redundant: slots of each rank beside its share of the experts, which the planner fills with
        replicas.
    policy, options: of trimtab.plan. plan_above_par: windows whose PAR is above what chance alone
        leaves by no more than this less 1 are not planned on; 0: all are.
    deadline: seconds after which a plan that is not there is dropped.
    Plans are made for the runtime's split rule, where it is not static, and in time where the
        runtime has a cost.

    Raises ValueError for values that are impossible. Call step() before each step. Any thread may,
    one at a time.
    """

    def __init__(
        self,
        runtime: MoeRuntime,
        *,
        interval: int = 64,
        redundant: int = 1,
        policy: str | Policy = "trim",
        plan_above_par: float = 1.02,
        deadline: float = 30.0,
        **options,
    ):
        if interval < 1:
            raise ValueError(f"interval must be at least 1, not {interval}")
        if redundant < 0:
            raise ValueError(f"redundant must be 0 or more, not {redundant}")
        if not plan_above_par >= 0:
            raise ValueError(f"plan_above_par must be 0 or more, not {plan_above_par}")
        if not deadline > 0:
            raise ValueError(f"deadline must be above 0 seconds, not {deadline}")
        self.runtime = runtime
        self.interval = interval
        self.plan_above_par = plan_above_par
        self.deadline = deadline
        serving = {}
        if runtime.split != "static":
            serving = {"split": runtime.split, "cost": runtime.cost}
        self._options = {"policy": policy, **serving, **options}
        cost = self._options.get("cost")
        self._in_time = cost is not None and not cost.is_proportional
        ranks = runtime.ranks
        # Ranks have equally many slots: where ranks do not divide experts, more of them are
        # redundant.
        slots = -(-runtime.num_experts // ranks) + redundant
        self.placement = default_placement(runtime.num_layers, runtime.num_experts, [slots] * ranks)
        plan(
            np.ones((runtime.num_layers, runtime.num_experts), np.int64),
            self.placement,
            **self._options,
        )  # refuses
        for layer in range(runtime.num_layers):
            runtime.place(layer, self.placement.logical[layer])
        self._history = None
        self._num_parts = min(interval, _MOST_PARTS)
        self._begin_window()
        self._steps = -1  # done in the window; the first step() has none before it
        self._planning = None  # the future, when it began
        self._layers = []  # of the plan that is being carried out: (layer, slots)
        self._lock = threading.Lock()
        #: The rule that shares tokens out over replicas.
        self.split = runtime.split
        #: Plans applied, those that failed or were late, experts moved, seconds in the planner, PAR
        #: of the last window.
        self.replans = self.failed = self.late = self.moves = 0
        self.plan_seconds = 0.0
        self.par = 1.0

    def step(self) -> None:
        """Between two steps: one more layer takes its new places, or a window ends and is planned
        on. Never waits."""
        with self._lock:
            self._steps += 1
            if self._layers:
                self.runtime.place(*self._layers.pop(0))
            elif self._planning is not None:
                self._take_plan()
            else:
                self._record()

    def _record(self):
        # From its parts the planner sees what of a skew is chance.
        end = self.interval * (len(self._parts) + 1) // self._num_parts
        if self._in_time and self._steps == end - 1:
            self._before_last = np.asarray(self.runtime.load())
        if self._steps < end:
            return
        load = np.asarray(self.runtime.load())
        self._parts.append(load - self._seen)
        if self._in_time:
            self._single.append(load - self._before_last)
        self._seen = load
        # The next part's only step may begin now.
        self._before_last = load
        if len(self._parts) == self._num_parts:
            self._end_window()

    def _begin_window(self):
        self._steps = 0
        self._parts = []
        self._single = []  # the last step of each part, for costs: they are no sums
        self._before_last = self._seen = np.asarray(self.runtime.load())

    def _end_window(self):
        window = np.stack(self._parts)
        planned_on = np.stack(self._single) if self._in_time else window
        self._begin_window()
        if not window.any():
            return
        try:
            self.par = float(par_per_step(self.placement, Load(window.sum(0)))[0][0])
            plans = is_worth_planning(self.placement, Load(window), self.plan_above_par)
        except Exception as error:  # MoeRuntime.reset_load() within the window, say
            self.failed += 1
            _logger.warning("no plan: %s", error)
            return
        if plans:
            future = concurrent.futures.Future()
            # No executor's: the end of the program does not wait for a planner.
            threading.Thread(
                target=self._make_plan,
                args=(future, planned_on, self.placement),
                name="trimtab-plan",
                daemon=True,
            ).start()
            self._planning = future, time.monotonic()

    def _make_plan(self, future, window, current):
        begin = time.monotonic()
        try:
            made = plan(window, current, history=self._history, **self._options)
            future.set_result((made, time.monotonic() - begin))
        except BaseException as error:  # told by _take_plan
            future.set_exception(error)

    def _take_plan(self):
        future, begin = self._planning
        if not future.done():
            # A planner that does not come back is not asked again.
            if time.monotonic() - begin > self.deadline and not getattr(future, "given_up", False):
                future.given_up = True
                self.late += 1
                _logger.warning(
                    "a plan is not there after %.1f s and will be dropped", self.deadline
                )
            return
        self._planning = None
        self._begin_window()
        if getattr(future, "given_up", False):
            return
        try:
            made, seconds = future.result()
        except Exception as error:  # whatever a policy does, serving goes on
            self.failed += 1
            _logger.warning("no plan: %s", error)
            return
        self.plan_seconds += seconds
        self._history = made.history
        old, new = np.asarray(self.placement.logical), np.asarray(made.placement.logical)
        self._layers = [
            (layer, new[layer]) for layer in range(len(new)) if (new[layer] != old[layer]).any()
        ]
        if not self._layers:
            return
        self.placement = made.placement
        self.replans += 1
        self.moves += len(made.moves)
        _logger.info(
            "%d layers get new places, %d experts move", len(self._layers), len(made.moves)
        )
