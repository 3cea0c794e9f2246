# SPDX-License-Identifier: Apache-2.0
import pathlib
import pickle

import numpy as np
import pytest

import trimtab

FORMATS = pathlib.Path(__file__).parents[2] / "tests/fixtures/formats"


class TestFilesOfTheLibrary:
    @pytest.mark.parametrize(
        "name, format",
        [
            ("sglang_stat.json", "sglang"),
            ("sglang_users.csv", "csv"),
            ("deepseek_weight.npy", "npy"),
            ("vllm_stats.jsonl", "vllm"),
            ("trtllm_statistics", "trtllm"),
            ("trace.topk.txt", "topk"),
        ],
    )
    def test_are_read(self, name, format):
        recording = trimtab.read_recording(FORMATS / name)
        assert recording.format == format
        assert recording.load.counts.any()
        assert len(recording.layer_ids) == recording.load.num_layers
        assert len(recording.step_ids) == recording.load.num_steps

    def test_several_are_summed(self):
        one = trimtab.read_recording(FORMATS / "sglang_stat.json")
        both = trimtab.read_recording(
            [FORMATS / "sglang_stat.json", str(FORMATS / "sglang_stat.json")]
        )
        np.testing.assert_array_equal(both.load.counts, 2 * one.load.counts)

    def test_are_written(self, tmp_path):
        recording = trimtab.Recording(
            trimtab.Load(np.arange(12).reshape(2, 2, 3)),
            [4, 6],
            [10, 20],
            {"num_experts_per_token": "2"},
        )
        for format in (one.name for one in trimtab.file_formats() if one.writes_loads):
            recording.write(tmp_path / format, format)
            read = trimtab.read_recording(tmp_path / format, format=format)
            np.testing.assert_array_equal(read.load.counts, recording.load.counts)
        own = trimtab.read_recording(tmp_path / "json")
        assert (own.layer_ids, own.step_ids) == ([4, 6], [10, 20])

    def test_errors(self, tmp_path):
        (tmp_path / "loads.csv").write_text("layer,expert,count\n0,0,x\n")
        with pytest.raises(trimtab.FormatError, match="loads.csv at byte 23: line 2"):
            trimtab.read_recording(tmp_path / "loads.csv")
        with pytest.raises(RuntimeError, match="absent"):
            trimtab.read_recording(tmp_path / "absent")
        with pytest.raises(ValueError, match="no files"):
            trimtab.read_recording([])
        with pytest.raises(ValueError, match="parquet"):
            trimtab.read_recording(FORMATS / "sglang_stat.json", format="parquet")
        with pytest.raises(ValueError, match="2 layer_ids for 1"):
            trimtab.Recording(trimtab.Load([[1, 2]]), layer_ids=[1, 2])


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def torch_zeros(*shape):
    import torch

    return torch.zeros(shape)


PHYSICAL_TO_LOGICAL = np.array([[0, 1, 2, 0], [2, 1, 0, 2]])


def record(torch, forward_pass_id, rank, counts, gatherer_key="primary", **more):
    """As _DetailAccumulator.append of sglang/srt/eplb/expert_distribution.py makes them."""
    return {
        "forward_pass_id": forward_pass_id,
        "rank": rank,
        "gatherer_key": gatherer_key,
        **more,
        "global_physical_count": torch.tensor(counts, dtype=torch.int32),
    }


def save(torch, path, records):
    torch.save(
        {"records": records, "last_physical_to_logical_map": torch.tensor(PHYSICAL_TO_LOGICAL)},
        path,
    )
    return path


class TestSglangDumps:
    @pytest.mark.parametrize("rate", [None, 0.75], ids=["stat", "stat_approx"])
    def test_stat(self, torch, tmp_path, rate):
        counts = torch.zeros(5, 2, 3, dtype=torch.int32)
        counts[0], counts[2] = 1, torch.arange(6).view(2, 3)
        dump = {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": rate}
        torch.save(dump, tmp_path / "dump.pt")
        recording = trimtab.read_recording(tmp_path / "dump.pt")
        np.testing.assert_array_equal(recording.load.counts, counts[[0, 2]])
        assert recording.step_ids == [0, 2]
        assert recording.file == str(tmp_path / "dump.pt")

    def test_stat_dumps_follow_one_another(self, torch, tmp_path):
        for i in (1, 2):
            torch.save(
                {"rank": 0, "logical_count": torch.full((i, 1, 2), i)}, tmp_path / f"dump_{i}.pt"
            )
        assert trimtab.read_recording(tmp_path).load.counts[:, 0, 0].tolist() == [1, 2, 2]
        assert (
            trimtab.read_recording([tmp_path / "dump_2.pt", tmp_path / "dump_1.pt"]).load.counts[
                0, 0, 0
            ]
            == 2
        )

    def test_per_pass(self, torch, tmp_path):
        ones, some = [[1, 1, 1, 1]] * 2, [[5, 0, 0, 2], [0, 0, 3, 0]]
        save(torch, tmp_path / "a_0.pt", [record(torch, 7, 0, ones), record(torch, 9, 0, some)])
        save(torch, tmp_path / "a_1.pt", [record(torch, 9, 1, ones), record(torch, 7, 1, some)])
        recording = trimtab.read_recording(tmp_path)
        assert recording.step_ids == [7, 9]
        # slots 0 and 3 of layer 0 hold expert 0, slots 0 and 3 of layer 1 expert 2
        expected = [[2 + 7, 1, 1], [1 + 3, 1, 2]]
        assert recording.load.counts.tolist() == [expected, expected]

    def test_microbatches_of_a_pass_are_summed(self, torch, tmp_path):
        ones = [[1, 1, 1, 1]] * 2
        save(
            torch,
            tmp_path / "a.pt",
            [record(torch, 1, 0, ones, "child_a"), record(torch, 1, 0, ones, "child_b")],
        )
        assert trimtab.read_recording(tmp_path / "a.pt").load.counts.tolist() == [
            [[4, 2, 2], [2, 2, 4]]
        ]

    def test_per_token(self, torch, tmp_path):
        ids = torch.tensor([[[0, 3], [3, -1]], [[1, 2], [0, 1]]], dtype=torch.int32)
        counts = [np.bincount(layer[layer >= 0], minlength=4).tolist() for layer in ids.numpy()]
        more = {
            "input_ids": [4, 5],
            "positions": [0, 1],
            "extend_seq_lens": None,
            "forward_mode": 1,
        }
        more |= {
            "topk_ids_of_layer": ids,
            "misc_objects": [{"layer_id": 0, "num_tokens_per_rank": [1, 1]}],
        }
        save(torch, tmp_path / "a.pt", [record(torch, 1, 0, counts, **more)])
        assert trimtab.read_recording(tmp_path / "a.pt").load.counts.tolist() == [
            [[3, 0, 0], [1, 2, 1]]
        ]

    def test_experts_that_no_slot_held_can_be_named(self, torch, tmp_path):
        save(torch, tmp_path / "a.pt", [record(torch, 1, 0, [[1] * 4] * 2)])
        assert trimtab.read_recording(tmp_path / "a.pt", num_experts=5).load.num_experts == 5

    @pytest.mark.parametrize(
        "change, message",
        [
            (
                lambda dump: dump["records"].append(dump["records"][0]),
                "pass 1 of rank 0, gatherer primary is there twice",
            ),
            (
                lambda dump: dump["records"][0].pop("global_physical_count"),
                "global_physical_count of pass 1 is NoneType",
            ),
            (
                lambda dump: dump["records"][0].update(
                    global_physical_count=dump["last_physical_to_logical_map"][:1]
                ),
                r"counts \[1, 4\], not \[2, 4\]",
            ),
            (lambda dump: dump["records"][0].pop("forward_pass_id"), "pass None"),
            (lambda dump: dump["records"].clear(), "no records"),
            (lambda dump: dump.update(records=torch_zeros(2)), "not a list of records"),
            (lambda dump: dump["records"].append(3), "not a list of records"),
            (lambda dump: dump["records"][0].update(forward_pass_id=-1), "pass -1"),
            (lambda dump: dump["records"][0].update(forward_pass_id=1 << 63), "forward_pass_id"),
            (lambda dump: dump["records"][0].update(forward_pass_id=True), "pass True"),
            (
                lambda dump: dump["records"][0].update(global_physical_count=torch_zeros(2, 4) / 0),
                "is nan, not",
            ),
            (lambda dump: dump["last_physical_to_logical_map"].fill_(-1), "has no expert"),
            (lambda dump: dump["last_physical_to_logical_map"].fill_(4), "expert 4 in 4 slots"),
            (lambda dump: dump["last_physical_to_logical_map"].fill_(1 << 40), "to 1048575"),
            (lambda dump: dump["last_physical_to_logical_map"].fill_(-2), "is -2, not"),
            (lambda dump: dump["records"][0]["global_physical_count"].neg_(), "-1, not"),
            (
                lambda dump: dump.pop("last_physical_to_logical_map"),
                "last_physical_to_logical_map is NoneType",
            ),
            (lambda dump: dump.pop("records"), "neither logical_count nor records"),
        ],
    )
    def test_refuses(self, torch, tmp_path, change, message):
        dump = {
            "records": [record(torch, 1, 0, [[1] * 4] * 2)],
            "last_physical_to_logical_map": torch.tensor(PHYSICAL_TO_LOGICAL),
        }
        change(dump)
        torch.save(dump, tmp_path / "a.pt")
        with pytest.raises(ValueError, match=message):
            trimtab.read_recording(tmp_path / "a.pt")

    def test_an_empty_slot_counts_for_no_expert(self, torch, tmp_path):
        dump = {
            "records": [record(torch, 1, 0, [[1, 2, 0]])],
            "last_physical_to_logical_map": torch.tensor([[0, 1, -1]]),
        }
        torch.save(dump, tmp_path / "a.pt")
        assert trimtab.read_recording(tmp_path / "a.pt").load.counts.tolist() == [[[1, 2]]]
        dump["records"] = [record(torch, 1, 0, [[1, 2, 30]])]
        torch.save(dump, tmp_path / "a.pt")
        with pytest.raises(ValueError, match="30 tokens went to slots that were empty"):
            trimtab.read_recording(tmp_path / "a.pt")

    def test_sums_beyond_63_bits(self, torch, tmp_path):
        most = 1 << 62
        for rank in range(2):
            one = record(torch, 1, rank, [[1] * 4] * 2)
            one["global_physical_count"] = torch.full((2, 4), most // 16)
            save(torch, tmp_path / f"{rank}.pt", [one])
        assert trimtab.read_recording(tmp_path / "0.pt").load.counts.sum() == most // 2
        with pytest.raises(ValueError, match="62 bits"):
            trimtab.read_recording(tmp_path)
        torch.save({"logical_count": torch.full((3, 1, 1), most)}, tmp_path / "stat.pt")
        with pytest.raises(ValueError, match="62 bits"):
            trimtab.read_recording(tmp_path / "stat.pt")

    def test_a_ring_that_may_have_wrapped_is_named(self, torch, tmp_path, caplog):
        def order(steps):
            counts = torch.tensor(steps).view(-1, 1, 1).expand(-1, 1, 2)
            torch.save({"rank": 0, "logical_count": counts}, tmp_path / "dump.pt")
            return trimtab.read_recording(tmp_path / "dump.pt").metadata.get("step_order")

        assert order([1, 2, 0, 0]) is None  # filled in part, from the first row on
        assert order([0, 1, 2, 0]) is None
        assert order([1]) is None
        assert "a ring may have wrapped" in order([1, 2, 3])
        assert not caplog.text
        assert "has wrapped" in order([3, 0, 1, 2])  # it went on behind its end
        assert "dump.pt: the order of its steps is wrong" in caplog.text
        torch.save(torch.ones(2, 1, 2), tmp_path / "tensor.pt")
        assert trimtab.read_recording(tmp_path / "tensor.pt").metadata == {}

    def test_dumps_under_different_placements(self, torch, tmp_path):
        save(torch, tmp_path / "a.pt", [record(torch, 1, 0, [[1] * 4] * 2)])
        dump = torch.load(tmp_path / "a.pt", weights_only=True)
        dump["last_physical_to_logical_map"] = dump["last_physical_to_logical_map"].flip(1)
        torch.save(dump, tmp_path / "b.pt")
        with pytest.raises(ValueError, match="different placements"):
            trimtab.read_recording(tmp_path)

    def test_dumps_of_different_kinds(self, torch, tmp_path):
        save(torch, tmp_path / "a.pt", [record(torch, 1, 0, [[1] * 4] * 2)])
        torch.save(torch.ones(2, 3), tmp_path / "b.pt")
        with pytest.raises(ValueError, match="a tensor, records"):
            trimtab.read_recording(tmp_path)

    def test_an_empty_buffer(self, torch, tmp_path):
        torch.save({"rank": 0, "logical_count": torch.zeros(5, 2, 3)}, tmp_path / "dump.pt")
        with pytest.raises(ValueError, match="no tokens"):
            trimtab.read_recording(tmp_path / "dump.pt")

    def test_placement(self, torch, tmp_path):
        torch.save(
            {"physical_to_logical_map": torch.tensor(PHYSICAL_TO_LOGICAL)}, tmp_path / "location.pt"
        )
        read = trimtab.read_placement(tmp_path / "location.pt", num_ranks=2)
        np.testing.assert_array_equal(read.placement.logical, PHYSICAL_TO_LOGICAL)
        with pytest.raises(ValueError, match="num_ranks"):
            trimtab.read_placement(tmp_path / "location.pt")
        for wrong, message in ((-1, "is -1, not"), (1 << 40, "to 1048575"), (0.5, "is 0.5, not")):
            torch.save(
                {"physical_to_logical_map": torch.tensor([[0, wrong]])}, tmp_path / "location.pt"
            )
            with pytest.raises(ValueError, match=message):
                trimtab.read_placement(tmp_path / "location.pt", num_ranks=1)
        torch.save({}, tmp_path / "location.pt")
        with pytest.raises(ValueError, match="no placement"):
            trimtab.read_placement(tmp_path / "location.pt", num_ranks=2)


class TestVllmAscend:
    @pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "bfloat16"])
    def test_tensor(self, torch, tmp_path, dtype):
        tensor = torch.arange(6).view(2, 3).to(getattr(torch, dtype))
        torch.save(tensor, tmp_path / "load.pt")
        recording = trimtab.read_recording(tmp_path / "load.pt")
        assert recording.load.counts.tolist() == [[[0, 1, 2], [3, 4, 5]]]
        assert trimtab.plan(recording, ranks=1, slots=3).layer_ids == [0, 1]

    @pytest.mark.parametrize(
        "counts, message",
        [
            ([[1.0, float("nan")]], "is nan, not"),
            ([[1.0, float("inf")]], "is inf, not"),
            ([[1.0, 1e30]], "not a whole number"),
            ([[1.0, 2.0**63]], "not a whole number"),
            ([[1, -1]], r"\[0, 0, 1\] is -1, not"),
        ],
    )
    def test_numbers_that_are_no_counts(self, torch, tmp_path, counts, message):
        torch.save(torch.tensor(counts), tmp_path / "load.pt")
        with pytest.raises(ValueError, match=message):
            trimtab.read_recording(tmp_path / "load.pt")

    def test_unusual_tensors(self, torch, tmp_path):
        for tensor in (
            torch.tensor([[1, 2]], dtype=torch.uint64),
            torch.nn.Parameter(torch.tensor([[1.0, 2.0]])),
            torch.tensor([[1.0, 2.0]], dtype=torch.float16),
        ):
            torch.save(tensor, tmp_path / "load.pt")
            assert trimtab.read_recording(tmp_path / "load.pt").load.counts.tolist() == [[[1, 2]]]
        torch.save(torch.tensor([[1, 2]]).to_sparse(), tmp_path / "load.pt")
        with pytest.raises(ValueError, match="a sparse or quantised tensor"):
            trimtab.read_recording(tmp_path / "load.pt")

    def test_tensor_of_steps(self, torch, tmp_path):
        torch.save(torch.arange(1, 13).view(2, 2, 3), tmp_path / "load.pt")
        assert trimtab.read_recording(tmp_path / "load.pt").load.num_steps == 2

    def test_refuses(self, torch, tmp_path):
        for value, message in (
            (torch.ones(3), "3"),
            (torch.ones(2, 3) / 2, "0.5"),
            ([1, 2], "a list"),
        ):
            torch.save(value, tmp_path / "load.pt")
            with pytest.raises(ValueError, match=message):
                trimtab.read_recording(tmp_path / "load.pt")
        with pytest.raises(ValueError, match="2 experts; 4 asked for"):
            torch.save(torch.ones(1, 2), tmp_path / "load.pt")
            trimtab.read_recording(tmp_path / "load.pt", num_experts=4)


class Payload:
    def __reduce__(self):
        return (pathlib.Path.touch, (pathlib.Path(self.path),))


class TestWhatTorchSaved:
    @pytest.mark.parametrize("legacy", [False, True])
    def test_can_bring_no_code(self, torch, tmp_path, legacy):
        payload = Payload()
        payload.path = str(tmp_path / "touched")
        torch.save(
            {"logical_count": payload},
            tmp_path / "dump.pt",
            _use_new_zipfile_serialization=not legacy,
        )
        with pytest.raises(ValueError, match="dump.pt: torch can't read it as data"):
            trimtab.read_recording(tmp_path / "dump.pt")
        assert not (tmp_path / "touched").exists()

    def test_may_be_broken(self, torch, tmp_path):
        torch.save(torch.ones(2, 3), tmp_path / "dump.pt")
        whole = (tmp_path / "dump.pt").read_bytes()
        for broken in (
            whole[: len(whole) // 2],
            b"PK\x03\x04",
            b"\x80\x02",
            pickle.dumps({"a": 1}),
        ):
            (tmp_path / "dump.pt").write_bytes(broken)
            with pytest.raises(ValueError, match="dump.pt"):
                trimtab.read_recording(tmp_path / "dump.pt")

    def test_npz_is_no_file_of_torch(self, torch, tmp_path):
        np.savez(tmp_path / "loads.npz", load=np.ones((2, 3)))
        with pytest.raises(ValueError, match="NumPy's .npz, which holds several arrays"):
            trimtab.read_recording(tmp_path / "loads.npz")

    def test_is_known_by_content(self, torch, tmp_path):
        torch.save(torch.ones(1, 2), tmp_path / "load.bin")
        assert trimtab.read_recording(tmp_path / "load.bin").load.num_experts == 2
        (tmp_path / "load.pt").write_text("layer,expert,count\n0,0,1\n")
        assert trimtab.read_recording(tmp_path / "load.pt").format == "csv"
        with pytest.raises(ValueError, match="load.bin was saved by torch"):
            trimtab.read_recording([tmp_path / "load.bin", tmp_path / "load.pt"])
