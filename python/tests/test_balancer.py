# SPDX-License-Identifier: Apache-2.0
"""Live balancing of a MoeRuntime."""

import json
import logging
import time

import numpy as np
import pytest

import trimtab

EXPERTS, HIDDEN, TOP_K, RANKS, LAYERS = 8, 32, 2, 2, 3


def make_runtime(**options):
    rng = np.random.default_rng(1)
    layers = [
        trimtab.ExpertWeights(
            rng.standard_normal((EXPERTS, 2 * 16, HIDDEN), np.float32),
            rng.standard_normal((EXPERTS, HIDDEN, 16), np.float32),
            format="f32",
        )
        for _ in range(LAYERS)
    ]
    return trimtab.MoeRuntime(layers, TOP_K, ranks=RANKS, **options)


class Server:
    """Steps with experts 0 and 1 hot, which a rank has both of at first; or others."""

    def __init__(self, **options):
        self.runtime = make_runtime(**options)
        self.rng = np.random.default_rng(2)

    def step(self, hot=(0, 1), tokens=24):
        outs = []
        for layer in range(LAYERS):
            x = np.random.default_rng(layer).standard_normal((tokens, HIDDEN), np.float32)
            ids = np.array(
                [
                    hot if hot and t % 3 else self.rng.permutation(EXPERTS)[:TOP_K]
                    for t in range(tokens)
                ],
                np.int64,
            )
            weights = np.full((tokens, TOP_K), 0.5, np.float32)
            out = np.empty_like(x)
            self.runtime.forward(layer, x, ids, weights, out)
            outs.append(out)
        return outs


def steps(server, balancer, count, **how):
    for _ in range(count):
        balancer.step()
        server.step(**how)


def steps_until(server, balancer, condition, **how):
    """For what happens in the background, on a busy machine some time later."""
    for _ in range(5000):
        if condition():
            return
        steps(server, balancer, 1, **how)
        time.sleep(0.001)
    pytest.fail("not within 5,000 steps")


def test_levels_a_skew_and_repairs_a_shift(caplog):
    caplog.set_level(logging.INFO, "trimtab.balancer")
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=5, redundant=0)
    steps_until(server, balancer, lambda: balancer.par > 1.4)
    steps_until(server, balancer, lambda: balancer.par < 1.15)
    assert balancer.replans >= 1
    assert any(record.message.startswith("committed") for record in caplog.records)
    # Now two that share a rank where they have come to be.
    shift = tuple(int(e) for e in balancer.placement.logical[0][:2])
    steps_until(server, balancer, lambda: balancer.par > 1.05, hot=shift)
    replans = balancer.replans
    steps_until(
        server, balancer, lambda: balancer.replans > replans and balancer.par < 1.15, hot=shift
    )
    assert balancer.failed == balancer.late == 0
    assert balancer.moves > 0 and balancer.plan_seconds > 0


def test_outputs_do_not_change():
    server, still = Server(), Server()
    balancer = trimtab.Balancer(
        server.runtime, interval=2, redundant=0, plan_above_par=0, gate=False
    )
    for _ in range(5000):
        balancer.step()
        for mine, theirs in zip(server.step(), still.step()):
            assert np.array_equal(mine, theirs)
        if balancer.replans >= 2:
            break
    assert balancer.replans >= 2


def write_costs(path, points, threads=1):
    cost = {
        "hidden": HIDDEN,
        "intermediate": 16,
        "weights": "f32",
        "isa": trimtab.kernel_isa(),
        "threads": threads,
        "points": points,
    }
    path.write_text(json.dumps({"format": "trimtab_costs", "version": 1, "costs": [cost]}))
    return str(path)


@pytest.mark.parametrize("split", ["round_robin", "split", "time"])
def test_plans_are_for_the_rule_that_serves(split, tmp_path):
    """Which replica a token goes to changes no bit. Experts 2 and 3 are on one rank; where reading
    an expert's weights is all that it costs, their rows are no reason to move anything."""
    cost = write_costs(tmp_path / "costs.json", [[1, 1_000_000], [64, 1_000_001]])
    server, still = Server(split=split, cost=cost if split == "time" else ""), Server()
    balancer = trimtab.Balancer(server.runtime, interval=8, plan_above_par=0)
    assert balancer.split == server.runtime.split == split
    assert (server.runtime.cost is not None) == (split == "time")

    def step():
        balancer.step()
        for mine, theirs in zip(server.step(hot=(2, 3)), still.step(hot=(2, 3))):
            assert np.array_equal(mine, theirs)

    def is_through():
        return balancer.par_time is not None if split == "time" else balancer.replans >= 1

    for _ in range(5000):
        step()
        if is_through():
            break
        time.sleep(0.001)
    assert is_through() and balancer.failed == 0
    for _ in range(40):
        step()
    if split == "time":
        assert balancer.moves == 0
        assert balancer.par > 1.2 and balancer.par_time < 1.05


def test_a_cost_and_its_rule_come_together(tmp_path):
    with pytest.raises(ValueError, match="split rule time needs a cost"):
        make_runtime(split="time")
    with pytest.raises(ValueError, match="no effect on split rule static"):
        make_runtime(split="static", cost="rows")
    assert make_runtime().split == "static"
    assert make_runtime(cost="rows").split == "time"
    with pytest.raises(ValueError, match="has no cost of f32 experts"):
        make_runtime(split="time", cost=write_costs(tmp_path / "c", [[1, 5]], threads=7))
    assert make_runtime(split="time", cost="rows").cost.is_proportional
    assert make_runtime(split="time", cost="measure").cost.seconds(16) > 0


def test_phases_are_told_apart():
    """The hot experts of prefill are not those of decode, and decode alone is planned for."""
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=4, redundant=0, phase="decode")
    for _ in range(5000):
        balancer.step("prefill")
        server.step(hot=(4, 5), tokens=96)
        balancer.step("decode")
        server.step(hot=(0, 1))
        if balancer.replans >= 1 and balancer.par < 1.15:
            break
        time.sleep(0.001)
    assert balancer.replans >= 1 and balancer.par < 1.15
    with pytest.raises(ValueError, match="phase must be prefill or decode, not draft"):
        balancer.step("draft")


def test_screened_plans_change_nothing():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=4, redundant=0, screen=True)
    before = [list(row) for row in balancer.placement.logical]
    steps_until(server, balancer, lambda: balancer.verdict == "recommended")
    assert balancer.moves == 0
    assert [list(row) for row in balancer.placement.logical] == before


def test_the_end_counts_every_step():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=1000)
    steps(server, balancer, 5)
    balancer.finish()
    tokens = [
        int(line.split()[-1])
        for line in balancer.metrics().splitlines()
        if line.startswith("trimtab_tokens_total")
    ]
    assert sum(tokens) == 5 * LAYERS * 24 * TOP_K
    with pytest.raises(ValueError, match="a step after finish"):
        balancer.step()


def test_counts_may_be_reset_within_a_window():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=4, redundant=0)
    steps(server, balancer, 3)
    server.runtime.reset_load()
    steps_until(server, balancer, lambda: balancer.replans >= 1)
    assert balancer.failed == 0


def test_level_load_moves_nothing():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=16, redundant=0)
    for _ in range(200):
        balancer.step()
        server.step(hot=None, tokens=100)
    assert balancer.moves == 0


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"interval": 0}, "interval must be at least 1"),
        ({"redundant": -1}, "redundant"),
        ({"plan_above_par": -0.5}, "plan_above_par"),
        ({"plan_above_par": float("nan")}, "settings"),
        ({"plan_deadline_seconds": -1}, "plan_deadline_seconds"),
        ({"policy": "best"}, "best"),
        ({"preset": "best"}, "default, short or steady"),
        ({"intervall": 3}, "did you mean .interval"),
        ({"split": "split"}, "split is split, the runtime's is static"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        trimtab.Balancer(make_runtime(), **settings)
