# SPDX-License-Identifier: Apache-2.0
"""The experts of one layer through trimtab.transformers beside transformers' own implementations.

    python bench/python_experts.py [--tokens 1,8,64,512,2048]
                                   [--against eager,grouped_mm,batched_mm] [--seconds 2]

It calls one module of experts (Qwen3-30B-A3B: hidden 2048, intermediate 768, 128 experts, top 8) in
bf16 as the model calls it, always with torch's number of threads. Results are compared first. Then
calls take turns, Trimtab and one other each time, so that other work on the machine is the same for
both. Before each call torch runs a linear map of the size of an attention projection, as between
the layers of a model, so that its threads are awake as they are there.

It prints a line of JSON for each number of tokens and implementation: medians in ms, the median of
the pairs' ratios with its quartiles (above 1 Trimtab is faster), and memory beside the weights. The
latter is the most that a peer's call adds to the resident memory, and what Trimtab's calls have
added to it by then, which it keeps.
"""

import argparse
import json
import os
import statistics
import time

import torch
import trimtab
import trimtab.transformers as tt
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts


def make_experts(args):
    config = Qwen3MoeConfig(
        hidden_size=args.hidden, moe_intermediate_size=args.intermediate, num_experts=args.experts,
        num_experts_per_tok=args.top_k,
    )
    config._experts_implementation = "eager"
    experts = Qwen3MoeExperts(config).to(torch.bfloat16).requires_grad_(False)
    for parameter in experts.parameters():
        parameter.normal_(std=0.02)
    return experts


def route(tokens, args):
    """Softmax of random logits: picks are spread as those of a router that balances."""
    scores = torch.randn(tokens, args.experts).softmax(-1)
    weights, ids = scores.topk(args.top_k)
    return ids, (weights / weights.sum(-1, keepdim=True)).to(torch.bfloat16)


class PeakMemory:
    """The most bytes that a call adds to the resident memory. Linux forgets the peak on request."""

    @staticmethod
    def _status(key):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(key)) * 1024

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
        self.before = self._status("VmRSS")
        return self

    def __exit__(self, *_):
        self.bytes = max(0, self._status("VmHWM") - self.before)


def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def compare(experts, name, tokens, args, kept):
    """kept: bytes that Trimtab's calls have added by now; a list of one number."""
    x = torch.randn(tokens, args.hidden, dtype=torch.bfloat16)
    ids, weights = route(tokens, args)
    projection = torch.randn(args.hidden, args.hidden, dtype=torch.bfloat16)

    def peer():
        experts.config._experts_implementation = name
        return experts(x, ids, weights)

    def trimtab_experts():
        experts.config._experts_implementation = tt.NAME
        return experts(x, ids, weights)

    experts.config._experts_implementation = "eager"
    wanted = peer().float()
    with PeakMemory() as own:
        found = trimtab_experts().float()
    kept[0] += own.bytes
    difference = (torch.linalg.norm(found - wanted) / torch.linalg.norm(wanted)).item()
    if difference > args.tolerance:
        raise SystemExit(
            f"{name}, {tokens} tokens: results differ by {difference:.3g} of their norm"
        )
    with PeakMemory() as peak:
        peer()
    times, peer_times = [], []
    end = time.perf_counter() + args.seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 500):
        for call, into in ((peer, peer_times), (trimtab_experts, times)):
            torch.nn.functional.linear(x, projection)
            into.append(timed(call))
    ratios = [a / b for a, b in zip(peer_times, times)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "tokens": tokens, "peer": name, "peer_ms": round(statistics.median(peer_times), 3),
        "trimtab_ms": round(statistics.median(times), 3), "ratio": round(quartiles[1], 2),
        "ratio_quartiles": [round(quartiles[0], 2), round(quartiles[2], 2)], "pairs": len(times),
        "peer_extra_mb": round(peak.bytes / 1e6, 1), "trimtab_extra_mb": round(kept[0] / 1e6, 1),
        "difference": round(difference, 5), "load": round(os.getloadavg()[0], 1),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="1,8,64,512,2048")
    parser.add_argument("--against", default="eager,grouped_mm,batched_mm")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each comparison")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of torch and of Trimtab's ranks together")
    parser.add_argument("--quantization")
    parser.add_argument("--own-threads", action="store_true",
                        help="Trimtab with threads beside torch's, to see what they cost")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=0.02)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    experts = make_experts(args)
    options = tt.Options(
        ranks=args.ranks, quantization=args.quantization, free_originals=False
    ).resolved()
    if args.own_threads:
        tt.MoeRuntime = lambda *a, **k: trimtab.MoeRuntime(*a, share_openmp=False, **k)
    tt._bind(experts, options, {})
    print(json.dumps({
        "trimtab": trimtab.__version__, "isa": trimtab.kernel_isa(), "torch": torch.__version__,
        "ranks": options.ranks, "threads_of_a_rank": options.threads,
        "format": args.quantization or "bf16",
    }), flush=True)
    kept = [0]
    with torch.inference_mode():
        for tokens in map(int, args.tokens.split(",")):
            for name in args.against.split(","):
                if name == "batched_mm" and tokens > 64:
                    continue  # it copies the weights of every pick: 9 MB each
                print(json.dumps(compare(experts, name, tokens, args, kept)), flush=True)


if __name__ == "__main__":
    main()
