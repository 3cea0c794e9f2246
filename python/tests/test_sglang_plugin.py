# SPDX-License-Identifier: Apache-2.0
"""Checks what SGLang asks of rebalance_experts: on a package with its signatures, on the balancers
of released wheels (tools/check_engine_plugins.py), and on an installed SGLang."""

import inspect
import logging
import os
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import engines  # noqa: E402

import trimtab  # noqa: E402
import trimtab.sglang  # noqa: E402

STEPS, LAYERS, EXPERTS, RANKS, SLOTS = 6, 3, 16, 4, 5


@pytest.fixture(params=["sglang", "installed", *engines.real_folders("sglang")], ids=str)
def sglang(request, tmp_path, monkeypatch):
    """The module sglang.srt.eplb.eplb_algorithms, not yet ours."""
    for name in [
        name for name in os.environ if name.startswith("TRIMTAB_EPLB_") or name == "SGLANG_PLUGINS"
    ]:
        monkeypatch.delenv(name)
    if request.param == "installed":
        pytest.importorskip("sglang.srt.plugins", reason=engines.NOT_INSTALLED)
        yield pytest.importorskip("sglang.srt.eplb.eplb_algorithms", reason=engines.NOT_INSTALLED)
        return
    folder = request.param
    if isinstance(folder, str):
        folder = tmp_path / "engine"
        engines.contract_balancer(folder, request.param)
    with engines.importable(folder, "sglang"):
        from sglang.srt.elastic_ep.elastic_ep import ElasticEPStateManager
        from sglang.srt.eplb import eplb_algorithms

        ElasticEPStateManager.world_size = RANKS
        yield eplb_algorithms


@pytest.fixture
def load():
    """Two crowds that come in turn, and rows of the buffer that no step has filled."""
    rng = np.random.default_rng(3)
    crowds = np.exp(rng.normal(5, 1, (2, LAYERS, EXPERTS)))
    steps = rng.poisson(crowds[np.arange(STEPS) % 2]).astype(np.int32)
    return torch.from_numpy(np.concatenate([steps, np.zeros((2, LAYERS, EXPERTS), np.int32)]))


def arguments(sglang, load, algorithm="deepseek"):
    """As ExpertLocationMetadata.init_by_eplb passes them."""
    return dict(
        tokens_per_expert=load,
        num_physical_experts=RANKS * SLOTS,
        num_local_physical_experts=SLOTS,
        num_groups=None,
        num_nodes=1,
        algorithm=sglang.EplbAlgorithm[algorithm],
    )


def linear_map():
    return (torch.arange(RANKS * SLOTS) % EXPERTS).repeat(LAYERS, 1)


def use_map(physical_to_logical, monkeypatch):
    from sglang.srt.eplb import expert_location

    metadata = types.SimpleNamespace(physical_to_logical_map_cpu=physical_to_logical)
    monkeypatch.setattr(expert_location, "get_global_expert_location_metadata", lambda: metadata)


def plugged(sglang):
    from sglang.srt.plugins import load_plugins

    load_plugins()
    load_plugins()
    return sglang.rebalance_experts


def check_tables(physical_to_logical, logical_to_physical, count, used=None):
    used = np.ones(RANKS * SLOTS, bool) if used is None else used
    assert (count.sum(1) == used.sum()).all()
    assert logical_to_physical.shape == (LAYERS, EXPERTS, count.max())
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            slots = logical_to_physical[layer, expert].tolist()
            held = np.flatnonzero((physical_to_logical[layer].numpy() == expert) & used).tolist()
            assert len(held) >= 1
            assert slots == held + [-1] * (len(slots) - len(held))


def test_sglang_loads_it_as_a_plugin(sglang, load):
    own = sglang.rebalance_experts
    expected = own(**arguments(sglang, load))
    hook = plugged(sglang)
    assert hook is not own
    result = hook(**arguments(sglang, load))
    assert not torch.equal(result[0], expected[0])
    assert torch.equal(
        result[0],
        trimtab.sglang.make_rebalance_experts(own, trimtab.live_planning.Settings())(
            **arguments(sglang, load)
        )[0],
    )


def test_it_is_registered_once(sglang, caplog):
    trimtab.sglang.register()
    trimtab.sglang.register()
    assert "Multiple REPLACE" not in caplog.text


def test_sglang_can_be_told_not_to_load_it(sglang, monkeypatch):
    own = sglang.rebalance_experts
    monkeypatch.setenv("TRIMTAB_EPLB_POLICY", "off")
    assert plugged(sglang) is own


def test_signature_is_that_of_sglangs_own(sglang):
    hook = trimtab.sglang.make_rebalance_experts(None, trimtab.live_planning.Settings())
    assert list(inspect.signature(hook).parameters) == list(
        inspect.signature(sglang.rebalance_experts).parameters
    )


def test_returns_what_sglangs_own_does(sglang, load):
    own = sglang.rebalance_experts(**arguments(sglang, load))
    result = plugged(sglang)(**arguments(sglang, load))
    assert isinstance(result, tuple) and len(result) == len(own) == 3
    for ours, theirs in zip(result, own):
        assert (ours.dtype, ours.device, ours.dim()) == (theirs.dtype, theirs.device, theirs.dim())
    assert result[0].shape == own[0].shape and result[2].shape == own[2].shape
    check_tables(*result)


def test_is_level_step_by_step(sglang, load):
    def par(result):
        placement = trimtab.Placement(result[0], num_experts=EXPERTS, num_ranks=RANKS)
        return trimtab.par_per_step(placement, trimtab.Load(load[:STEPS]))[0].mean()

    own = sglang.rebalance_experts(**arguments(sglang, load))
    assert par(plugged(sglang)(**arguments(sglang, load))) < par(own)


def test_experts_that_stay_on_their_rank_stay_in_their_slot(sglang, load, monkeypatch):
    old = linear_map()
    use_map(old, monkeypatch)
    result = plugged(sglang)(**arguments(sglang, load))[0]
    kept = 0
    for layer in range(LAYERS):
        for rank in range(RANKS):
            before, after = (
                one[layer, rank * SLOTS : (rank + 1) * SLOTS].tolist() for one in (old, result)
            )
            for slot, expert in enumerate(before):
                if expert in after:
                    kept += 1
                    assert after[slot] == expert
    assert kept > 0 and not torch.equal(old, result)


def test_its_own_map_moves_nothing_when_planned_again(sglang, load, monkeypatch):
    first = plugged(sglang)(**arguments(sglang, load))[0]
    use_map(first, monkeypatch)
    assert torch.equal(sglang.rebalance_experts(**arguments(sglang, load))[0], first)


def test_an_empty_buffer_changes_nothing(sglang, load, monkeypatch):
    use_map(linear_map(), monkeypatch)
    assert torch.equal(
        plugged(sglang)(**arguments(sglang, torch.zeros_like(load)))[0], linear_map()
    )


@pytest.mark.parametrize("dead", [[], [0], [1, 3]], ids=str)
def test_dead_ranks_serve_nobody(sglang, load, monkeypatch, dead):
    from sglang.srt.elastic_ep.elastic_ep import ElasticEPStateManager

    load = load[..., :10]  # two ranks have slots for them
    active = torch.ones(RANKS, dtype=torch.int32)
    active[dead] = 0
    state = types.SimpleNamespace(active_ranks=active)
    monkeypatch.setattr(ElasticEPStateManager, "instance", classmethod(lambda cls: state))
    own = sglang.rebalance_experts(**arguments(sglang, load, "elasticity_aware"))
    physical_to_logical, logical_to_physical, count = plugged(sglang)(
        **arguments(sglang, load, "elasticity_aware")
    )
    used = np.repeat(active.numpy().astype(bool), SLOTS)
    assert physical_to_logical.shape == own[0].shape
    assert (physical_to_logical[:, ~used] == 0).all()
    assert (count.sum(1) == int(used.sum())).all()
    for layer in range(LAYERS):
        for expert in range(10):
            slots = [slot for slot in logical_to_physical[layer, expert].tolist() if slot >= 0]
            assert (
                slots and used[slots].all() and (physical_to_logical[layer, slots] == expert).all()
            )


def test_where_it_cannot_plan_sglangs_own_does(sglang, load, caplog):
    load[0, 1, 2] = -7
    expected = sglang.rebalance_experts(**arguments(sglang, load))
    with caplog.at_level(logging.ERROR, "trimtab.sglang"):
        result = plugged(sglang)(**arguments(sglang, load))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(result, expected))
    assert "-7" in caplog.text


def test_nodes_that_do_not_divide_ranks_are_one(sglang, load):
    plug = plugged(sglang)
    odd = plug(**{**arguments(sglang, load), "num_nodes": 3})
    assert torch.equal(odd[0], plug(**arguments(sglang, load))[0])


def test_settings_of_vllm_are_refused(sglang, monkeypatch):
    monkeypatch.setenv("TRIMTAB_EPLB_RECORD", "loads.jsonl")
    with pytest.raises(ValueError, match="is for vLLM"):
        trimtab.sglang.register()


def test_moves_can_be_limited(sglang, load, monkeypatch):
    monkeypatch.setenv("TRIMTAB_EPLB_MAX_MOVES_PER_LAYER", "2")
    use_map(linear_map(), monkeypatch)
    result = plugged(sglang)(**arguments(sglang, load))[0]
    assert 0 < (result != linear_map()).sum(1).max() <= 2
