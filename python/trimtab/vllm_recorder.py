# SPDX-License-Identifier: Apache-2.0
"""Writes the loads of vLLM's replannings to a file."""

from __future__ import annotations

import json
import logging
import os

from trimtab import live_planning
from trimtab.planning import Load


class VllmRecorder:
    """Appends the loads of every replanning to a file of JSON lines, which `trimtab inspect`,
    `plan` and `replay` read.

    most: records for one replanning; more steps or runs of steps than that are added up. Each
    record says how many runs of the window it has (`runs`), and its phase where that is known.

    Only the first rank writes, and of several models only the first one is recorded. A file that
    can't be written, or that holds anything but such a recording, stays as it is: the log says so,
    and nothing else changes.
    """

    def __init__(self, file: str, logger: logging.Logger, most: int = 16):
        self._most = max(1, most)
        self._file = file
        self._logger = logger
        self._shape: tuple[int, int] | None = None  # layers, experts; None: nothing recorded yet
        self._step = 0
        self._given_up = False

    def append(self, load: Load, phase: str | None = None) -> None:
        """load: the runs of steps of one replanning, oldest first."""
        if self._given_up or not live_planning.is_first_rank() or not load.counts.any():
            return
        shape = (load.num_layers, load.num_experts)
        if self._shape not in (None, shape):
            return
        try:
            if self._shape is None:
                self._step = _open_earlier(self._file, shape)
            with open(self._file, "a", encoding="utf-8") as file:
                file.write("".join(self._lines(load, phase)))
        except (OSError, ValueError) as error:
            self._given_up = self._shape is None
            self._logger.warning("the loads are not recorded: %s", error)
            return
        self._shape = shape
        self._step += min(self._most, load.num_steps)

    def _lines(self, load: Load, phase: str | None):
        records = min(self._most, load.num_steps)
        for number in range(records):
            first = number * load.num_steps // records
            last = (number + 1) * load.num_steps // records
            record = {
                "record_type": "eplb_load_stats",
                "version": 1,
                "step": self._step + number,
                "runs": last - first,
                **({"phase": phase} if phase else {}),
                "expert_load": load.counts[first:last].sum(axis=0).tolist(),
                "p2l_map": [list(range(load.num_experts))] * load.num_layers,
            }
            yield json.dumps(record) + "\n"


def _open_earlier(file: str, shape: tuple[int, int]) -> int:
    """The first step to append to a file. A last line that was cut off while it was written is
    dropped. Raises ValueError when the file holds no recording of this shape (layers, experts)."""
    if not os.path.exists(file) or os.path.getsize(file) == 0:
        return 0
    with open(file, "r+b") as earlier:
        last = b""
        whole = 0
        for line in earlier:
            if line.endswith(b"\n"):
                whole += len(line)
                last = line if line.strip() else last
        step = _step_after(file, last, shape)
        earlier.truncate(whole)
    return step


def _step_after(file: str, line: bytes, shape: tuple[int, int]) -> int:
    try:
        record = json.loads(line)
        loads = record["expert_load"]
        step = int(record["step"]) + 1
        held = (len(loads), 1 + max(max(experts) for experts in record["p2l_map"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is there and holds no recording of loads") from error
    if held != shape:
        raise ValueError(
            f"{file} is there and holds loads of {held[0]} layers of {held[1]} experts, "
            f"not {shape[0]} of {shape[1]}"
        )
    return step
