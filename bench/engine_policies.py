#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trimtab as vLLM's policy against vLLM's own: PAR, moves and seconds of one rebalance_experts call, for all layers.

usage: engine_policies.py VLLM WORKLOAD...    [--policies trim,trim/fast,trim@1e-3,deepseek] [--repeat 3]

VLLM: a folder of tools/check_engine_plugins.py, FOLDER/engines/vllm-VERSION, with the balancer of that release. WORKLOAD:
NAME_RxS of bench/planning_workloads.py, without .train.npy. As vLLM does it, the loads are summed over the window, and the
first map is 0..E-1 in slot order, then 0.. again. PAR is of the window and of later steps (mean); moves are experts that a
rank must receive, per layer: by the first plan, and by the second, made of the later loads from the first; seconds are CPU time (median of the calls, in turns).
"""

import argparse
import pathlib
import re
import statistics
import sys
import time

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/tests"))

import engines  # noqa: E402

import trimtab  # noqa: E402
import trimtab.vllm  # noqa: E402


def candidates(policies, names):
    """Policy classes by name: vLLM's own first."""
    own = policies.EPLB_POLICIES["default"]
    yield "vLLM default", own
    for name in names:
        policy, preset, price = re.fullmatch(r"(\w+)(?:/(\w+))?(?:@(.+))?", name).groups()
        settings = trimtab.live_planning.Settings(policy, preset, float(price) if price else None)
        yield f"Trimtab {name}", trimtab.vllm.make_policy(policies.AbstractEplbPolicy, own, settings)


def map_of(result):
    return result[0] if isinstance(result, tuple) else result


def moves_per_layer(before, after, ranks):
    held, wanted = (one.reshape(one.shape[0], ranks, -1) for one in (before, after))
    received = sum(
        len(set(wanted[layer, rank]) - set(held[layer, rank])) for layer in range(len(held)) for rank in range(ranks)
    )
    return received / len(held)


def compare(policies, workload, names, repeat):
    train, test = (np.load(f"{workload}.{part}.npy") for part in ("train", "test"))
    ranks, slots = map(int, re.search(r"_(\d+)x(\d+)$", workload).groups())
    _, layers, experts = train.shape
    weight = torch.from_numpy(train.sum(0))
    old = (torch.arange(ranks * slots) % experts).repeat(layers, 1)
    arguments = (weight, ranks * slots, 1, 1, ranks, old)
    of_policy = dict(candidates(policies, names))
    seconds, maps = {}, {}
    for _ in range(repeat):
        for name, policy in of_policy.items():
            start = time.process_time()
            maps[name] = map_of(policy.rebalance_experts(*arguments))
            seconds.setdefault(name, []).append(time.process_time() - start)
    for name, tensor in maps.items():
        physical_to_logical = tensor.numpy()
        placement = trimtab.Placement(physical_to_logical, num_experts=experts, num_ranks=ranks)
        window = trimtab.par_per_step(placement, trimtab.Load(weight))[0][0]
        later = trimtab.par_per_step(placement, trimtab.Load(test))[0].mean()
        moves = moves_per_layer(old.numpy(), physical_to_logical, ranks)
        second = of_policy[name].rebalance_experts(torch.from_numpy(test.sum(0)), *arguments[1:-1], tensor)
        again = moves_per_layer(physical_to_logical, map_of(second).numpy(), ranks)
        print(
            f"| {pathlib.Path(workload).name} | {name} | {window:.4f} | {later:.4f} | {moves:.1f} | {again:.1f} | "
            f"{statistics.median(seconds[name]):.3f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vllm", type=pathlib.Path)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--policies", default="trim")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| workload | policy | PAR, window | PAR, later | moves a layer | again | CPU seconds |\n|---|---|---|---|---|---|---|")
    with engines.importable(arguments.vllm, "vllm"):
        from vllm.distributed.eplb import policy as policies

        for workload in arguments.workloads:
            compare(policies, workload, arguments.policies.split(","), arguments.repeat)


if __name__ == "__main__":
    main()
