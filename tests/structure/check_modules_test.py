#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of check_modules.py, on small trees that break it."""

import pathlib
import tempfile
import unittest

from check_modules import problems_of

TREE = {
    "src/base/CMakeLists.txt": "trimtab_module(base HEADERS tensor.h SOURCES tensor.cc)",
    "src/load/CMakeLists.txt": "trimtab_module(load HEADERS load.h\n  SOURCES load.cc USES base)",
    "src/policy/CMakeLists.txt": "trimtab_module(policy SOURCES policy.cc trim/trim.cc USES load)",
    "include/trimtab/tensor.h": "",
    "include/trimtab/load.h": '#include "trimtab/tensor.h"',
    "src/base/cat.h": "#include <string>",
    "src/load/load.cc": '#include "base/cat.h"\n#include "trimtab/load.h"',
    "src/policy/frame.h": '#include "trimtab/tensor.h"',
    "src/policy/trim/trim.cc": '#include "policy/frame.h"',
    "src/base/base_test.cc": '#include "policy/frame.h"',
}


class CheckModules(unittest.TestCase):
    def problems_with(self, **changed):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**TREE, **changed.get("files", {})}.items():
                file = pathlib.Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return problems_of(folder)

    def test_a_tree_that_follows_its_modules(self):
        self.assertEqual(self.problems_with(), [])

    def test_a_module_that_is_not_used(self):
        problems = self.problems_with(files={"src/load/load.cc": '\n#include "policy/frame.h"'})
        self.assertIn("src/load/load.cc:2: load does not use policy (src/load/CMakeLists.txt)",
                      problems)

    def test_a_public_header_counts_as_its_module(self):
        problems = self.problems_with(
            files={"include/trimtab/tensor.h": '#include "trimtab/load.h"'})
        self.assertIn(
            "include/trimtab/tensor.h:1: base does not use load (src/base/CMakeLists.txt)",
            problems)
        self.assertTrue(any("closes the circle" in problem for problem in problems), problems)

    def test_a_circle_inside_a_module(self):
        files = {
            "src/policy/trim/trim.h": "",
            "src/policy/frame.h": '#include "policy/trim/trim.h"'
        }
        self.assertEqual(self.problems_with(files=files), [
            "src/policy/trim/trim.cc:1: closes the circle "
            "src/policy -> src/policy/trim -> src/policy"
        ])

    def test_a_circle_below_the_tools(self):
        files = {
            "cli/run/run.h": '#include "cli/plan/plan.h"',
            "cli/plan/plan.h": '#include "cli/run/run.h"'
        }
        self.assertEqual(len(self.problems_with(files=files)), 1)

    def test_nobody_includes_the_command(self):
        problems = self.problems_with(files={
            "cli/run.h": "",
            "src/load/load.cc": '#include "cli/run.h"'
        })
        self.assertIn("src/load/load.cc:1: load must not include cli", problems)

    def test_a_header_without_a_module(self):
        problems = self.problems_with(files={"include/trimtab/other.h": ""})
        self.assertEqual(problems, ["include/trimtab/other.h: belongs to no module, not to one"])


if __name__ == "__main__":
    unittest.main()
