# SPDX-License-Identifier: Apache-2.0
"""The settings of Trimtab in vLLM: --additional-config '{"trimtab": {...}}'."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

_FORMATS = ("auto", "f32", "bf16", "f16", "w8a8", "w4a8", "mxfp8", "fp8", "mxfp4")


@dataclass(frozen=True)
class Flags:
    """enabled: false leaves all experts to vLLM.

    experts: the format in which the experts' weights are kept: "auto" for that of the model, or a
        name of docs/checkpoints.md, such as "w8a8", "w4a8", "w4a8-g32".
    require: true makes an error of what Trimtab can't run, instead of leaving it to vLLM.
    """

    enabled: bool = True
    experts: str = "auto"
    require: bool = False

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
        known = {field.name: type(field.default) for field in fields(cls)}
        for key, value in given.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; is {near[0]} meant?" if near else ""
                raise ValueError(
                    f'additional_config["trimtab"] has no key {key!r}{hint} There are '
                    f"{', '.join(known)}"
                )
            if type(value) is not known[key]:
                raise ValueError(
                    f'additional_config["trimtab"]["{key}"] must be of type {known[key].__name__}, '
                    f"not {value!r}"
                )
        flags = cls(**given)
        if flags.experts not in _FORMATS and not flags.experts.startswith("w4a8-"):
            raise ValueError(
                f'additional_config["trimtab"]["experts"] must be one of {", ".join(_FORMATS)}, or '
                f"w4a8-gN, not {flags.experts!r}"
            )
        return flags
