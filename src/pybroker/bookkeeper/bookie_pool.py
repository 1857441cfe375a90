"""The connections of a client, one for each bookie, and the choice of bookies for new ensembles."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import NamedTuple

from pybroker.bookkeeper.bookie_choice import Chance, Quarantine, choose_bookies
from pybroker.bookkeeper.bookie_connection import BookieConnection, OpenTransport
from pybroker.bookkeeper.connection_v3 import ConnectionV3
from pybroker.bookkeeper.errors import UNREACHABLE, BookieUnavailable
from pybroker.bookkeeper.ledger_paths import MAX_LEDGER_ID
from pybroker.bookkeeper.metadata_store import BookieAddress, BookieRegistry, address_in_id
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner


async def open_tcp(address: BookieAddress, protocol: asyncio.Protocol) -> None:
    await asyncio.get_running_loop().create_connection(lambda: protocol, address.host, address.port)


class Trouble(NamedTuple):
    """The trouble of a bookie that has failed and not responded since. `since_ms`: the time of the first of these
    failures, by the monotonic clock. `reason`: the last of them.
    """

    since_ms: float
    reason: str


class BookiePool:
    """The bookies of one client. The pool connects to a bookie when it is first used, and again when it is used after a
    failure.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        options: BookKeeperOptions,
        chance: Chance,
        clock: Clock,
        tasks: TaskOwner,
        open_transport: OpenTransport = open_tcp,
    ) -> None:
        self.failures: Counter[str] = Counter()
        """Lost connections and timeouts by bookie."""
        self.ensemble_change_count = 0
        self.quarantine_count = 0
        self._registry = registry
        self._options = options
        self._chance = chance
        self._tasks = tasks
        self._open_transport = open_transport
        self._connections: dict[str, BookieConnection] = {}
        self._failed_ms: dict[str, float] = {}
        self._troubles: dict[str, Trouble] = {}
        self._quarantine = Quarantine(
            options.quarantine_failures, options.quarantine_interval_ms, options.quarantine_ms
        )
        self._clock = clock
        self.is_closing = False

    def connection(self, bookie_id: str) -> BookieConnection:
        """Return the connection to a bookie. Within `reconnect_ms` after a failed connection, return the closed
        connection again, on which requests fail immediately.
        """
        connection = self._connections.get(bookie_id)
        if connection is not None and (not connection.is_closed or self._is_waiting(bookie_id)):
            return connection
        connection = BookieConnection(bookie_id, self._options, self._closed)
        self._connections[bookie_id] = connection
        address = self._registry.address_of(bookie_id) or address_in_id(bookie_id)
        if address is None:
            connection.close("the address of the bookie is not known")
        elif self.is_closing:
            connection.close("the client is closed")
        else:
            self._tasks.start(connection.connect(address, self._open_transport), f"connect {bookie_id}")
        return connection

    @asynccontextmanager
    async def connected_v3(self, bookie_id: str) -> AsyncIterator[ConnectionV3]:
        """Open a separate connection with protocol version 3 for the duration of the block. Raises BookieUnavailable."""
        address = self._registry.address_of(bookie_id) or address_in_id(bookie_id)
        connection = ConnectionV3(bookie_id, self._options)
        try:
            if address is None:
                raise BookieUnavailable(
                    f"Bookie {bookie_id} cannot be reached: it is not registered in the metadata store, so its address is "
                    "unknown. Start the bookie."
                )
            try:
                async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                    await self._open_transport(address, connection)
            except TimeoutError as error:
                raise BookieUnavailable(
                    f"Bookie {bookie_id} did not accept a connection within {self._options.connect_timeout_ms:g} ms: check "
                    "that it runs, and the network."
                ) from error
            except OSError as error:
                raise BookieUnavailable(f"Bookie {bookie_id} cannot be reached: {error}") from error
            yield connection
        finally:
            connection.close("closed by the client")

    def choose(self, count: int, excluded: Collection[str] = ()) -> list[str]:
        """Return `count` bookies for new entries, none of them in `excluded`. Raises NotEnoughBookies."""
        writable = self._registry.writable()
        self._quarantine.keep(writable)
        now_ms = self._clock.monotonic_ms()
        usable = [each for each in writable if each not in excluded]
        healthy = [each for each in usable if not self._quarantine.contains(each, now_ms)]
        return choose_bookies(count, healthy, set(usable).difference(healthy), self._chance)

    def failed(self, bookie_id: str) -> None:
        """Count a failure of a bookie, which may put the bookie into quarantine."""
        self.failures[bookie_id] += 1
        if self._quarantine.failed(bookie_id, self._clock.monotonic_ms()):
            self.quarantine_count += 1
            logs.warning("bookie.quarantined", bookie=bookie_id, duration_ms=self._options.quarantine_ms)

    def in_order_of_health(self, bookie_ids: list[str]) -> list[str]:
        """Return the same bookies. Those whose last connection failed come last."""
        return sorted(bookie_ids, key=self._failed_ms.__contains__) if self._failed_ms else bookie_ids

    def close(self) -> None:
        self.is_closing = True
        for connection in list(self._connections.values()):
            connection.close("the client is closed")

    def _is_waiting(self, bookie_id: str) -> bool:
        failed_ms = self._failed_ms.get(bookie_id)
        return failed_ms is not None and self._clock.monotonic_ms() - failed_ms < self._options.reconnect_ms

    def _closed(self, connection: BookieConnection) -> None:
        if self.is_closing:
            return
        self._failed_ms.pop(connection.bookie_id, None)
        self._failed_ms[connection.bookie_id] = self._clock.monotonic_ms()
        self.failed(connection.bookie_id)
        known = None if connection.has_answered else self._troubles.get(connection.bookie_id)
        since_ms = self._clock.monotonic_ms() if known is None else known.since_ms
        self._troubles[connection.bookie_id] = Trouble(since_ms, connection.close_reason)
        if known is None:
            logs.warning("bookie.disconnected", bookie=connection.bookie_id, reason=connection.close_reason)

    def works(self, bookie_id: str) -> None:
        """Record that the bookie responded, so that readers prefer it again."""
        self._failed_ms.pop(bookie_id, None)
        if self._troubles:
            self._troubles.pop(bookie_id, None)

    # --- the condition of bookies ------------------------------------------------------------------------------------

    def trouble(self, bookie_id: str) -> Trouble | None:
        """Return the failures of the bookie since its last response; None if it has not failed since then."""
        connection = self._connections.get(bookie_id)
        if connection is not None and connection.has_answered and not connection.is_closed:
            self._troubles.pop(bookie_id, None)
        return self._troubles.get(bookie_id)

    def is_quarantined(self, bookie_id: str) -> bool:
        return self._quarantine.contains(bookie_id, self._clock.monotonic_ms())

    async def probe(self, bookie_id: str) -> None:
        """Send a request to a bookie on a separate connection. If the bookie responds, it counts as working again. If it
        does not respond, nothing changes.
        """
        address = self._registry.address_of(bookie_id) or address_in_id(bookie_id)
        if address is None or self.is_closing:
            return
        connection = BookieConnection(bookie_id, self._options, lambda _: None)
        try:
            await connection.connect(address, self._open_transport)
            result = await connection.read(MAX_LEDGER_ID, 0)
        finally:
            connection.close("the probe is complete")
        if result.code != UNREACHABLE:
            self.works(bookie_id)

    def forget(self, bookie_ids: Collection[str]) -> None:
        for bookie_id in bookie_ids:
            self._troubles.pop(bookie_id, None)
            self.failures.pop(bookie_id, None)
