#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the workloads of bench_planning: NAME_RxS.train.npy to plan on and NAME_RxS.test.npy to
measure on.

usage: planning_workloads.py FOLDER [--seed N] [--only PREFIX,PREFIX]    needs numpy
"""
import argparse
import os

import numpy as np

# Name, seed, shape of the skew, layers, experts, [ranks x slots], assignments in the window.
STEP_ASSIGNMENTS = 4096 * 8
SINGLE = []
SKEWS = [("logn", 0.5), ("logn", 1.0), ("logn", 1.5), ("zipf", 0.8), ("zipf", 1.2)]
for i, (kind, skew) in enumerate(SKEWS):
    SINGLE.append((f"b_{kind}{skew}", 100 + i, kind, skew, 58, 256,
                   ["32x9", "64x5", "144x2", "16x17"], 100 * STEP_ASSIGNMENTS))
for i, (kind, skew) in enumerate([("logn", 1.0), ("zipf", 0.8), ("zipf", 1.2)]):
    SINGLE.append((f"e512_{kind}{skew}", 300 + i, kind, skew, 8, 512,
                   ["256x3"], 400 * STEP_ASSIGNMENTS))
    SINGLE.append((f"e1024_{kind}{skew}", 310 + i, kind, skew, 8, 1024,
                   ["1024x2"], 1600 * STEP_ASSIGNMENTS))
# Name, seed, steps of the window, layers, experts, topics, steps over which topics correlate,
# [ranks x slots].
TOPICS = [("d_fast_T64", 400, 64, 58, 256, 6, 12, ["32x9"]),
          ("d_fast_T256", 401, 256, 58, 256, 6, 12, ["32x9", "64x5"]),
          ("d_fast_T1024", 402, 1024, 58, 256, 6, 12, ["32x9"]),
          ("d_slow_T256", 403, 256, 58, 256, 8, 200, ["32x9"]),
          ("d_qwen_T256", 406, 256, 94, 128, 4, 12, ["16x9"])]
TEST_STEPS = 256


def skewed(rng, kind, skew, layers, experts):
    """Shares of the experts: log-normal with this sigma, or Zipf with this exponent in random
    order."""
    if kind == "logn":
        shares = np.exp(skew * rng.standard_normal((layers, experts)))
    else:
        zipf = 1.0 / np.arange(1, experts + 1) ** skew
        shares = np.stack([rng.permutation(zipf) for _ in range(layers)])
    return shares / shares.sum(1, keepdims=True)


def single(seed, kind, skew, layers, experts, assignments):
    """One vector a layer; later every share has drifted by 10 %."""
    rng = np.random.default_rng(seed)

    def draw(shares):
        counts = np.stack([rng.multinomial(assignments, of_layer) for of_layer in shares])
        return counts[None].astype(np.int64)

    shares = skewed(rng, kind, skew, layers, experts)
    train = draw(shares)
    later = shares * np.exp(0.1 * rng.standard_normal(shares.shape))
    return train, draw(later / later.sum(1, keepdims=True))


def topic_mixture(seed, steps, layers, experts, topics, correlation):
    """Steps whose mixture of topics changes slowly: the amount of each follows an
    autoregression."""
    rng = np.random.default_rng(seed)
    base = 0.7 * rng.standard_normal((layers, 1, experts))
    profile = np.exp(base + rng.standard_normal((layers, topics, experts)))
    profile /= profile.sum(-1, keepdims=True)
    total = steps + TEST_STEPS
    keep, amplitude = np.exp(-1.0 / correlation), 1.2
    level = np.zeros((total, topics))
    level[0] = amplitude * rng.standard_normal(topics)
    for t in range(1, total):
        news = rng.standard_normal(topics)
        level[t] = keep * level[t - 1] + amplitude * np.sqrt(1 - keep * keep) * news
    # Published figures were measured on sets that were drawn after these unused numbers.
    rng.standard_normal(topics)
    mixture = np.exp(level)
    mixture /= mixture.sum(1, keepdims=True)
    loads = np.empty((total, layers, experts), np.int32)
    for layer in range(layers):
        shares = mixture @ profile[layer]
        shares /= shares.sum(1, keepdims=True)
        for t in range(total):
            loads[t, layer] = rng.multinomial(STEP_ASSIGNMENTS, shares[t])
    return loads[:steps], loads[steps:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0, help="other loads of the same kinds")
    parser.add_argument("--only", default="", help="prefixes of names, commas between")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    shift = 1000 * args.seed

    def save(name, sizes, make):
        if not any(name.startswith(prefix) for prefix in args.only.split(",")):
            return
        train, test = make()
        for size in sizes:
            np.save(f"{args.folder}/{name}{size}.train.npy", train)
            np.save(f"{args.folder}/{name}{size}.test.npy", test)

    example = np.array([600, 560, 120, 120, 20, 10, 10, 10], np.int64)[None, None]
    save("a_flash8", [""], lambda: (example, example))
    for name, seed, kind, skew, layers, experts, sizes, assignments in SINGLE:
        save(name, ["_" + size for size in sizes],
             lambda: single(seed + shift, kind, skew, layers, experts, assignments))
    for name, seed, steps, layers, experts, topics, correlation, sizes in TOPICS:
        save(name, ["_" + size for size in sizes],
             lambda: topic_mixture(seed + shift, steps, layers, experts, topics, correlation))


if __name__ == "__main__":
    main()
