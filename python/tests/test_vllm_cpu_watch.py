# SPDX-License-Identifier: Apache-2.0
"""trimtab.vllm_cpu notices the death of a rank's process, and no other end of it."""

import os
import queue
import signal

import pytest
import rank_processes

pytest.importorskip("torch")

from trimtab.vllm_cpu.watch import Watch  # noqa: E402


def watched(rank, ranks, exchange, dies):
    """On rank 0 the ranks that were lost, when all have ended."""
    lost = queue.Queue()
    watch = Watch(rank, exchange, lost.put)
    if rank > 0:
        if rank in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return None
    watch.thread.join(60)
    assert not watch.thread.is_alive()
    return sorted(lost.queue)


@pytest.mark.parametrize("dies", [[], [2], [1, 2]], ids=str)
def test_only_a_process_that_did_not_end_itself_is_lost(dies, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lost, *_ = rank_processes.run(watched, 3, dies)
    assert lost == dies
    assert list(tmp_path.iterdir()) == []  # nothing is left
