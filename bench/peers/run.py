#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the experts stage of a Python library and ours in turn (peer, ours, peer, ours, ...) on the
same random weights and tokens, after comparing their results. One JSON object a line. See
README.md."""

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import time

# Huge pages for torch's memory, as ours has them.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch  # noqa: E402

import ours  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Relative to the norm of our result. bf16: both round activations and, some, every product.
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2}


# Module and class of each, imported only when asked for: the libraries need environments of their
# own.
PEERS = {
    "torch_loop": ("torch_peers", "Loop"),
    "torch_grouped_mm": ("torch_peers", "GroupedMM"),
    "transformers_eager": ("torch_peers", "TransformersEager"),
    "transformers_batched_mm": ("torch_peers", "TransformersBatchedMM"),
    "transformers_grouped_mm": ("torch_peers", "TransformersGroupedMM"),
    "kt_kernel": ("kt_kernel_peer", "KtKernel"),
    "onnxruntime": ("onnxruntime_peer", "OnnxRuntime"),
    "zentorch": ("zentorch_peer", "ZenTorch"),
}


def random_weights(shape, dtype):
    """gate_up [experts, 2 intermediate, hidden] and down [experts, hidden, intermediate], for
    outputs near 1."""
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.empty(shape.experts, 2 * shape.intermediate, shape.hidden, dtype=DTYPES[dtype])
    down = torch.empty(shape.experts, shape.hidden, shape.intermediate, dtype=DTYPES[dtype])
    for weights in (gate_up, down):
        bound = (3 / weights.shape[-1]) ** 0.5
        for one in weights:  # uniform_ of a whole tensor in bf16 is slow
            one.copy_(torch.empty(one.shape).uniform_(-bound, bound, generator=generator))
    return gate_up, down


def route(shape, tokens, seed):
    """Distinct ids int64 and weights f32 [tokens, top_k], every expert as likely."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, shape.experts, generator=generator)
    ids = scores.topk(shape.top_k).indices.contiguous()
    weights = torch.rand(tokens, shape.top_k, generator=generator) + 0.5
    return ids, weights / weights.sum(-1, keepdim=True)


def quartiles(values):
    """(low, median, high)"""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def compare(peer, own, shape, tokens, arguments, peer_clock, own_clock):
    """The row of the result for one number of tokens."""
    x = torch.rand(tokens, shape.hidden, generator=torch.Generator().manual_seed(2))
    x = x.mul_(2).sub_(1).to(DTYPES[arguments.dtype])
    batches = [route(shape, tokens, seed) for seed in range(max(2, min(64, 4096 // tokens)))]
    expected = own(x, *batches[0])[0]
    difference = ((peer(x, *batches[0]).float() - expected).norm() / expected.norm()).item()
    if not difference <= TOLERANCE[arguments.dtype]:
        raise RuntimeError(
            f"{arguments.peer}, {tokens} tokens: results differ by {difference:.3g} of their norm")
    peer_ms, own_ms = [], []
    start = time.perf_counter()
    while len(own_ms) < 7 or (time.perf_counter() - start < arguments.seconds and
                              len(own_ms) < 301):
        ids, weights = batches[len(own_ms) % len(batches)]
        begin = peer_clock()
        peer(x, ids, weights)
        peer_ms.append(1e3 * (peer_clock() - begin))
        begin = time.perf_counter()
        seconds = own(x, ids, weights)[1]
        own_ms.append(1e3 * (time.perf_counter() - begin if own_clock == "wall" else seconds))
    low, ratio, high = quartiles([a / b for a, b in zip(peer_ms, own_ms)])
    return {
        "peer": arguments.peer,
        "model": arguments.shape,
        "experts": shape.experts,
        "dtype": arguments.dtype,
        "tokens": tokens,
        "threads": arguments.threads,
        "peer_ms": statistics.median(peer_ms),
        "ms": statistics.median(own_ms),
        "ratio": ratio,
        "ratio_quartiles": [low, high],
        "pairs": len(own_ms),
        "clock": own_clock,
        "difference": difference
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libtrimtab_stage.so")
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--shape", default="qwen3-30b")
    parser.add_argument("--experts", type=int,
                        help="fewer than the model has, where they do not fit twice")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--tokens", default="1,4,16,64,256,1024,4096")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    library = ours.Library(arguments.library)
    shape = library.shape(arguments.shape)
    tokens = [int(count) for count in arguments.tokens.split(",")]
    shape.max_tokens, shape.threads = max(tokens), arguments.threads
    shape.experts = arguments.experts or shape.experts
    gate_up, down = random_weights(shape, arguments.dtype)
    own = ours.Stage(library, shape, arguments.dtype, gate_up, down)
    module, name = PEERS[arguments.peer]
    peer = getattr(importlib.import_module(module), name)(shape, arguments.dtype, gate_up, down)
    # One thread: its own clock, so that other processes on the core don't count. Else, and where
    # the peer's work is on a thread that we don't see, the time that passes, for both.
    wall = arguments.threads > 1 or peer.own_threads
    peer_clock = time.perf_counter if wall else time.thread_time
    row = functools.partial(compare, peer, own, shape, arguments=arguments, peer_clock=peer_clock,
                            own_clock="wall" if wall else "thread")
    for count in tokens:
        print(json.dumps(row(tokens=count)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, ImportError, OSError) as error:
        sys.exit(f"run.py: {type(error).__name__}: {error}")
