# SPDX-License-Identifier: Apache-2.0
"""Layers that trimtab.vllm_cpu spreads over ranks, with torch's gloo group in vLLM's place."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rank_processes  # noqa: E402
from test_rank_runtime import EXPERTS, LAYERS, TOKENS, batch, expected, weights_of  # noqa: E402
from test_rank_streams import become_a_host, skip_if_refused  # noqa: E402

import trimtab  # noqa: E402
from trimtab.vllm_cpu import ranks as spread  # noqa: E402
from trimtab.vllm_cpu import recorder, seams  # noqa: E402
from trimtab.vllm_cpu.flags import Flags  # noqa: E402


def start(rank, ranks, store, settings, same_tokens):
    """The layers of a rank, with its experts."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    group = types.SimpleNamespace(
        world_size=ranks,
        ranks=list(range(ranks)),
        rank_in_group=rank,
        cpu_group=torch.distributed.group.WORLD,
    )
    seams.expert_parallel_ranks = lambda: group
    layers = spread.RankLayers(0, EXPERTS, TOKENS, same_tokens, Flags.of({"trimtab": settings}))
    own = EXPERTS // ranks
    for layer in range(LAYERS):
        layers.add(weights_of(layer, range(rank * own, (rank + 1) * own)))
    return layers


def serve(rank, ranks, exchange, store, settings, same_tokens):
    """A trial run, then a batch; what the layers gave for both."""
    layers = start(rank, ranks, store, settings, same_tokens)
    outputs = []
    for trial in (True, False):
        seams.is_trial_run = lambda trial=trial: trial
        for layer in range(LAYERS):
            x, ids, weights = map(torch.from_numpy, batch(0 if same_tokens else rank))
            out = torch.full_like(x, 7)
            layers.forward(layer, x, ids, weights, out)
            outputs.append(out.numpy())
    with pytest.raises(RuntimeError, match="after the first call"):
        layers.add(weights_of(0))
    return outputs


@pytest.mark.parametrize("same_tokens", [False, True])
@pytest.mark.parametrize("settings", [{}, {"balancer": {"interval": 4}, "redundant": 2}], ids=str)
def test_spread_layers_give_what_one_rank_does(tmp_path, settings, same_tokens):
    store = str(tmp_path / "store")
    outputs = rank_processes.run(serve, 2, store, {**settings, "timeout": 60}, same_tokens)
    for of_rank in outputs:
        assert not isinstance(of_rank, str), of_rank
        for out in of_rank[:LAYERS]:  # the trial run has tokens of nobody
            assert not out.any()
    for layer in range(LAYERS):
        first, second = (of_rank[LAYERS + layer] for of_rank in outputs)
        if same_tokens:
            assert np.array_equal(first + second, expected(layer, *batch(0)))
        else:
            assert np.array_equal(first, expected(layer, *batch(0)))
            assert np.array_equal(second, expected(layer, *batch(1)))


def serve_on_hosts(rank, ranks, exchange, *arguments):
    if not all(exchange(bytes([become_a_host()]))):
        return "refused"
    outputs = serve(rank, ranks, exchange, *arguments)
    spread.leave_group()
    return outputs


def test_spread_layers_work_over_hosts(tmp_path):
    """Where ranks share no memory the group gets streams, unasked."""
    settings = {"balancer": {"interval": 4}, "redundant": 2, "timeout": 60}
    results = rank_processes.run(serve_on_hosts, 2, str(tmp_path / "store"), settings, False)
    skip_if_refused(results)
    for rank, outputs in enumerate(results):
        assert not isinstance(outputs, str), outputs
        for layer in range(LAYERS):  # sums of a host come first
            wanted = expected(layer, *batch(rank))
            np.testing.assert_allclose(outputs[LAYERS + layer], wanted, rtol=1e-4, atol=1e-5)


def record(rank, ranks, exchange, store, settings, same_tokens):
    """A trial run, then steps until a record is due that has none to spare."""
    layers = start(rank, ranks, store, settings, same_tokens)
    for step in range(2 * recorder.STEPS + 1):
        seams.is_trial_run = lambda step=step: step == 0
        for layer in range(LAYERS):
            x, ids, weights = map(torch.from_numpy, batch(0 if same_tokens else rank))
            layers.forward(layer, x, ids, weights, torch.empty_like(x))


@pytest.mark.parametrize(
    ("same_tokens", "balancer"), [(False, {}), (True, {"interval": 8, "gate": False})]
)
def test_a_recording_is_planned_from_and_the_plan_served(tmp_path, same_tokens, balancer):
    file = tmp_path / "load.jsonl"
    settings = {"record": str(file), "balancer": balancer, "timeout": 60}
    ended = rank_processes.run(record, 2, str(tmp_path / "first"), settings, same_tokens)
    assert ended == [None, None]
    load = trimtab.read_recording(str(file)).load
    wanted = np.zeros((LAYERS, EXPERTS), np.int64)
    for rank in range(1 if same_tokens else 2):
        for layer in range(LAYERS):
            np.add.at(wanted[layer], batch(rank)[1].ravel(), 1)
    counted = [7, 8, 16, 32, recorder.STEPS]  # not the trial run
    assert np.array_equal(load.counts, [steps * wanted for steps in counted])

    start_at = trimtab.Placement.linear(LAYERS, EXPERTS, 2)
    plan = trimtab.plan(load, start_at)
    assert not np.array_equal(plan.placement.logical, start_at.logical)
    placement = tmp_path / "placement.json"
    trimtab.PlacementFile(plan.placement).write(str(placement), "json")
    store, settings = str(tmp_path / "second"), {"placement": str(placement), "timeout": 60}
    outputs = rank_processes.run(serve, 2, store, settings, same_tokens)
    for layer in range(LAYERS):
        first, second = (of_rank[LAYERS + layer] for of_rank in outputs)
        if same_tokens:
            assert np.array_equal(first + second, expected(layer, *batch(0)))
        else:
            assert np.array_equal(first, expected(layer, *batch(0)))


def places(rank, ranks, exchange, store, files):
    start(rank, ranks, store, {"placement": files[rank], "timeout": 60}, False).runtime(3)


def test_ranks_must_begin_with_one_placement(tmp_path):
    files = []
    for rank in range(2):
        logical = np.tile(np.roll(np.arange(EXPERTS), rank), (LAYERS, 1))
        files.append(str(tmp_path / f"{rank}.npy"))
        np.save(files[-1], logical.astype(np.int32))
    errors = rank_processes.run(places, 2, str(tmp_path / "first"), files)
    for error in errors:
        assert error.startswith("ValueError") and "placement" in error
    (tmp_path / "bad.json").write_text("{")
    files = [str(tmp_path / "bad.json")] * 2
    for error in rank_processes.run(places, 2, str(tmp_path / "second"), files):
        assert error.startswith("FormatError") and "bad.json" in error
