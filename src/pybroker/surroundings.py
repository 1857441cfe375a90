"""What a broker is given of the world: time, timers, chance, ports, threads, its configuration, and the counters that it keeps.

One object, made by whoever builds a broker and handed down to every part of it. A test or a simulator gives others: nothing in
the broker asks the machine for the time, for randomness, for a thread or for a port by itself.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pybroker.clock import Clock
from pybroker.memory import Memory
from pybroker.memory_limit import memory_limit
from pybroker.model.memory_parts import MIB, OwnBounds, process_limit_bytes
from pybroker.model.stats import BrokerStats
from pybroker.network import Network
from pybroker.threads import Threads

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig


@dataclass(eq=False)
class Surroundings:
    """Owned by who builds the broker; lives as long as it does."""

    config: BrokerConfig
    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.SystemRandom)
    """Where randomness comes from, also that which nobody may foresee."""
    stats: BrokerStats = field(default_factory=BrokerStats)
    network: Network = field(default_factory=Network)
    threads: Threads = field(default_factory=Threads)
    _timers: dict[object, asyncio.TimerHandle] = field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def memory(self) -> Memory:
        """What all parts of the broker share; made when it is first asked for."""
        config, found = self.config, memory_limit()
        own = OwnBounds(
            reads=config.managed_ledger_max_reads_in_flight_size_in_mb * MIB,
            publishes=config.max_message_publish_buffer_size_in_mb * MIB,
            cache=config.managed_ledger_cache_size_mb * MIB,
        )
        limit_bytes = process_limit_bytes(
            config.broker_memory_limit_mb * MIB, found.size_bytes, is_of_group=found.is_of_group
        )
        return Memory(limit_bytes, own, self.clock)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back on the running loop after `delay_s` seconds, if the broker is still there then."""
        token = object()
        self._timers[token] = asyncio.get_running_loop().call_later(delay_s, self._ring, token, callback)

    def _ring(self, token: object, callback: Callable[[], None]) -> None:
        del self._timers[token]
        callback()

    def cancel_timers(self) -> None:
        """The broker is closed: nobody is called back any more, and nothing of it is held by the loop."""
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()
