"""State and limits that all connections of the binary protocol share.

Invariants: `connections` contains the connections between `connection_made` and `connection_lost`. They share one
receive buffer, because it is only used within one `buffer_updated` call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.runtime import logs
from pybroker.runtime.repeated_events import ClientId, RepeatedEvents
from pybroker.server.frame_memory import FrameMemory
from pybroker.server.outbox_shares import OutboxShares
from pybroker.server.paced_setups import PacedSetups
from pybroker.waiting.slots import Slots
from pybroker.wire.commands import RECEIVE_BYTES, SHARED_BUFFER_BYTES

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.server.connection import Connection
    from pybroker.server.handler import Handler
    from pybroker.waiting.fair_shares import Holder
    from pybroker.wire import pulsar_api_pb2 as pb


class ServerContext:
    """The state of one broker's server, which all connections share."""

    def __init__(self, broker: BrokerService, command_table: Mapping[pb.BaseCommand.Type, Handler[Connection]]) -> None:
        config = broker.runtime.config
        self.broker = broker
        self.runtime = broker.runtime
        self.command_table = command_table
        self.loop = asyncio.get_running_loop()
        self.paced_setups = PacedSetups(self.loop)
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.read_budget_bytes = min(config.connection_read_budget_bytes, RECEIVE_BYTES)
        self.max_message_bytes = config.max_message_size
        self.max_batch_messages = config.max_messages_in_batch
        self.max_fields = config.max_fields_in_command
        self.max_outbound_bytes = config.max_outbound_bytes_per_connection
        self.memory = broker.runtime.memory
        self.outbox_shares: OutboxShares[Connection] = OutboxShares(self.memory.outboxes, self.max_outbound_bytes)
        self.max_pending_publishes = config.max_pending_publish_requests_per_connection
        self.max_not_stored_at_once = config.max_concurrent_non_persistent_message_per_connection
        self.max_concurrent_requests = config.max_concurrent_requests_per_connection
        self.liveness_timeout_ms = config.connection_liveness_check_timeout_millis
        self.connections: dict[Connection, float] = {}  # value: when its next keep-alive is due
        self.all_closed = asyncio.Event()
        self.all_closed.set()
        self.is_stopping = False
        """New connections are not read."""
        self.is_closed = False
        """New connections are aborted: the listener has closed the others and does not wait for more."""
        self.held_publishers: dict[Connection, None] = {}  # paused until half of all sends are answered
        self.unauthenticated: Slots[Connection] = Slots(
            config.max_connections_before_connect, config.max_connections_before_connect_per_ip, displaces_settled=True
        )
        self.frames: FrameMemory[Connection] = FrameMemory(
            self.memory, self.unauthenticated, self.runtime.stats, config
        )
        self.connect_timeout_s = config.connect_command_timeout_ms / 1000
        self.max_pings_before_connect = config.max_pings_before_connect
        self._by_host: Counter[str] = Counter()
        self._repeated_events = RepeatedEvents(config.max_client_events_logged_per_minute)
        self._stalled: dict[Connection, tuple[float, int]] = {}  # start in monotonic seconds, unsent bytes then

    def now_s(self) -> float:
        return self.runtime.peer_clock.monotonic_ms() / 1000

    def holder(self, connection: Connection) -> Holder:
        """Return the identity of a connection for fair queues: its role, or the connection itself without a role."""
        return self.broker.broker_context.authorization.holder(connection.principal, f"connection {connection.address}")

    # --- connections -------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many further connections the file descriptors allow."""
        return self.broker.descriptors.max_clients - len(self.connections)

    def opened(self, connection: Connection) -> None:
        stats = self.runtime.stats
        stats.connections_created += 1
        stats.active_connections += 1
        self.connections[connection] = self.now_s() + self.runtime.config.keep_alive_interval_seconds
        self.all_closed.clear()
        self._by_host[connection.host] += 1
        if self.is_closed:
            connection.abort("the broker is stopping")  # accepted before the ports were closed
            return
        if self.is_stopping:
            connection.hold_for_stop()
        longest = self.unauthenticated.longest
        displaced = self.unauthenticated.admit(connection, connection.host).displaced
        if displaced is None and self.room() < 0:
            displaced = longest
            if displaced is None:
                self._refuse(connection)
        if displaced is not None:
            self.runtime.stats.connections_displaced += 1
            self.unauthenticated.leave(displaced)
            displaced.abort("displaced by a newer connection before it was authenticated")

    def introduced(self, connection: Connection) -> None:
        """Stop counting a connection as unauthenticated, because its client is now authenticated."""
        self.unauthenticated.leave(connection)

    def check_begins(self, connection: Connection) -> None:
        """Record that an authentication provider now checks the client's credentials. When the limit of unauthenticated
        connections is reached, connections without a check in progress are closed first.
        """
        self.unauthenticated.settle(connection)

    def check_ended(self, connection: Connection) -> None:
        """Record that the check of credentials has ended. If the client is still not authenticated, it must send its
        next command in time.
        """
        connection.waits_since_s = self.now_s()
        self.unauthenticated.unsettle(connection)

    def close_unauthenticated(self) -> None:
        latest_s = self.now_s() - self.connect_timeout_s
        while (longest := self.unauthenticated.longest) is not None and longest.waits_since_s <= latest_s:
            self.runtime.stats.connections_displaced += 1
            self.unauthenticated.leave(longest)
            longest.abort("no CONNECT or AUTH_RESPONSE within connectCommandTimeoutMs")

    def _refuse(self, connection: Connection) -> None:
        self.runtime.stats.connections_refused += 1
        reason = "the connections have used all file descriptors except fileDescriptorsReserve; increase `ulimit -n`"
        self.refused(connection, "CONNECT", "fileDescriptorsReserve", reason)
        connection.abort(reason)

    def refused(
        self, connection: Connection, command: str, cause: str, reason: str, topic: str = "", count: int = 1
    ) -> None:
        """Count rejected commands. Log the `reason` of at most one rejection per command, cause and minute. `cause` is
        the name of a ServerError.
        """
        unlogged = self.runtime.stats.refusals.add(command, cause, count, self.now_s())
        if not unlogged:
            return
        logs.warning(
            "client.refused",
            command=command,
            cause=cause,
            reason=reason,
            topic=topic or "none",
            connection=connection.address,
            client=connection.client_version or "unknown",
            role=connection.role or "none",
            count=unlogged,
        )

    def closed(self, connection: Connection, reason: str) -> None:
        stats = self.runtime.stats
        stats.connections_closed += 1
        stats.active_connections -= 1
        self.connections.pop(connection, None)
        self.unauthenticated.leave(connection)
        if not self.connections:
            self.all_closed.set()
        self._stalled.pop(connection, None)
        if self.held_publishers.pop(connection, connection) is None:
            stats.throttled_connections = len(self.held_publishers)
        self.report_unsent(connection, 0)
        host = connection.host
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self.broker.broker_context.tasks.start(connection.tasks.close(), f"close {connection.address}")
        if self.is_logged(connection, "connection.closed"):
            logs.info("connection.closed", connection=connection.address, reason=reason)

    def is_logged(self, connection: Connection, event: str, topic: str = "") -> bool:
        is_due = self._repeated_events.add(ClientId(connection.host, connection.role or "none"), event, topic)
        return is_due or logs.is_debug()

    def report_repeated_events(self) -> None:
        for summary in self._repeated_events.end_interval():
            logs.warning(
                "client.reconnects_often",
                client=summary.client.host,
                role=summary.client.role,
                connections_opened=summary.unlogged["connection.opened"],
                connections_closed=summary.unlogged["connection.closed"],
                producers_created=summary.unlogged["producer.created"],
                consumers_created=summary.unlogged["consumer.created"],
            )

    def connection_limit(self, connection: Connection) -> str:
        """Return the configuration key of the connection limit that `connection` exceeds, or "". Unauthenticated
        connections other than `connection` are not counted.
        """
        config = self.runtime.config
        own = int(connection in self.unauthenticated)
        if 0 < config.broker_max_connections < len(self.connections) - len(self.unauthenticated) + own:
            return "brokerMaxConnections"
        at_host = self._by_host[connection.host] - self.unauthenticated.count_of(connection.host) + own
        if 0 < config.broker_max_connections_per_ip < at_host:
            return "brokerMaxConnectionsPerIp"
        return ""

    # --- bounds ------------------------------------------------------------------------------------------------------

    def hold_publisher(self, connection: Connection) -> None:
        """Pause reading from `connection` until the unanswered sends of all connections use at most half of their
        memory limit.
        """
        if connection not in self.held_publishers:
            if not self.held_publishers:
                self.runtime.stats.throttled_since_ms = self.now_s() * 1000
            self.held_publishers[connection] = None
            self.runtime.stats.throttled_connections = len(self.held_publishers)
            connection.hold_publish_memory(True)

    def publish_memory_freed(self) -> None:
        """Resume reading from connections that wait for memory of unanswered sends, if there is enough."""
        publishes = self.memory.publishes
        # With no unanswered sends, `room` is positive: a memory part has a guaranteed minimum.
        if publishes.used_bytes <= publishes.most_bytes // 2 and publishes.room() > 0:
            held, self.held_publishers = self.held_publishers, {}
            self.runtime.stats.throttled_connections = 0
            for connection in held:
                connection.hold_publish_memory(False)

    def report_unsent(self, connection: Connection, unsent_bytes: int) -> bool:
        """Record the unsent bytes of a connection. Return whether its client may receive more messages now."""
        gets_more = self.outbox_shares.report(connection, unsent_bytes)
        self.memory.follow(self.outbox_shares.settled)
        return gets_more

    @property
    def most_outbound_bytes(self) -> int:
        """The largest number of unsent bytes that one connection may have."""
        return min(self.max_outbound_bytes, self.memory.outboxes.most_bytes // 4)

    def stalled(self, connection: Connection) -> None:
        unsent_bytes, waits = connection.unsent_bytes, connection.memory_waits
        if waits.outboxes_since_ms is None and unsent_bytes < self.most_outbound_bytes:
            waits.outboxes_since_ms = self.now_s() * 1000
        self._stalled[connection] = self.now_s(), unsent_bytes

    def unstalled(self, connection: Connection) -> None:
        connection.memory_waits.outboxes_since_ms = None
        self._stalled.pop(connection, None)

    def close_stalled(self, longest_s: float) -> None:
        """Close stalled connections, which have reached their limit of unsent data, if the client has read none of the
        data for `longest_s` seconds.
        """
        now_s = self.now_s()
        for connection, (since_s, bytes_then) in list(self._stalled.items()):
            if connection.unsent_bytes < bytes_then:
                self.stalled(connection)
            elif now_s - since_s > longest_s:
                connection.abort("the client has not read its data for too long")
