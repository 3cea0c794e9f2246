# SPDX-License-Identifier: Apache-2.0
"""The loads of single steps through vLLM's EplbState, over two ranks: on a package with its
signatures and on the state of released wheels (tools/check_engine_plugins.py)."""

import json
import logging
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import engines  # noqa: E402

import trimtab  # noqa: E402
from trimtab.vllm_watchdog import Watchdog  # noqa: E402

LAYERS, EXPERTS, RANKS, SLOTS = 3, 16, 2, 9
START = (np.arange(RANKS * SLOTS) % EXPERTS)[None].repeat(LAYERS, axis=0)
PROGRAM = pathlib.Path(__file__).with_name("window_rank.py")


def run_ranks(folder, engine, case, **environment):
    """What window_rank.py returned on both ranks."""
    path = ":".join(path for path in sys.path if path)
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), folder, engine, case],
            env={"PYTHONPATH": path, **environment},
        )
        for rank in range(RANKS)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module", params=["contract", *engines.real_folders("vllm")], ids=str)
def engine(request, tmp_path_factory):
    """A folder with vllm.distributed.eplb.eplb_state."""
    if request.param != "contract":
        return request.param
    folder = tmp_path_factory.mktemp("engine")
    engines.contract_balancer(folder, "vllm-map")
    return folder


@pytest.fixture(scope="module")
def planned(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    record = folder / "loads.jsonl"
    ranks = run_ranks(
        *(folder, engine, "plans_from_steps"),
        TRIMTAB_EPLB_RECORD=str(record),
        TRIMTAB_EPLB_RECORD_STEPS="8",
    )
    return ranks, record


def test_plans_are_made_from_steps_that_add_up_to_the_sum(planned):
    ranks, _ = planned
    for number in range(2):
        runs = [np.array(rank["seen"][number]["runs"]) for rank in ranks]
        np.testing.assert_array_equal(runs[0], runs[1])
        # vLLM's window of 32 steps: one run for each step, also where rank 1 had dummy steps.
        assert 8 < len(runs[0]) <= 32
        np.testing.assert_array_equal(runs[0].sum(axis=0), ranks[0]["sums"][number])


def test_steps_of_all_ranks_are_in_the_same_run(planned):
    """Hot experts change every 8 steps. Ranks that were out of step would blur that."""
    ranks, _ = planned
    runs = np.array(ranks[0]["seen"][1]["runs"], float)[:, 0]
    share = runs[:, :8].sum(axis=1) / runs.sum(axis=1)
    assert ((share < 0.25) | (share > 0.75)).all()
    assert (share < 0.25).any() and (share > 0.75).any()


def test_the_second_plan_has_the_history_of_the_first(planned):
    ranks, _ = planned
    assert ranks[0]["seen"][0]["history"] == [] and ranks[0]["seen"][1]["history"] == [0]
    assert ranks[0]["maps"] == ranks[1]["maps"]
    first, second = (np.array(one["placement"]) for one in ranks[0]["seen"])
    assert (first != START).any()
    # The loads are of the same kind as before, so nearly everything stays.
    assert (first != second).sum() <= 0.2 * first.size


def test_plans_are_level_in_every_step(planned):
    ranks, _ = planned
    load = trimtab.Load(ranks[0]["seen"][1]["runs"])
    of = lambda logical: trimtab.par_per_step(
        trimtab.Placement(logical, num_experts=EXPERTS, num_ranks=RANKS), load
    )[0].mean()
    from_sum = trimtab.plan(
        load.counts.sum(axis=0), trimtab.Placement(START, num_ranks=RANKS)
    ).placement.logical
    assert of(ranks[0]["seen"][1]["placement"]) < 1 + 0.5 * (of(from_sum) - 1)


def test_runs_and_phase_are_recorded(planned):
    ranks, record = planned
    records = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(records) == 16  # RECORD_STEPS for each of two rearrangements
    assert {one["phase"] for one in records} == {"decode"}
    assert sum(one["runs"] for one in records[:8]) == len(ranks[0]["seen"][0]["runs"])
    recording = trimtab.read_recording(record)
    assert recording.step_ids == list(range(16))
    np.testing.assert_array_equal(
        recording.load.counts[:8].sum(axis=0), ranks[0]["sums"][0]
    )


def test_a_file_is_used_from_the_first_step(engine, tmp_path):
    wanted = START[:, ::-1].copy()
    trimtab_file = tmp_path / "placement.npy"
    np.save(trimtab_file, wanted)
    ranks = run_ranks(
        *(tmp_path, engine, "starts_from_a_file"),
        TRIMTAB_EPLB_PLACEMENT_0=str(trimtab_file),
        TRIMTAB_EPLB_PLACEMENT_1=str(trimtab_file),
    )
    for rank in ranks:
        assert rank["due"]
        np.testing.assert_array_equal(rank["map"], wanted)


def test_ranks_with_different_files_start_as_vllm_does(engine, tmp_path):
    np.save(tmp_path / "a.npy", START[:, ::-1])
    np.save(tmp_path / "b.npy", np.roll(START, 1, axis=1))
    ranks = run_ranks(
        *(tmp_path, engine, "starts_from_a_file"),
        TRIMTAB_EPLB_PLACEMENT_0=str(tmp_path / "a.npy"),
        TRIMTAB_EPLB_PLACEMENT_1=str(tmp_path / "b.npy"),
    )
    assert not any(rank["due"] for rank in ranks)


def test_a_dead_thread_is_told_once(engine, tmp_path):
    for rank in run_ranks(tmp_path, engine, "watches_the_thread"):
        assert not any("thread" in line for line in rank["alive"])
        assert sum("has died" in line for line in rank["dead"]) == 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def eplb_state(**fields):
    model = types.SimpleNamespace(rebalanced=True, pending_result=None)
    return types.SimpleNamespace(
        is_async=True,
        async_worker=types.SimpleNamespace(is_alive=lambda: True),
        model_states={"model": model},
        expert_rearrangement_step=3500,
        expert_rearrangement_step_interval=3000,
        **fields,
    ), model


def test_a_stalled_thread_is_told_once_and_when_it_goes_on(caplog):
    clock = Clock()
    watchdog = Watchdog(5.0, logging.getLogger("vllm.trimtab"), clock)
    state, model = eplb_state()

    def look(seconds):
        for _ in range(int(seconds * 2)):
            clock.now += 0.5
            watchdog.look(state)

    with caplog.at_level(logging.WARNING, "vllm.trimtab"):
        look(4)
        model.pending_result = object()  # a layer is ready: progress
        look(4)
        assert not caplog.records and not watchdog.is_stalled
        look(10)
        assert watchdog.is_stalled and len(caplog.records) == 1
        assert "500 steps overdue" in caplog.text and "a layer waits" in caplog.text
        model.pending_result, model.rebalanced = None, False
        look(1)
        assert not watchdog.is_stalled and "goes on" in caplog.text


def test_time_without_requests_is_no_stall():
    clock = Clock()
    watchdog = Watchdog(5.0, logging.getLogger("vllm.trimtab"), clock)
    state, _ = eplb_state()
    for _ in range(4):
        clock.now += 3600
        watchdog.look(state)
    assert not watchdog.is_stalled


def test_gauges_tell_prometheus(monkeypatch):
    from trimtab import vllm_watchdog

    values = {}

    class Gauge:
        def __init__(self, name, text, labels, multiprocess_mode):
            assert text and labels == ["rank"] and multiprocess_mode.startswith("live")
            self.name = name

        def labels(self, rank):
            return types.SimpleNamespace(set=lambda value: values.update({self.name: value}))

    monkeypatch.setitem(sys.modules, "prometheus_client", types.SimpleNamespace(Gauge=Gauge))
    monkeypatch.setattr(vllm_watchdog, "_gauges", {})
    clock = Clock()
    watchdog = Watchdog(1.0, logging.getLogger("vllm.trimtab"), clock)
    state, _ = eplb_state()
    for _ in range(5):
        clock.now += 1
        watchdog.look(state)
    assert values == {"trimtab_eplb_worker_up": 1, "trimtab_eplb_stalled_seconds": 4.0}
    state.async_worker.is_alive = lambda: False
    watchdog.look(state)
    assert values["trimtab_eplb_worker_up"] == 0
