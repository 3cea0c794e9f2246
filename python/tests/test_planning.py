# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import trimtab

ROOT = pathlib.Path(__file__).parents[2]
TRACE = ROOT / "models/tiny-moe/trace.npy"
# FlashLB's example: 8 experts on 8 ranks of 2 slots.
FLASH = [600, 560, 120, 120, 20, 10, 10, 10]


@pytest.fixture
def counts():
    """Five steps of the same traffic."""
    rng = np.random.default_rng(1)
    return rng.poisson(np.exp(rng.normal(4, 1, (2, 16))), (5, 2, 16)).astype(np.int64)


class TestLoad:
    @pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"])
    def test_takes_whole_numbers_of_any_type(self, dtype):
        counts = np.arange(24).reshape(2, 3, 4)
        np.testing.assert_array_equal(trimtab.Load(counts.astype(dtype)).counts, counts)

    def test_takes_lists_and_one_step(self):
        load = trimtab.Load([[1, 2, 3], [4, 5, 6]])
        assert (load.num_steps, load.num_layers, load.num_experts) == (1, 2, 3)

    def test_takes_arrays_in_any_order(self, counts):
        np.testing.assert_array_equal(
            trimtab.Load(counts.transpose(2, 1, 0)).counts, counts.transpose(2, 1, 0)
        )
        np.testing.assert_array_equal(
            trimtab.Load(counts[::2, ::-1, 1::3]).counts, counts[::2, ::-1, 1::3]
        )

    @pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
    def test_takes_tensors(self, counts, dtype):
        torch = pytest.importorskip("torch")
        tensor = torch.from_numpy(counts).to(getattr(torch, dtype))
        np.testing.assert_array_equal(trimtab.Load(tensor).counts, counts)

    @pytest.mark.parametrize(
        "counts, message",
        [
            ([[1, 2], [3, -4]], r"counts\[1, 1\] is -4"),
            ([[1, 2], [3, 1.5]], r"counts\[1, 1\] is 1.5"),
            ([[1, float("nan")]], r"counts\[0, 1\] is nan"),
            (np.array([[1, 2**64 - 1]], np.uint64), "18446744073709551615"),
            ([[1e19, 2.0]], r"counts\[0, 0\]"),
            ([1, 2], "1 dimensions"),
            (7, "single number"),
            ([["a", "b"]], "."),
            ([[1j, 2]], "integers"),
        ],
        ids=str,
    )
    def test_refuses_what_no_load_can_be(self, counts, message):
        with pytest.raises((ValueError, TypeError), match=message):
            trimtab.Load(np.array(counts))

    def test_counts_are_a_view_that_keeps_the_load_alive(self, counts):
        load = trimtab.Load(counts)
        view = load.counts
        assert view.__array_interface__["data"] == load.counts.__array_interface__["data"]
        del load
        np.testing.assert_array_equal(view, counts)
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0, 0] = 1

    def test_empty(self):
        assert trimtab.Load(np.zeros((0, 2, 3), int)).counts.shape == (0, 2, 3)


class TestPlacement:
    def test_holds_what_it_was_given(self):
        logical = np.array([[0, 1, 2, 0], [2, 1, 0, 2]])
        placement = trimtab.Placement(logical, num_ranks=2, version=7)
        np.testing.assert_array_equal(placement.logical, logical)
        assert placement.logical.dtype == np.int32
        assert (
            placement.num_layers,
            placement.num_experts,
            placement.num_ranks,
            placement.num_slots,
        ) == (2, 3, 2, 4)
        assert placement.slots_per_rank == [2, 2]
        assert placement.version == 7
        assert [placement.rank_of_slot(slot) for slot in range(4)] == [0, 0, 1, 1]
        assert placement.log2phy(0, 0).tolist() == [0, 1, 2]
        assert placement.log2phy(0, 1)[0] == 3

    def test_ranks_may_have_different_slots(self):
        assert trimtab.Placement([[0, 1, 2]], slots_per_rank=[2, 0, 1]).slots_per_rank == [2, 0, 1]

    @pytest.mark.parametrize(
        "logical, arguments, message",
        [
            ([[0, 1]], {}, "num_ranks"),
            ([[0, 1]], {"num_ranks": 1, "slots_per_rank": [2]}, "num_ranks"),
            ([[0, 1, 2]], {"num_ranks": 2}, "3 slots"),
            ([[0, 2]], {"num_ranks": 1}, "expert 1"),
            ([[0, 1]], {"num_ranks": 1, "num_experts": 3}, "2"),
            ([[0, 5]], {"num_ranks": 1, "num_experts": 2}, "5"),
            ([[0, -1]], {"num_ranks": 1}, r"logical\[0, 1\] is -1"),
            ([[0, 2**31 - 1]], {"num_ranks": 1}, "2147483647"),
            ([[0, 1]], {"num_ranks": 0}, "0 ranks"),
            ([0, 1], {"num_ranks": 1}, "1 dimensions"),
        ],
        ids=str,
    )
    def test_refuses_what_no_placement_can_be(self, logical, arguments, message):
        with pytest.raises(ValueError, match=message):
            trimtab.Placement(logical, **arguments)

    def test_starts(self):
        assert trimtab.Placement.linear(1, 5, 2).logical.tolist() == [[0, 1, 2, 3, 4]]
        assert trimtab.default_placement(1, 3, [2, 3]).logical.tolist() == [[0, 1, 2, 0, 1]]
        with pytest.raises(ValueError, match="3 experts"):
            trimtab.default_placement(1, 3, [1, 1])

    def test_layer_out_of_range(self):
        with pytest.raises(ValueError, match="7"):
            trimtab.Placement([[0, 1]], num_ranks=1).log2phy(7, 0)


class TestPlan:
    def test_flashlb_example(self):
        plan = trimtab.plan([FLASH], ranks=8, slots=2)
        assert plan.par_after[0] == pytest.approx(196.6667 / 181.25, abs=1e-4)
        assert len(plan.moves) == 7
        assert plan.receive_peak.tolist() == [np.bincount(plan.moves[:, 1] // 2).max()]
        assert plan.duplicates.tolist() == [0]

    def test_moves_lead_from_one_placement_to_the_other(self, counts):
        plan = trimtab.plan(counts, ranks=4, slots=5)
        before = plan.current.logical.reshape(2, 4, 5)
        after = plan.placement.logical
        assert plan.moves.dtype == np.int32
        assert {(layer, slot): expert for layer, slot, expert in plan.moves.tolist()} == {
            (layer, slot): after[layer, slot]
            for layer in range(2)
            for slot in range(20)
            if after[layer, slot] not in before[layer, slot // 5]
        }

    def test_predictions_are_what_is_measured(self, counts):
        plan = trimtab.plan(counts, ranks=4, slots=5)
        for placement, predicted in (
            (plan.current, plan.par_step_before),
            (plan.placement, plan.par_step_after),
        ):
            assert trimtab.par_per_step(placement, plan.load)[0].mean() == pytest.approx(
                predicted.mean()
            )
        assert (plan.par_step_after < plan.par_step_before).all()
        assert (plan.bound_exact <= plan.bound_equal).all() and (
            plan.bound_equal <= plan.par_after + 1e-12
        ).all()
        assert (plan.par_step_after <= plan.par_step_after_high).all()

    def test_is_that_of_the_command(self, tmp_path, command):
        arguments = [
            "--ranks",
            "4",
            "--slots",
            "9",
            "--max-moves",
            "3",
            "--policy",
            "trim",
            "--preset",
            "fast",
        ]
        run = [command, "plan", TRACE, *arguments, "--json", "-o", tmp_path / "placement.json"]
        told = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        plan = trimtab.plan(
            trimtab.read_recording(TRACE), ranks=4, slots=9, max_moves_per_layer=3, preset="fast"
        )
        written = trimtab.read_placement(tmp_path / "placement.json")
        np.testing.assert_array_equal(plan.placement.logical, written.placement.logical)
        assert (len(plan.moves), plan.par_step_after.mean()) == (
            told["moves"],
            pytest.approx(told["par_step_after"]),
        )

    def test_limits(self, counts):
        assert len(trimtab.plan(counts, ranks=4, slots=5, max_layers=1).moves) > 0
        assert len(set(trimtab.plan(counts, ranks=4, slots=5, max_layers=1).moves[:, 0])) == 1
        assert (
            trimtab.plan(counts, ranks=4, slots=5, max_receive_per_rank=1).receive_peak.max() == 1
        )
        plan = trimtab.plan(counts, ranks=4, slots=5, max_bytes=300, expert_bytes=30)
        assert 0 < plan.bytes <= 300

    def test_starts_from_what_is_in_use(self, counts):
        first = trimtab.plan(counts, ranks=4, slots=5)
        again = trimtab.plan(counts, first.placement)
        assert len(again.moves) == 0
        assert (
            again.current is first.placement
            or again.current.logical.tolist() == first.placement.logical.tolist()
        )

    def test_history_goes_from_plan_to_plan(self, counts):
        first = trimtab.plan(counts, ranks=4, slots=5)
        second = trimtab.plan(counts, first.placement, history=first.history)
        assert (first.history.steps_seen, second.history.steps_seen) == (5, 10)
        assert first.history.episodes.num_steps == len(first.history.weights)

    def test_every_policy(self, counts):
        for name in trimtab.policy_names():
            plan = trimtab.plan(counts, ranks=4, slots=5, policy=name)
            assert plan.policy == name
            assert all(set(layer) == set(range(16)) for layer in plan.placement.logical.tolist())

    def test_a_policy_of_its_own(self, counts):
        policy = trimtab.make_policy("random", seed=3)
        one, two = (
            trimtab.plan(counts, ranks=4, slots=5, policy=policy).placement.logical
            for _ in range(2)
        )
        np.testing.assert_array_equal(one, two)
        other = trimtab.plan(
            counts, ranks=4, slots=5, policy=trimtab.make_policy("random", seed=4)
        ).placement.logical
        assert (one != other).any()

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({}, "ranks and slots"),
            ({"ranks": 4, "slots": 3}, "16 experts"),
            ({"ranks": 4, "slots": 5, "policy": "trimm"}, "trim"),
            (
                {"ranks": 4, "slots": 5, "policy": "swift", "preset": "fast"},
                "^preset: only trim has it, and the policy is swift$",
            ),
            (
                {"ranks": 4, "slots": 5, "keep_slots": False},
                "^keep_slots: only deepseek has it, and the policy is trim$",
            ),
            (
                {"ranks": 4, "slots": 5, "policy": trimtab.make_policy("trim"), "preset": "fast"},
                "its own",
            ),
            ({"ranks": 4, "slots": 5, "preset": "slow"}, "slow"),
            ({"ranks": 4, "slots": 5, "nodes": 3}, "3"),
            ({"ranks": 4, "slots": 5, "max_layers": -1}, "-1"),
            ({"ranks": 4, "slots": 5, "max_bytes": 10}, "bytes"),
            ({"current": trimtab.Placement.linear(2, 16, 4), "ranks": 3}, "ranks is 3"),
            ({"current": trimtab.Placement.linear(2, 16, 4), "slots": 3}, "slots is 3"),
            ({"current": trimtab.Placement.linear(1, 16, 4)}, "layers"),
        ],
        ids=str,
    )
    def test_refuses(self, counts, arguments, message):
        with pytest.raises(ValueError, match=message):
            trimtab.plan(counts, **arguments)

    def test_types_are_checked(self, counts):
        policy, placement = trimtab.make_policy("trim"), trimtab.Placement.linear(2, 16, 4)
        for arguments in ((counts, placement), (trimtab.Load(counts), None), (None, placement)):
            with pytest.raises(TypeError):
                policy.rebalance(*arguments)

    def test_releases_the_gil(self):
        rng = np.random.default_rng(0)
        load = trimtab.Load(rng.poisson(np.exp(rng.normal(4, 1, (64, 8, 128)))))
        current = trimtab.default_placement(8, 128, [9] * 16)
        done = threading.Event()
        thread = threading.Thread(
            target=lambda: (trimtab.plan(load, current, preset="deep"), done.set())
        )
        thread.start()
        ticks = 0
        while not done.wait(0.001):
            ticks += 1
        thread.join()
        assert ticks > 20

    def test_views_keep_the_plan_alive(self, counts):
        plan = trimtab.plan(counts, ranks=4, slots=5)
        arrays = [
            plan.moves,
            plan.par_after,
            plan.placement.logical,
            plan.receive_peak,
            plan.history.episodes.counts,
        ]
        copies = [array.copy() for array in arrays]
        del plan
        for array, copy in zip(arrays, copies):
            np.testing.assert_array_equal(array, copy)

    def test_writes_what_engines_read(self, counts, tmp_path):
        recording = trimtab.Recording(trimtab.Load(counts), layer_ids=[3, 5])
        plan = trimtab.plan(recording, ranks=4, slots=5)
        for name in ("json", "trtllm", "vllm", "vllm-ascend", "npy"):
            plan.write(tmp_path / name, name)
            read = trimtab.read_placement(tmp_path / name, format=name, num_ranks=4)
            np.testing.assert_array_equal(read.placement.logical, plan.placement.logical)
        # SGLang's file has a row for every layer of the model, so that layers 3 and 5 alone are
        # none.
        with pytest.raises(ValueError, match="begins with layer 3"):
            plan.write(tmp_path / "sglang", "sglang")
        all_layers = trimtab.plan(counts, ranks=4, slots=5)
        all_layers.write(tmp_path / "sglang", "sglang")
        read = trimtab.read_placement(tmp_path / "sglang", format="sglang", num_ranks=4)
        np.testing.assert_array_equal(read.placement.logical, all_layers.placement.logical)
        own = trimtab.read_placement(tmp_path / "json")
        assert (own.layer_ids, own.metadata) == ([3, 5], {"policy": "trim"})
        assert trimtab.plan(counts, own).layer_ids == [3, 5]
        with pytest.raises(ValueError, match="csv"):
            plan.write(tmp_path / "csv", "csv")
        with pytest.raises(RuntimeError, match="absent"):
            plan.write(tmp_path / "absent" / "file")

    def test_overhead_is_below_a_millisecond(self):
        """What Python adds to C++ for 58 layers of 256 experts is bounded; the best of many calls
        counts."""
        rng = np.random.default_rng(0)
        load = trimtab.Load(rng.poisson(np.exp(rng.normal(5, 1, (58, 256)))))
        current = trimtab.default_placement(58, 256, [9] * 32)
        added = []
        for _ in range(20):
            start = time.perf_counter()
            plan = trimtab.plan(load, current)
            added.append(time.perf_counter() - start - plan.seconds)
        assert min(added) < 1e-3


class TestSplitRuleAndCost:
    def test_plans_for_the_rule_that_serves(self):
        loads = [[8 * load for load in FLASH]]
        equal = trimtab.plan(loads, ranks=8, slots=2)
        split = trimtab.plan(loads, ranks=8, slots=2, split="split")
        assert (len(equal.moves), len(split.moves)) == (7, 5)
        assert split.par_after[0] == 1.0
        rows = trimtab.plan(loads, ranks=8, slots=2, split="time", cost=trimtab.CostModel.of_rows())
        assert len(rows.moves) == 5 and rows.par_time_after[0] == 1.0
        assert equal.step_seconds_before[0] == 0
        with pytest.raises(ValueError, match="time needs a cost model"):
            trimtab.plan(loads, ranks=8, slots=2, split="time")
        with pytest.raises(ValueError, match="there are static"):
            trimtab.plan(loads, ranks=8, slots=2, split="fair")

    def test_compares_in_time(self, counts):
        cost = trimtab.CostModel([1, 100], [1e-5, 2e-5])
        result = trimtab.compare(
            counts, ranks=4, slots=5, window=1, policies=["static"], split="time", cost=cost
        )["static"]
        assert result.step_seconds_next_mean > 2 * 1e-5  # two layers
        assert result.par_time_next_mean >= 1

    def test_shares_out_by_time(self):
        # Expert 0 is on both ranks, 1 and 2 have one each.
        table = trimtab.SplitTable(trimtab.Placement([[0, 1, 0, 2]], num_ranks=2), 0)
        weights = trimtab.CostModel([1, 2], [1e-3, 1.001e-3])
        counts = [[1, 1, 0], [1, 0, 0]]
        halves = table.split(counts, "round_robin")
        np.testing.assert_allclose(table.rank_seconds(halves, weights), [2e-3, 1e-3])
        whole = table.split(counts, "time", weights)
        np.testing.assert_allclose(table.rank_seconds(whole, weights), [1e-3, 1.001e-3])
        with pytest.raises(ValueError, match="speeds of 3 ranks"):
            speeds = trimtab.CostModel([1], [1e-3], speeds=[1, 1, 0.5])
            table.split(counts, "time", speeds)

    def test_cost_models_say_what_is_wrong(self):
        cost = trimtab.CostModel([1, 16], [1e-3, 4e-3], speeds=[1.0, 0.5], wire_seconds=1e-6)
        assert cost.rows == [1, 16] and not cost.is_proportional
        assert cost.seconds(0) == 0 and cost.seconds(1) == 1e-3 and cost.seconds(31) == 7e-3
        assert trimtab.CostModel.of_rows().is_proportional
        for arguments in (([1, 1], [1, 1]), ([1], [1, 2]), ([1], [-1]), ([], [])):
            with pytest.raises(ValueError):
                trimtab.CostModel(*arguments)
        for settings in ({"speeds": [0]}, {"speeds": [float("nan")]}, {"wire_seconds": -1}):
            with pytest.raises(ValueError):
                trimtab.CostModel([1], [1], **settings)

    def test_reads_files_of_measured_costs(self, tmp_path):
        file = tmp_path / "costs.json"
        one = {
            "shape": "small",
            "hidden": 8,
            "intermediate": 4,
            "weights": "bf16",
            "isa": "avx2",
            "threads": 2,
            "points": [[1, 5_000_000], [4, 6_000_000]],
        }
        file.write_text(json.dumps({"format": "trimtab_costs", "version": 1, "costs": [one]}))
        (cost,) = trimtab.read_costs(file)
        assert (cost.shape, cost.hidden, cost.intermediate) == ("small", 8, 4)
        assert (cost.weights, cost.isa, cost.threads) == ("bf16", "avx2", 2)
        assert cost.cost.seconds(4) == 6e-6
        file.write_text("{}")
        with pytest.raises(trimtab.FormatError, match="costs.json"):
            trimtab.read_costs(file)


class TestPage:
    def test_shows_in_a_notebook(self, counts):
        page = trimtab.plan(counts, ranks=4, slots=5).show()
        html = page._repr_html_()
        assert html.startswith("<iframe srcdoc=") and html.endswith("</iframe>")
        assert "<script" not in html and "&lt;script" in html
        assert "<script" in page.html and "PAR of a step" in page.html
        assert "default-src 'none'" in page.html  # nothing is fetched

    def test_is_a_file(self, counts, tmp_path):
        plan = trimtab.plan(counts, ranks=4, slots=5)
        plan.show().write(tmp_path / "plan.html")
        assert (tmp_path / "plan.html").read_text() == plan.report_html()
        assert "<title>Mine &amp; yours</title>" in plan.report_html("Mine & yours")


class TestCompare:
    @pytest.mark.parametrize(
        "options, arguments",
        [
            ([], {}),
            (["--split", "split", "--nodes", "2"], {"split": "split", "nodes": 2}),
            (
                ["--max-moves", "3", "--move-price", "0.1"],
                {"max_moves_per_layer": 3, "options": {"trim": {"move_price": 0.1}}},
            ),
        ],
        ids=["as they are", "by a rule", "within limits"],
    )
    def test_is_that_of_the_command(self, command, options, arguments):
        """The same code makes both, so they agree to the last bit."""
        policies = ["trim", "deepseek", "swift", "flashlb", "static"]
        run = [command, "replay", TRACE, "--ranks", "4", "--slots", "9", "--window", "16", "--json"]
        run += ["--policies", ",".join(policies), *options]
        printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        told = json.loads(printed)["policies"]
        comparison = trimtab.compare(
            trimtab.read_recording(TRACE),
            ranks=4,
            slots=9,
            window=16,
            policies=policies,
            **arguments,
        )
        assert list(comparison) == list(told)
        for name, result in comparison.items():
            assert len(result.plans) == 7
            for key, value in told[name].items():
                if key != "plan_seconds_per_replan":
                    assert getattr(result, key) == value, (name, key)

    def test_takes_an_eighth_of_the_steps_as_window(self):
        loads = trimtab.read_recording(TRACE)
        arguments = {"ranks": 4, "slots": 9, "policies": ["swift"]}
        default, named = (
            trimtab.compare(loads, **arguments, **window)["swift"]
            for window in ({}, {"window": 16})
        )
        assert len(default.plans) == 7 and default.par_next_mean == named.par_next_mean

    def test_hands_out_the_plans(self, counts):
        plans = trimtab.compare(counts, ranks=4, slots=5, window=2, policies=["trim"])["trim"].plans
        np.testing.assert_array_equal(plans[0].load.counts, counts[:2])
        plans = trimtab.compare(counts, ranks=4, slots=5, window=1, policies=["swift"])[
            "swift"
        ].plans
        assert [plan.policy for plan in plans] == ["swift"] * 4
        for before, after in zip(plans, plans[1:]):
            np.testing.assert_array_equal(before.placement.logical, after.current.logical)
        for step, plan in enumerate(plans):
            np.testing.assert_array_equal(plan.load.counts, counts[step : step + 1])

    def test_prints_a_table(self, counts):
        comparison = trimtab.compare(
            counts, ranks=4, slots=5, window=2, options={"trim": {"preset": "fast"}}
        )
        assert len({len(line) for line in repr(comparison).splitlines()}) == 1
        assert comparison._repr_html_().count("<tr>") == 4
        assert comparison["trim"].par_next_mean < comparison["static"].par_next_mean
        assert len(comparison["trim"].plans) == 1

    @pytest.mark.parametrize(
        "window, message",
        [
            (3, "5 steps; a window of 3 needs 6"),
            (0, "at least 1 step, not 0"),
            (-1, "at least 1 step, not -1"),
        ],
    )
    def test_needs_two_windows(self, counts, window, message):
        with pytest.raises(ValueError, match=message):
            trimtab.compare(counts, ranks=4, slots=5, window=window)

    def test_options_are_of_policies_that_take_part(self, counts):
        with pytest.raises(ValueError, match="swift"):
            trimtab.compare(counts, ranks=4, slots=5, window=2, options={"swift": {}})


class TestSplit:
    PLACEMENT = trimtab.Placement([[0, 1, 0, 2]], num_ranks=2)

    def test_is_as_level_as_whole_tokens_allow(self):
        table = trimtab.SplitTable(self.PLACEMENT, 0)
        counts = np.array([[10, 0, 5], [11, 0, 0]])
        shares = table.split(counts)
        assert shares.shape == (2, 4) and shares.dtype == np.int32
        for expert, slots in ((0, [0, 2]), (1, [1]), (2, [3])):
            np.testing.assert_array_equal(shares[:, slots].sum(1), counts[:, expert])
        assert table.rank_loads(shares).tolist() == [13, 13]

    def test_other_rules(self):
        table = trimtab.SplitTable(self.PLACEMENT, 0, node_of_rank=[0, 1])
        assert table.split([[10, 0, 5], [11, 0, 0]], "static")[0].tolist() == [10, 0, 0, 5]
        shares = table.split([[10, 0, 5], [11, 0, 0]], "round_robin")
        assert abs(shares[:, 0].sum() - shares[:, 2].sum()) <= 1
        with pytest.raises(ValueError, match="round_robin"):
            table.split([[0, 0, 0], [0, 0, 0]], "fair")

    def test_assigns_slots_where_the_ids_are(self):
        table = trimtab.SplitTable(self.PLACEMENT, 0)
        row = table.split([[4, 1, 0], [0, 0, 0]])[0]
        ids = np.array([[0, -1], [0, 1], [0, 0]], np.int32)
        expected = row.copy()
        table.assign_slots(row, ids)
        assert ids[0, 1] == -1 and ids[1, 1] == 1
        assert np.bincount(ids[ids >= 0], minlength=4).tolist() == expected.tolist()
        assert not row.any()

    def test_assigns_slots_of_tensors_without_a_copy(self):
        torch = pytest.importorskip("torch")
        table = trimtab.SplitTable(self.PLACEMENT, 0)
        ids = torch.tensor([2, 1, 2], dtype=torch.int32)
        table.assign_slots(table.split([[0, 1, 2], [0, 0, 0]])[0], ids)
        assert ids.tolist() == [3, 1, 3]
        with pytest.raises(TypeError):
            table.assign_slots(np.zeros(4, np.int32), np.zeros(3, np.int64))

    def test_refuses(self):
        table = trimtab.SplitTable(self.PLACEMENT, 0)
        with pytest.raises(ValueError, match="-1"):
            table.split([[0, -1, 0], [0, 0, 0]])
        with pytest.raises(ValueError, match="2 counts"):
            table.split([[0, 0]])
        with pytest.raises(ValueError):
            table.assign_slots(np.zeros(4, np.int32), np.zeros(1, np.int32))
        with pytest.raises(ValueError, match="layer"):
            trimtab.SplitTable(self.PLACEMENT, 1)


def test_par():
    assert trimtab.par([3, 1]) == 1.5
    assert trimtab.par([0, 0]) == 1.0
    with pytest.raises(ValueError, match="-1"):
        trimtab.par([-1, 2])
    with pytest.raises(ValueError, match="layers"):
        trimtab.par_per_step(trimtab.Placement.linear(2, 4, 2), trimtab.Load([[1, 2, 3, 4]]))


def test_a_window_that_chance_explains_is_not_worth_a_plan():
    """The rule by which the C++ balancer judges, too."""
    rng = np.random.default_rng(5)
    level = rng.poisson(np.full((32, 2, 16), 50.0)).astype(np.int64)
    skewed = level.copy()
    skewed[:, 1, 0] += 100
    placement = trimtab.Placement.linear(2, 16, 4)
    assert not trimtab.planning.is_worth_planning(placement, trimtab.Load(level), 1.02)
    assert trimtab.planning.is_worth_planning(placement, trimtab.Load(skewed), 1.02)
    assert not trimtab.planning.is_worth_planning(placement, trimtab.Load(skewed), 2)
    # From the definition, for the mean of the steps.
    par = trimtab.par_per_step(placement, trimtab.Load(skewed))[0].mean()
    above = par - trimtab.noise_floor(trimtab.Load(skewed), 4).mean()
    whole = trimtab.par_per_step(placement, trimtab.Load(skewed.sum(0)))[0][0]
    above = max(above, whole - trimtab.noise_floor(trimtab.Load(skewed.sum(0)), 4).mean())
    for plan_above_par in (above + 1 - 1e-6, above + 1 + 1e-6):
        expected = above > plan_above_par - 1
        assert (
            trimtab.planning.is_worth_planning(placement, trimtab.Load(skewed), plan_above_par)
            == expected
        )


@pytest.mark.parametrize("how", ["plan", "replay"])
def test_ctrl_c_ends_planning(how):
    """A plan of minutes ends soon after the signal, and its thread with it."""
    random = np.random.default_rng(5)
    load = trimtab.Load(random.integers(0, 1000, (64, 40, 128)))
    start = trimtab.default_placement(40, 128, [9] * 16)
    policy = trimtab.make_policy("trim", time_budget_s=300)
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else None
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            if how == "plan":
                policy.rebalance(load, start)
            else:
                policy.replay(load, start, window=16)
        late = time.monotonic() - sent[0]
    finally:
        timer.join()
    assert late < 2  # tens of milliseconds where the machine has time
    if threads is not None:
        assert len(os.listdir("/proc/self/task")) == threads
    # The next call is not stopped.
    assert trimtab.plan(load.counts[:1], start, preset="fast").placement.num_layers == 40


def test_plans_keep_to_rules_for_nodes():
    loads = np.random.default_rng(5).integers(1, 100, (4, 1, 16))
    plan = trimtab.plan(
        loads, ranks=4, slots=6, nodes=2, groups=4, node_rules=["groups"], preset="fast"
    )
    node_of_group = {}
    for slot, expert in enumerate(plan.placement.logical[0].tolist()):
        assert node_of_group.setdefault(expert // 4, slot // 12) == slot // 12
    with pytest.raises(ValueError, match="no rule for nodes 'near'"):
        trimtab.plan(loads, ranks=4, slots=6, nodes=2, node_rules=["near"])
    with pytest.raises(ValueError, match="swift does not keep to them"):
        trimtab.plan(loads, ranks=4, slots=6, nodes=2, node_rules=["even"], policy="swift")
