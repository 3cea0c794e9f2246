# SPDX-License-Identifier: Apache-2.0
"""Checks the formats of tools/quantise.py, which the fixtures are made with, against the libraries
that define them.

Needs torch and transformers, and for the formats of compressed-tensors that package (each is
skipped where it is absent). """

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools"))
import quantise  # noqa: E402


def matrix(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_mxfp4_is_that_of_transformers():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    tensors = quantise.quantise_mxfp4(matrix(3, 20, 96))
    theirs = mxfp4.convert_moe_packed_tensors(
        tensors["blocks"], tensors["scales"], dtype=torch.float32
    )
    ours = quantise.dequantise_mxfp4(tensors["blocks"], tensors["scales"])
    assert torch.equal(ours.transpose(1, 2), theirs)


# What compressed-tensors makes of the same tensors, from config.json on: (kind, format, weights,
# block).
COMPRESSED = [
    ("int8", "int-quantized", dict(num_bits=8, type="int", strategy="channel"), (1, 40)),
    (
        "int8",
        "int-quantized",
        dict(num_bits=8, type="int", strategy="channel", symmetric=False),
        (1, 40),
    ),
    ("float8", "float-quantized", dict(num_bits=8, type="float", strategy="channel"), (1, 40)),
    ("float8", "float-quantized", dict(num_bits=8, type="float", strategy="tensor"), (20, 40)),
    ("int4", "pack-quantized", dict(num_bits=4, type="int", strategy="channel"), (1, 40)),
    (
        "int4",
        "pack-quantized",
        dict(num_bits=4, type="int", strategy="group", group_size=4),
        (1, 4),
    ),
    (
        "int4",
        "pack-quantized",
        dict(num_bits=4, type="int", strategy="group", group_size=4, symmetric=False),
        (1, 4),
    ),
    (
        "int4",
        "pack-quantized",
        dict(num_bits=4, type="int", strategy="channel", symmetric=False),
        (1, 36),
    ),
]


@pytest.mark.parametrize("kind, name, weights, block", COMPRESSED)
def test_compressed_tensors(kind, name, weights, block):
    reason = "no compressed-tensors, which tests/live/requirements.txt installs"
    compressors = pytest.importorskip("compressed_tensors.compressors", reason=reason)
    quantization = pytest.importorskip("compressed_tensors.quantization", reason=reason)
    tensors = quantise.quantise_compressed(
        matrix(20, 36 if block[1] == 36 else 40),
        kind,
        block,
        torch.float32,
        weights.get("symmetric", True),
    )
    scheme = quantization.QuantizationScheme(
        targets=["Linear"], weights=quantization.QuantizationArgs(**weights)
    )
    compressor = compressors.BaseCompressor.get_value_from_registry(name)
    theirs = compressor.decompress(dict(tensors), scheme)["weight"]
    assert torch.equal(quantise.dequantise(tensors, block), theirs.float())


def test_quantising_loses_little():
    plain = matrix(48, 64)
    for tensors, block, most in [
        (quantise.quantise_fp8_blocks(plain, (32, 16)), (32, 16), 0.04),
        (quantise.quantise_fp8_blocks(plain, (32, 16), torch.float8_e8m0fnu), (32, 16), 0.04),
        (quantise.quantise_compressed(plain, "int8", (1, 64)), (1, 64), 0.01),
        (quantise.quantise_compressed(plain, "int4", (1, 32), symmetric=False), (1, 32), 0.12),
    ]:
        error = (quantise.dequantise(tensors, block) - plain).norm() / plain.norm()
        assert 0 < error < most
