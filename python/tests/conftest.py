# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import shutil
import sys

import pytest

import trimtab

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(scope="session")
def command():
    """The trimtab command of the build, or the environment, that the package is from."""
    built = pathlib.Path(trimtab.__file__).parents[2] / "cli/trimtab"
    found = (
        str(built)
        if built.exists()
        else shutil.which("trimtab", path=os.path.dirname(sys.executable))
    )
    if found is None:
        pytest.skip("no trimtab command")
    return found
