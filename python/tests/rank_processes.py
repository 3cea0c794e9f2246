# SPDX-License-Identifier: Apache-2.0
"""Runs a function on ranks that are processes, with the all-gather that a RankGroup begins with."""

import multiprocessing
import traceback
from multiprocessing.connection import wait


def run(body, ranks, *args, timeout=120):
    """[ranks] what body(rank, ranks, exchange, *args) returned on each, or its exception as text,
    or None for a process that has died. body is a function of a module."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_live, args=(body, rank, ranks, theirs, args), daemon=True)
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    results, brought, waiting = {}, {}, dict(enumerate(ends))
    while waiting:
        ready = wait(list(waiting.values()), timeout)
        assert ready, f"ranks {sorted(waiting)} did not end within {timeout} s"
        for rank in [rank for rank, end in waiting.items() if end in ready]:
            try:
                kind, value = ends[rank].recv()
            except EOFError:
                kind, value = "result", None
            if kind == "exchange":
                brought[rank] = value
            else:
                results[rank] = value
                del waiting[rank]
        if len(brought) == ranks:
            everything = b"".join(brought[rank] for rank in range(ranks))
            brought = {}
            for end in ends:
                end.send(everything)
    for process in processes:
        process.join(timeout)
    return [results[rank] for rank in range(ranks)]


def _live(body, rank, ranks, end, args):
    def exchange(mine):
        end.send(("exchange", bytes(mine)))
        return end.recv()

    try:
        end.send(("result", body(rank, ranks, exchange, *args)))
    except Exception as error:
        traceback.print_exc()
        end.send(("result", f"{type(error).__name__}: {error}"))
