# SPDX-License-Identifier: Apache-2.0
"""Experts over ranks that are processes, compared bit by bit with ranks that are threads."""

import json
import os
import signal

import numpy as np
import pytest
import rank_processes

from trimtab import (
    ExpertWeights,
    MoeRuntime,
    ParallelLayout,
    RankGroup,
    RankRuntime,
    kernel_isa,
)

LAYERS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE, TOKENS = 3, 12, 3, 64, 32, 40


def weights_of(layer, experts=range(EXPERTS), **options):
    rng = np.random.default_rng(layer)
    gate_up = rng.normal(0, 0.2, (EXPERTS, 2 * INTERMEDIATE, HIDDEN)).astype(np.float32)
    down = rng.normal(0, 0.2, (EXPERTS, HIDDEN, INTERMEDIATE)).astype(np.float32)
    experts = list(experts)
    return ExpertWeights(gate_up[experts], down[experts], format="f32", **options)


def batch(seed, tokens=TOKENS, favourites=EXPERTS):
    """Tokens, most picks of which go to the first `favourites` experts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, HIDDEN)).astype(np.float32)
    ids = np.stack([rng.permutation(favourites)[:TOP_K] for _ in range(tokens)] or [[0] * TOP_K])
    return x, ids[:tokens].astype(np.int32), rng.random((tokens, TOP_K), dtype=np.float32)


def runtime_of(rank, ranks, exchange, timeout=60.0, streams=None, **options):
    group = RankGroup(rank, exchange, timeout, streams)
    runtime = RankRuntime(group, EXPERTS, TOP_K, max_tokens=TOKENS, **options)
    layout = runtime.layout
    own = EXPERTS // ranks
    for layer in range(LAYERS):
        if layout.ep:
            weights = weights_of(layer, range(rank * own, (rank + 1) * own))
        else:
            weights = weights_of(layer, parts=layout.tp, part=rank % layout.tp)
        runtime.add_layer(weights)
    runtime.start()
    return runtime


def forward(runtime, layer, x, ids, weights, **options):
    out = np.full_like(x, 7)
    runtime.forward(layer, x, ids, weights, out, **options)
    return out


def expected(layer, x, ids, weights):
    reference = MoeRuntime([weights_of(layer)], TOP_K, max_tokens=TOKENS)
    return forward(reference, 0, x, ids, weights)


def own_tokens(rank, ranks, exchange, tokens, dispatcher):
    runtime = runtime_of(rank, ranks, exchange, dispatcher=dispatcher)
    return [forward(runtime, layer, *batch(rank, tokens[rank])) for layer in range(LAYERS)]


@pytest.mark.parametrize("dispatcher", ["auto", "all_to_all"])
@pytest.mark.parametrize("tokens", [[TOKENS, 7], [0, 5, 1]], ids=str)
def test_each_rank_has_tokens_of_its_own(tokens, dispatcher):
    outputs = rank_processes.run(own_tokens, len(tokens), tokens, dispatcher)
    for rank, of_rank in enumerate(outputs):
        assert not isinstance(of_rank, str), of_rank
        for layer, out in enumerate(of_rank):
            x, ids, weights = batch(rank, tokens[rank])
            assert np.array_equal(out, expected(layer, x, ids, weights))


def same_tokens(rank, ranks, exchange):
    runtime = runtime_of(rank, ranks, exchange, same_tokens=True)
    return [forward(runtime, layer, *batch(9)) for layer in range(LAYERS)]


def test_all_ranks_have_the_same_tokens():
    outputs = rank_processes.run(same_tokens, 2)
    for layer in range(LAYERS):
        total = outputs[0][layer] + outputs[1][layer]
        assert np.array_equal(total, expected(layer, *batch(9)))


def tokens_of_groups(rank, ranks, exchange, sizes, tokens, budget):
    """Ranks of a group that has the same tokens come with as many as tokens[group] says."""
    layout = ParallelLayout(**sizes)
    runtime = runtime_of(rank, ranks, exchange, layout=layout, row_budget=budget)
    group = rank // (layout.tp * layout.pcp)
    outs = [forward(runtime, layer, *batch(group, tokens[group], 4)) for layer in range(LAYERS)]
    return outs, runtime.dispatcher, runtime.row_budget


@pytest.mark.parametrize(
    "sizes, tokens, budget",
    [
        ({"tp": 2, "dp": 2}, [TOKENS, 0], None),
        ({"tp": 2, "dp": 2}, [TOKENS, 1], 1),
        ({"tp": 4, "sp": False}, [TOKENS], None),
        ({"tp": 2, "dp": 2, "ep": False}, [5, TOKENS], None),
        ({"tp": 2, "pcp": 2, "ep": False}, [TOKENS], None),
    ],
    ids=str,
)
def test_layouts_over_four_processes(sizes, tokens, budget):
    layout = ParallelLayout(**sizes)
    results = rank_processes.run(tokens_of_groups, 4, sizes, tokens, budget)
    for rank, result in enumerate(results):
        assert not isinstance(result, str), result
        outs, dispatcher, rows = result
        sums = not (layout.ep and layout.sp)
        assert (dispatcher, rows) == (
            ("summed", 0) if sums else ("pull", TOKENS // 2 * TOP_K * (budget or 1.5))
        )
        group = rank // (layout.tp * layout.pcp)
        for layer, out in enumerate(outs):
            wanted = expected(layer, *batch(group, tokens[group], 4))
            if sums:
                np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
            else:
                assert np.array_equal(out, wanted)


def other_layout(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, layout=ParallelLayout(tp=ranks, sp=rank == 0))


def other_budget(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, row_budget=1 + rank)


@pytest.mark.parametrize("body, what", [(other_layout, "layout"), (other_budget, "row_budget")])
def test_ranks_with_other_layouts_or_budgets_are_refused(body, what):
    errors = rank_processes.run(body, 2)
    assert errors[0] == errors[1]
    assert errors[0].startswith("ValueError") and what in errors[0]


def no_budget(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, dispatcher="pull_batched", row_budget=2)


def test_a_dispatcher_without_a_budget_is_refused():
    for error in rank_processes.run(no_budget, 2):
        assert error.startswith("ValueError: dispatcher pull_batched takes no row budget")


BALANCER = '{"interval": 4, "gate": false, "use_async": false}'


def balanced(rank, ranks, exchange, same):
    runtime = runtime_of(
        rank, ranks, exchange, balancer=BALANCER, redundant=ranks, same_tokens=same
    )
    before = runtime.placement()
    outputs = []
    for step in range(40):
        for layer in range(LAYERS):
            seed = 100 * step if same else 100 * step + rank
            out = forward(runtime, layer, *batch(seed, favourites=4))
            if layer == step % LAYERS:
                outputs.append((seed, layer, out))
    return before, runtime.placement(), runtime.layers_switched, outputs, runtime.metrics()


@pytest.mark.parametrize("same", [False, True])
def test_experts_move_and_outputs_stay(same):
    results = rank_processes.run(balanced, 2, same)
    for result in results:
        assert not isinstance(result, str), result
    before, after, switched, _, metrics = results[0]
    assert switched >= LAYERS and before != after
    assert after == results[1][1] and switched == results[1][2]
    assert "trimtab_rebalances" in metrics
    for (seed, layer, first), (_, _, second) in zip(results[0][3], results[1][3]):
        wanted = expected(layer, *batch(seed, favourites=4))
        assert np.array_equal(first + second if same else first, wanted)


IN_TIME = BALANCER.replace("}", ', "split": "time"}')
BY_ROWS = BALANCER.replace("}", ', "split": "split"}')


def write_costs(path, points):
    cost = {
        "hidden": HIDDEN,
        "intermediate": INTERMEDIATE,
        "weights": "f32",
        "isa": kernel_isa(),
        "threads": 1,
        "points": points,
    }
    path.write_text(json.dumps({"format": "trimtab_costs", "version": 1, "costs": [cost]}))
    return str(path)


def in_time(rank, ranks, exchange, cost):
    runtime = runtime_of(rank, ranks, exchange, balancer=IN_TIME, cost=cost, redundant=ranks)
    outputs = []
    for step in range(40):
        for layer in range(LAYERS):
            seed = 100 * step + rank
            out = forward(runtime, layer, *batch(seed, favourites=4))
            if layer == step % LAYERS:
                outputs.append((seed, layer, out))
    model = runtime.cost
    times = [(rows, model.seconds(rows)) for rows in [*model.rows, 7, 5000]]
    return runtime.split, times, runtime.placement(), outputs, runtime.metrics()


@pytest.mark.parametrize("source", ["measure", "rows", "file"])
def test_ranks_share_out_by_one_cost(source, tmp_path):
    cost = source
    if source == "file":
        cost = write_costs(tmp_path / "costs.json", [[1, 1_000_000], [64, 9_000_000]])
    results = rank_processes.run(in_time, 2, cost)
    for result in results:
        assert not isinstance(result, str), result
    (split, times, placement, outputs, metrics), other = results
    assert split == other[0] == "time"
    assert times == other[1] and placement == other[2]
    if source == "file":
        assert times[0] == (1, 1e-6) and times[1] == (64, 9e-6)
    assert 'trimtab_balancing_info{split="time",policy="trim"} 1' in metrics
    assert "\ntrimtab_par_time " in metrics
    for seed, layer, out in [*outputs, *other[3]]:
        assert np.array_equal(out, expected(layer, *batch(seed, favourites=4)))


def other_costs(rank, ranks, exchange, costs):
    runtime_of(rank, ranks, exchange, balancer=IN_TIME, cost=costs[rank])


def test_ranks_with_other_costs_are_refused(tmp_path):
    one = write_costs(tmp_path / "a", [[1, 10]])
    for errors in (
        rank_processes.run(other_costs, 2, [one, "rows"]),
        rank_processes.run(other_costs, 2, ["measure", "rows"]),
    ):
        assert errors[0] == errors[1]
        assert errors[0].startswith("ValueError") and "cost" in errors[0]
    absent = str(tmp_path / "absent")
    for error in rank_processes.run(other_costs, 2, [absent, absent]):
        assert error.startswith("ValueError") and absent in error


def without_cost(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, balancer=IN_TIME)


def without_time(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, balancer=BY_ROWS, cost="rows")


def rule_of_a_cost(rank, ranks, exchange):
    runtime = runtime_of(rank, ranks, exchange, balancer=BALANCER, cost="rows", redundant=ranks)
    return runtime.split


def test_a_cost_and_its_rule_come_together():
    for body, text in ((without_cost, "time needs a cost"), (without_time, "no effect on split")):
        for error in rank_processes.run(body, 2):
            assert error.startswith("ValueError") and text in error
    assert rank_processes.run(rule_of_a_cost, 2) == ["time", "time"]


def trials(rank, ranks, exchange):
    """Steps that no rank counts make no window, and so no plan."""
    runtime = runtime_of(rank, ranks, exchange, balancer=BALANCER)
    for step in range(24):
        for layer in range(LAYERS):
            forward(runtime, layer, *batch(step, favourites=4), counts=False)
    return runtime.layers_switched, runtime.steps


def test_trial_runs_are_no_load():
    assert rank_processes.run(trials, 2) == [(0, 24), (0, 24)]


def other_settings(rank, ranks, exchange):
    runtime_of(rank, ranks, exchange, dispatcher="auto" if rank == 0 else "all_to_all")


def test_ranks_with_other_settings_are_refused():
    errors = rank_processes.run(other_settings, 2)
    assert errors[0] == errors[1]
    assert errors[0].startswith("ValueError") and "dispatcher" in errors[0]


def memory(key):
    """Bytes that this process has (VmRSS) or had at most (VmHWM), with what it shares."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key)) << 10


def peak_of_start(rank, ranks, exchange, layers):
    runtime = RankRuntime(
        RankGroup(rank, exchange), 4 * ranks, 2, max_tokens=8, balancer=BALANCER, redundant=ranks
    )
    for layer in range(layers):
        rng = np.random.default_rng(layer)
        gate_up = rng.normal(size=(4, 2 * 1024, 512)).astype(np.float32)
        down = rng.normal(size=(4, 512, 1024)).astype(np.float32)
        runtime.add_layer(ExpertWeights(gate_up, down, format="f32"))
    del gate_up, down
    before = memory("VmRSS")
    runtime.start()
    return memory("VmHWM") - before


def test_a_balancer_holds_only_one_layer_twice():
    """Experts go from where they were packed to where they can move layer by layer."""
    layers, of_layer = 12, 4 * 3 * 1024 * 512 * 4
    for peak in rank_processes.run(peak_of_start, 2, layers):
        assert not isinstance(peak, str), peak
        # A fifth slot for each four, and spares; all layers twice would be 12 more.
        assert peak < (layers / 4 + 5) * of_layer, peak / of_layer


def one_dies(rank, ranks, exchange, layer, balancer):
    runtime = runtime_of(rank, ranks, exchange, timeout=20, balancer=balancer)
    for earlier in range(LAYERS):
        forward(runtime, earlier, *batch(rank))
    for earlier in range(layer):
        forward(runtime, earlier, *batch(rank))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    forward(runtime, layer, *batch(rank))


@pytest.mark.parametrize(("layer", "balancer"), [(1, ""), (0, BALANCER)])
def test_a_rank_that_dies_is_an_error_on_the_others(layer, balancer):
    """Also where they wait to begin a step."""
    before = set(os.listdir("/dev/shm"))
    error, dead = rank_processes.run(one_dies, 2, layer, balancer)
    assert dead is None
    assert error.startswith(f"CommError: rank 0, MoE layer {layer}, ") and "peer 1: " in error
    assert error.endswith("its process has ended; start all ranks again")
    assert {name for name in os.listdir("/dev/shm") if "trimtab" in name} <= before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"redundant": 1, "balancer": BALANCER}, "1 redundant experts"),
        ({"redundant": 2}, "only with a balancer"),
        ({"balancer": '{"phase": "decode"}'}, "leave phase out"),
        ({"balancer": '{"split": "time"}'}, "needs a cost"),
        ({"balancer": '{"intervall": 4}'}, "interval"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"threads": 0}, "threads"),
    ],
    ids=str,
)
def test_settings_that_can_not_be_are_named(options, text):
    errors = rank_processes.run(bad_settings, 2, options)
    for error in errors:
        assert error.startswith(("ValueError", "FormatError")) and text in error


def bad_settings(rank, ranks, exchange, options):
    RankRuntime(RankGroup(rank, exchange), EXPERTS, TOP_K, **options)
