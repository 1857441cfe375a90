"""The memory network with weather: bytes come in pieces of drawn sizes, late, and not at all once a connection is cut.

What must hold: in each direction bytes arrive in order, each once, or the connection has ended. What a process has written before
it was killed may still arrive; afterwards both sides hear of the end, unless the cut is a silent one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import cast

from tests.simulate.loop import Process, SimulatedLoop
from tests.support.memory_network import SLICE_BYTES, MemoryNetwork, MemoryTransport

from pybroker.runtime.network import MakeProtocol

Heard = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Weather:
    """What a network is like."""

    delays_s: tuple[float, ...]
    slices_bytes: tuple[int, ...]


WEATHERS = (
    Weather((0,), (SLICE_BYTES,)),
    Weather((0, 0, 0.0002, 0.001), (SLICE_BYTES,)),
    Weather((0, 0, 0.0005, 0.02, 0.2), (SLICE_BYTES, 1500)),
    Weather((0, 0, 0, 0.0003), (SLICE_BYTES, 700, 40, 5)),
)


class WeatherTransport(MemoryTransport):
    """One side of a connection, of `process` or of nobody that can die."""

    def __init__(
        self,
        network: SimulatedNetwork,
        protocol: asyncio.BaseProtocol,
        own: tuple[str, int],
        other: tuple[str, int],
        process: Process | None,
    ) -> None:
        super().__init__(protocol, own, other)
        self._network = network
        self._is_due = False
        self._direction = f"{own[1]}>{other[1]}"
        self.process = process
        self.is_stalled = False

    def tell(self, method: Callable[..., object], *arguments: object) -> None:
        if self.process is None:
            method(*arguments)
        else:
            self.process.call(method, *arguments)

    def _cross_soon(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        network = self._network
        network.loop.call_later(network.delay_s(), self._cross, context=network.context)

    def _cross(self) -> None:
        self._is_due = False
        if self.is_stalled:
            if self._is_closing and (not self._unsent or self.peer.is_lost):
                self._unsent.clear()  # nobody will ever take it
                self._settle()
            return
        if self._unsent and self.peer.takes():
            size = self._network.chance.choice(self._network.weather.slices_bytes)
            self._network.heard(self._direction, bytes(self._unsent[:size]))
            self._hand_over(size)
        self._settle()
        if self._unsent and self.peer.takes():
            self._cross_soon()

    def stall(self) -> None:
        """Nothing more arrives at the other side until `go_on`."""
        self.is_stalled = True

    def go_on(self) -> None:
        self.is_stalled = False
        self._cross_soon()

    def die(self, *, keeps_unsent: bool) -> None:
        """Its process is gone; what it has written may be on its way already."""
        if not keeps_unsent:
            self._unsent.clear()
        self._is_closing = True
        self._cross_soon()

    def leave(self) -> None:
        """This side is gone, and the other one does not know."""
        self._unsent.clear()
        self._is_closing = self.is_lost = True
        self.tell(self._protocol.connection_lost, None)

    def cut(self) -> None:
        """The connection is no more, and this side hears of it."""
        self.is_stalled = False
        self.cut_off()


class SimulatedNetwork(MemoryNetwork):
    """Of one simulation. `serving` is the process whose ports are bound; `heard` is told all that arrives."""

    def __init__(self, chance: Random, loop: SimulatedLoop, heard: Heard) -> None:
        super().__init__()
        self.chance = chance
        self.loop = loop
        self.heard = heard
        self.weather = chance.choice(WEATHERS)
        self.context = contextvars.copy_context()
        self.serving: Process | None = None
        self._served: list[WeatherTransport] = []

    def delay_s(self) -> float:
        return self.chance.choice(self.weather.delays_s)

    def pair(
        self, protocol: asyncio.Protocol, make_served: MakeProtocol, own: tuple[str, int], other: tuple[str, int]
    ) -> tuple[MemoryTransport, MemoryTransport]:
        process = self.serving
        assert process is not None
        client = WeatherTransport(self, protocol, own, other, None)
        served = WeatherTransport(self, process.call(make_served), other, own, process)
        self._served = [each for each in self._served if not each.is_closing()]
        self._served.append(served)
        return client, served

    def cut(self, client: MemoryTransport, *, silently: bool) -> None:
        """End a connection in the middle of what is on its way. Silently: only the client knows, and the other side may wait."""
        own, served = cast(WeatherTransport, client), cast(WeatherTransport, client.peer)
        if silently and served.process is not None and not served.process.is_over:
            served.stall()
            own.leave()
        else:
            own.cut()
            served.cut()

    def die(self, process: Process, *, keeps_unsent: bool) -> None:
        """All connections of `process` end, and its ports are free."""
        self.ports.clear()
        for served in self._served:
            if served.process is process:
                served.die(keeps_unsent=keeps_unsent)
        self._served.clear()
