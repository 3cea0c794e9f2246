# SPDX-License-Identifier: Apache-2.0
"""What vLLM asks of a policy: on packages with its signatures, on the balancers of released wheels
(tools/check_engine_plugins.py), and on an installed vLLM."""

import inspect
import json
import logging
import os
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import engines  # noqa: E402

import trimtab  # noqa: E402
import trimtab.vllm  # noqa: E402

LAYERS, EXPERTS, RANKS, SLOTS = 3, 16, 4, 5  # slots of a rank
ARGUMENTS = (RANKS * SLOTS, 1, 1, RANKS)  # num_replicas, num_groups, num_nodes, num_ranks


@pytest.fixture(
    params=["vllm-tables", "vllm-map", "installed", *engines.real_folders("vllm")], ids=str
)
def policies(request, tmp_path, monkeypatch):
    """The module vllm.distributed.eplb.policy, not yet ours."""
    for name in [
        name for name in os.environ if name.startswith("TRIMTAB_EPLB_") or name == "VLLM_PLUGINS"
    ]:
        monkeypatch.delenv(name)
    if request.param == "installed":
        policies = pytest.importorskip("vllm.distributed.eplb.policy", reason=engines.NOT_INSTALLED)
        monkeypatch.setitem(policies.EPLB_POLICIES, "default", policies.EPLB_POLICIES["default"])
        yield policies
        return
    folder = request.param
    if isinstance(folder, str):
        folder = tmp_path / "engine"
        engines.contract_balancer(folder, request.param)
    with engines.importable(folder, "vllm"):
        from vllm.distributed.eplb import policy

        yield policy


@pytest.fixture
def load():
    rng = np.random.default_rng(5)
    return torch.from_numpy(np.exp(rng.normal(5, 1, (LAYERS, EXPERTS))).astype(np.int32))


def linear_map():
    return (torch.arange(RANKS * SLOTS) % EXPERTS).repeat(LAYERS, 1)


def ours(policies):
    trimtab.vllm.register()
    return policies.EPLB_POLICIES["default"]


def map_of(result):
    return result[0] if isinstance(result, tuple) else result


def par_of(load, physical_to_logical):
    placement = trimtab.Placement(physical_to_logical, num_experts=EXPERTS, num_ranks=RANKS)
    return trimtab.par_per_step(placement, trimtab.Load(load))[0][0]


def test_registers_once_and_under_the_same_name(policies):
    own = policies.EPLB_POLICIES["default"]
    policy = ours(policies)
    assert policy is not own and issubclass(policy, policies.AbstractEplbPolicy)
    assert ours(policies) is policy
    assert set(policies.EPLB_POLICIES) == {"default"}


def test_vllm_loads_it_as_a_plugin(policies):
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    load_general_plugins()
    assert policies.EPLB_POLICIES["default"].__module__ == "trimtab.vllm"


def test_vllm_can_be_told_not_to_load_it(policies, monkeypatch):
    own = policies.EPLB_POLICIES["default"]
    monkeypatch.setenv("TRIMTAB_EPLB_POLICY", "off")
    assert ours(policies) is own


def test_signature_is_that_of_vllms_own(policies):
    def parameters(policy):
        return [
            (p.name, p.kind, p.default)
            for p in inspect.signature(policy.rebalance_experts).parameters.values()
        ]

    own = policies.EPLB_POLICIES["default"]
    assert parameters(ours(policies)) == parameters(own) == parameters(policies.AbstractEplbPolicy)


@pytest.mark.parametrize("old", [None, linear_map()], ids=["start", "serving"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_returns_what_vllms_own_does(policies, load, old, dtype):
    own = policies.EPLB_POLICIES["default"].rebalance_experts(load.to(dtype), *ARGUMENTS, old)
    result = ours(policies).rebalance_experts(load.to(dtype), *ARGUMENTS, old)
    assert type(result) is type(own)
    assert len(result) == len(own)
    for ours_, theirs in zip(
        result if isinstance(result, tuple) else [result], own if isinstance(own, tuple) else [own]
    ):
        assert (ours_.shape, ours_.dtype, ours_.device) == (
            theirs.shape,
            theirs.dtype,
            theirs.device,
        )


def test_every_expert_has_a_slot_and_the_ranks_are_more_level(policies, load):
    own = map_of(
        policies.EPLB_POLICIES["default"].rebalance_experts(load, *ARGUMENTS, linear_map())
    )
    result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map()))
    for layer in result:
        assert set(layer.tolist()) == set(range(EXPERTS))
    assert par_of(load, result) < par_of(load, own)
    assert par_of(load, result) < 1.01


def test_tables_say_where_experts_are(policies, load):
    result = ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map())
    if not isinstance(result, tuple):
        pytest.skip("this vLLM makes them itself")
    physical_to_logical, logical_to_physical, count = (one.numpy() for one in result)
    assert (count.sum(1) == RANKS * SLOTS).all()
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            slots = logical_to_physical[layer, expert]
            assert (slots[count[layer, expert] :] == -1).all()
            assert (
                slots[: count[layer, expert]].tolist()
                == np.flatnonzero(physical_to_logical[layer] == expert).tolist()
            )


def test_experts_that_stay_on_their_rank_stay_in_their_slot(policies, load):
    old = linear_map()
    result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, old))
    kept = 0
    for layer in range(LAYERS):
        for rank in range(RANKS):
            before, after = (
                one[layer, rank * SLOTS : (rank + 1) * SLOTS].tolist() for one in (old, result)
            )
            assert len(set(before)) == SLOTS
            for slot, expert in enumerate(before):
                if expert in after:
                    kept += 1
                    assert after[slot] == expert
    assert kept > 0 and not torch.equal(old, result)


def test_what_is_level_stays(policies):
    old = linear_map()
    level = torch.bincount(old[0]).repeat(LAYERS, 1) * 100  # every slot gets 100
    assert torch.equal(map_of(ours(policies).rebalance_experts(level, *ARGUMENTS, old)), old)
    assert torch.equal(
        map_of(ours(policies).rebalance_experts(torch.zeros_like(level), *ARGUMENTS, old)), old
    )


def test_all_ranks_and_threads_get_the_same(policies, load):
    policy, results = ours(policies), []
    threads = [
        threading.Thread(
            target=lambda: results.append(
                map_of(policy.rebalance_experts(load, *ARGUMENTS, linear_map()))
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, results[0]) for result in results)


def test_its_own_map_moves_nothing_when_planned_again(policies, load):
    policy = ours(policies)
    first = map_of(policy.rebalance_experts(load, *ARGUMENTS, linear_map()))
    assert torch.equal(map_of(policy.rebalance_experts(load, *ARGUMENTS, first)), first)


@pytest.mark.parametrize(
    "old",
    [
        (torch.arange(8 * SLOTS) % EXPERTS).repeat(LAYERS, 1),  # twice the ranks
        torch.arange(10).repeat(LAYERS, 1),  # half of them
        torch.where(linear_map() % 3 == 0, -1, linear_map()),  # empty slots
    ],
    ids=["scale down", "scale up", "holes"],
)
def test_ranks_may_come_and_go(policies, load, old):
    result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, old))
    assert result.shape == (LAYERS, RANKS * SLOTS)
    for layer in result:
        assert set(layer.tolist()) == set(range(EXPERTS))


def test_where_it_cannot_plan_vllms_own_does(policies, load, caplog):
    own = policies.EPLB_POLICIES["default"]
    load[1, 2] = -7
    expected = map_of(own.rebalance_experts(load, *ARGUMENTS, linear_map()))
    with caplog.at_level(logging.ERROR, "vllm.trimtab"):
        result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map()))
    assert torch.equal(result, expected)
    assert "-7" in caplog.text


def test_moves_can_be_limited(policies, load, monkeypatch):
    monkeypatch.setenv("TRIMTAB_EPLB_MAX_MOVES_PER_LAYER", "2")
    old = linear_map()
    result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, old))
    assert 0 < (result != old).sum(1).max() <= 2


def test_another_policy_can_be_named(policies, load, monkeypatch):
    monkeypatch.setenv("TRIMTAB_EPLB_POLICY", "deepseek")
    result = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map()))
    expected = trimtab.plan(
        load, trimtab.Placement(linear_map(), num_ranks=RANKS), policy="deepseek"
    )
    np.testing.assert_array_equal(result, expected.placement.logical)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("POLICY", "trimm", "there are off, .*trim"),
        ("PRESET", "slow", "fast, balanced, deep"),
        ("MAX_LAYERS", "many", "not a whole number"),
        ("MOVE_PRICE", "-1", "0 or more"),
        ("MAX_MOVES", "3", "no such setting.*TRIMTAB_EPLB_MAX_MOVES_PER_LAYER"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_the_start(
    policies, monkeypatch, name, text, message
):
    monkeypatch.setenv(f"TRIMTAB_EPLB_{name}", text)
    with pytest.raises(ValueError, match=message):
        trimtab.vllm.register()


def test_records_loads_that_trimtab_reads(policies, load, monkeypatch, tmp_path):
    file = tmp_path / "loads.jsonl"
    monkeypatch.setenv("TRIMTAB_EPLB_RECORD", str(file))
    policy = ours(policies)
    for factor in (1, 2):
        policy.rebalance_experts(load * factor, *ARGUMENTS, linear_map())
    policy.rebalance_experts(load * 0, *ARGUMENTS, linear_map())  # a profile run
    policy.rebalance_experts(load[:1], *ARGUMENTS, linear_map()[:1])  # a draft model's
    recording = trimtab.read_recording(file)
    assert recording.format == "vllm"
    np.testing.assert_array_equal(recording.load.counts, torch.stack([load, load * 2]))


def test_records_while_vllms_own_plans(policies, load, monkeypatch, tmp_path):
    expected = map_of(
        policies.EPLB_POLICIES["default"].rebalance_experts(load, *ARGUMENTS, linear_map())
    )
    monkeypatch.setenv("TRIMTAB_EPLB_POLICY", "off")
    monkeypatch.setenv("TRIMTAB_EPLB_RECORD", str(tmp_path / "loads.jsonl"))
    assert torch.equal(
        map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map())), expected
    )
    assert trimtab.read_recording(tmp_path / "loads.jsonl").load.counts.sum() == load.sum()


def test_that_nothing_can_be_recorded_changes_no_plan(policies, load, monkeypatch, tmp_path):
    expected = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map()))
    own = policies.EPLB_POLICIES["default"].vllm_policy
    settings = trimtab.live_planning.Settings(record=str(tmp_path / "absent" / "loads.jsonl"))
    policy = trimtab.vllm.make_policy(policies.AbstractEplbPolicy, own, settings)
    assert torch.equal(map_of(policy.rebalance_experts(load, *ARGUMENTS, linear_map())), expected)


def record_loads(policies, file, load):
    own = policies.EPLB_POLICIES["default"]
    settings = trimtab.live_planning.Settings(record=str(file))
    policy = trimtab.vllm.make_policy(policies.AbstractEplbPolicy, own, settings)
    return map_of(policy.rebalance_experts(load, *ARGUMENTS, linear_map()))


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\xff\xfe\n\xc8\xc8",
        b"layer,expert,count\n0,0,1\n",
        b"{}\n",
        b"\n",
        b'{"record_type": "eplb_load_stats", "version": 1, "step": 0, '
        b'"expert_load": [[1]], "p2l_map": [[0]]}\n',
    ],
    ids=["binary", "csv", "other json", "blank", "another model"],
)
def test_a_file_that_is_no_recording_stays_and_the_plan_too(
    policies, load, tmp_path, caplog, content
):
    file = tmp_path / "loads.npy"
    file.write_bytes(content)
    expected = map_of(ours(policies).rebalance_experts(load, *ARGUMENTS, linear_map()))
    with caplog.at_level(logging.WARNING, "vllm.trimtab"):
        assert torch.equal(record_loads(policies, file, load), expected)
    assert file.read_bytes() == content
    assert "not recorded" in caplog.text and "loads.npy is there and holds" in caplog.text


def test_a_later_run_appends_behind_a_line_that_was_cut_off(policies, load, tmp_path):
    file = tmp_path / "loads.jsonl"
    record_loads(policies, file, load)
    record_loads(policies, file, load * 2)
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])  # the second record was being written
    record_loads(policies, file, load * 3)
    recording = trimtab.read_recording(file)
    assert recording.step_ids == [0, 1]
    np.testing.assert_array_equal(recording.load.counts, torch.stack([load, load * 3]))


def test_a_placement_from_a_file_is_used(policies, load, monkeypatch, tmp_path):
    plan = trimtab.plan(load, ranks=RANKS, slots=SLOTS)
    file = tmp_path / "placement.json"
    plan.write(file)
    monkeypatch.setenv("TRIMTAB_EPLB_PLACEMENT", str(file))
    policy = ours(policies)
    other = load.flip(1)
    np.testing.assert_array_equal(
        map_of(policy.rebalance_experts(other, *ARGUMENTS, linear_map())), plan.placement.logical
    )
    assert map_of(policy.rebalance_experts(load[:1], *ARGUMENTS, linear_map()[:1])).shape == (
        1,
        RANKS * SLOTS,
    )


def test_a_placement_file_that_is_none_is_refused_at_the_start(policies, monkeypatch, tmp_path):
    (tmp_path / "placement.json").write_text(json.dumps({"physical_to_logical_map": "none"}))
    monkeypatch.setenv("TRIMTAB_EPLB_PLACEMENT", str(tmp_path / "placement.json"))
    with pytest.raises(ValueError, match="placement.json"):
        trimtab.vllm.register()


OLD_POLICY = """
class AbstractEplbPolicy:
    pass
class DefaultEplbPolicy(AbstractEplbPolicy):
    @classmethod
    def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks):
        pass
EPLB_POLICIES = {"default": DefaultEplbPolicy}
"""


@pytest.mark.parametrize("policy", [None, OLD_POLICY], ids=["no policies", "no map in use"])
def test_an_old_vllm_is_left_alone(tmp_path, caplog, monkeypatch, policy):
    engines.surround(tmp_path, "vllm")
    if policy is not None:
        engines.write(tmp_path, {"vllm/distributed/eplb/policy/__init__.py": policy})
    with engines.importable(tmp_path, "vllm"), caplog.at_level(logging.WARNING, "vllm.trimtab"):
        trimtab.vllm.register()
        if policy is not None:
            from vllm.distributed.eplb import policy as policies

            assert policies.EPLB_POLICIES["default"] is policies.DefaultEplbPolicy
    assert "does in 0.14 and newer" in caplog.text
