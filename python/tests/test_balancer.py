# SPDX-License-Identifier: Apache-2.0
"""Live balancing of a MoeRuntime."""

import threading
import time

import numpy as np
import pytest

import trimtab

EXPERTS, HIDDEN, TOP_K, RANKS, LAYERS = 8, 32, 2, 2, 3


def make_runtime():
    rng = np.random.default_rng(1)
    layers = [
        trimtab.ExpertWeights(
            rng.standard_normal((EXPERTS, 2 * 16, HIDDEN), np.float32),
            rng.standard_normal((EXPERTS, HIDDEN, 16), np.float32),
            format="f32",
        )
        for _ in range(LAYERS)
    ]
    return trimtab.MoeRuntime(layers, TOP_K, ranks=RANKS)


class Server:
    """Steps with experts 0 and 1 hot, which a rank has both of at first; or others."""

    def __init__(self):
        self.runtime = make_runtime()
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


def test_levels_a_skew_and_repairs_a_shift():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=5, redundant=0)
    steps(server, balancer, 8)
    assert balancer.par > 1.4
    steps_until(server, balancer, lambda: balancer.par < 1.15)
    assert balancer.replans >= 1
    # Now two that share a rank where they have come to be.
    shift = tuple(int(e) for e in balancer.placement.logical[0][:2])
    steps_until(server, balancer, lambda: balancer.par > 1.05, hot=shift)
    replans = balancer.replans
    steps_until(
        server, balancer, lambda: balancer.replans > replans and balancer.par < 1.15, hot=shift
    )
    assert balancer.failed == balancer.late == 0


def test_outputs_do_not_change():
    server, still = Server(), Server()
    balancer = trimtab.Balancer(server.runtime, interval=2, redundant=0, plan_above_par=0)
    for _ in range(5000):
        balancer.step()
        for mine, theirs in zip(server.step(), still.step()):
            assert np.array_equal(mine, theirs)
        if balancer.replans >= 2:
            break
    assert balancer.replans >= 2


def test_a_planner_that_fails_changes_nothing(monkeypatch):
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=3, redundant=0)

    def fail(*_, **__):
        raise RuntimeError("no idea")

    monkeypatch.setattr("trimtab.balancer.plan", fail)
    before = balancer.placement
    steps_until(server, balancer, lambda: balancer.failed >= 2)
    assert balancer.replans == 0 and balancer.placement is before


def test_counts_that_are_reset_within_a_window_fail_a_plan_and_no_step():
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=4, redundant=0)
    steps(server, balancer, 3)
    server.runtime.reset_load()
    steps_until(server, balancer, lambda: balancer.replans >= 1)
    assert balancer.failed == 1


def test_nobody_waits_for_a_late_planner(monkeypatch):
    server = Server()
    balancer = trimtab.Balancer(server.runtime, interval=3, redundant=0, deadline=0.02)
    go_on, plan = threading.Event(), trimtab.plan

    def late(*args, **options):
        go_on.wait(60)
        return plan(*args, **options)

    monkeypatch.setattr("trimtab.balancer.plan", late)
    steps_until(server, balancer, lambda: balancer.late == 1)
    steps(server, balancer, 30)
    assert balancer.late == 1 and balancer.replans == 0
    balancer.deadline = 10.0
    go_on.set()
    steps_until(server, balancer, lambda: balancer.replans >= 1)
    assert balancer.late == 1


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
        ({"plan_above_par": float("nan")}, "plan_above_par"),
        ({"deadline": 0}, "deadline"),
        ({"policy": "best"}, "best"),
        ({"preset": "best"}, "best"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        trimtab.Balancer(make_runtime(), **settings)
