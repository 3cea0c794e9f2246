# SPDX-License-Identifier: Apache-2.0
"""Writes what experts get while vLLM serves, for `trimtab plan`."""

from __future__ import annotations

import torch

from ..planning import Load
from ..vllm_recorder import VllmRecorder
from . import seams

# Steps that are added up to one record of the file; the first of them to several, so that a short
# run leaves a recording too.
STEPS, EARLY = 64, (8, 16, 32)


class Recorder:
    """Writes the load of every STEPS steps, and after the EARLY ones, to a file of JSON lines
    (`vllm` in docs/formats.md), which is appended to where it is there. Every rank has one and
    calls it in the same steps; the first rank writes."""

    def __init__(self, file):
        self._writer = VllmRecorder(file, seams.logger, most=1)

    def before_step(self, steps, take_load, add_up=lambda load: None):
        """steps: those that have passed. take_load: returns the int64 [layers, experts] that this
        rank's experts have got since it was asked last. add_up: adds the ranks' up, in place."""
        if steps == 0 or (steps % STEPS != 0 and steps not in EARLY):
            return
        load = torch.from_numpy(take_load())
        add_up(load)
        self._writer.append(Load(load.numpy()[None]))

    def end(self, take_load):
        """Writes what has come since the last record. For one rank alone: others may have ended."""
        self._writer.append(Load(take_load()[None]))
