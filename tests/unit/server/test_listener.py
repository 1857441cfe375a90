"""The listener: ports, keep-alive, and the end of all connections, on ports and transports in memory."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.server.in_memory_connection import Peer, Server

from pybroker.errors import CannotListen
from pybroker.runtime.network import MakeProtocol, Network, Port
from pybroker.server import listener
from pybroker.server.bind_addresses import BindAddress
from pybroker.server.listener import Listener
from pybroker.wire.session import SessionState

PLAIN = BindAddress("127.0.0.1", 6650, False, "brokerServicePort")
TLS = BindAddress("127.0.0.1", 6651, True, "brokerServicePortTls")


class FakePort:
    def __init__(self, number: int) -> None:
        self.number = number
        self.make_protocol: MakeProtocol | None = None
        self.is_closed = False

    async def serve(self, make_protocol: MakeProtocol, tls: object = None, timeout_s: float | None = None) -> None:
        self.make_protocol = make_protocol

    def close(self) -> None:
        self.is_closed = True


class FakeNetwork(Network):
    """Binds any port, except those in use."""

    def __init__(self, *used: int) -> None:
        self.used = used
        self.ports: list[FakePort] = []

    def bind(self, address: str, number: int, accept_queue_size: int) -> Port:
        if number in self.used:
            raise OSError(98, "Address already in use")
        self.ports.append(FakePort(number))
        return cast(Port, self.ports[-1])


def listener_of(server: Server, network: Network) -> Listener:
    server.runtime.network = network
    return Listener(server.context)


def lose_when_closed(*peers: Peer) -> None:
    """End connections that were closed, as the event loop does."""
    for peer in peers:
        if peer.transport.is_closed and peer.connection in peer.connection.context.connections:
            peer.lose()


async def test_each_accepted_connection_has_its_own_protocol() -> None:
    server, network = Server(), FakeNetwork()
    bound = listener_of(server, network)
    bound.bind([PLAIN], None)
    assert (bound.port, bound.port_tls) == (6650, None)
    assert network.ports[0].make_protocol is None, "bound ports are not served yet"
    await bound.start()
    make_protocol = network.ports[0].make_protocol
    assert make_protocol is not None
    assert make_protocol() is not make_protocol()


async def test_failed_bind_names_all_ports_and_closes_bound_ones() -> None:
    server, network = Server(), FakeNetwork(6650, 6651)
    tls = cast(ssl.SSLContext, SimpleNamespace())
    with pytest.raises(CannotListen) as failure:
        listener_of(server, network).bind([PLAIN, TLS], tls)
    assert len(failure.value.problems) == 2
    network.used = (6651,)
    with pytest.raises(CannotListen) as failure:
        listener_of(server, network).bind([PLAIN, TLS], tls)
    assert len(failure.value.problems) == 1
    assert network.ports[0].is_closed


async def test_stop_refuses_new_connections_and_pauses_existing_ones() -> None:
    server, network = Server(), FakeNetwork()
    bound = listener_of(server, network)
    bound.bind([PLAIN], None)
    await bound.start()
    before = server.connect()
    bound.stop_reading()
    assert network.ports[0].is_closed
    assert before.transport.is_reading_paused
    assert not before.transport.is_closed
    assert server.connect(is_introduced=False).transport.is_reading_paused, "accepted during the stop"


async def test_close_ends_all_connections() -> None:
    server = Server()
    bound = listener_of(server, FakeNetwork())
    peers = [server.connect(f"10.0.0.{number}") for number in range(3)]
    closing = asyncio.create_task(bound.close())
    await asyncio.sleep(0)
    assert all(peer.transport.is_closed and not peer.transport.is_aborted for peer in peers)
    lose_when_closed(*peers)
    await closing
    assert not server.context.connections


async def test_close_aborts_connection_that_does_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CLOSE_GRACE_S", 0)
    server = Server()
    bound = listener_of(server, FakeNetwork())
    peer = server.connect()
    closing = asyncio.create_task(bound.close())
    await peer.transport.aborted.wait()
    peer.lose()
    await closing


async def test_watch_closes_connection_without_connect() -> None:
    server = Server(connect_command_timeout_ms=10)
    bound = listener_of(server, FakeNetwork())
    unauthenticated, connected = server.connect(is_introduced=False), server.connect()
    watching = asyncio.create_task(bound.watch())
    server.clock.now_ms += 11
    await unauthenticated.transport.aborted.wait()
    assert connected.state is SessionState.CONNECTED
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
