# SPDX-License-Identifier: Apache-2.0
"""Experts over ranks on several hosts that streams connect. A host is a process with a /dev/shm of
its own."""

import ctypes
import os
import signal
import socket

import numpy as np
import pytest
import rank_processes
from test_rank_runtime import LAYERS, TOKENS, batch, expected, forward, runtime_of

from trimtab import RankGroup, host_id

BALANCED = {"balancer": '{"interval": 4, "gate": false, "use_async": false}', "redundant": 3}


def become_a_host():
    """This process and its threads see a /dev/shm of their own. False where that is refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private, recursive = 0x20000, 1 << 18, 1 << 14
    return (
        libc.unshare(new_namespace) == 0
        and libc.mount(b"none", b"/", None, private | recursive, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None) == 0
    )


class Sockets:
    """A connection to each other rank."""

    def __init__(self, rank, exchange):
        listener = socket.create_server(("127.0.0.1", 0))
        ports = exchange(listener.getsockname()[1].to_bytes(2, "big"))
        ports = [int.from_bytes(ports[i : i + 2], "big") for i in range(0, len(ports), 2)]
        self._peers = {}
        for peer in range(rank):
            self._peers[peer] = socket.create_connection(("127.0.0.1", ports[peer]))
            self._peers[peer].sendall(bytes([rank]))
        for _ in range(rank + 1, len(ports)):
            made = listener.accept()[0]
            self._peers[made.recv(1)[0]] = made

    def send(self, rank, view):
        self._peers[rank].sendall(view)

    def receive(self, rank, view):
        while view:
            if not (came := self._peers[rank].recv_into(view)):
                raise ConnectionError("closed by the peer")
            view = view[came:]


class Gloo:
    """GlooStreams, with what must be there before."""

    def __new__(cls, rank, exchange):
        import torch

        from trimtab.torch_streams import GlooStreams

        port = 0
        if rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
        ports = exchange(port.to_bytes(2, "big"))
        ranks = len(ports) // 2
        address = f"tcp://127.0.0.1:{int.from_bytes(ports[:2], 'big')}"
        torch.distributed.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=ranks
        )
        return GlooStreams(range(ranks))


def streams_of(kind, rank, exchange):
    return {"sockets": Sockets, "gloo": Gloo}[kind](rank, exchange)


def needs_torch(kind):
    if kind == "gloo":
        pytest.importorskip("torch")


def skip_if_refused(results):
    if "refused" in results:
        pytest.skip("a process may not have a /dev/shm of its own here")


def outputs_over_hosts(rank, ranks, exchange, kind, options):
    if not all(exchange(bytes([become_a_host()]))):
        return "refused"
    streams = streams_of(kind, rank, exchange)
    runtime = runtime_of(rank, ranks, exchange, streams=streams, **options)
    outs = []
    for step in range(12):
        tokens = batch(rank + step, TOKENS, 4)
        outs.append([forward(runtime, layer, *tokens) for layer in range(LAYERS)])
    return outs, runtime.dispatcher, runtime.layers_switched


@pytest.mark.parametrize(
    "kind, options, dispatcher",
    [
        ("sockets", {}, "packed"),
        ("sockets", {"dispatcher": "all_to_all"}, "all_to_all"),
        ("gloo", {"dispatcher": "hybrid", **BALANCED}, "hybrid"),
    ],
)
def test_three_hosts_give_what_one_process_gives(kind, options, dispatcher):
    needs_torch(kind)
    results = rank_processes.run(outputs_over_hosts, 3, kind, options)
    skip_if_refused(results)
    for rank, result in enumerate(results):
        assert not isinstance(result, str), result
        outs, used, switched = result
        assert used == dispatcher
        assert (switched > 0) == ("balancer" in options)
        for step, of_step in enumerate(outs):
            for layer, out in enumerate(of_step):
                wanted = expected(layer, *batch(rank + step, TOKENS, 4))
                if dispatcher == "all_to_all":
                    assert np.array_equal(out, wanted)
                else:  # sums of a host come first
                    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def one_dies(rank, ranks, exchange, kind):
    if not all(exchange(bytes([become_a_host()]))):
        return "refused"
    group = RankGroup(rank, exchange, 60, streams_of(kind, rank, exchange))
    group.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


@pytest.mark.parametrize("kind", ["sockets", "gloo"])
def test_a_host_that_dies_is_an_error_on_the_others(kind):
    """Long before the timeout."""
    needs_torch(kind)
    results = rank_processes.run(one_dies, 2, kind, timeout=30)
    skip_if_refused(results)
    error, dead = results
    assert dead is None
    assert error.startswith("CommError: rank 0, barrier, peer 1: ")
    assert "the connection to it has ended (" in error and "Traceback" not in error


def start_without_streams(rank, ranks, exchange):
    if not all(exchange(bytes([become_a_host()]))):
        return "refused"
    hosts = exchange(host_id().encode().ljust(128, b"\0"))
    assert hosts[:128] != hosts[128:]
    RankGroup(rank, exchange)


def test_several_hosts_need_streams():
    results = rank_processes.run(start_without_streams, 2)
    skip_if_refused(results)
    for result in results:
        assert "several hosts need streams between them, or MPI" in result
