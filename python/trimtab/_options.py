# SPDX-License-Identifier: Apache-2.0
"""The options of trimtab.transformers, and the checks on them."""

import os
from dataclasses import dataclass, replace

import torch

from ._core import ExpertWeights, MoeRuntime, read_costs
from .balancer import Balancer


@dataclass(frozen=True)
class Options:
    """How experts are run.

    ranks: parts that each layer's experts are divided into, a rank each; None: one for each NUMA
        node.
    threads: of each rank; None: torch.get_num_threads() / ranks, so that Trimtab and torch use the
        same threads.
    quantization: None keeps the precision that the weights have; else one of
        trimtab.weight_formats(), such as "w8a8" or "w4a16".
    dispatcher: a name of docs/dispatch.md, or "auto".
    eplb: None for experts in order; "dynamic", or a dict of trimtab.Balancer's settings, for
        experts that move while the model serves; or a placement that stays: a trimtab.Placement
        with as many slots on each rank, or array-like [MoE layers, slots] of logical experts, the
        slots of rank r being those from r * (slots / ranks) on.
    split: how tokens are shared out over an expert's replicas: static, round_robin, split or time;
        None: time with a cost, else static.
    cost: what an expert takes for a number of rows, which time needs: "measure", "rows", or a file
        that `trimtab bench experts --cost-out` wrote.
    max_tokens: of one pass; longer prompts take several. Memory for activations grows with it.
    row_budget: a rank's experts get at most so many times the rows of level loads at once; None:
        1.5 where the dispatcher takes a budget, 0: none. Memory for activations grows with it.
    free_originals: give the memory of the packed tensors back: they become meta tensors. False
        keeps both.
    """

    ranks: int | None = None
    threads: int | None = None
    quantization: str | None = None
    dispatcher: str = "auto"
    eplb: object = None
    split: str | None = None
    cost: str = ""
    max_tokens: int = 2048
    row_budget: float | None = None
    free_originals: bool = True

    def resolved(self):
        """These options with numbers in the places of None."""
        ranks, threads = self.ranks, self.threads
        if ranks is None:
            ranks = min(_numa_nodes(), torch.get_num_threads())
        if threads is None:
            threads = max(1, torch.get_num_threads() // max(1, ranks))
        return replace(self, ranks=ranks, threads=threads)


def _numa_nodes():
    try:
        names = os.listdir("/sys/devices/system/node")
        return sum(name.startswith("node") and name[4:].isdigit() for name in names) or 1
    except OSError:
        return 1


def is_dynamic(eplb):
    return isinstance(eplb, (str, dict))


def placement_rows(eplb, experts, ranks):
    """The placement of each layer, checked. experts: [layers] how many each has."""
    eplb = getattr(eplb, "logical", eplb)
    rows = eplb.tolist() if hasattr(eplb, "tolist") else [list(row) for row in eplb]
    if len(rows) != len(experts):
        raise ValueError(
            f"eplb places {len(rows)} layers, the model has {len(experts)} that Trimtab runs"
        )
    for layer, (row, num_experts) in enumerate(zip(rows, experts)):
        if set(row) != set(range(num_experts)) or len(row) % ranks != 0:
            raise ValueError(
                f"eplb, layer {layer}: {len(row)} slots hold {len(set(row))} experts; wanted a "
                f"multiple of {ranks} ranks, and each of experts 0 to {num_experts - 1}"
            )
    return rows


def check_options(options):
    """Raises the ValueError that packing or running would raise later, when originals are gone
    already."""
    if isinstance(options.eplb, str) and options.eplb != "dynamic":
        raise ValueError(
            f'eplb is None, "dynamic", a dict of settings or a placement, not "{options.eplb}"'
        )
    one = torch.ones(1, 64, 32)
    weights = ExpertWeights(
        one, one[:, :32], format="f32" if options.quantization is None else options.quantization
    )
    runtime = MoeRuntime(
        [weights],
        1,
        ranks=options.ranks,
        threads=options.threads,
        dispatcher=options.dispatcher,
        max_tokens=options.max_tokens,
        row_budget=options.row_budget,
        split=options.split,
        # A file has costs of the model's experts, not of these.
        cost=options.cost and "rows",
    )
    if options.cost not in ("", "rows", "measure"):
        read_costs(options.cost)
    if isinstance(options.eplb, dict):
        if "phase" in options.eplb:
            raise ValueError("eplb: steps are not told apart by phase here; leave phase out")
        try:
            Balancer(runtime, **options.eplb)
        except TypeError as error:
            raise ValueError(f"eplb: {error}") from None


def replaced(options, changes):
    try:
        return replace(options, **changes)
    except TypeError:
        unknown = sorted(set(changes) - set(Options.__dataclass_fields__))
        raise ValueError(
            f"no option {', '.join(unknown)}; there are {', '.join(Options.__dataclass_fields__)}"
        ) from None
