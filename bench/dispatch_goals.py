#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes every figure of bringing tokens to experts and prints it beside its goal.

Ranks are threads, processes, and processes on two hosts (namespaces of this machine, as root),
whichever of these this machine can do.

usage: dispatch_goals.py TRIMTAB [--runs N] [--seconds S] [--rows TEXT]
"""

import argparse
import functools
import json
import os
import statistics
import subprocess

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests")
PROCESSES = [os.path.join(TESTS, "mpi", "run.sh"), "4"]
TWO_HOSTS = [os.path.join(TESTS, "hosts", "run.sh"), "2"]
FOUR = ["--dispatcher", "source,pull,fused,all_to_all,mc2,packed,all_gather", "--ranks", "4"]
TWO = ["--dispatcher", "pull,fused", "--ranks", "2", "--tokens", "16"]
MEMORY = ["--dispatcher", "pull,fused"]
BETWEEN = ["--dispatcher", "all_to_all,packed,hybrid", "--tokens", "512"]
LAYERS = ["--intermediate", "768", "--ranks", "4"]
OVERLAP = ["--dispatcher", "packed", "--tokens", "512", "--overlap", "--progress-thread"]


class Skipped(Exception):
    pass


class Bench:
    """One run of everything: each command is run once, when its first figure is asked for."""

    def __init__(self, trimtab, seconds):
        self.trimtab, self.seconds = trimtab, seconds
        self.rows = functools.lru_cache(None)(self._rows)

    def _rows(self, launcher, arguments):
        command = [*launcher, self.trimtab, "bench", "dispatch", *arguments,
                   "--seconds", self.seconds, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 77:
            raise Skipped(done.stdout.strip())
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout[done.stdout.index("{"):])["rows"]

    def row(self, dispatcher, tokens, arguments, launcher=()):
        rows = self.rows(tuple(launcher), tuple(arguments))
        return next(r for r in rows if r["dispatcher"] == dispatcher and r["tokens"] == tokens)

    def ms(self, *which, **launcher):
        row = self.row(*which, **launcher)
        return row["ms_dispatch"] + row["ms_combine"]

    def ms_of_processes(self, dispatcher, tokens):
        return self.ms(dispatcher, tokens, MEMORY, launcher=PROCESSES)

    def all_to_all_over(self, other, ranks):
        """The time of `all_to_all` on two hosts of so many ranks over that of another one."""
        of = lambda dispatcher: self.ms(dispatcher, 512, BETWEEN, launcher=hosts(ranks))
        return of("all_to_all") / of(other)

    def hidden(self, intermediate):
        arguments = [*OVERLAP, "--intermediate", intermediate]
        return self.row("packed", 512, arguments, launcher=hosts(1))["pct_hidden"]

    def cpu_ms(self, *which, **launcher):
        row = self.row(*which, **launcher)
        return row["cpu_ms_dispatch"] + row["cpu_ms_combine"]


def hosts(ranks, rate="4gbit"):
    return [*TWO_HOSTS, str(ranks), rate]


# What, goal ("<=" or ">=" and a number), a function of a Bench.
FIGURES = [
    ("threads, 512 tokens: `pull`, % of memcpy's rate", ">= 80",
     lambda b: b.row("pull", 512, FOUR)["pct_of_memcpy"]),
    ("threads, 512 tokens: cpu time of `source` / `pull`", ">= 4",
     lambda b: b.cpu_ms("source", 512, FOUR) / b.cpu_ms("pull", 512, FOUR)),
    ("threads, 512 tokens: `pull`, ms", None, lambda b: b.ms("pull", 512, FOUR)),
    ("threads, 512 tokens: `fused`, ms", None, lambda b: b.ms("fused", 512, FOUR)),
    ("threads, 16 tokens: `pull`, ms", "<= 0.1", lambda b: b.ms("pull", 16, FOUR)),
    ("threads, 16 tokens: `fused`, ms", "<= 0.1", lambda b: b.ms("fused", 16, FOUR)),
    ("the same of 2 ranks: `pull`, ms", "<= 0.1", lambda b: b.ms("pull", 16, TWO)),
    ("the same of 2 ranks: `fused`, ms", "<= 0.1", lambda b: b.ms("fused", 16, TWO)),
    ("processes / threads, 512 tokens: `pull`, ms", "<= 2",
     lambda b: b.ms_of_processes("pull", 512) / b.ms("pull", 512, FOUR)),
    ("processes, 16 tokens: `pull`, ms", "<= 0.3", lambda b: b.ms_of_processes("pull", 16)),
    ("processes, 16 tokens: `fused`, ms", "<= 0.3", lambda b: b.ms_of_processes("fused", 16)),
    ("2 hosts x 2, 4 Gbit/s, 512 tokens: `all_to_all` / `packed`", ">= 4",
     lambda b: b.all_to_all_over("packed", 2)),
    ("2 hosts x 2, 4 Gbit/s, 512 tokens: `all_to_all` / `hybrid`", ">= 4",
     lambda b: b.all_to_all_over("hybrid", 2)),
    ("2 hosts x 1, 4 Gbit/s, 512 tokens: `all_to_all` / `packed`", ">= 4",
     lambda b: b.all_to_all_over("packed", 1)),
    ("whole layers, 512 tokens: `fused`, % of `pull`'s cpu time", "<= 100",
     lambda b: b.row("fused", 512, LAYERS)["pct_of_first"]),
    ("whole layers, 16 tokens: `fused`, % of `pull`'s cpu time", "<= 100",
     lambda b: b.row("fused", 16, LAYERS)["pct_of_first"]),
    ("2 hosts x 1, 4 Gbit/s, intermediate 768: two microbatches hide, % of the transfer", ">= 60",
     lambda b: b.hidden("768")),
    ("2 hosts x 1, 4 Gbit/s, intermediate 64: two microbatches hide, % of the shorter", ">= 60",
     lambda b: b.hidden("64")),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trimtab")
    parser.add_argument("--runs", type=int, default=3, help="of everything, in turns")
    parser.add_argument("--seconds", default="1", help="for each row of a run")
    parser.add_argument("--rows", default="", help="only rows with this text")
    args = parser.parse_args()
    benches = [Bench(os.path.abspath(args.trimtab), args.seconds) for _ in range(args.runs)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    print("| what | goal | min | median | max | |\n|---|---|---|---|---|---|")
    for what, goal, figure in FIGURES:
        if args.rows not in what:
            continue
        try:
            values = [figure(bench) for bench in benches]
        except Skipped as reason:
            print(f"| {what} | {goal or ''} | | | | {reason} |", flush=True)
            continue
        low, middle, high = (f"{f(values):.3g}" for f in (min, statistics.median, max))
        verdict = ""
        if goal:
            limit, at_least = float(goal.split()[1]), goal.startswith(">")
            verdict = "reached" if (statistics.median(values) >= limit) == at_least else "missed"
        print(f"| {what} | {goal or ''} | {low} | {middle} | {high} | {verdict} |", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
