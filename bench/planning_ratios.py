#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans the multi-step workloads of several seeds with two policies in one run, and prints minimum,
median and maximum of the ratio of what each leaves above level, and above what chance leaves.

usage: planning_ratios.py BENCH_PLANNING FOLDER... [--policies A,B] [--preset NAME]

Each FOLDER holds the workloads of one seed, as planning_workloads.py writes them.
"""

import argparse
import json
import statistics
import subprocess

WORKLOADS = ["d_fast_T256_32x9", "d_fast_T256_64x5", "d_qwen_T256_16x9"]


def plan(bench, folder, name, policies, preset):
    command = [bench, "--json", "--policies", policies, f"{folder}/{name}"]
    if preset:
        command[1:1] = ["--preset", preset]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def spread(values):
    return [f(values) for f in (min, statistics.median, max)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--policies", default="trim,flashlb", help="the first over the second")
    parser.add_argument("--preset", default="")
    args = parser.parse_args()
    first, second = args.policies.split(",")
    print(f"| work | {first}, PAR later | {second} | floor | (PAR - 1) min | median | max "
          "| (PAR - floor) min | median | max |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in WORKLOADS:
        runs = [plan(args.bench, folder, name, args.policies, args.preset)
                for folder in args.folders]
        pars = [statistics.median(run[i]["par_next"] for run in runs) for i in (0, 1)]
        floor = statistics.median(run[0]["floor_next"] for run in runs)
        above_one = spread([(a["par_next"] - 1) / (b["par_next"] - 1) for a, b in runs])
        above_floor = spread([(a["par_next"] - a["floor_next"]) / (b["par_next"] - b["floor_next"])
                              for a, b in runs])
        columns = [f"{x:.4f}" for x in [*pars, floor]]
        columns += [f"{x:.3f}" for x in above_one + above_floor]
        print(f"| {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
