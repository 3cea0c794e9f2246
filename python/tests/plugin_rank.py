# SPDX-License-Identifier: Apache-2.0
"""One of three processes that test_rank_agreement.py starts. Ranks 0 and 1 plan together, as the
ranks of one pipeline stage do; rank 2 is in another stage and does not take part.

usage: plugin_rank.py RANK FOLDER. FOLDER has the contract packages of both engines. Writes the
placements of each case to FOLDER/RANK.json.
"""

import datetime
import json
import pathlib
import sys
import time
import types

import numpy as np
import torch
import torch.distributed

from trimtab import live_planning, rank_agreement, sglang, vllm

LOAD = torch.tensor([[90, 1, 1, 1, 1, 1, 1, 50]], dtype=torch.int32)
IN_USE = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]])
Settings = live_planning.Settings


class Broken(Settings):
    def plan(self, *_):
        raise RuntimeError("no memory on this host")


def vllm_placement(settings):
    from vllm.distributed.eplb import policy

    ours = vllm.make_policy(policy.AbstractEplbPolicy, policy.DefaultEplbPolicy, settings)
    return ours.rebalance_experts(LOAD, 10, 1, 1, 2, IN_USE).tolist()


def sglang_placement(settings):
    from sglang.srt.eplb import eplb_algorithms, expert_location

    metadata = types.SimpleNamespace(physical_to_logical_map_cpu=IN_USE)
    expert_location.get_global_expert_location_metadata = lambda: metadata
    ours = sglang.make_rebalance_experts(eplb_algorithms.rebalance_experts, settings)
    algorithm = eplb_algorithms.EplbAlgorithm.deepseek
    return ours(LOAD.unsqueeze(0), 10, 5, None, 1, algorithm)[0].tolist()


def cases(rank, folder):
    no_moves = Settings(move_price=5.0)
    np.save(folder / f"{rank}.npy", IN_USE.flip(1) if rank == 0 else IN_USE)
    return {
        "alike": Settings(),
        "one fails": Settings() if rank == 0 else Broken(),
        "one has other settings": Settings() if rank == 0 else no_moves,
        "one has no plan": Settings(policy="off") if rank == 0 else Settings(),
        "one has another file": Settings(placement=str(folder / f"{rank}.npy")),
        "alike again": Settings(),
    }


def main():
    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3
    )
    results = {}
    if rank < 2:
        for name, settings in cases(rank, folder).items():
            results["vllm " + name] = vllm_placement(settings)
            if settings.placement is None:
                results["sglang " + name] = sglang_placement(settings)
    # A rank without the plug-in does not answer.
    rank_agreement.TIMEOUT = datetime.timedelta(seconds=2)
    rank_agreement._process_groups.clear()
    torch.distributed.barrier()
    if rank == 0:
        begin = time.monotonic()
        results["vllm one does not answer"] = vllm_placement(Settings())
        first = time.monotonic()
        vllm_placement(Settings())
        results["seconds"] = [first - begin, time.monotonic() - first]
    (folder / f"{rank}.json").write_text(json.dumps(results))
    torch.distributed.barrier()


main()
