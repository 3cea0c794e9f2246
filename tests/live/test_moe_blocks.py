# SPDX-License-Identifier: Apache-2.0
"""Compares the MoE blocks of every family with transformers on random checkpoints that are made on the spot.

The comparison is the C++ test of the recorded fixtures; here it gets fresh ones. Needs torch and transformers (skipped
without them) and a build: that of the preset dev, or the directory in TRIMTAB_BUILD_DIR.
"""

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


@pytest.mark.parametrize("seed", [2, 3])
def test_moe_blocks(tmp_path, seed):
    for name in make_fixtures.FIXTURES:
        make_fixtures.build_checkpoint(name, tmp_path / name, seed)
    command = [BUILD / "src" / "model" / "checkpoint_test", "--gtest_filter=Fixtures/*"]
    environment = os.environ | {"TRIMTAB_CHECKPOINTS": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
    assert f"[  PASSED  ] {3 * len(make_fixtures.FIXTURES)} tests" in run.stdout
