#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_coverage.py FOLDER: does every case of docs/coverage.md have a test?

A case is named in the comment above the test that shows it, as "// R12: what the case is". Each id
below must be named so in some test of the project in FOLDER, or stand in the first column of a
table of docs/coverage.md, which lists what is in part or not there. Files that pages name must
exist, and so must the tests of docs/from-fused-moe.md and the names in its second column.
docs/live.md names every metric."""

import pathlib
import re
import sys

CASES = {"R": range(1, 18), "P": range(1, 10), "C": range(1, 8), "D": range(13), "M": range(1, 13),
         "K": range(1, 14), "S": range(1, 7), "E": range(1, 11), "B": range(1, 29)}
NAMED = re.compile(r"^\s*// ([A-Z]\d+):", re.MULTILINE)
ROW = re.compile(r"^\| ([A-Z]\d+) \|", re.MULTILINE)
METRIC = re.compile(r'out\.(?:begin|counter|gauge)\(\s*"([a-z_]+)"')
# Files that docs/policies.md shows how to write.
TO_BE_WRITTEN = {"src/policy/coldest.cc"}
# Files as pages name them, in backticks or as the target of a link.
FILE = re.compile(
    r"`((?:src|include|cli|bench|python|tests|tools|docs)/[\w./-]+\.\w+)`"
    r"|\]\(([\w./-]+)(?:#[\w-]+)?\)")
# A test as a page names it: its file and its name.
TEST = re.compile(r"`([\w./-]+\.(?:cc|py)): ([\w.]+)`")
ENTRIES = "docs/from-fused-moe.md"


def tests_of(root):
    for folder in ("src", "tests", "bench", "python", "cli"):
        for file in (root / folder).rglob("*_test.cc"):
            yield file


def cases_without_a_test(root):
    named = {case for file in tests_of(root) for case in NAMED.findall(file.read_text())}
    listed = set(ROW.findall((root / "docs/coverage.md").read_text()))
    for letter, numbers in CASES.items():
        for number in numbers:
            case = f"{letter}{number}"
            if case not in named and case not in listed:
                yield f"{case}: no test names it, and docs/coverage.md has no row for it"
    for case in sorted(listed | named):
        if int(case[1:]) not in CASES.get(case[0], ()):
            yield f"{case}: there is no such case"


def files_that_are_not_there(root):
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "bench").rglob("*.md")]
    for page in pages:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for from_root, linked in FILE.findall(line):
                target = root / from_root if from_root else page.parent / linked
                if not target.exists() and from_root not in TO_BE_WRITTEN:
                    yield f"{page.relative_to(root)}:{number}: there is no {from_root or linked}"


def has_test(file, name):
    text = file.read_text()
    if file.suffix == ".py":
        return re.search(rf"^ *def {name}\(", text, re.MULTILINE)
    suite, test = name.split(".")
    return re.search(rf"^(?:TYPED_)?TEST(?:_[FP])?\({suite}, {test}\)", text, re.MULTILINE)


def public_words(root):
    """The words of headers, the command and the Python package, by which pages name calls."""
    files = [*(root / "include").rglob("*.h"), *(root / "cli").rglob("*.cc"),
             *(root / "src/policy").glob("*.h"), *(root / "src/dispatch").glob("kinds.h"),
             *(root / "python").rglob("*.cc"), *(root / "python/trimtab").rglob("*.py")]
    return {word for file in files for word in re.findall(r"[\w-]+", file.read_text())}


def entries_without_a_counterpart(root):
    words = public_words(root)
    for number, line in enumerate((root / ENTRIES).read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.split(" | ")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "| there":
            continue
        calls, tests = re.findall(r"`([^`]+)`", cells[1]), TEST.findall(cells[2])
        if not tests:
            yield f"{ENTRIES}:{number}: no test is named"
        for call in calls:
            for word in re.findall(r"--[\w-]+|[A-Za-z]\w+", call):
                if word not in words:
                    yield f"{ENTRIES}:{number}: there is no {word}"
        for file, name in tests:
            if not (root / file).exists() or not has_test(root / file, name):
                yield f"{ENTRIES}:{number}: there is no test {name} in {file}"


def metrics_without_a_row(root):
    page = (root / "docs/live.md").read_text()
    for name in METRIC.findall((root / "src/observe/metrics.cc").read_text()):
        if f"`trimtab_{name}" not in page:
            yield f"docs/live.md: there is no row for the metric trimtab_{name}"


def main():
    root = pathlib.Path(sys.argv[1])
    problems = [*cases_without_a_test(root), *files_that_are_not_there(root),
                *entries_without_a_counterpart(root), *metrics_without_a_row(root)]
    print("\n".join(problems) or "Every case has a test or a row, and every file, test and call "
          "that pages name is there.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
