#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans the workloads of several seeds and prints minimum, median and maximum of each figure beside
its goal.

usage: planning_goals.py BENCH_PLANNING FOLDER... [--rows TEXT]

Each FOLDER holds the workloads of one seed, as planning_workloads.py writes them.
"""

import argparse
import json
import statistics
import subprocess

FIVE = ["b_logn0.5_32x9", "b_logn1.0_32x9", "b_logn1.5_32x9", "b_zipf0.8_32x9", "b_zipf1.2_32x9"]
TIGHT = ["e1024_logn1.0_1024x2", "e1024_zipf1.2_1024x2"]
# Each row has a title, workloads, options and [(figure, goal)]. Seconds are of all layers. The
# figure of several workloads is the largest of theirs.
ROWS = [
    ("58 x 256 on 32x9, five skews", FIVE, [], [("par_window", 1.001), ("cpu_seconds", 0.020)]),
    ("64x5 zipf1.2", ["b_zipf1.2_64x5"], [], [("par_window", 1.002)]),
    ("256x3 zipf1.2, 512 experts", ["e512_zipf1.2_256x3"], [],
     [("par_window", 1.005), ("par_next", 1.19)]),
    ("1024x2, 1024 experts, logn1.0 and zipf1.2, 8 layers", TIGHT, [],
     [("par_window", 1.012), ("cpu_seconds", 0.96)]),
    ("d_fast T256 32x9", ["d_fast_T256_32x9"], [], [("par_next", 1.076), ("cpu_seconds", 0.5)]),
    ("the same, deep", ["d_fast_T256_32x9"], ["--preset", "deep"], [("par_next", 1.070)]),
    ("the same, 1.6e-3 a move", ["d_fast_T256_32x9"], ["--move-price", "1.6e-3"],
     [("par_next", 1.1216), ("moves_per_layer", 90)]),
    ("d_fast T256 64x5", ["d_fast_T256_64x5"], [], [("par_next", 1.160), ("cpu_seconds", 0.9)]),
    ("d_qwen T256 16x9", ["d_qwen_T256_16x9"], [], [("par_next", 1.042), ("cpu_seconds", 0.15)]),
    ("d_fast T1024 32x9", ["d_fast_T1024_32x9"], [], [("par_next", 1.079), ("cpu_seconds", 1.5)]),
]


def run(bench, folder, workloads, options):
    command = [bench, "--json", *options, *[f"{folder}/{name}" for name in workloads]]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def digits_of(figure):
    return 4 if figure.startswith("par") else 1 if figure.startswith("moves") else 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--rows", default="", help="only rows with this text")
    parser.add_argument("--repeat", default="1", help="seconds are the median of so many plans")
    args = parser.parse_args()
    print("| work | figure | goal | min | median | max | seeds that reach it |")
    print("|---|---|---|---|---|---|---|")
    for what, workloads, options, figures in ROWS:
        if args.rows not in what:
            continue
        options = ["--repeat", args.repeat, *options]
        runs = [run(args.bench, folder, workloads, options) for folder in args.folders]
        for figure, goal in figures:
            values = [max(one[figure] for one in per_seed) for per_seed in runs]
            spread = [f(values) for f in (min, statistics.median, max)]
            columns = [what, figure, str(goal)] + [f"{x:.{digits_of(figure)}f}" for x in spread]
            reached = sum(value <= goal for value in values)
            print(f"| {' | '.join(columns)} | {reached} of {len(values)} |", flush=True)


if __name__ == "__main__":
    main()
