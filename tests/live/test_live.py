# SPDX-License-Identifier: Apache-2.0
"""Compares the decoder with transformers on random checkpoints that are made on the spot.

The seeds differ from those of the recorded fixtures. Needs torch and transformers (skipped without
them) and a build: that of the preset dev, or the directory in TRIMTAB_BUILD_DIR.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TRIMTAB_BUILD_DIR", REPO / "build" / "dev"))
sys.path.insert(0, str(REPO / "tools"))
import make_fixtures  # noqa: E402
import quantise  # noqa: E402

# The models are too small for threads to be of use.
torch.set_num_threads(1)

STEPS = 64
# Two sums of the same products in another order may swap tokens that are closer than this.
CLEAR_MARGIN = 1e-4


def trimtab_logits(model, ids, out, dtype="f32"):
    """[tokens, vocab] logits of the token ids."""
    command = [BUILD / "tests" / "trimtab_logits", model, ",".join(map(str, ids)), out, dtype]
    subprocess.run(command, check=True)
    return np.load(out)


def trimtab_greedy(model, ids, ranks):
    """The new token ids of `trimtab run` for one prompt."""
    command = [
        BUILD / "cli" / "trimtab",
        "run",
        model,
        "--json",
        "--steps",
        str(STEPS),
        "--ranks",
        str(ranks),
    ]
    # Quantised experts too are compared as the numbers that they stand for: in their own format
    # they round rows.
    command += ["--experts", "f32", "--token-ids", ",".join(map(str, ids))]
    run = subprocess.run(command, check=True, capture_output=True)
    return json.loads(run.stdout)["outputs"][0]["token_ids"]


def plain(checkpoint, folder):
    """The checkpoint, or a copy with what its FP8 blocks stand for: transformers reads whole blocks
    only, and the last of a row may be short. tests/live/test_quantise.py holds
    quantise.dequantise() against the libraries. """
    config = json.loads((checkpoint / "config.json").read_text())
    quantization = config.pop("quantization_config", None)
    if quantization is None:
        return checkpoint
    tensors = make_fixtures.load_file(checkpoint / "model.safetensors")
    meant = {}
    for name, tensor in tensors.items():
        scales = tensors.get(name + "_scale_inv")
        if scales is not None:
            tensor = quantise.dequantise(
                {"weight": tensor, "weight_scale_inv": scales}, quantization["weight_block_size"]
            )
        if not name.endswith("_scale_inv"):
            meant[name] = tensor
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    make_fixtures.save_file(meant, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def until_end(tokens, end):
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def worst_row(ours, reference):
    """The largest error of any row, relative to the row's norm."""
    return float((np.abs(ours - reference).max(1) / np.linalg.norm(reference, axis=1)).max())


FAMILIES = [
    "mixtral",
    "mixtral_merged",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_moe_sparse",
    "olmoe",
    "qwen3_moe_fp8",
    "qwen3_moe_yarn",
    "mixtral_linear",
    "olmoe_llama3",
]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    # With seed 1 and yarn, rounding to bf16 changes a pick.
    make_fixtures.build_checkpoint(
        request.param, folder, seed=1 + (request.param == "qwen3_moe_yarn")
    )
    return folder


# Ways to stretch the context that the recorded fixtures do not have, at positions far beyond the
# original context.
STRETCHED = {
    "every key": dict(
        rope_type="yarn",
        factor=8.0,
        original_max_position_embeddings=16,
        rope_theta=3e4,
        beta_fast=8.0,
        beta_slow=0.5,
        mscale=0.8,
        mscale_all_dim=0.3,
        truncate=False,
    ),
    "a scale of its own": dict(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=32,
        rope_theta=1e6,
        attention_factor=1.3,
    ),
    "linear": dict(rope_type="linear", factor=7.0, rope_theta=2e3),
    "llama3": dict(
        rope_type="llama3",
        factor=16.0,
        low_freq_factor=1.5,
        high_freq_factor=3.0,
        original_max_position_embeddings=48,
        rope_theta=5e2,
    ),
}


@pytest.mark.parametrize("rope", STRETCHED.values(), ids=STRETCHED)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral_merged"])
def test_stretched_contexts_equal_transformers(family, rope, tmp_path, monkeypatch):
    spec = dict(make_fixtures.FIXTURES[family], layout="v4" if rope["factor"] > 7 else "v5")
    # transformers computes yarn from head_dim alone.
    spec["config"] = dict(head_dim=8) | spec["config"] | dict(rope_parameters=dict(rope))
    monkeypatch.setitem(make_fixtures.FIXTURES, family, spec)
    monkeypatch.setattr(make_fixtures, "TOKENS", 120)
    monkeypatch.setattr(make_fixtures, "MARGIN", 2e-5)  # for as many picks
    make_fixtures.build_checkpoint(family, tmp_path / "model", seed=3)
    expected = make_fixtures.load_file(tmp_path / "model" / "expected.safetensors")
    logits = trimtab_logits(
        tmp_path / "model", expected["input_ids"].tolist(), tmp_path / "f32.npy"
    )
    assert worst_row(logits, expected["logits"].numpy()) <= 1e-4


def test_logits_equal_transformers(checkpoint, tmp_path):
    expected = make_fixtures.load_file(checkpoint / "expected.safetensors")
    ids, reference = expected["input_ids"].tolist(), expected["logits"].numpy()
    assert worst_row(trimtab_logits(checkpoint, ids, tmp_path / "f32.npy"), reference) <= 1e-4
    # See bf16_tolerance() in src/model/decoder_testing.h.
    layers = json.loads((checkpoint / "config.json").read_text())["num_hidden_layers"]
    error = worst_row(trimtab_logits(checkpoint, ids, tmp_path / "bf16.npy", "bf16"), reference)
    assert 0 < error <= 2 * 2**-9 * (4 * layers + 1) ** 0.5


def test_greedy_tokens_equal_transformers(checkpoint, tmp_path):
    model = make_fixtures.load_f32(plain(checkpoint, tmp_path / "plain"))
    end = json.loads((checkpoint / "config.json").read_text())["eos_token_id"]
    for seed in range(20):
        prompt = torch.randint(3, 64, (8,), generator=torch.Generator().manual_seed(seed))
        _, chosen, margin = make_fixtures.greedy(model, prompt, STEPS)
        chosen = until_end(chosen.tolist(), end)
        if margin >= CLEAR_MARGIN and len(chosen) > 1:
            break
    else:
        pytest.fail("no prompt gave tokens that are clear of ties")
    for ranks in (1, 3):
        assert trimtab_greedy(checkpoint, prompt.tolist(), ranks) == chosen
