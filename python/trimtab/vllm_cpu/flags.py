# SPDX-License-Identifier: Apache-2.0
"""The settings of Trimtab in vLLM: --additional-config '{"trimtab": {...}}'."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from .._core import weight_formats

_TYPES = {
    "enabled": bool,
    "experts": str,
    "require": bool,
    "dispatcher": str,
    "balancer": dict,
    "cost": str,
    "redundant": int,
    "placement": str,
    "record": str,
    "timeout": int,
}


@dataclass(frozen=True)
class Flags:
    """enabled: false leaves all experts to vLLM.

    experts: the format in which the experts' weights are kept: "auto" for that of the model, or a
        name of docs/checkpoints.md, such as "w8a8", "w4a8", "w4a8-g32".
    require: true makes an error of what Trimtab can't run, instead of leaving it to vLLM.
    dispatcher: how tokens come to experts of other ranks, a name of docs/dispatch.md or "auto".
    balancer: settings of docs/live.md, such as {"interval": 256}: experts move between ranks while
        they serve. Empty: they stay. --enable-eplb fills it in.
    cost: what an expert takes for a number of rows: "measure", "rows", or a file that `trimtab
        bench experts --cost-out` wrote. The balancer's split rule is then "time", unless its
        settings name another.
    redundant: slots of all ranks beyond one for each expert, for the balancer.
    placement: a file with the placement that the ranks begin with. Empty: experts in order.
    record: a file that gets the experts' load. Empty: none.
    timeout: the longest that a rank waits for its peers, in seconds. Ranks may take long to compile
        a model, not all as long.
    """

    enabled: bool = True
    experts: str = "auto"
    require: bool = False
    dispatcher: str = "auto"
    balancer: dict = field(default_factory=dict)
    cost: str = ""
    redundant: int = 0
    placement: str = ""
    record: str = ""
    timeout: int = 300

    @classmethod
    def of(cls, additional_config):
        """The settings in vLLM's additional_config. Raises ValueError for keys and values that
        can't be."""
        given = additional_config.get("trimtab") if isinstance(additional_config, dict) else None
        if given is None:
            return cls()
        if not isinstance(given, dict):
            raise ValueError(
                'additional_config["trimtab"] must be an object such as {"experts": "w4a8"}, not '
                f"{given!r}"
            )
        for key, value in given.items():
            if key not in _TYPES:
                near = difflib.get_close_matches(key, _TYPES, 1)
                hint = f"; is {near[0]} meant?" if near else "."
                raise ValueError(
                    f'additional_config["trimtab"] has no key {key!r}{hint} There are '
                    f"{', '.join(_TYPES)}"
                )
            if type(value) is not _TYPES[key]:
                raise ValueError(
                    f'additional_config["trimtab"]["{key}"] must be of type '
                    f"{_TYPES[key].__name__}, not {value!r}"
                )
        flags = cls(**given)
        if flags.placement and flags.redundant:
            raise ValueError(
                'additional_config["trimtab"]: a placement says how many slots there are; leave '
                "redundant (num_redundant_experts) out"
            )
        if flags.timeout < 1:
            raise ValueError(
                f'additional_config["trimtab"]["timeout"] must be at least 1, not {flags.timeout}'
            )
        formats = ["auto", *weight_formats()]
        if re.sub(r"-g[0-9]+$", "-gN", flags.experts) not in formats:
            raise ValueError(
                f'additional_config["trimtab"]["experts"] must be one of {", ".join(formats)}, not '
                f"{flags.experts!r}"
            )
        return flags


# Keys of vLLM's --eplb-config and what they are called among the balancer's settings.
_EPLB = {"step_interval": "interval", "use_async": "use_async"}


def take_eplb(arguments, off):
    """Turns vLLM's own balancer off in EngineArgs that enable it, and Trimtab's on with the same
    settings; those in additional_config come first. off: vLLM's EPLBConfig of when it is off.
    Raises ValueError where experts are not spread over ranks."""
    if not arguments.enable_eplb:
        return
    if not arguments.enable_expert_parallel:
        raise ValueError("--enable-eplb wants --enable-expert-parallel")
    given = arguments.eplb_config
    names = [*_EPLB, "num_redundant_experts"]
    values = {name: _value_of(given, name, getattr(off, name)) for name in names}
    settings = dict(arguments.additional_config.get("trimtab") or {})
    balancer = {ours: values[theirs] for theirs, ours in _EPLB.items()}
    settings["balancer"] = {**balancer, **settings.get("balancer", {})}
    settings.setdefault("redundant", values["num_redundant_experts"])
    arguments.additional_config = {**arguments.additional_config, "trimtab": settings}
    arguments.enable_eplb = False
    arguments.eplb_config = off


def _value_of(config, name, default):
    if isinstance(config, dict):
        return config.get(name, default)
    return getattr(config, name, default)
