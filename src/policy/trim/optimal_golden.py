#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes optimal_golden.inc, against which the branch and bound of `optimal` is tested.

It holds small layers with their least peak load and, at that peak, the fewest moves, both proved by
the MILP solver HiGHS (scipy.optimize.milp).

usage: optimal_golden.py optimal_golden.inc
"""
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp


def solve(load, ranks, slots, held):
    """Returns the least peak, and the fewest moves at that peak. load: [experts]; held: the set of
    (rank, expert) that need no move."""
    experts = len(load)
    cases = [(e, c) for e in range(experts) for c in range(1, ranks + 1)]  # e has c replicas
    num_y, num_z = len(cases), len(cases) * ranks
    size = num_y + num_z + 1  # y[e,c], z[e,c,r], peak
    z = lambda i, r: num_y + i * ranks + r
    rows, low, high = [], [], []

    def constrain(entries, lo, hi):
        row = np.zeros(size)
        for column, value in entries:
            row[column] += value
        rows.append(row), low.append(lo), high.append(hi)

    for e in range(experts):
        constrain([(i, 1) for i, case in enumerate(cases) if case[0] == e], 1, 1)
    for i, (e, c) in enumerate(cases):
        constrain([(z(i, r), 1) for r in range(ranks)] + [(i, -c)], 0, 0)
        for r in range(ranks):
            constrain([(z(i, r), 1), (i, -1)], -np.inf, 0)
    for r in range(ranks):
        constrain([(z(i, r), 1) for i in range(len(cases))], slots, slots)
        of_rank = [(z(i, r), load[e] / c) for i, (e, c) in enumerate(cases)]
        constrain([*of_rank, (size - 1, -1)], -np.inf, 0)
    integral = np.ones(size)
    integral[-1] = 0
    upper = np.ones(size)
    upper[-1] = sum(load)

    def minimise(cost, bounds):
        result = milp(cost, constraints=LinearConstraint(np.array(rows), low, high),
                      integrality=integral, bounds=bounds,
                      options={"mip_rel_gap": 1e-9, "time_limit": 300})
        assert result.status == 0, result.message
        return result

    cost = np.zeros(size)
    cost[-1] = 1
    # The peak follows from the integral part exactly.
    y = np.round(minimise(cost, Bounds(np.zeros(size), upper)).x)
    peak = max(sum(load[e] / c * y[z(i, r)] for i, (e, c) in enumerate(cases))
               for r in range(ranks))
    upper[-1] = peak * (1 + 1e-7)
    cost = np.zeros(size)
    for i, (e, _) in enumerate(cases):
        for r in range(ranks):
            cost[z(i, r)] = 0 if (r, e) in held else 1
    moves = round(minimise(cost, Bounds(np.zeros(size), upper)).fun)
    return peak, moves


def main():
    out = open(sys.argv[1], "w")  # not stdout: HiGHS prints there
    rng = np.random.default_rng(20)
    print("// SPDX-License-Identifier: Apache-2.0", file=out)
    print("// Written by optimal_golden.py: {ranks, slots, loads, peak, moves}.", file=out)
    shapes = [(2, 2, 3), (2, 3, 4), (3, 2, 4), (3, 2, 5), (4, 2, 5), (4, 2, 6), (3, 3, 6),
              (5, 2, 6), (4, 2, 7), (4, 3, 8)]
    for ranks, slots, experts in shapes:
        for kind in range(3):
            if kind == 0:
                load = np.ceil(1000 * np.exp(rng.standard_normal(experts))).astype(int)
            elif kind == 1:
                load = np.ceil(1000 * rng.exponential(size=experts)).astype(int)
            else:
                load = np.ceil(1000 / np.arange(1, experts + 1) ** 1.2).astype(int)
            linear = [s % experts for s in range(ranks * slots)]
            held = {(s // slots, e) for s, e in enumerate(linear)}
            peak, moves = solve([int(w) for w in load], ranks, slots, held)
            loads = ", ".join(str(w) for w in load)
            print(f"{{{ranks}, {slots}, {{{loads}}}, {peak:.9f}, {moves}}},", file=out)
    load = [600, 560, 120, 120, 20, 10, 10, 10]
    loads = ", ".join(map(str, load))
    print(f"// FlashLB's example.\n{{8, 2, {{{loads}}}, {560 / 3 + 10:.9f}, 7}},", file=out)


if __name__ == "__main__":
    main()
