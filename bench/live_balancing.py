#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what live balancing costs and brings, by pairs of `trimtab run` on tiny-moe.

    python3 bench/live_balancing.py build/release/cli/trimtab [--pairs 15]

Prints the ratio of tokens/s (median and quartiles over the pairs) and what balancing did.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

MODEL = pathlib.Path(__file__).resolve().parents[1] / "models" / "tiny-moe"
FEW = "--max-sequences 12 --steps 64"  # of 192 prompts, so their domain changes on the way
KEYS = ("replans", "moves", "moved_bytes", "stall_seconds", "plan_seconds", "rolled_back")
# Each comparison has a name, the options of both runs, of the one without balancing, and of the one
# with it.
COMPARISONS = [
    ("overhead, 2 ranks: recorded, gathered, never planned", f"{FEW} --ranks 2",
     "--redundant-experts 2", "--eplb dynamic --eplb-config {idle}"),
    ("domain change, 2 ranks on as many cores", f"{FEW} --ranks 2", "", "--eplb dynamic"),
    ("domain change, 4 ranks", f"{FEW} --ranks 4", "", "--eplb dynamic"),
    ("domain change, 4 ranks, at most 4 MB a plan", f"{FEW} --ranks 4", "",
     "--eplb dynamic --eplb-config {budget}"),
    ("own skew in time, 2 ranks on as many cores, 12 sequences each", f"{FEW} --ranks 2", "",
     "--eplb dynamic --cost measure"),
    ("own skew in time, 2 ranks on as many cores, 96 sequences each",
     "--max-sequences 96 --steps 300 --ranks 2", "", "--eplb dynamic --cost measure"),
    ("skewed, 2 ranks on as many cores, 96 sequences each, "
     "from a placement with the busier experts on rank 0",
     "--max-sequences 96 --steps 300 --ranks 2", "--eplb static:{hot}", "--eplb dynamic:{hot}"),
]


def run(trimtab, options):
    command = [trimtab, "run", MODEL, "--prompts", MODEL / "domain_shift.txt",
               "--temperature", "0.7", "--json", *options.split()]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def write_hot_placement(trimtab, file):
    """Writes a placement for 2 ranks whose rank 0 has the busier half of the experts. The redundant
    slot of each rank holds one of its own experts again."""
    loads = file.with_name("loads.json")
    run(trimtab, f"{FEW} --ranks 2 --eplb record:{loads}")
    placement = json.loads(loads.with_suffix(".placement.json").read_text())
    steps = json.loads(loads.read_text())["logical_count"]
    load = [[sum(of_expert) for of_expert in zip(*layer)] for layer in zip(*steps)]
    half = placement["num_experts"] // 2
    rows = placement["physical_to_logical_map"] = []
    for layer in load:
        order = sorted(range(len(layer)), key=lambda e: -layer[e])
        rows.append([*order[:half], order[0], *order[half:], order[half]])
    placement["slots_per_rank"] = [half + 1, half + 1]
    file.write_text(json.dumps(placement))


def quartiles(values):
    low, mid, high = statistics.quantiles(values, n=4)
    return f"{mid:.3f} ({low:.3f} to {high:.3f})"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trimtab")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", default="", help="only comparisons with this text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "idle": {"preset": "short", "plan_above_par": 1000},
            "budget": {"preset": "short", "max_bytes": 4_000_000},
        }
        names = {}
        for name, settings in files.items():
            path = pathlib.Path(folder) / f"{name}.json"
            path.write_text(json.dumps(settings))
            names[name] = path
        names["hot"] = pathlib.Path(folder) / "hot.json"
        write_hot_placement(arguments.trimtab, names["hot"])
        for title, both, without, with_ in COMPARISONS:
            if arguments.only not in title:
                continue
            ratios, results = [], []
            for pair in range(arguments.pairs):
                order = [options.format(**names) for options in (without, with_)]
                answers = {}
                for which in order if pair % 2 == 0 else reversed(order):
                    answers[which] = run(arguments.trimtab, f"{both} {which}")
                off, on = (answers[which] for which in order)
                if off["outputs"] != on["outputs"]:
                    raise SystemExit(f"{title}: balancing changed the text")
                ratios.append(on["tokens_per_second"] / off["tokens_per_second"])
                results.append((off, on))
            print(f"{title}\n  tokens/s with / without: {quartiles(ratios)}")
            par = statistics.fmean(results[0][0]["par_per_layer"])
            print(f"  PAR without, mean over layers: {par:.3f}")
            balanced = [on["eplb"] for _, on in results]
            for key in KEYS:
                print(f"  {key}: median {statistics.median(one[key] for one in balanced):g}")
            for third in range(3):
                values = [one["par_by_third"][third] for one in balanced]
                print(f"  PAR of third {third + 1}: {quartiles(values)}, at most {max(values):.3f}")


main()
