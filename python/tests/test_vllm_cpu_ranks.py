# SPDX-License-Identifier: Apache-2.0
"""Layers that trimtab.vllm_cpu spreads over ranks, with torch's gloo group in vLLM's place."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rank_processes  # noqa: E402
from test_rank_runtime import EXPERTS, LAYERS, TOKENS, batch, expected, weights_of  # noqa: E402

from trimtab.vllm_cpu import ranks as spread  # noqa: E402
from trimtab.vllm_cpu import seams  # noqa: E402
from trimtab.vllm_cpu.flags import Flags  # noqa: E402


def serve(rank, ranks, exchange, store, settings, same_tokens):
    """A trial run, then a batch; what the layers gave for both."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    group = types.SimpleNamespace(
        world_size=ranks, rank_in_group=rank, cpu_group=torch.distributed.group.WORLD
    )
    seams.expert_parallel_ranks = lambda: group
    layers = spread.RankLayers(0, EXPERTS, TOKENS, same_tokens, Flags.of({"trimtab": settings}))
    own = EXPERTS // ranks
    for layer in range(LAYERS):
        layers.add(weights_of(layer, range(rank * own, (rank + 1) * own)))
    outputs = []
    for trial in (True, False):
        seams.is_trial_run = lambda trial=trial: trial
        for layer in range(LAYERS):
            x, ids, weights = map(torch.from_numpy, batch(0 if same_tokens else rank))
            out = torch.full_like(x, 7)
            layers.forward(layer, x, ids, weights, out)
            outputs.append(out.numpy())
    with pytest.raises(RuntimeError, match="after the first call"):
        layers.add(weights_of(0))
    return outputs


@pytest.mark.parametrize("same_tokens", [False, True])
@pytest.mark.parametrize("settings", [{}, {"balancer": {"interval": 4}, "redundant": 2}], ids=str)
def test_spread_layers_give_what_one_rank_does(tmp_path, settings, same_tokens):
    store = str(tmp_path / "store")
    outputs = rank_processes.run(serve, 2, store, {**settings, "timeout": 60}, same_tokens)
    for of_rank in outputs:
        assert not isinstance(of_rank, str), of_rank
        for out in of_rank[:LAYERS]:  # the trial run has tokens of nobody
            assert not out.any()
    for layer in range(LAYERS):
        first, second = (of_rank[LAYERS + layer] for of_rank in outputs)
        if same_tokens:
            assert np.array_equal(first + second, expected(layer, *batch(0)))
        else:
            assert np.array_equal(first, expected(layer, *batch(0)))
            assert np.array_equal(second, expected(layer, *batch(1)))
