# SPDX-License-Identifier: Apache-2.0
"""Streams between hosts for a RankGroup, over PyTorch's gloo."""

from __future__ import annotations

import datetime

import torch

_FOREVER = datetime.timedelta(days=365)


class GlooStreams:
    """A process group of torch.distributed that carries a RankGroup's messages between hosts.

    Collective over `ranks`: the ranks in torch.distributed of all ranks of the RankGroup, in its
    order. torch.distributed must have been initialised, with any backend. gloo takes the network
    interface that GLOO_SOCKET_IFNAME names.
    """

    def __init__(self, ranks):
        self._ranks = list(ranks)
        # Of its own: a receive waits as long as its peer has nothing to say.
        self._group = torch.distributed.new_group(
            self._ranks, timeout=_FOREVER, backend="gloo", use_local_synchronization=True
        )

    def send(self, rank, view):
        torch.distributed.send(_tensor(view), self._ranks[rank], group=self._group)

    def receive(self, rank, view):
        torch.distributed.recv(_tensor(view), self._ranks[rank], group=self._group)


def _tensor(view):
    return torch.frombuffer(view, dtype=torch.uint8)
