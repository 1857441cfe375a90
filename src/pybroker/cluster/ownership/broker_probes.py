"""Checks whether other brokers accept connections, so that lookups do not lead clients to a killed broker.

The documents of a killed broker remain until its session ends.
"""

from __future__ import annotations

import asyncio
import errno
from urllib.parse import urlsplit

from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

MAX_AGE_MS = 1000.0
"""Age of a result in milliseconds after which the next question starts a new attempt."""
TIMEOUT_S = 1.0
MAX_BROKERS = 1000
"""Results that are kept. All are dropped above it."""
_UNREACHABLE = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT}
)


class _Probe:
    __slots__ = ("began_ms", "is_running", "is_unreachable")

    def __init__(self) -> None:
        self.began_ms = 0.0
        self.is_running = False
        self.is_unreachable = False


class BrokerProbes:
    """Connection attempts in the background, at most one per broker and second, and only while lookups lead to the
    broker. The first result after a failure of the broker may be wrong, because no lookup waits for an attempt.
    """

    def __init__(self, clock: Clock, tasks: TaskOwner) -> None:
        self._clock = clock
        self._tasks = tasks
        self._probes: dict[str, _Probe] = {}

    def is_unreachable(self, url: str) -> bool:
        """Return whether the last attempt to connect to the broker at `url` failed; False if none has ended. May start
        the next attempt.
        """
        probe = self._probes.get(url)
        now_ms = self._clock.monotonic_ms()
        if probe is None:
            if len(self._probes) >= MAX_BROKERS:
                self._probes.clear()
            probe = self._probes[url] = _Probe()
        elif probe.is_running or now_ms < probe.began_ms + MAX_AGE_MS:
            return probe.is_unreachable
        probe.began_ms, probe.is_running = now_ms, True
        self._tasks.start(self._run(url, probe), f"probe {url}")
        return probe.is_unreachable

    async def _run(self, url: str, probe: _Probe) -> None:
        try:
            address = urlsplit(url)
            async with asyncio.timeout(TIMEOUT_S):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.transport.abort()
            probe.is_unreachable = False
        except TimeoutError:
            probe.is_unreachable = True
        except OSError as error:
            probe.is_unreachable = error.errno in _UNREACHABLE  # not if only this broker cannot resolve the name
        finally:
            probe.is_running = False
