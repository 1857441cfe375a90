"""The interface of a client connection for producers and consumers.

Calls never block and never raise. Messages for a client that is gone are dropped: they are unacknowledged and are redelivered.
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
    """Start of a client's waits for memory that other clients use, by the monotonic clock, or None."""

    __slots__ = ("outboxes_since_ms", "publishes_since_ms")

    def __init__(self) -> None:
        self.publishes_since_ms: float | None = None
        """Nothing of the client is read."""
        self.outboxes_since_ms: float | None = None
        """The client receives no messages."""


NO_MEMORY_WAITS = MemoryWaits()
"""For peers that never wait. Immutable."""


class ThrottledPublish(NamedTuple):
    """A message that waits for a publish limit, and blocks all later commands of its client."""

    producer: str
    topic: TopicName
    limit: object
    rate: PublishRate | None
    """None if the topic accepts no messages for another reason."""
    since_ms: float | None
    """By the monotonic clock."""
    waiting_clients: int


class Peer(ABC):
    """One client, seen from its producers and consumers."""

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
        """Why commands of the client are not processed now, or None."""
        return None

    @property
    def throttled_by(self) -> ThrottledPublish | None:
        return None

    @abstractmethod
    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        """Answer stored messages, and release their publish limit."""

    def admit_not_stored(self, count: int) -> int:
        """Return how many of `count` non-persistent messages are accepted now, and count them."""
        return count

    @abstractmethod
    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        """Answer non-persistent messages; `id_part` is their common ledger id and entry id."""

    @abstractmethod
    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        """Answer messages that are not stored, and release `size_bytes` of the publish limit."""

    @abstractmethod
    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        """Release the publish limit of messages that are not stored, without an answer: their producer is closed next, and its
        client sends them again. A peer without such a notification receives `reason`.
        """

    @abstractmethod
    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        """Send entries to a consumer."""

    @abstractmethod
    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        """Report that the acknowledgement is durable, or failed with `error`."""

    @abstractmethod
    def close_producer(self, producer_id: int) -> None:
        """Report that the producer is closed; the client looks the topic up again."""

    @abstractmethod
    def producer_ready(self, producer_id: int) -> None:
        """Report that a waiting producer has exclusive access."""

    @abstractmethod
    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None:
        """Report that a producer waited for exclusive access without success."""

    @abstractmethod
    def producer_fenced(self, producer_id: int) -> None:
        """Accept no more messages of a fenced producer; its client gets the error for its next message."""

    @abstractmethod
    def close_consumer(self, consumer_id: int) -> None:
        """Report that the consumer is closed; the client subscribes again."""

    @abstractmethod
    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None:
        """Report the active consumer of a Failover subscription."""

    @abstractmethod
    def reached_end_of_topic(self, consumer_id: int) -> None:
        """Report that the consumer has acknowledged all messages of a terminated topic."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Return whether the client answers a PING within the liveness timeout. Otherwise close its connection."""


def is_same_host(peer: Peer, other: Peer) -> bool:
    return _host(peer) == _host(other)


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]
