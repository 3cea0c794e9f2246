# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import trimtab


def test_version_is_that_of_the_library():
    cmake = (Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert trimtab.__version__ == re.search(r"project\(trimtab VERSION ([0-9.]+)", cmake)[1]


def test_package_is_typed():
    package = Path(trimtab.__file__).parent
    assert (package / "py.typed").exists()
    assert "version: str" in (package / "_core.pyi").read_text()


def test_errors_are_those_that_python_has():
    assert issubclass(trimtab.FormatError, ValueError)
    assert issubclass(trimtab.CommError, RuntimeError)
