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
    package = pathlib.Path(trimtab.__file__).parents[1]
    places = (package.parent / "cli", package / "bin", pathlib.Path(sys.executable).parent)
    found = shutil.which("trimtab", path=os.pathsep.join(map(str, places)))
    if found is None:
        pytest.skip("no trimtab command")
    return found
