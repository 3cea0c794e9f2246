#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Trimtab as the planner of vLLM or SGLang with their own planners: PAR, moves and seconds
of one call, for all layers.

usage: engine_policies.py ENGINE WORKLOAD... [--policies trim,trim/sum,trim/fast]
                          [--repeat 3]

ENGINE is a folder of tools/check_engine_plugins.py, FOLDER/engines/vllm-VERSION or sglang-VERSION,
with the balancer of that release. WORKLOAD is NAME_RxS of bench/planning_workloads.py, without
.train.npy. vLLM's own policy gets the sum of the loads over the window; Trimtab's takes the steps
from the window of vLLM's state, as its hook does, and with "/sum" after the name the sum alone, as
without the hook. SGLang hands the loads over step by step. All start from 0..E-1 in slot order,
then 0.. again. The PARs are of the window and of later steps (mean). Moves are experts that a rank
must receive, per layer, for the first plan and for the second, which starts from the first and
plans on the later loads. Seconds are CPU time: the median of the calls, which take turns.
"""

import argparse
import pathlib
import re
import statistics
import sys
import time
import types

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python/tests"))

import engines  # noqa: E402

import trimtab  # noqa: E402
import trimtab.sglang  # noqa: E402
import trimtab.vllm  # noqa: E402
import trimtab.vllm_windows  # noqa: E402


def settings_of(name):
    policy, preset, price = re.fullmatch(r"(\w+)(?:/(\w+))?(?:@(.+))?", name).groups()
    return trimtab.live_planning.Settings(policy, preset, float(price) if price else None)


def vllm_planners(names):
    """Functions by name, from loads [steps, layers, experts], ranks, slots of a rank, the placement
    in use and whether it is the first plan to a placement."""
    from vllm.distributed.eplb import policy as policies

    own = policies.EPLB_POLICIES["default"]
    of_name = {"vLLM default": own}
    for name in names:
        settings = settings_of(name.removesuffix("/sum"))
        ours = trimtab.vllm.make_policy(policies.AbstractEplbPolicy, own, settings)
        of_name[f"Trimtab {name}"] = ours

    def planner(policy, sees_steps):
        def plan(steps, ranks, slots, old, is_first):
            if hasattr(policy, "planner") and is_first:
                policy.planner.forget()
            if sees_steps:
                keep_window(policy.planner.windows, steps, old)
            result = policy.rebalance_experts(steps.sum(0), ranks * slots, 1, 1, ranks, old)
            return placement_of(result)

        return plan

    return {
        name: planner(policy, name.startswith("Trimtab") and not name.endswith("/sum"))
        for name, policy in of_name.items()
    }


def keep_window(windows, steps, mapping):
    """Gives the steps to the windows as vLLM's state has them, per slot: the first slot of an
    expert has all its tokens."""
    experts = steps.shape[2]
    first_slot = torch.stack([(held == torch.arange(experts)[:, None]).int().argmax(1)
                              for held in mapping])
    window = torch.zeros((*steps.shape[:2], mapping.shape[1]), dtype=torch.int32)
    window.scatter_(2, first_slot.expand(steps.shape[0], -1, -1), steps.to(torch.int32))
    model = types.SimpleNamespace(
        expert_load_window=window,
        physical_to_logical_map=mapping,
        model=types.SimpleNamespace(num_logical_experts=experts),
    )
    numbers = trimtab.vllm_windows.StepNumbers(
        len(steps), {row: row + 1 for row in range(len(steps))}
    )
    windows.keep(types.SimpleNamespace(model_states={"model": model}), numbers)


def sglang_planners(names):
    from sglang.srt.eplb import eplb_algorithms, expert_location

    own = eplb_algorithms.rebalance_experts
    of_name = {"SGLang deepseek": own}
    for name in names:
        of_name[f"Trimtab {name}"] = trimtab.sglang.make_rebalance_experts(own, settings_of(name))

    def planner(rebalance):
        def plan(steps, ranks, slots, old, is_first):
            expert_location.metadata = types.SimpleNamespace(physical_to_logical_map_cpu=old)
            algorithm = eplb_algorithms.EplbAlgorithm.deepseek
            return placement_of(rebalance(steps, ranks * slots, slots, None, 1, algorithm))

        return plan

    return {name: planner(rebalance) for name, rebalance in of_name.items()}


def placement_of(result):
    return result[0] if isinstance(result, tuple) else result


def moves_per_layer(before, after, ranks):
    held, wanted = (one.reshape(one.shape[0], ranks, -1) for one in (before, after))
    received = 0
    for layer in range(len(held)):
        for rank in range(ranks):
            received += len(set(wanted[layer, rank]) - set(held[layer, rank]))
    return received / len(held)


def compare(planners, workload, repeat):
    parts = [np.load(f"{workload}.{part}.npy") for part in ("train", "test")]
    train, test = (torch.from_numpy(part) for part in parts)
    ranks, slots = map(int, re.search(r"_(\d+)x(\d+)$", workload).groups())
    _, layers, experts = train.shape
    old = (torch.arange(ranks * slots) % experts).repeat(layers, 1)
    seconds, placements = {}, {}
    for _ in range(repeat):
        for name, plan in planners.items():
            start = time.process_time()
            placements[name] = plan(train, ranks, slots, old, True)
            seconds.setdefault(name, []).append(time.process_time() - start)
    for name, tensor in placements.items():
        first = tensor.numpy()
        placement = trimtab.Placement(first, num_experts=experts, num_ranks=ranks)
        window = trimtab.par_per_step(placement, trimtab.Load(train.sum(0)))[0][0]
        later = trimtab.par_per_step(placement, trimtab.Load(test))[0].mean()
        moves = moves_per_layer(old.numpy(), first, ranks)
        second = planners[name](test, ranks, slots, tensor, False).numpy()
        again = moves_per_layer(first, second, ranks)
        print(
            f"| {pathlib.Path(workload).name} | {name} | {window:.4f} | {later:.4f} "
            f"| {moves:.1f} | {again:.1f} | {statistics.median(seconds[name]):.3f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", type=pathlib.Path)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--policies", default="trim")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| workload | policy | PAR, window | PAR, later | moves a layer | again | CPU seconds |")
    print("|---|---|---|---|---|---|---|")
    engine = arguments.engine.name.split("-")[0]
    with engines.importable(arguments.engine, engine):
        planners_of = {"vllm": vllm_planners, "sglang": sglang_planners}[engine]
        planners = planners_of(arguments.policies.split(","))
        for workload in arguments.workloads:
            compare(planners, workload, arguments.repeat)


if __name__ == "__main__":
    main()
