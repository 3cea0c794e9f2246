# SPDX-License-Identifier: Apache-2.0
"""Recorded loads and placements in the files of engines (docs/formats.md)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from . import _core
from ._core import FileFormat, PlacementFile, Recording, file_formats, merge_recordings

__all__ = [
    "FileFormat",
    "PlacementFile",
    "Recording",
    "file_formats",
    "merge_recordings",
    "read_placement",
    "read_recording",
]

Path = str | os.PathLike


def read_recording(
    paths: Path | Sequence[Path],
    *,
    format: str | None = None,
    num_experts: int = 0,
    tokens_per_step: int = 0,
) -> Recording:
    """Loads from a file, or the sum of the recordings of several ranks.

    paths: a file of docs/formats.md, a folder of TensorRT-LLM's statistics, or files that torch
        saved: the dumps of SGLang's recorder (modes stat, stat_approx, per_pass, per_token) and
        vLLM-Ascend's tensor [layers, experts]; also a folder of such dumps. torch reads those, with
        weights_only. trimtab.torch_recordings says how they become a recording.
    format: a name of file_formats(); detected when left out.
    num_experts: the number of experts, for formats that list only those that had tokens; in the
        others the file must have this number.
    tokens_per_step: for top-k text: tokens that make one step; each sample is one when left out.

    Raises ValueError (FormatError, naming file and byte, for a fault in the file), RuntimeError
    when it can't be read, ImportError when it takes torch and there is none.
    """
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not files:
        raise ValueError("no files")
    files = [dump for file in files for dump in _dumps_in(file)]
    saved_by_torch = [_saved_by_torch(file) for file in files]
    if all(saved_by_torch) and format is None:
        from . import torch_recordings

        return torch_recordings.read(files, num_experts=num_experts)
    if any(saved_by_torch):
        file = os.fspath(files[saved_by_torch.index(True)])
        raise ValueError(f"{file} was saved by torch: give no format, and only such files")
    parts = [
        _core.read_recording(
            file, format=format, num_experts=num_experts, tokens_per_step=tokens_per_step
        )
        for file in files
    ]
    return parts[0] if len(parts) == 1 else merge_recordings(parts)


def read_placement(
    path: Path,
    *,
    format: str | None = None,
    num_ranks: int = 0,
    slots_per_rank: Sequence[int] = (),
    num_experts: int = 0,
) -> PlacementFile:
    """A placement from a file.

    path: a file of docs/formats.md, or one that torch saved with SGLang's key
        physical_to_logical_map.
    format: a name of file_formats(); detected when left out.
    num_ranks (equally many slots each) or slots_per_rank: needed for all formats but json and
        vllm-ascend, which state them.
    num_experts: the file's own number, or the highest id + 1, when left out.

    Raises ValueError (FormatError, naming file and byte, for a fault in the file), RuntimeError
    when it can't be read.
    """
    if format is None and _saved_by_torch(path):
        from . import torch_recordings

        return torch_recordings.read_placement(path, num_ranks, slots_per_rank, num_experts)
    return _core.read_placement(
        path,
        format=format,
        num_ranks=num_ranks,
        slots_per_rank=list(slots_per_rank),
        num_experts=num_experts,
    )


def _dumps_in(file: Path) -> list[Path]:
    path = pathlib.Path(file)
    return sorted(path.glob("*.pt")) or [file] if path.is_dir() else [file]


def _saved_by_torch(file: Path) -> bool:
    """By content: no other format is a zip archive, or a pickle of protocol 2 and newer."""
    try:
        with open(file, "rb") as opened:
            begin = opened.read(4)
    except OSError:
        return False  # the reader says what is wrong with it
    return begin == b"PK\x03\x04" or begin[:1] == b"\x80"
