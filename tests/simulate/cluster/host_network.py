"""The network of one broker's host: connections of clients, which a partition can hold up.

Invariant: during a partition nothing crosses in either direction, not even the end of a connection. Afterwards everything
arrives that was sent and whose connection was not given up, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

from tests.simulate.life import BROKERS_ADDRESS
from tests.simulate.loop import Process, SimulatedLoop, running_process
from tests.simulate.network import Heard, SimulatedNetwork, WeatherTransport
from tests.support.memory_network import MemoryTransport

from pybroker.client.frames import FrameReader, command_and_rest
from pybroker.runtime.network import MakeProtocol
from pybroker.wire import pulsar_api_pb2 as pb

Delivered = Callable[[Process, str, pb.CommandMessage], None]
"""Called with the broker's process, the topic, and a MESSAGE, when the broker writes it."""


class HostTransport(WeatherTransport):
    """One side of a connection with a broker. `topics`: those of the client's consumers, by consumer id."""

    def __init__(
        self,
        network: HostNetwork,
        protocol: asyncio.BaseProtocol,
        own: tuple[str, int],
        other: tuple[str, int],
        process: Process | None,
    ) -> None:
        super().__init__(network, protocol, own, other, process)
        self.host = network
        self.topics: dict[int, str] = {}
        self.peer: HostTransport
        self._written = FrameReader(self._heard_frame) if process is not None else None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._written is not None and not self.is_lost:
            self._written.feed(bytes(data))
        super().write(data)

    def _heard_frame(self, frames: bytes, start: int, end: int) -> None:
        command, _ = command_and_rest(frames, start, end)
        if command.type == pb.BaseCommand.MESSAGE and self.process is not None:
            topic = self.topics.get(command.message.consumer_id, "")
            self.host.delivered(self.process, topic, command.message)
        elif command.type == pb.BaseCommand.SUBSCRIBE:  # of a broker that is a client of this one
            self.peer.topics[command.subscribe.consumer_id] = command.subscribe.topic

    def _cross(self) -> None:
        if not self.host.is_partitioned:
            super()._cross()
            return
        self._is_due = False
        if self._is_closing and not self._unsent and not self.is_lost:
            self.is_lost = True
            self.tell(self._protocol.connection_lost, None)
            self.host.ended.append(self)


class HostNetwork(SimulatedNetwork):
    """Of one host. `delivered` is called for each MESSAGE of the broker."""

    def __init__(self, chance: Random, loop: SimulatedLoop, heard: Heard, delivered: Delivered) -> None:
        super().__init__(chance, loop, heard)
        self.delivered = delivered
        self.is_partitioned = False
        self.ended: list[HostTransport] = []
        """Sides that ended during the partition, of which the other side does not know."""
        self._pairs: list[tuple[HostTransport, HostTransport]] = []

    def pair(
        self, protocol: asyncio.Protocol, make_served: MakeProtocol, own: tuple[str, int], other: tuple[str, int]
    ) -> tuple[MemoryTransport, MemoryTransport]:
        process = self.serving
        assert process is not None
        caller = running_process()
        if caller is not None:
            own = (BROKERS_ADDRESS, own[1])
        client = HostTransport(self, protocol, own, other, caller)
        served = HostTransport(self, process.call(make_served), other, own, process)
        self._served = [each for each in self._served if not each.is_closing()]
        self._served.append(served)
        self._pairs = [each for each in self._pairs if not (each[0].is_lost and each[1].is_lost)]
        self._pairs.append((client, served))
        return client, served

    def client_died(self, process: Process) -> None:
        """A broker that has connections to this one is gone; what it has written may still arrive."""
        for client, _ in self._pairs:
            if client.process is process:
                client.die(keeps_unsent=True)

    def partition(self) -> None:
        """Hold up all connections with clients."""
        self.is_partitioned = True

    def heal(self) -> None:
        self.is_partitioned = False
        ended, self.ended = self.ended, []
        for each in ended:
            each.peer.cut_off()
        for pair in self._pairs:
            for side in pair:
                if not side.is_lost:
                    side._cross_soon()

    def cut(self, client: MemoryTransport, *, silently: bool) -> None:
        """As without a partition, during which no broker notices the end."""
        if self.is_partitioned and not silently:
            cast(HostTransport, client).abort()
            return
        super().cut(client, silently=silently)
