# SPDX-License-Identifier: Apache-2.0
"""MoE layers whose experts are spread over vLLM's expert-parallel ranks, with Trimtab's dispatchers
and balancer between them."""

from __future__ import annotations

import atexit
import functools
import json
import weakref
from multiprocessing import util

import torch

from .._core import RankGroup, RankRuntime, host_id
from ..formats import read_placement
from ..torch_streams import GlooStreams
from . import seams
from .metrics import Writer
from .recorder import Recorder
from .watch import Watch


_HOST_BYTES = 128
_all_layers = weakref.WeakSet()


@functools.cache
def rank_group(timeout):
    """This process's end of the group of all expert-parallel ranks. Collective. timeout: the
    longest that a rank waits for its peers, in seconds."""
    ranks = seams.expert_parallel_ranks()
    hosts = _exchange(host_id().encode().ljust(_HOST_BYTES, b"\0"))
    one_host = hosts == hosts[:_HOST_BYTES] * ranks.world_size
    streams = None if one_host else GlooStreams(ranks.ranks)
    # Processes of multiprocessing run only the second.
    atexit.register(leave_group)
    util.Finalize(None, leave_group, exitpriority=0)
    return RankGroup(ranks.rank_in_group, _exchange, timeout, streams)


@functools.cache
def watch_ranks():
    """Lets this rank say when the process of another expert-parallel rank has died. Collective."""
    rank = seams.expert_parallel_ranks().rank_in_group

    def lost(peer):
        seams.logger.error(
            "CommError: rank %d, expert parallelism, peer %d: its process has ended; start all "
            "ranks again",
            *(rank, peer),
        )

    return Watch(rank, _exchange, lost)


def _exchange(mine):
    """An all-gather of bytes, as many on each rank."""
    ranks = seams.expert_parallel_ranks()
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    received = [torch.empty_like(sent) for _ in range(ranks.world_size)]
    torch.distributed.all_gather(received, sent, group=ranks.cpu_group)
    return b"".join(bytes(part.numpy()) for part in received)


def leave_group():
    """Ends this process's part in the group, while there are threads to say so to other hosts."""
    for layers in _all_layers:
        layers.end()
    rank_group.cache_clear()


def add_up(load):
    """Adds up what all expert-parallel ranks have, in place. Collective."""
    torch.distributed.all_reduce(load, group=seams.expert_parallel_ranks().cpu_group)


class RankLayers:
    """Layers of this process that are alike and share a RankRuntime. All ranks make the same calls
    in the same order. number: of these layers among several RankLayers."""

    def __init__(self, number, num_experts, max_tokens, same_tokens, flags):
        self._arguments = {
            "threads": torch.get_num_threads(),
            "max_tokens": max_tokens,
            "same_tokens": same_tokens,
            "dispatcher": flags.dispatcher,
            "balancer": json.dumps(flags.balancer) if flags.balancer else "",
            "cost": flags.cost,
            "redundant": flags.redundant,
        }
        self._timeout = flags.timeout
        self._placement = flags.placement
        self._recorder = Recorder(flags.record) if flags.record else None
        self._num_experts = num_experts
        self._weights = []
        self._runtime = None
        self._switched = 0
        self._number = number
        self._interval = flags.balancer.get("interval", 256)
        self._metrics = None  # of the first rank, which plans
        _all_layers.add(self)

    def add(self, weights):
        """Adds this rank's experts of the next layer; returns its number."""
        if self._runtime is not None:
            raise RuntimeError("a layer was loaded after the first call of a model")
        self._weights.append(weights)
        return len(self._weights) - 1

    def runtime(self, top_k):
        """The runtime. The first call, which all ranks make together, starts it."""
        if self._runtime is None:
            group = rank_group(self._timeout)
            watch_ranks()
            placement = self._first_placement(group.size)
            runtime = RankRuntime(
                group, self._num_experts, top_k, placement=placement, **self._arguments
            )
            while self._weights:  # no longer than needed: a balancer copies them
                runtime.add_layer(self._weights.pop(0))
            runtime.start()
            self._runtime = runtime
            if group.rank == 0 and self._arguments["balancer"]:
                self._metrics = Writer(self._number, self._interval)
        return self._runtime

    def end(self):
        """There will be no more calls."""
        self._runtime = None

    def _first_placement(self, ranks):
        """What the file says. Raises ValueError for a file that is none."""
        if not self._placement:
            return None
        file = read_placement(self._placement, num_ranks=ranks, num_experts=self._num_experts)
        return file.placement

    def forward(self, layer, x, ids, weights, out):
        counts = not seams.is_trial_run()
        if not counts:
            ids = torch.full_like(ids, -1)
        runtime = self.runtime(ids.shape[-1])
        if self._recorder is not None and layer == 0:
            self._recorder.before_step(runtime.steps, runtime.take_load, add_up)
        runtime.forward(layer, x, ids, weights, out, counts)
        if self._metrics is not None and layer == 0:
            self._metrics.update(runtime.steps, runtime.metrics)
        if runtime.layers_switched != self._switched:
            self._switched = runtime.layers_switched
            if rank_group(self._timeout).rank == 0:
                seams.logger.info(
                    "Trimtab has moved experts: %d layers switched by step %d",
                    *(self._switched, runtime.steps),
                )
