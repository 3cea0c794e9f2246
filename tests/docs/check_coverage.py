#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_coverage.py FOLDER: does every test and file that docs/coverage.md of the project in FOLDER names exist, and is
each test in the file that the page says?"""

import pathlib
import re
import sys

SOURCE_FOLDERS = ["include", "src", "cli", "bench", "python", "tests", "tools"]
TEST = re.compile(r"TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\)")
# `a file or folder`, or Suite.Test
NAMED = re.compile(r"`([\w./-]+)`|\b([A-Z]\w+\.[A-Z]\w+)\b")


def files_of(root):
    return [file.relative_to(root).as_posix() for folder in SOURCE_FOLDERS for file in (root / folder).rglob("*")]


def tests_of(root, files):
    """The file of each test."""
    found = {}
    for file in files:
        if file.endswith("_test.cc"):
            for suite, name in TEST.findall((root / file).read_text()):
                found[f"{suite}.{name}"] = file
    return found


def problems_of(page, files, tests):
    for number, line in enumerate(page.splitlines(), 1):
        last_file = ""
        for file, test in NAMED.findall(line):
            if file.endswith((".cc", ".h", ".py", ".sh")):
                last_file = file
                if not any(f"/{known}".endswith(f"/{file}") for known in files):
                    yield f"{number}: there is no {file}"
            elif test and test not in tests:
                yield f"{number}: there is no test {test}"
            elif test and last_file.endswith("_test.cc") and not f"/{tests[test]}".endswith(f"/{last_file}"):
                yield f"{number}: {test} is in {tests[test]}, not in {last_file}"


def main():
    root = pathlib.Path(sys.argv[1])
    files = files_of(root)
    problems = list(problems_of((root / "docs/coverage.md").read_text(), files, tests_of(root, files)))
    for problem in problems:
        print(f"docs/coverage.md:{problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
