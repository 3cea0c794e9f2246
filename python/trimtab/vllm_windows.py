# SPDX-License-Identifier: Apache-2.0
"""The loads of single steps in vLLM.

vLLM keeps `expert_load_window` [window, layers, slots] on every rank, but hands its policy the sum
over the window and the ranks alone. hook() wraps three methods of EplbState (vllm/distributed/eplb/
eplb_state.py, 0.14 and newer): step() so that every row of the window has the number of its step,
rearrange() so that the window is kept for the policy that is called next, in runs of steps, and
add_model() to learn which phase this engine serves. With them comes what else has to happen in
every step: the placement of a file at the start and the watchdog.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import numpy as np

logger = logging.getLogger("vllm.trimtab")


@dataclasses.dataclass
class StepNumbers:
    """The numbers of the steps of one EplbState, from 1 on. Steps are counted on all ranks alike,
    dummy steps too, which is what vLLM itself relies on."""

    count: int = 0
    of_row: dict[int, int] = dataclasses.field(default_factory=dict)  # row of the window -> step


class LoadWindows:
    """Keeps the windows of the last rearrangement until the policy asks for them.

    runs: at most so many runs of steps are kept apart. The sums of a run are taken where the window
    is; they come to the CPU when next_window() is called, which may be in another thread.
    """

    def __init__(self, runs: int):
        self._runs = runs
        self._waiting: list = []
        self._model = 0
        self.phase: str | None = None  # prefill or decode, where the engine serves only that

    def keep(self, state, steps: StepNumbers) -> None:
        """Takes the windows of all models of the state, as they are now."""
        self._waiting = [self._runs_of(model, steps) for model in state.model_states.values()]
        self._model = 0

    def drop(self) -> None:
        """There are no loads that count, for instance in a profile run."""
        self._waiting, self._model = [], 0

    def next_window(self, shape: tuple[int, int]) -> tuple[int | None, np.ndarray | None]:
        """The number of the model that the policy is called for, and the tokens of its runs on this
        rank: int64 [runs, layers, experts], oldest first. (None, None) where there is no window of
        this shape (layers, experts)."""
        if self._model >= len(self._waiting):
            return None, None
        model = self._model
        self._model += 1
        tokens, copied = self._waiting[model]
        self._waiting[model] = None
        if tuple(tokens.shape[1:]) != tuple(shape):
            return None, None
        if copied is not None:
            copied.synchronize()
        return model, tokens.cpu().numpy()

    def _runs_of(self, model, steps: StepNumbers):
        """(tokens [runs, layers, experts], an event that marks them as ready or None)."""
        import torch

        window = model.expert_load_window
        size = window.shape[0]
        runs = min(self._runs, size)
        mapping = model.physical_to_logical_map.long()
        experts = model.model.num_logical_experts
        # Slots without an expert (-1) go to a column behind the experts.
        mapping = torch.where(mapping < 0, experts, mapping)
        tokens = torch.zeros(
            (runs, mapping.shape[0], experts + 1), dtype=torch.int64, device=window.device
        )
        rows_of_run: dict[int, list[int]] = {}
        for row in range(size):
            rows_of_run.setdefault(_run_of(row, size, runs, steps), []).append(row)
        for run, rows in rows_of_run.items():
            tokens[run].scatter_add_(1, mapping, window[rows].sum(0))
        event = None
        if tokens.is_cuda:
            event = torch.cuda.Event()
            event.record()
        return tokens[..., :-1], event


def _run_of(row: int, size: int, runs: int, steps: StepNumbers) -> int:
    """Runs are cut by the numbers of steps, which are those of all ranks, and not by rows: a rank
    that had dummy steps has other steps in its rows. What is older than the window is in the first
    run."""
    step = steps.of_row.get(row, 0)
    place = step - (steps.count - size) - 1
    return min(max(place * runs // size, 0), runs - 1)


def hook(
    state_class: type,
    windows: LoadWindows,
    before_step: Callable[[object], None] = lambda state: None,
    after_step: Callable[[object], None] = lambda state: None,
) -> None:
    """Wraps those methods of vLLM's EplbState, once. before_step, after_step: called with
    the state in every step that is no profile run. What fails in here is logged once for each
    place, and vLLM goes on. Raises AttributeError where the class lacks one of the methods."""
    if getattr(state_class, "has_trimtab", False):
        return
    own_step, own_rearrange = state_class.step, state_class.rearrange
    own_add_model = state_class.add_model
    safely = _Safely()

    def steps_of(state) -> StepNumbers:
        if not hasattr(state, "trimtab_steps"):
            state.trimtab_steps = StepNumbers()
        return state.trimtab_steps

    def count(state, is_dummy: bool) -> None:
        steps = steps_of(state)
        steps.count += 1
        if not is_dummy:  # the row that this step is about to write, if it is recorded at all
            steps.of_row[state.expert_load_window_step] = steps.count

    def step(self, is_dummy=False, is_profile=False, *args, **kwargs):
        if is_profile:
            return own_step(self, is_dummy, is_profile, *args, **kwargs)
        safely.call(count, self, is_dummy)
        safely.call(before_step, self)
        result = own_step(self, is_dummy, is_profile, *args, **kwargs)
        safely.call(after_step, self)
        return result

    def keep(state) -> None:
        windows.drop()
        windows.keep(state, steps_of(state))

    def rearrange(self, is_profile=False, *args, **kwargs):
        # With more arguments the ranks change or old loads are used: the window says nothing then.
        if is_profile or any(args) or any(kwargs.values()):
            windows.drop()
        else:
            safely.call(keep, self)
        return own_rearrange(self, is_profile, *args, **kwargs)

    def add_model(self, *args, **kwargs):
        safely.call(learn_phase)
        return own_add_model(self, *args, **kwargs)

    def learn_phase() -> None:
        windows.phase = served_phase()

    state_class.step, state_class.rearrange = step, rearrange
    state_class.add_model = add_model
    state_class.has_trimtab = True


def served_phase() -> str | None:
    """prefill or decode in an engine that serves one of them, by the role that its kv_transfer has;
    None in one that serves both, and where vLLM has no configuration set. vLLM sets it while it
    loads a model."""
    from vllm.config import get_current_vllm_config

    try:
        transfer = get_current_vllm_config().kv_transfer_config
    except AssertionError:
        return None
    return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(
        getattr(transfer, "kv_role", None)
    )


class _Safely:
    """Calls what must never stop vLLM."""

    def __init__(self):
        self._failed: set[str] = set()

    def call(self, what, *args) -> None:
        try:
            what(*args)
        except Exception:
            name = getattr(what, "__qualname__", repr(what))
            if name not in self._failed:
                self._failed.add(name)
                logger.exception("Trimtab in vLLM: %s failed; vLLM goes on without it", name)
