"""Runtime of a broker: clock, timers, randomness, ports, threads, configuration, and counters.

All parts of a broker get time, randomness, threads and ports only from it, so that a test or simulator can replace
them.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pybroker.memory.broker_memory import Memory
from pybroker.memory.memory_limit import memory_limit
from pybroker.memory.memory_parts import MIB, OwnBounds, process_limit_bytes
from pybroker.model.counters import BrokerStats
from pybroker.runtime.clock import Clock
from pybroker.runtime.network import Network
from pybroker.runtime.slow_operations import SlowOperations
from pybroker.runtime.threads import Threads

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig


class Timer(Protocol):
    """A scheduled call, which can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent; no effect after the call."""


class _LoopTimer(Timer):
    __slots__ = ("_listed",)

    def __init__(self, listed: dict[Timer, asyncio.TimerHandle]) -> None:
        self._listed = listed

    def cancel(self) -> None:
        handle = self._listed.pop(self, None)
        if handle is not None:
            handle.cancel()


@dataclass(eq=False)
class Runtime:
    """Runtime of one broker, which all its parts share."""

    config: BrokerConfig
    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.SystemRandom)
    """Also used for secrets."""
    stats: BrokerStats = field(default_factory=BrokerStats)
    network: Network = field(default_factory=Network)
    threads: Threads = field(default_factory=Threads)
    _timers: dict[Timer, asyncio.TimerHandle] = field(default_factory=dict, init=False, repr=False)

    @property
    def peer_clock(self) -> Clock:
        """Return the clock for connection timeouts: `clock`, or the real clock if `clock` is simulated."""
        return self.clock

    @functools.cached_property
    def memory(self) -> Memory:
        config, found = self.config, memory_limit()
        own = OwnBounds(
            reads=config.managed_ledger_max_reads_in_flight_size_in_mb * MIB,
            publishes=config.max_message_publish_buffer_size_in_mb * MIB,
            cache=config.managed_ledger_cache_size_mb * MIB,
            requests=config.http_max_request_bytes,
            answers=config.http_max_response_bytes,
            views=config.http_max_viewed_message_bytes,
        )
        limit_bytes = process_limit_bytes(
            config.broker_memory_limit_mb * MIB, found.size_bytes, is_of_group=found.is_of_group
        )
        return Memory(limit_bytes, own, self.clock)

    @functools.cached_property
    def slow_operations(self) -> SlowOperations:
        return SlowOperations(self.clock, self.config.slow_operation_threshold_ms)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = _LoopTimer(self._timers)
        self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._ring, timer, callback)
        return timer

    def _ring(self, timer: _LoopTimer, callback: Callable[[], None]) -> None:
        del self._timers[timer]
        callback()

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds of `clock`. Use it only in tasks that do periodic work."""
        await asyncio.sleep(delay_s)

    def cancel_timers(self) -> None:
        """Cancel all timers after the broker has closed."""
        timers = list(self._timers.values())
        self._timers.clear()  # a timer that is not listed does nothing
        for timer in timers:
            timer.cancel()
