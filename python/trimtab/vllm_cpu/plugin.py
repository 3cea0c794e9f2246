# SPDX-License-Identifier: Apache-2.0
"""The entry point `vllm.general_plugins` of Trimtab's experts: vLLM calls register() in each of its
processes, before it looks at its configuration."""

from __future__ import annotations

from . import metrics, seams
from .flags import Flags, take_eplb


def register():
    """Puts Trimtab's experts first where vLLM runs on a CPU. May be called any number of times. In
    a vLLM that lacks what Trimtab uses it says so in the log and changes nothing else."""
    try:
        if not seams.is_cpu():
            return
    except (ImportError, AttributeError):
        return
    if found := seams.problems():
        reason = f"Trimtab does not run the experts of vLLM {seams.version()}: {found[0]}"
        seams.logger.warning(reason)
        _require_nothing(reason)
        return
    from . import experts

    seams.before_engine_config(_check)
    seams.put_first(experts.make_class)
    seams.keep_tokens()


def _check(arguments):
    """Takes --enable-eplb over. Raises ValueError for settings that can't be, at the start of an
    engine."""
    if Flags.of(arguments.additional_config).enabled:
        take_eplb(arguments, seams.without_eplb())
        if Flags.of(arguments.additional_config).balancer:
            metrics.offer()


def _require_nothing(reason):
    """In a vLLM that Trimtab can't run in: an engine that requires Trimtab does not start."""

    def check(arguments):
        if Flags.of(arguments.additional_config).require:
            raise ValueError(f'{reason}; additional_config["trimtab"]["require"] is true')

    try:
        seams.before_engine_config(check)
    except (ImportError, AttributeError):
        return
