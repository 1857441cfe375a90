"""Interface through which producers and consumers send to their client connection.

Methods never block and never raise. Data for a closed connection is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from pybroker.auth.proxied_role import Principal, principal_of
from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.policies import PublishRate


class MemoryWaits:
    """Times since which a client waits for broker memory, in milliseconds of the monotonic clock. None if it does not
    wait.
    """

    __slots__ = ("outboxes_since_ms", "publishes_since_ms")

    def __init__(self) -> None:
        self.publishes_since_ms: float | None = None
        """Until this wait ends, the broker reads no commands from the client."""
        self.outboxes_since_ms: float | None = None
        """Until this wait ends, the broker sends no messages to the client."""


NO_MEMORY_WAITS = MemoryWaits()
"""Shared by all peers that never wait. Must not be changed."""


class ThrottledPublish(NamedTuple):
    """A message that exceeds a publish rate. The broker reads nothing more from its connection until the rate permits
    the message.
    """

    producer: str
    topic: TopicName
    limit: object
    rate: PublishRate | None
    """None if the topic accepts no messages for a reason other than a rate."""
    since_ms: float | None
    """Start of the wait by the monotonic clock."""
    waiting_clients: int


class Peer(ABC):
    """Connection of one client, or a broker-internal substitute for a connection."""

    address: str
    """`/ip:port`"""
    client_version: str
    role: str | None
    proxy_role: str | None = None
    """Role of the Pulsar proxy through which the client connects."""
    takes_entry_metadata: bool = False
    memory_waits: MemoryWaits = NO_MEMORY_WAITS
    full_since_ms: float | None = None
    """Time since which the client does not read from its socket, by the monotonic clock; None if it reads."""
    supports_partial_producer: bool = False
    """Reported by the client; used only for statistics."""

    @property
    def principal(self) -> Principal:
        """Role of the client, and of the proxy if the client connects through one, for authorization."""
        return principal_of(self.role, self.proxy_role)

    @property
    def unsent_bytes(self) -> int:
        return 0

    @property
    def not_heard_because(self) -> str | None:
        """Reason why the broker currently reads no commands from the connection, or None."""
        return None

    @property
    def throttled_by(self) -> ThrottledPublish | None:
        return None

    @abstractmethod
    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        """Send receipts for the stored messages `run`, whose entry ids start at `first_entry_id`, and subtract them
        from the connection's pending publishes.
        """

    def admit_not_stored(self, count: int) -> int:
        """Return how many of `count` non-persistent messages the connection may publish in this event loop iteration.
        The returned number counts against the connection's limit.
        """
        return count

    @abstractmethod
    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        """Send receipts for the non-persistent messages `run`. `id_part` is both ledger id and entry id of each
        receipt.
        """

    @abstractmethod
    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        """Send `error` for each message in `sequence_ids`, because these messages were not stored. `size_bytes`: their
        total size, which is subtracted from the connection's pending publishes.
        """

    @abstractmethod
    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        """Drop the messages `run` without receipts or errors, and subtract them from the connection's pending
        publishes.

        The caller then closes the producer, and its client resends the messages. If the connection cannot notify the
        client of the close, the client receives `reason` as an error.
        """

    @abstractmethod
    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None: ...

    @abstractmethod
    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        """Send ACK_RESPONSE. The acknowledgement is durable if `error` is None; otherwise it has failed with `error`."""

    @abstractmethod
    def close_producer(self, producer_id: int) -> None:
        """Notify the client that the broker closed the producer. The client then looks up the topic again."""

    @abstractmethod
    def producer_ready(self, producer_id: int) -> None: ...

    @abstractmethod
    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None: ...

    @abstractmethod
    def producer_fenced(self, producer_id: int) -> None:
        """Reject all further messages of a fenced producer. The client receives an error for its next message."""

    @abstractmethod
    def close_consumer(self, consumer_id: int) -> None:
        """Notify the client that the broker closed the consumer. The client then subscribes again."""

    @abstractmethod
    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None: ...

    @abstractmethod
    def reached_end_of_topic(self, consumer_id: int) -> None:
        """Notify the client that the topic is terminated and that the consumer has acknowledged all messages."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Send a PING, and return whether the client replies within the liveness timeout. If it does not, close the
        connection.
        """


def is_same_host(peer: Peer, other: Peer) -> bool:
    return _host(peer) == _host(other)


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]
