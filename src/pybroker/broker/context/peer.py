"""The interface of a client connection for producers and consumers.

Calls never block and never raise. Messages for a closed connection are dropped: they are unacknowledged and are
redelivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.policies import PublishRate


class MemoryWaits:
    """Monotonic start times of a client's waits for memory; None while the client does not wait."""

    __slots__ = ("outboxes_since_ms", "publishes_since_ms")

    def __init__(self) -> None:
        self.publishes_since_ms: float | None = None
        """Nothing of the client is read."""
        self.outboxes_since_ms: float | None = None
        """The client receives no messages."""


NO_MEMORY_WAITS = MemoryWaits()
"""For peers that never wait. Immutable."""


class ThrottledPublish(NamedTuple):
    """A message that exceeds a publish rate, and blocks all later commands of its connection."""

    producer: str
    topic: TopicName
    limit: object
    rate: PublishRate | None
    """None if the topic accepts no messages for another reason."""
    since_ms: float | None
    """By the monotonic clock."""
    waiting_clients: int


class Peer(ABC):
    """One client connection."""

    address: str
    """`/ip:port`"""
    client_version: str
    role: str | None
    takes_entry_metadata: bool = False
    memory_waits: MemoryWaits = NO_MEMORY_WAITS
    full_since_ms: float | None = None
    """Since when the client does not read, by the monotonic clock, or None."""
    supports_partial_producer: bool = False
    """For statistics; reported by the client."""

    @property
    def unsent_bytes(self) -> int:
        return 0

    @property
    def not_heard_because(self) -> str | None:
        """The reason why the broker does not read commands from the connection now, or None."""
        return None

    @property
    def throttled_by(self) -> ThrottledPublish | None:
        return None

    @abstractmethod
    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        """Send receipts for stored messages, and remove the messages from the publish limit of the connection."""

    def admit_not_stored(self, count: int) -> int:
        """Count `count` non-persistent messages. Return how many of them the connection may publish in this event loop
        iteration.
        """
        return count

    @abstractmethod
    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        """Send receipts for non-persistent messages; `id_part` is used as both their ledger id and entry id."""

    @abstractmethod
    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        """Send errors for messages that are not stored, and remove `size_bytes` from the publish limit of the
        connection.
        """

    @abstractmethod
    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        """Remove messages that are not stored from the publish limit of the connection, without an answer: the broker
        closes their producer next, and the client sends them again. A peer that cannot be notified of the closing
        receives `reason` as the error.
        """

    @abstractmethod
    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None: ...

    @abstractmethod
    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        """Answer an ACK: it is durable, or failed with `error`."""

    @abstractmethod
    def close_producer(self, producer_id: int) -> None:
        """Notify the client that the producer is closed; the client then looks the topic up again."""

    @abstractmethod
    def producer_ready(self, producer_id: int) -> None: ...

    @abstractmethod
    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None: ...

    @abstractmethod
    def producer_fenced(self, producer_id: int) -> None:
        """Answer the next message of a fenced producer with an error, and accept no more."""

    @abstractmethod
    def close_consumer(self, consumer_id: int) -> None:
        """Notify the client that the consumer is closed; the client then subscribes again."""

    @abstractmethod
    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None: ...

    @abstractmethod
    def reached_end_of_topic(self, consumer_id: int) -> None:
        """Notify the client that the consumer has acknowledged all messages of a terminated topic."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Return whether the client answers a PING within the liveness timeout. If not, close its connection."""


def is_same_host(peer: Peer, other: Peer) -> bool:
    return _host(peer) == _host(other)


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]
