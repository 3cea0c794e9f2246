# SPDX-License-Identifier: Apache-2.0
"""The snippets of the guides, run as they are written, page by page in one go."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import trimtab

ROOT = pathlib.Path(__file__).parents[2]


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.S | re.M
    )


def run(page, snippets, namespace=None):
    namespace = {} if namespace is None else namespace
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), namespace)
    return namespace


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def qwen3_directory(folder):
    """tiny-moe, which is a Qwen3-MoE of bytes, with a tokenizer as a hub model has one."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    shutil.copytree(ROOT / "models/tiny-moe", folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def test_planning_in_python(workplace, capsys):
    snippets = [one for one in blocks("python.md", "python") if "transformers" not in one]
    assert len(snippets) == 6
    names = run("python.md", snippets)
    printed = capsys.readouterr().out
    assert "(58, 288)" in printed and "PAR of a step" in printed
    assert trimtab.read_placement("placement.json").placement.num_ranks == 4
    assert names["first"].placement.num_slots == 36


def test_qwen3_on_two_ranks(workplace, capsys):
    pytest.importorskip("trimtab.transformers")
    qwen3_directory(workplace / "Qwen3-30B-A3B")
    (snippet,) = [one for one in blocks("python.md", "python") if "transformers" in one]
    names = run("python.md", [snippet])
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("The sea was")
    assert names["output"].shape[1] > names["inputs"]["input_ids"].shape[1]


def test_generating_without_code(workplace):
    pytest.importorskip("trimtab.transformers")
    pytest.importorskip("tqdm")
    qwen3_directory(workplace / "Qwen3-30B-A3B")
    (command,) = [one for one in blocks("python.md", "sh") if "trimtab.generate" in one]
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    text = subprocess.run(
        command,
        shell=True,
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(pathlib.Path(trimtab.__file__).parents[1]),
        },
    ).stdout
    assert text.startswith("The sea was") and len(text) > len("The sea was\n")


def test_transformers(workplace, capsys):
    pytest.importorskip("trimtab.transformers")
    snippets = [one for one in blocks("transformers.md", "python") if "Serve(" not in one]
    names = run("transformers.md", snippets)  # the server: tests/live/test_serve.py
    assert names["out"].any()


def test_layouts(workplace, capsys):
    names = run("layouts.md", blocks("layouts.md", "python"))
    assert capsys.readouterr().out == "tp 2 x dp 1, experts in parts summed 0\n"
    assert names["out"].any()


def test_sglang(workplace):
    torch = pytest.importorskip("torch")
    (snippet,) = blocks("engines/sglang.md", "python")
    dump = {"rank": 0, "logical_count": torch.ones(3, 2, 4, dtype=torch.int32)}
    (workplace / "loads").mkdir()
    torch.save(dump, workplace / "loads/expert_distribution_recorder_1234.pt")
    run("sglang.md", [snippet.replace("/tmp/loads", str(workplace / "loads"))])
    assert trimtab.read_recording("stat.json").load.num_steps == 3


def test_vllm(workplace):
    (snippet,) = blocks("engines/vllm.md", "python")
    window, p2l = np.ones((3, 2, 5), int), np.array([[0, 1, 2, 3, 0]] * 2)
    run("vllm.md", [snippet], {"window": window, "p2l": p2l})
    assert trimtab.read_recording("load.npy").load.counts[0, 0].tolist() == [2, 1, 1, 1]


def test_vllm_ascend(workplace):
    torch = pytest.importorskip("torch")
    shutil.copy(ROOT / "tests/fixtures/formats/vllm_ascend_expert_map.json", "expert_map.json")
    placement = trimtab.read_placement("expert_map.json").placement
    torch.save(torch.ones(placement.num_layers, placement.num_experts), "load.pt")
    slots = placement.num_slots // placement.num_ranks
    window = torch.ones(2, placement.num_layers, placement.num_ranks, slots, dtype=torch.int64)
    snippets = blocks("engines/vllm-ascend.md", "python")
    assert len(snippets) == 2
    run("vllm-ascend.md", snippets[:1], {"moe_load": window})
    assert np.load("slots.npy").shape == window.shape  # `trimtab convert` reads it: convert_test.cc
    run("vllm-ascend.md", snippets[1:])
    assert (
        trimtab.read_recording("load.npy").load.counts.sum()
        == placement.num_layers * placement.num_experts
    )
