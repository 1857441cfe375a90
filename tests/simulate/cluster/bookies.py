"""Simulated bookies of a cluster, their registration in the simulated ZooKeeper, and partitions between brokers and bookies.

What must hold, as with real bookies: a request arrives once or not at all; while a broker is separated from a bookie, its
requests and the answers wait, and a request of a lost connection may still arrive later; a broker that was killed may have sent
requests that arrive after its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random

from tests.simulate.loop import SimulatedLoop
from tests.simulate.zookeeper_model import ZooKeeperModel
from tests.support.bookie_model import ModelBookie, ModelNetwork, ModelTransport

from pybroker.bookkeeper.metadata_store import BookieAddress

PORT = 3181
AVAILABLE = "/ledgers/available"
COOKIES = "/ledgers/cookies"
NOTICED_S = 2.0
"""The session of a bookie that was killed ends after at most this time."""


class BookieTransport(ModelTransport):
    """One connection of a broker. The bookie's side goes on when the broker's process ends."""

    def __init__(self, bookies: SimulatedBookies, bookie: ModelBookie, protocol: asyncio.Protocol, host: str) -> None:
        super().__init__(bookies, bookie, protocol)
        self.host = host
        self._bookies = bookies
        self._client = contextvars.copy_context()
        self._requests: deque[bytes] = deque()

    @property
    def is_held_up(self) -> bool:
        bookie_id = self.bookie.bookie_id
        return bookie_id in self._bookies.frozen or (self.host, bookie_id) in self._bookies.separated

    def _schedule(self, at_s: float, callback: Callable[[bytes], None], body: bytes) -> None:
        self._requests.append(body)
        self._bookies.loop.call_at(at_s, self._next_arrived, context=self._bookies.context)

    def _next_arrived(self) -> None:
        """Let the next request arrive: timers of one moment have no order."""
        self._arrived(self._requests.popleft())

    def _arrived(self, body: bytes) -> None:
        bookies = self._bookies
        if self.bookie.bookie_id in bookies.down or (self.is_lost and bookies.chance.random() < 0.5):
            return
        if self.is_held_up:
            self._held.append(lambda: self._arrived(body))
            return
        answer = self.bookie.answer(body)
        bookies.loop.call_at(bookies.loop.time() + bookies.delay_s(), self._answered, answer, context=bookies.context)

    def _answered(self, answer: bytes) -> None:
        if self.is_held_up:
            self._held.append(lambda: self._answered(answer))
        elif not self.is_lost:
            frame = struct.pack(">I", len(answer)) + answer
            self._bookies.loop.call_soon(self._take, frame, context=self._client)

    def _take(self, frame: bytes) -> None:
        if not self.is_lost:
            self.protocol.data_received(frame)

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._bookies.transports.pop(self, None)
            error = ConnectionResetError("reset")
            self._bookies.loop.call_soon(self.protocol.connection_lost, error, context=self._client)


class SimulatedBookies(ModelNetwork):
    """`register` comes first."""

    def __init__(self, loop: SimulatedLoop, chance: Random, count: int, zookeeper: ZooKeeperModel) -> None:
        super().__init__(chance, 0)
        names = [f"bookie{number}:{PORT}" for number in range(count)]
        self.bookies = {name: ModelBookie(name) for name in names}
        self.loop = loop
        self.context = contextvars.copy_context()
        self.separated: set[tuple[str, str]] = set()
        """Hosts of brokers and bookies between which nothing arrives."""
        self._zookeeper = zookeeper
        self._is_slow = chance.random() < 0.3

    def delay_s(self) -> float:
        delays = (0.0, 0.0001, 0.0003, 0.001, 0.02) if self._is_slow else (0.0, 0.0001, 0.0003)
        return self.chance.choice(delays)

    def register(self) -> None:
        for path in ("/ledgers", AVAILABLE, f"{AVAILABLE}/readonly", COOKIES):
            self._zookeeper.create_node(path)
        for name in self.bookies:
            self._zookeeper.create_node(f"{COOKIES}/{name}")
            self._zookeeper.create_node(f"{AVAILABLE}/{name}")

    def transport_of(self, host: str) -> Callable[[BookieAddress, asyncio.Protocol], Awaitable[None]]:
        """Return the function that connects the broker of `host`."""

        async def connect(address: BookieAddress, protocol: asyncio.Protocol) -> None:
            bookie_id = f"{address.host}:{address.port}"
            await asyncio.sleep(self.delay_s())
            while (host, bookie_id) in self.separated:  # noqa: ASYNC110 (the caller has a time-out)
                await asyncio.sleep(0.05)
            if bookie_id in self.down:
                raise ConnectionRefusedError("connection refused")
            transport = BookieTransport(self, self.bookies[bookie_id], protocol, host)
            self.transports[transport] = None
            protocol.connection_made(transport)

        return connect

    def separate(self, host: str, bookie_ids: list[str]) -> None:
        """Let nothing arrive between the broker of `host` and these bookies."""
        self.separated.update((host, each) for each in bookie_ids)

    def unite(self, host: str) -> None:
        self.separated = {pair for pair in self.separated if pair[0] != host}
        for transport in list(self.transports):
            if isinstance(transport, BookieTransport) and transport.host == host:
                transport.thaw()

    def broker_died(self, host: str) -> None:
        """End the connections of a broker's process. Its requests in transit may arrive."""
        for transport in list(self.transports):
            if isinstance(transport, BookieTransport) and transport.host == host:
                transport.is_lost = True
                self.transports.pop(transport, None)

    def kill(self, bookie_id: str) -> None:
        super().kill(bookie_id)
        self.loop.call_later(self.chance.uniform(0, NOTICED_S), self._deregister, bookie_id, context=self.context)

    def _deregister(self, bookie_id: str) -> None:
        if bookie_id in self.down:
            self._zookeeper.delete_node(f"{AVAILABLE}/{bookie_id}")

    def start(self, bookie_id: str) -> None:
        super().start(bookie_id)
        self._zookeeper.create_node(f"{AVAILABLE}/{bookie_id}")
