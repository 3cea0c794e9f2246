# SPDX-License-Identifier: Apache-2.0
"""Checkpoint formats of quantised weights, both ways, in plain torch.

Each function quantise_* takes a matrix [out, in] in f32 and gives the tensors
that stand in the place of MODULE.weight, by the end of their names;
dequantise() gives the matrix back from those tensors alone, in f32.

Sources: transformers (FineGrainedFP8Config, Mxfp4Config), compressed-tensors
(naive and pack-quantized), the OCP MX specification.
"""

import torch

E2M1 = torch.tensor(
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
)
E4M3_MAX = 448.0


def blocks_of(matrix, block):
    """[down, across, rows, cols] view of a matrix, filled up with zeros to whole blocks."""
    rows, cols = (-size % side for size, side in zip(matrix.shape, block))
    filled = torch.nn.functional.pad(matrix, (0, cols, 0, rows))
    return filled.unflatten(0, (-1, block[0])).unflatten(2, (-1, block[1])).transpose(1, 2)


def spread(scales, block, shape):
    """A number per block [down, across] as one per element."""
    return scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[
        : shape[0], : shape[1]
    ]


def powers_of_two(scales):
    return torch.exp2(torch.ceil(torch.log2(scales)))


def quantise_fp8_blocks(matrix, block, scale_dtype=torch.float32):
    scales = blocks_of(matrix, block).abs().amax((2, 3)) / E4M3_MAX
    if scale_dtype == torch.float8_e8m0fnu:
        scales = powers_of_two(scales)
    codes = (matrix / spread(scales, block, matrix.shape)).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales.to(scale_dtype)}


def quantise_compressed(
    matrix, kind, block, scale_dtype=torch.bfloat16, symmetric=True, shape_dtype=torch.int64
):
    """kind: int8, float8 or int4, as int-quantized, float-quantized and pack-quantized have
    them."""
    blocks = blocks_of(matrix, block)
    low, high = {"int8": (-128, 127), "float8": (-E4M3_MAX, E4M3_MAX), "int4": (-8, 7)}[kind]
    if symmetric:
        scales, zeros = blocks.abs().amax((2, 3)) / high, torch.zeros(blocks.shape[:2])
    else:
        least, most = blocks.amin((2, 3)).clamp(max=0), blocks.amax((2, 3)).clamp(min=0)
        scales = (most - least) / (high - low)
        zeros = (low - least / scales).round().clamp(low, high)
    scales = scales.to(scale_dtype)
    codes = matrix / spread(scales.float(), block, matrix.shape) + spread(
        zeros, block, matrix.shape
    )
    whole = tuple(block) == tuple(matrix.shape)
    tensors = {"weight_scale": scales.reshape(1) if whole else scales}
    if kind == "float8":
        return tensors | {"weight": codes.clamp(low, high).to(torch.float8_e4m3fn)}
    codes = codes.round().clamp(low, high).to(torch.int8)
    if kind == "int8":
        return (
            tensors
            | {"weight": codes}
            | ({} if symmetric else {"weight_zero_point": zeros.to(torch.int8)})
        )
    tensors |= {
        "weight_packed": pack_words(codes),
        "weight_shape": torch.tensor(matrix.shape, dtype=shape_dtype),
    }
    return tensors | (
        {}
        if symmetric
        else {"weight_zero_point": pack_words(zeros.to(torch.int8).T).T.contiguous()}
    )


def pack_words(codes):
    """int4 [rows, cols] as int32 [rows, ceil(cols / 8)]: 8 added, the first in the lowest bits."""
    filled = torch.nn.functional.pad(codes.to(torch.int64) + 8, (0, -codes.shape[1] % 8))
    words = (filled.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(-1)
    return (words - (words >= 2**31) * 2**32).to(torch.int32)


def unpack_words(words, cols):
    return ((words[..., None] >> (4 * torch.arange(8))) & 15).flatten(1)[:, :cols] - 8


def quantise_mxfp4(matrices):
    """[experts, out, in] as blocks [.., in / 32, 16] and scales [.., in / 32], uint8."""
    blocks = matrices.unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    nearest = (blocks / torch.exp2(exponents)[..., None]).clamp(-6, 6)
    codes = (nearest[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
    return {
        "blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        "scales": (exponents + 127).to(torch.uint8),
    }


def dequantise_mxfp4(blocks, scales):
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    return (E2M1[codes.long()] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def dequantise(tensors, block):
    """The matrix of the tensors that a quantise_* above gave, from (codes - zero points) *
    scales."""
    scales = tensors.get("weight_scale_inv", tensors.get("weight_scale")).float()
    zeros = tensors.get("weight_zero_point", torch.zeros(scales.shape))
    if "weight_packed" in tensors:
        rows, cols = tensors["weight_shape"].tolist()
        codes = unpack_words(tensors["weight_packed"], cols)
        if "weight_zero_point" in tensors:
            zeros = unpack_words(zeros.T, rows // block[0]).T
    else:
        codes = tensors["weight"]
    if scales.dim() == 1:
        scales, zeros = scales[None], zeros[None]
    return (codes.float() - spread(zeros.float(), block, codes.shape)) * spread(
        scales, block, codes.shape
    )
