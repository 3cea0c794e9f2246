#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the inner loops of the kernels keep their sums in registers?

Disassembles object files (x86-64, AArch64) and looks at every multiply_tile<...>: the innermost
loop with the most products must not store vector registers. It has nothing to store but what did
not fit into registers, and every such store costs a load as well: g++ 12 once halved the speed of
the int8 kernels that way, with the same results. One store for every STRAY products is let pass: no
sum, but a temporary that the compiler began too early, which costs little; and one for every KNOWN
where --known says so.
"""

import argparse
import re
import shutil
import subprocess
import sys

SKIPPED = 77  # ctest: SKIP_RETURN_CODE
STRAY, KNOWN = 20, 6
PRODUCT = re.compile(
    r"(\{vex\} )?v(fmadd|dpbf16|pdpbusd|pmaddwd)|fmla\b|bfdot\b|u?sdot\b|smlal2?\b")
VECTOR_STORE = re.compile(r"v?mov\w*\s+%[xyz]mm\d+,[^%]*\(|st[rp]\s+[qd]\d+,")
JUMP = re.compile(r"(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+([0-9a-f]+)\b")


def functions(objdump, object_file):
    """{demangled name: [(address, instruction)]} of every multiply_tile."""
    text = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", object_file],
                          check=True, capture_output=True, text=True).stdout
    found, current = {}, None
    for line in text.splitlines():
        if start := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            current = found.setdefault(start[1], []) if "multiply_tile<" in start[1] else None
        elif current is not None and (instruction := re.match(r"\s*([0-9a-f]+):\s+(\S.*)$", line)):
            current.append((int(instruction[1], 16), instruction[2]))
    return found


def inner_loop(instructions):
    """The instructions of the innermost loop that has the most products."""
    loops = []
    for address, text in instructions:
        jump = JUMP.match(text)
        if jump and instructions[0][0] <= (target := int(jump[1], 16)) <= address:
            body = [t for a, t in instructions if target <= a <= address]
            products = sum(1 for t in body if PRODUCT.match(t))
            if products:
                loops.append((target, address, products, body))
    innermost = [l for l in loops
                 if not any(l[0] <= o[0] and o[1] <= l[1] and o[:2] != l[:2] for o in loops)]
    return max(innermost, key=lambda l: l[2])[3] if innermost else None


def short(name):
    arguments = re.search(r"multiply_tile<(.*?)>\(", name)
    return arguments[1].replace("trimtab::(anonymous namespace)::", "") if arguments else name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("objects", nargs="+", help="object files of kernels")
    parser.add_argument("--objdump", default="objdump", help="of the objects' architecture")
    parser.add_argument("--expect",
                        type=int,
                        default=0,
                        help="how many functions must spill (for the test of this)")
    parser.add_argument("--known",
                        default="(?!)",
                        help="a regular expression of template arguments that may spill more")
    parser.add_argument("--list",
                        action="store_true",
                        help="also print the loops that do not spill")
    args = parser.parse_args()
    if shutil.which(args.objdump) is None:
        print(f"skipped: there is no {args.objdump} (Debian: binutils)")
        return SKIPPED

    spilling = 0
    for object_file in args.objects:
        checked = functions(args.objdump, object_file)
        if not checked:
            print(f"{object_file}: no multiply_tile<...> in it: has it another name now?")
            return 1
        for name, instructions in checked.items():
            loop = inner_loop(instructions)
            if loop is None:
                print(f"{object_file}: no loop with products in {short(name)}: is there a new "
                      "instruction for them?")
                return 1
            products = sum(1 for t in loop if PRODUCT.match(t))
            stores = [t for t in loop if VECTOR_STORE.match(t)]
            known = re.search(args.known, short(name)) is not None
            spills = (KNOWN if known else STRAY) * len(stores) > products
            spilling += spills
            if spills or args.list:
                print(f"{object_file.rsplit('/', 1)[-1]}: {short(name)}: {products} products, "
                      f"{len(stores)} stores" + (f", such as {stores[0]}" if stores else ""))
        print(f"{object_file.rsplit('/', 1)[-1]}: {len(checked)} inner loops looked at")
    if spilling != args.expect:
        print(f"{spilling} inner loops store vector registers, expected {args.expect}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
