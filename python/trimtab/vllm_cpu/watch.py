# SPDX-License-Identifier: Apache-2.0
"""Says on every rank when the process of another one has died. Ranks mostly wait for each other in
vLLM's own collectives, where nobody says which rank was lost, or that one was."""

from __future__ import annotations

import atexit
import mmap
import os
import select
import struct
import tempfile
import threading
import time
from multiprocessing import util

_PATH_BYTES = 1024
# An engine that stops may kill all ranks, one after the other.
_GRACE_SECONDS = 0.1


class Watch:
    """A thread that waits for the processes of the other ranks to end.

    Collective. rank, exchange: as of RankGroup. lost(peer) is called in the thread when the process
    of a rank has ended and had not come to its own end: it was killed, or has crashed. Ranks that
    do not see each other's processes, such as those of two containers, are not watched.
    """

    def __init__(self, rank, exchange, lost):
        self._lost = lost
        self._rank = rank
        identity = struct.pack("qq", os.getpid(), os.stat("/proc/self/ns/pid").st_ino)
        processes = list(struct.iter_unpack("qq", exchange(identity)))
        self._ends = _share(rank, len(processes), exchange)
        self._peers = {}  # file descriptor -> rank
        self.thread = None
        if self._ends is None:
            return
        for peer, (process, namespace) in enumerate(processes):
            if peer != rank and namespace == processes[rank][1]:
                self._peers[os.pidfd_open(process)] = peer
        # Processes of multiprocessing run only the second.
        atexit.register(self.leave)
        util.Finalize(None, self.leave, exitpriority=0)
        self.thread = threading.Thread(target=self._wait, name="trimtab-watch", daemon=True)
        self.thread.start()

    def leave(self):
        """The process comes to its end: it is not lost."""
        self._ends[self._rank] = 1

    def _wait(self):
        poll = select.poll()
        for descriptor in self._peers:
            poll.register(descriptor, select.POLLIN)
        left = dict(self._peers)
        while left:
            for descriptor, _ in poll.poll():
                poll.unregister(descriptor)
                peer = left.pop(descriptor)
                os.close(descriptor)
                if not self._ends[peer]:
                    time.sleep(_GRACE_SECONDS)
                    self._lost(peer)


def _share(rank, ranks, exchange):
    """A byte for each rank, in memory that all of them share; None where they can't. Nothing is
    left of it when they have ended."""
    path = ""
    if rank == 0:
        descriptor, path = tempfile.mkstemp(prefix="trimtab-watch-")
        os.truncate(path, ranks)
        os.close(descriptor)
    path = exchange(path.encode().ljust(_PATH_BYTES, b"\0"))[:_PATH_BYTES].rstrip(b"\0")
    try:
        with open(path, "r+b") as file:
            shared = mmap.mmap(file.fileno(), ranks)
    except OSError:
        shared = None
    all_have = b"\0" not in exchange(b"\1" if shared else b"\0")
    if rank == 0:
        os.unlink(path)
    return shared if all_have else None
