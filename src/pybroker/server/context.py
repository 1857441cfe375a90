"""What all connections of the binary protocol share, and what bounds them together.

Invariants: `connections` are those between `connection_made` and `connection_lost`; the receive buffer is only used inside one
`buffer_updated` at a time, so that one buffer serves all connections of the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.model.places import Places
from pybroker.server.outbox_shares import OutboxShares

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.server.connection import Connection
    from pybroker.server.handler import Handler
    from pybroker.wire import pulsar_api_pb2 as pb

RECEIVE_BUFFER_BYTES = 64 * 1024
REFUSALS_TOLD_EVERY_S = 10.0
"""Who floods the broker does not flood its log."""


class ServerContext:
    """What all connections of the binary protocol share."""

    def __init__(self, broker: BrokerService, command_table: Mapping[pb.BaseCommand.Type, Handler[Connection]]) -> None:
        config = broker.surroundings.config
        self.broker = broker
        self.surroundings = broker.surroundings
        self.command_table = command_table
        self.loop = asyncio.get_running_loop()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.read_budget_bytes = min(config.connection_read_budget_bytes, RECEIVE_BUFFER_BYTES)
        self.max_message_bytes = config.max_message_size
        self.max_batch_messages = config.max_messages_in_batch
        self.max_fields = config.max_fields_in_command
        self.max_outbound_bytes = config.max_outbound_bytes_per_connection
        self.memory = broker.surroundings.memory
        self.outbox_shares: OutboxShares[Connection] = OutboxShares(self.memory.outboxes, self.max_outbound_bytes)
        self.max_pending_publishes = config.max_pending_publish_requests_per_connection
        self.max_not_stored_at_once = config.max_concurrent_non_persistent_message_per_connection
        self.max_concurrent_requests = config.max_concurrent_requests_per_connection
        self.liveness_timeout_ms = config.connection_liveness_check_timeout_millis
        self.connections: dict[Connection, float] = {}  # and when each is due for keep-alive
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.is_stopping = False
        """Nothing is read any more."""
        self._held_publishers: dict[Connection, None] = {}  # until half of the unanswered sends are answered
        self.strangers: Places[Connection] = Places(
            config.max_connections_before_connect, config.max_connections_before_connect_per_ip
        )
        """Those that have not said CONNECT yet."""
        self.connect_timeout_s = config.connect_command_timeout_ms / 1000
        self.max_pings_before_connect = config.max_pings_before_connect
        self._by_host: Counter[str] = Counter()
        self._stalled: dict[Connection, tuple[float, int]] = {}  # since when, and with how many bytes
        self._refusal_told_s = -REFUSALS_TOLD_EVERY_S

    def now_s(self) -> float:
        """The time by which connections are found to be late: seconds that never go back."""
        return self.surroundings.peer_clock.monotonic_ms() / 1000

    # --- connections -------------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""
        stats = self.surroundings.stats
        stats.connections_created += 1
        stats.active_connections += 1
        self.connections[connection] = self.now_s() + self.surroundings.config.keep_alive_interval_seconds
        self.all_closed.clear()
        self._by_host[connection.host] += 1
        if self.is_stopping:
            connection.hold_for_stop()
        longest = self.strangers.longest
        displaced = self.strangers.admit(connection, connection.host).displaced
        if displaced is None and len(self.connections) > self.broker.descriptors.max_clients:
            displaced = longest
            if displaced is None:
                self._refuse(connection)
        if displaced is not None:
            self.surroundings.stats.connections_displaced += 1
            self.strangers.leave(displaced)
            displaced.abort("makes way for others: it has not said CONNECT")

    def introduced(self, connection: Connection) -> None:
        """It has said CONNECT."""
        self.strangers.leave(connection)

    def close_strangers(self) -> None:
        """Close those that have not said CONNECT in time."""
        latest_s = self.now_s() - self.connect_timeout_s
        while (longest := self.strangers.longest) is not None and longest.opened_s <= latest_s:
            self.surroundings.stats.connections_displaced += 1
            self.strangers.leave(longest)
            longest.abort("no CONNECT within connectCommandTimeoutMs")

    def _refuse(self, connection: Connection) -> None:
        """There is no descriptor for it that files could do without."""
        self.surroundings.stats.connections_refused += 1
        now_s = self.now_s()
        if now_s >= self._refusal_told_s + REFUSALS_TOLD_EVERY_S:
            self._refusal_told_s = now_s
            logs.warning(
                "connection.refused",
                reason="fileDescriptorsReserve",
                connections=len(self.connections) - 1,
                refused=self.surroundings.stats.connections_refused,
            )
        connection.abort("as many connections as file descriptors allow (fileDescriptorsReserve, ulimit -n)")

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection has ended, whoever ended it."""
        stats = self.surroundings.stats
        stats.connections_closed += 1
        stats.active_connections -= 1
        self.connections.pop(connection, None)
        self.strangers.leave(connection)
        if not self.connections:
            self.all_closed.set()
        self._stalled.pop(connection, None)
        if self._held_publishers.pop(connection, connection) is None:
            stats.throttled_connections = len(self._held_publishers)
        self.report_unsent(connection, 0)
        host = connection.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self.broker.commons.tasks.start(connection.tasks.close(), f"close {connection.address}")
        logs.info("connection.closed", connection=connection.address, reason=reason)

    def connection_limit(self, connection: Connection) -> str:
        """The name of the limit that `connection` exceeds, empty when there is none; strangers take nobody's place."""
        config = self.surroundings.config
        if 0 < config.broker_max_connections < len(self.connections) - len(self.strangers):
            return "brokerMaxConnections"
        at_host = self._by_host[connection.host] - self.strangers.count_of(connection.host)
        if 0 < config.broker_max_connections_per_ip < at_host:
            return "brokerMaxConnectionsPerIp"
        return ""

    # --- bounds ------------------------------------------------------------------------------------------------------

    def publish_started(self, size_bytes: int) -> bool:
        """Count unanswered sends; True when there is no memory for more of them."""
        self.surroundings.stats.pending_publish_bytes += size_bytes
        publishes = self.memory.publishes
        self.memory.follow(publishes.count(size_bytes))
        return publishes.room() <= 0

    def hold_publisher(self, connection: Connection) -> None:
        """Read nothing more from `connection`, which publishes, until half of all unanswered sends are answered.

        Each is held when it has published something: those that only consume go on.
        """
        if connection not in self._held_publishers:
            if not self._held_publishers:
                self.surroundings.stats.throttled_since_ms = self.now_s() * 1000
            self._held_publishers[connection] = None
            self.surroundings.stats.throttled_connections = len(self._held_publishers)
            connection.hold_publish_memory(True)

    def publish_completed(self, size_bytes: int) -> None:
        """Count answered sends."""
        stats, publishes = self.surroundings.stats, self.memory.publishes
        stats.pending_publish_bytes -= size_bytes
        assert stats.pending_publish_bytes >= 0, "answered more than was published"
        self.memory.follow(publishes.count(-size_bytes))
        # With nothing unanswered there is room: the part's floor.
        if self._held_publishers and publishes.used_bytes <= publishes.most_bytes // 2 and publishes.room() > 0:
            held, self._held_publishers = self._held_publishers, {}
            stats.throttled_connections = 0
            for connection in held:
                connection.hold_publish_memory(False)

    def report_unsent(self, connection: Connection, unsent_bytes: int) -> bool:
        """The client of `connection` has not taken so much; whether it gets more now."""
        gets_more = self.outbox_shares.report(connection, unsent_bytes)
        self.memory.follow(self.outbox_shares.settled)
        return gets_more

    @property
    def most_outbound_bytes(self) -> int:
        """What one connection may have unsent while others have little: who stops with less waits because of them."""
        return min(self.max_outbound_bytes, self.memory.outboxes.most_bytes // 4)

    def stalled(self, connection: Connection) -> None:
        """The client does not read what it is sent."""
        unsent_bytes, waits = connection.unsent_bytes, connection.memory_waits
        if waits.outboxes_since_ms is None and unsent_bytes < self.most_outbound_bytes:
            waits.outboxes_since_ms = self.now_s() * 1000
        self._stalled[connection] = self.now_s(), unsent_bytes

    def unstalled(self, connection: Connection) -> None:
        """It reads again."""
        connection.memory_waits.outboxes_since_ms = None
        self._stalled.pop(connection, None)

    def close_stalled(self, longest_s: float) -> None:
        """Drop connections that have read nothing for `longest_s`: what waits for them is memory. Slow ones stay."""
        now_s = self.now_s()
        for connection, (since_s, bytes_then) in list(self._stalled.items()):
            if connection.unsent_bytes < bytes_then:
                self.stalled(connection)
            elif now_s - since_s > longest_s:
                connection.abort("the client does not read what it is sent")
