# SPDX-License-Identifier: Apache-2.0
"""Notices when vLLM's balancer thread has died or makes no progress.

With asynchronous balancing a thread of each rank plans and moves weights. When it ends by an error
or waits for ever, vLLM serves on with the placement that it has, and says nothing more (vLLM issue
57883). The watchdog looks in every step, which costs microseconds, and says it once: in the log,
and in two gauges of prometheus_client where that is installed, `trimtab_eplb_worker_up` (1, or 0
when the thread is dead) and `trimtab_eplb_stalled_seconds` (how long a rearrangement that is under
way has made no progress), both with the rank as label.
"""

from __future__ import annotations

import logging
import time

STALL_SECONDS = 120.0

# Steps may be far apart when nobody asks anything; then time says nothing about the thread.
_MOST_BETWEEN_STEPS = 1.0

_gauges: dict[str, object] = {}  # by name: a registry takes each only once


class Watchdog:
    """Watches the EplbState of one process. stall_seconds: without progress for so long, it
    counts as stalled. clock: seconds, monotonic."""

    def __init__(self, stall_seconds: float, logger: logging.Logger, clock=time.monotonic):
        self._stall_seconds = stall_seconds
        self._logger = logger
        self._clock = clock
        self._progress: tuple = ()
        self._last_look: float | None = None
        self._waited = 0.0
        self.is_dead = False
        self.is_stalled = False

    def look(self, state) -> None:
        """To be called after every step. state: vLLM's EplbState."""
        now = self._clock()
        since = 0.0 if self._last_look is None else now - self._last_look
        self._last_look = now
        worker = getattr(state, "async_worker", None)
        if not state.is_async or worker is None:
            return
        if not worker.is_alive():
            self._died()
            return
        if self.is_dead:  # vLLM has started another one
            self.is_dead = False
            _gauge_of("up").set(1)
        self._watch_progress(state, since)

    def _died(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        _gauge_of("up").set(0)
        self._logger.error(
            "vLLM's balancer thread has died, so experts are no longer moved on this rank; the "
            "placement in use stays. Its error is further up in the log; a restart of vLLM starts "
            "the thread again"
        )

    def _watch_progress(self, state, since: float) -> None:
        models = state.model_states.values()
        progress = tuple((model.rebalanced, id(model.pending_result)) for model in models)
        if progress != self._progress or not any(busy for busy, _ in progress):
            if self.is_stalled:
                self._logger.warning("vLLM's balancer goes on after %.0f s", self._waited)
            if self._waited > 0 or not self._progress:
                _gauge_of("up").set(1)
                _gauge_of("stalled").set(0)
            self._progress, self._waited, self.is_stalled = progress, 0.0, False
            return
        self._waited += min(since, _MOST_BETWEEN_STEPS)
        if self._waited < self._stall_seconds:
            return
        _gauge_of("stalled").set(self._waited)
        if self.is_stalled:
            return
        self.is_stalled = True
        overdue = state.expert_rearrangement_step - state.expert_rearrangement_step_interval
        self._logger.error(
            "vLLM's balancer has made no progress for %.0f s of serving: a rearrangement is under "
            "way, %s, and the next one is %s. Experts stay where they are; a restart of vLLM "
            "starts afresh",
            self._waited,
            "a layer waits to be taken over by all ranks"
            if any(model.pending_result is not None for model in models)
            else "no layer is ready",
            f"{overdue} steps overdue" if overdue >= 0 else f"due in {-overdue} steps",
        )


class _Unseen:
    """Takes the place of a gauge where prometheus_client is not installed."""

    def set(self, value: float) -> None:
        pass


_GAUGES = {
    "up": (
        "trimtab_eplb_worker_up",
        "Whether the thread of vLLM that moves experts is alive (1) or dead (0).",
        "livemin",
    ),
    "stalled": (
        "trimtab_eplb_stalled_seconds",
        "Seconds of serving in which a rearrangement that is under way made no progress.",
        "livemax",
    ),
}


def _gauge_of(kind: str):
    if kind not in _gauges:
        name, text, mode = _GAUGES[kind]
        try:
            from prometheus_client import Gauge

            gauge = Gauge(name, text, ["rank"], multiprocess_mode=mode)
            _gauges[kind] = gauge.labels(rank=str(_rank()))
        except (ImportError, ValueError):
            _gauges[kind] = _Unseen()
    return _gauges[kind]


def _rank() -> int:
    import torch.distributed

    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if started else 0
