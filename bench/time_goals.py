#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what levelling in time brings on this machine, and says which goals it reaches.

    python3 bench/time_goals.py build/release [--pairs 15] [--only TEXT]

The folder is a build of bench_stage and cli/trimtab. Two cores must do nothing else meanwhile. The
rows: the experts of one layer, balanced beside linear and static, on 2 ranks with a core each; the
same with one rank on half of a core; and tokens/s of tiny-moe with and without balancing, which
bench/live_balancing.py measures.
"""

import argparse
import json
import pathlib
import subprocess

BALANCED = "experts of a layer, balanced / linear and static"
SLOW = "one rank on half of a core, part of the sum of the speeds"
LIVE = "own skew in time"


def stage(build, options):
    command = [build / "bench" / "bench_stage", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdict(reached):
    return "reached" if reached else "NOT REACHED"


def spread(row, key):
    return f"{row[key]:.3f} ({row[key + '_low']:.3f} to {row[key + '_high']:.3f})"


def balanced(build, pairs, dtype):
    for row in stage(build, ["--dtype", dtype, "--pairs", str(pairs)]):
        goal = 0.95 if row["tokens"] >= 512 else 0.90
        print(
            f"{BALANCED}, {dtype}, {row['tokens']} tokens a rank: "
            f"experts {spread(row, 'experts')}, foretold {row['foretold']:.3f}, "
            f"layer {spread(row, 'layer')}, "
            f"linear {row['linear_ms']:.2f} ms; goal {goal}: {verdict(row['experts'] <= goal)}",
            flush=True,
        )


def slow(build, pairs, dtype):
    options = ["--dtype", dtype, "--pairs", str(pairs), "--slow", "1", "--tokens", "16,64"]
    for row in stage(build, options):
        print(
            f"{SLOW}, {dtype}, {row['tokens']} tokens a rank: {spread(row, 'of_speeds')}, without "
            f"measuring {spread(row, 'of_speeds_unmeasured')}, speed found {spread(row, 'speed')}; "
            f"goal 0.95: {verdict(row['of_speeds'] >= 0.95)}",
            flush=True,
        )


def live(build, pairs):
    script = pathlib.Path(__file__).with_name("live_balancing.py")
    command = ["python3", script, build / "cli" / "trimtab", "--pairs", str(pairs), "--only", LIVE]
    subprocess.run(command, check=True)
    print("goals: 1.00 in the lower quartile; 1.02 where experts are half of a step or more")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--dtype", default="bf16,w8a8", help="weight formats of the layer")
    rows = "; ".join((BALANCED, SLOW, LIVE))
    parser.add_argument("--only", default="", help=f"rows with this text: {rows}")
    arguments = parser.parse_args()
    for dtype in arguments.dtype.split(","):
        if arguments.only in BALANCED:
            balanced(arguments.build, arguments.pairs, dtype)
        if arguments.only in SLOW:
            slow(arguments.build, max(3, arguments.pairs // 3), dtype)
    if arguments.only in LIVE:
        live(arguments.build, arguments.pairs)


main()
