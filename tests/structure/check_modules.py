#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_modules.py ROOT: do the includes of the project in ROOT follow its modules?

A module is a folder of src/. Its CMakeLists.txt says, in trimtab_module(NAME HEADERS ... USES ...),
which public headers are its own and which modules it may include. Three things are checked, and the
include that breaks one is printed with its file and line:

1. A module includes only itself and the modules that it uses, directly or through others.
2. No two folders include each other in a circle. Folders inside a module count as folders of their
   own.
3. Every public header belongs to exactly one module.

Tests, and the code that only tests share, may include anything that they link."""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#include "([^"]+)"')
MODULE = re.compile(r"trimtab_module\((\w+)([^)]*)\)")
SOURCES = (".h", ".cc", ".inc")
KEYWORDS = ("HEADERS", "SOURCES", "USES", "LIBRARIES")


def is_test(path):
    return path.stem.endswith("_test") or path.stem.startswith("test_") or "testing" in path.stem


def read_modules(root):
    """Returns {module: (public headers, modules that it uses)}. comm/mpi is a module inside the
    folder of another."""
    modules = {}
    for file in sorted((root / "src").glob("*/CMakeLists.txt")):
        for name, body in MODULE.findall(file.read_text()):
            lists = {keyword: [] for keyword in KEYWORDS}
            current = None
            for word in body.split():
                if word in lists:
                    current = lists[word]
                elif current is not None:
                    current.append(word)
            modules[name] = lists["HEADERS"], lists["USES"]
    return modules


def with_indirect_uses(modules, name, found=None):
    found = set() if found is None else found
    if name not in found:
        found.add(name)
        for used in modules[name][1] if name in modules else []:
            with_indirect_uses(modules, used, found)
    return found


def module_of(path):
    """The module that a path below src/ belongs to."""
    parts = pathlib.PurePosixPath(path).parts
    return "mpi" if parts[:2] == ("comm", "mpi") else parts[0]


class Tree:
    def __init__(self, root):
        self.root = root
        self.modules = read_modules(root)
        self.owners = {}  # public header: modules that list it
        for name, (headers, _) in self.modules.items():
            for header in headers:
                self.owners.setdefault(header, []).append(name)

    def folder_of(self, included):
        """The folder of an included file, as a path from the root; None where it is not ours."""
        if included.startswith("trimtab/"):
            owner = self.owners.get(included.removeprefix("trimtab/"), [None])[0]
            return None if owner is None else "src/comm/mpi" if owner == "mpi" else f"src/{owner}"
        for top in ("src", "."):
            if (self.root / top / included).is_file():
                return (pathlib.PurePosixPath(top) / included).parent.as_posix()
        return None

    def includes(self):
        """Yields (file, line number, folder of the file, folder of what it includes) for every
        include of the project's own files, except in tests."""
        for top in ("include", "src", "bench", "cli"):
            for file in sorted((self.root / top).rglob("*")):
                if file.suffix not in SOURCES or is_test(file):
                    continue
                name = file.relative_to(self.root).as_posix()
                folder = (self.folder_of(name.removeprefix("include/"))
                          or pathlib.PurePosixPath(name).parent.as_posix())
                for number, line in enumerate(file.read_text().splitlines(), 1):
                    if match := INCLUDE.match(line):
                        target = self.folder_of(match[1])
                        if target is not None:
                            yield name, number, folder, target


def forbidden(tree):
    for file, line, folder, target in tree.includes():
        if not folder.startswith("src/"):
            continue
        name = module_of(folder.removeprefix("src/"))
        if not target.startswith("src/"):
            yield f"{file}:{line}: {name} must not include {target}"
            continue
        used = module_of(target.removeprefix("src/"))
        if used not in with_indirect_uses(tree.modules, name):
            yield f"{file}:{line}: {name} does not use {used} (src/{name}/CMakeLists.txt)"


def circles(tree):
    """One line for each include that closes a circle of folders, found by walking depth first."""
    arrows = {}  # folder: {folder that it includes: where}
    for file, line, folder, target in tree.includes():
        if folder != target:
            arrows.setdefault(folder, {}).setdefault(target, f"{file}:{line}")
    done, path, found = set(), [], []

    def walk(folder):
        path.append(folder)
        for target, where in sorted(arrows.get(folder, {}).items()):
            if target in path:
                circle = path[path.index(target):] + [target]
                found.append(f"{where}: closes the circle {' -> '.join(circle)}")
            elif target not in done:
                walk(target)
        path.pop()
        done.add(folder)

    for folder in sorted(arrows):
        if folder not in done:
            walk(folder)
    return found


def unowned(tree):
    for header in sorted((tree.root / "include/trimtab").glob("*.h")):
        owners = tree.owners.get(header.name, [])
        if len(owners) != 1:
            modules = " and ".join(owners) or "no module"
            yield f"include/trimtab/{header.name}: belongs to {modules}, not to one"


def problems_of(root):
    tree = Tree(pathlib.Path(root))
    return [*forbidden(tree), *circles(tree), *unowned(tree)]


def main():
    problems = problems_of(sys.argv[1])
    print("\n".join(problems) or "The includes follow the modules.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
