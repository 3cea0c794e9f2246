# SPDX-License-Identifier: Apache-2.0
"""One of two processes that test_vllm_windows.py starts: an expert-parallel rank of vLLM whose
balancer is the plug-in.

usage: window_rank.py RANK FOLDER ENGINE CASE. ENGINE is a folder with vLLM's package or its
contract, CASE a function below. Writes what the case returns to FOLDER/RANK.json.
"""

import json
import logging
import os
import pathlib
import sys
import types

import numpy as np
import torch
import torch.distributed

RANK, FOLDER = int(sys.argv[1]), pathlib.Path(sys.argv[2])
LAYERS, EXPERTS, RANKS, SLOTS = 3, 16, 2, 9
WINDOW, INTERVAL = 32, 40


class Model:
    num_moe_layers, num_logical_experts, num_routed_experts = LAYERS, EXPERTS, EXPERTS
    num_physical_experts, num_redundant_experts = RANKS * SLOTS, RANKS * SLOTS - EXPERTS
    num_local_physical_experts, num_expert_groups = SLOTS, 1
    expert_weights = [[torch.zeros(SLOTS, 1)]] * LAYERS
    moe_layers = ()

    def set_eplb_state(self, *args):
        pass


def make_state(**options):
    """An EplbState of vLLM with one model, after its profile run, on this rank."""
    from vllm import config
    from vllm.distributed import parallel_state
    from vllm.distributed.eplb import eplb_state

    group = types.SimpleNamespace(
        ranks=list(range(RANKS)), device_group=torch.distributed.group.WORLD,
        cpu_group=torch.distributed.group.WORLD,
    )
    for module in (parallel_state, eplb_state):
        module.get_ep_group = lambda: group
        module.get_eplb_group = lambda: group
    eplb = {
        "use_async": True, "window_size": WINDOW, "step_interval": INTERVAL, "policy": "default",
        "communicator": "", "log_balancedness_interval": 1, "migration_batching_enabled": False,
        **options,
    }
    parallel = types.SimpleNamespace(
        eplb_config=types.SimpleNamespace(**eplb), enable_elastic_ep=False, num_ubatches=0,
        data_parallel_size=1,
    )
    config.current = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_role="kv_consumer")
    )
    state = eplb_state.EplbState(parallel, torch.device("cpu"))
    state.add_model(Model(), types.SimpleNamespace(compute_hash=lambda: "model", model="model"))
    config.current = None
    state.rearrange_event = types.SimpleNamespace(record=lambda: None)
    return state


def loads_of(step):
    """Tokens of this step on both ranks: int [ranks, layers, experts]. Experts are hot by turns, so
    that the sum over steps says little about a step."""
    random = np.random.default_rng(1000 + step)
    loads = random.poisson(20, (RANKS, LAYERS, EXPERTS))
    hot = (step // 8) % 2  # half of the experts
    loads[:, :, hot * 8 : hot * 8 + 8] *= 6
    return loads


def run_step(state, loads, is_dummy=False):
    """The first slot of each expert gets all its tokens."""
    (model,) = state.model_states.values()
    if not is_dummy:
        for layer, held in enumerate(model.physical_to_logical_map.tolist()):
            for expert in range(EXPERTS):
                tokens = int(loads[RANK, layer, expert])
                model.expert_load_pass[layer, held.index(expert)] = tokens
    state.step(is_dummy=is_dummy, log_stats=False)


def rearrange(state):
    """What vLLM's balancer thread does. Returns the loads that it was given and the placement."""
    (model,) = state.model_states.values()
    stats = model.eplb_stats
    mapping = state.policy.rebalance_experts(
        stats.global_expert_load_window, stats.num_replicas, stats.num_groups, stats.num_nodes,
        stats.num_gpus, model.physical_to_logical_map,
    )
    model.physical_to_logical_map.copy_(mapping)
    model.rebalanced = False
    return stats.global_expert_load_window.tolist(), mapping.tolist()


def until_due(state, first, dummy_steps=()):
    """Steps until vLLM wants a rearrangement. Returns the number of the next step."""
    (model,) = state.model_states.values()
    step = first
    while not model.rebalanced:
        # On rank 1 some steps are dummy ones, as on a rank that has no requests.
        run_step(state, loads_of(step), is_dummy=RANK == 1 and step - first in dummy_steps)
        step += 1
    return step


def planner_of(state):
    return state.policy.planner


def plans_from_steps(engine):
    """Two rearrangements. Returns the runs that were planned from, and the placements."""
    state = make_state()
    seen = []
    planner = planner_of(state)
    own_plan = planner.plan

    def plan(model, runs, *rest):
        planned = own_plan(model, runs, *rest)
        seen.append(
            {
                "runs": None if runs is None else runs.counts.tolist(),
                "history": sorted(planner._histories),
                "placement": planned.physical_to_logical.tolist(),
            }
        )
        return planned

    planner.plan = plan
    step = until_due(state, 0, dummy_steps=(3, 4))
    first = rearrange(state)
    last = until_due(state, step)
    second = rearrange(state)
    return {"seen": seen, "sums": [first[0], second[0]], "maps": [first[1], second[1]],
            "steps": [step, last]}


def starts_from_a_file(engine):
    """The placement of a file, from the first step on."""
    state = make_state()
    run_step(state, loads_of(0), is_dummy=True)
    (model,) = state.model_states.values()
    due = model.rebalanced
    return {"due": due, "map": rearrange(state)[1] if due else None}


def watches_the_thread(engine):
    """The balancer thread dies; log lines of two further steps."""
    state = make_state()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("vllm.trimtab").addHandler(handler)
    state.async_worker = types.SimpleNamespace(is_alive=lambda: True)
    run_step(state, loads_of(0))
    alive = list(lines)
    state.async_worker = types.SimpleNamespace(is_alive=lambda: False)
    run_step(state, loads_of(1))
    run_step(state, loads_of(2))
    return {"alive": alive, "dead": lines}


def main():
    engine, case = pathlib.Path(sys.argv[3]), sys.argv[4]
    sys.path.insert(0, str(engine))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=RANKS
    )
    if f"TRIMTAB_EPLB_PLACEMENT_{RANK}" in os.environ:
        os.environ["TRIMTAB_EPLB_PLACEMENT"] = os.environ.pop(f"TRIMTAB_EPLB_PLACEMENT_{RANK}")
    for name in [name for name in os.environ if name.startswith("TRIMTAB_EPLB_PLACEMENT_")]:
        del os.environ[name]
    import trimtab.vllm

    trimtab.vllm.register()
    result = globals()[case](engine)
    (FOLDER / f"{RANK}.json").write_text(json.dumps(result))
    torch.distributed.barrier()


main()
