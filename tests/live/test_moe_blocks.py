# SPDX-License-Identifier: Apache-2.0
"""Compares the MoE blocks of every family with transformers on random checkpoints that are made on
the spot.

The comparison is in the C++ tests of the recorded fixtures; here they get fresh ones. Needs torch
and transformers (skipped without them) and a build: that of the preset dev, or the directory in
TRIMTAB_BUILD_DIR. """

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TRIMTAB_BUILD_DIR", REPO / "build" / "dev"))
sys.path.insert(0, str(REPO / "tools"))
import make_fixtures  # noqa: E402


@pytest.fixture(scope="module", params=[2, 3])
def checkpoints(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"seed{request.param}")
    for name in make_fixtures.FIXTURES:
        make_fixtures.build_checkpoint(name, folder / name, request.param)
    return folder


# In plain scalar code, and through the kernels over several ranks.
@pytest.mark.parametrize("program, tests", [("checkpoint_test", 3), ("moe_block_test", 2)])
def test_moe_blocks(checkpoints, program, tests):
    command = [BUILD / "src" / "model" / program, "--gtest_filter=Fixtures/*"]
    environment = os.environ | {"TRIMTAB_CHECKPOINTS": str(checkpoints)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
    assert f"[  PASSED  ] {tests * len(make_fixtures.FIXTURES)} tests" in run.stdout
