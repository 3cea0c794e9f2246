#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the contract tests of Trimtab's plug-ins against the balancers of released vLLM and SGLang
wheels.

usage: check_engine_plugins.py FOLDER [--vllm VERSION ...] [--sglang VERSION ...] [pytest options]

The wheels are fetched with pip into FOLDER/wheels, without their dependencies and without
installing them (hundreds of MB each; those that are there already are not fetched again). Only the
modules of the balancer and of the plug-in loader are taken out, into FOLDER/engines; what lies
around them is python/tests/engines.py's. Wants torch, pytest and numpy, and trimtab on PYTHONPATH
or installed. No version given: the newest of both. """

import argparse
import os
import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))

import engines  # noqa: E402


def fetch(wheels, engine, version):
    """The wheel of this version, the newest when it is empty."""
    known = sorted(wheels.glob(f"{engine}-{version}-*.whl")) if version else []
    if not known:
        target = wheels / f"{engine}-{version or 'newest'}"
        requirement = f"{engine}=={version}" if version else engine
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            target,
        ]
        subprocess.run([*command, requirement], check=True)
        known = sorted(target.glob("*.whl"))
    return known[-1]


def unpack(wheel, into, engine):
    """The real balancer between our surroundings. Returns the folder."""
    folder = into / "-".join(wheel.name.split("-")[:2])
    engines.surround(folder, engine)
    taken = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and name.startswith(engines.REAL_PARTS[engine]):
                archive.extract(name, folder)
                taken += 1
    if taken == 0:
        sys.exit(f"{wheel.name} has none of {', '.join(engines.REAL_PARTS[engine])}")
    print(f"{folder.name}: {taken} modules of the release")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--vllm", nargs="+", default=[""], metavar="VERSION", help="0.14.0 or newer"
    )
    parser.add_argument(
        "--sglang", nargs="+", default=[""], metavar="VERSION", help="0.5.11 or newer"
    )
    arguments, pytest_options = parser.parse_known_args()
    wheels, into = arguments.folder / "wheels", arguments.folder / "engines"
    wheels.mkdir(parents=True, exist_ok=True)
    for engine in ("vllm", "sglang"):
        for version in getattr(arguments, engine):
            unpack(fetch(wheels, engine, version), into, engine)
    names = ("vllm_plugin", "vllm_windows", "sglang_plugin")
    tests = [ROOT / f"python/tests/test_{name}.py" for name in names]
    environment = {**os.environ, "TRIMTAB_ENGINES": str(into.resolve())}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests, *pytest_options], env=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
