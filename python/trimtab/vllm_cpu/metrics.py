# SPDX-License-Identifier: Apache-2.0
"""The balancer's metrics on the Prometheus page of vLLM's server. The rank that plans writes them
to a file; the processes that answer /metrics read it."""

from __future__ import annotations

import atexit
import os
import pathlib
import shutil
import tempfile
import time

from . import seams

# The folder of the files, in the environment that all processes of an engine inherit from the one
# that begins to make it. (In additional_config it would change the name of vLLM's compile cache.)
FOLDER = "TRIMTAB_VLLM_METRICS"

# The balancer of an engine that serves shows progress more often than this.
STALL_SECONDS = 120.0


def offer():
    """Puts the metrics on the page of the engine that is about to be made. May be called any number
    of times; not in processes that run a part of an engine."""
    if not os.path.isdir(os.environ.get(FOLDER, "")):
        folder = tempfile.mkdtemp(prefix="trimtab-metrics-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[FOLDER] = folder
    seams.add_to_metrics_page(_page)


class Page:
    """A collector of prometheus_client: what the files have now."""

    def describe(self):
        return []  # nothing is read before the page is asked for

    def collect(self):
        from prometheus_client.parser import text_string_to_metric_families

        families = {}
        for file in sorted(pathlib.Path(os.environ[FOLDER]).glob("*.prom")):
            for family in text_string_to_metric_families(file.read_text()):
                family.samples = [
                    sample._replace(labels={**sample.labels, "group": file.stem})
                    for sample in family.samples
                ]
                merged = families.setdefault(family.name, family)
                if merged is not family:
                    merged.samples += family.samples
        return families.values()


_page = Page()


class Writer:
    """Writes what a balancer says of itself to a file of FOLDER, if there is one.

    number: of the layers that it balances, which is the label `group` of all samples. interval: the
    steps of its window. clock: seconds, monotonic.
    """

    def __init__(self, number, interval, clock=time.monotonic):
        folder = os.environ.get(FOLDER)
        self._file = pathlib.Path(folder, f"{number}.prom") if folder else None
        self._interval = interval
        self._clock = clock
        self._written_at = None
        self._progress = None  # what the balancer said when it last showed progress
        self._progress_at = self._progress_step = 0

    def update(self, steps, metrics):
        """To be called in every step. metrics: returns the balancer's text for Prometheus. Writes
        at most once in a second."""
        now = self._clock()
        if self._file is None or (self._written_at is not None and now - self._written_at < 1):
            return
        self._written_at = now
        text = metrics()
        # Time passes for a balancer that is stuck, too.
        progress = [line for line in text.splitlines() if "_seconds_total " not in line]
        if progress != self._progress:
            self._progress, self._progress_at, self._progress_step = progress, now, steps
        self._write(text + self._state(steps, now))

    def _state(self, steps, now):
        overdue = steps - self._progress_step > 2 * self._interval
        alive = not (overdue and now - self._progress_at > STALL_SECONDS)
        return (
            "# HELP trimtab_steps_total Forward passes that have begun.\n"
            "# TYPE trimtab_steps_total counter\n"
            f"trimtab_steps_total {steps}\n"
            "# HELP trimtab_alive 0: no window, plan or move for 2 intervals and 2 minutes.\n"
            "# TYPE trimtab_alive gauge\n"
            f"trimtab_alive {int(alive)}\n"
        )

    def _write(self, text):
        new = self._file.with_suffix(".new")
        try:
            new.write_text(text)
            new.replace(self._file)
        except OSError as error:  # the folder is gone, or the disk is full
            seams.logger.warning("Trimtab's metrics can't be written: %s", error)
            self._file = None
