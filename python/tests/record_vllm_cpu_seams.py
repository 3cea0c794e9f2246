#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what the importable vLLM has of the names in trimtab.vllm_cpu.seams, with the parameters
of each: the form of vllm_cpu_seams.json, in which test_vllm_cpu_seams.py has it of releases."""

import json
import sys

from trimtab.vllm_cpu import seams


def recorded():
    """{module: {path: the parameters that Trimtab uses, or None for what it does not call}}"""
    return {
        module: {path: _parameters_or_none(module, path) for path in names}
        for module, names in seams.NAMES.items()
    }


def abstract_methods():
    """What vLLM wants a class of experts to define."""
    return sorted(seams.experts_base().__abstractmethods__)


def _parameters_or_none(module, path):
    there = seams.look_up(module, path)
    used = seams.NAMES[module][path]
    if used is None:
        return None
    return [name for name in seams.parameters(there) if name in used.split()]


if __name__ == "__main__":
    release = {"names": recorded(), "abstract": abstract_methods()}
    json.dump({seams.version(): release}, sys.stdout, indent=1)
    print()
