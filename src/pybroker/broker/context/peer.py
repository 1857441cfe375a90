"""The interface of a client connection for producers and consumers. A connection implements it; WebSocket and replication can as
well.

Calls never block and never raise. Messages for a client that is gone are dropped, because unacknowledged messages are sent again
when it reconnects.
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
    """Since when, in monotonic milliseconds, one client waits for memory that others have; None where it does not."""

    __slots__ = ("outboxes_since_ms", "publishes_since_ms")

    def __init__(self) -> None:
        self.publishes_since_ms: float | None = None
        """Nothing it sends is read: others have as much unanswered as there is memory for."""
        self.outboxes_since_ms: float | None = None
        """The client receives no messages, because unsent data of other clients fills the memory budget."""


NO_MEMORY_WAITS = MemoryWaits()
"""For peers that never wait. Must not be changed."""


class ThrottledPublish(NamedTuple):
    """A message that waits until it may be published. All later commands of its client wait, too."""

    producer: str
    topic: TopicName
    limit: object
    """The `WaitingPublishers` that the client waits in."""
    rate: PublishRate | None
    """The rate of the limit; None if the topic takes no messages for another reason."""
    since_ms: float | None
    """Start of the wait, by the monotonic clock."""
    waiting_clients: int


class Peer(ABC):
    """One client, seen from its producers and consumers."""

    address: str
    """`/ip:port`, as stats show it."""
    client_version: str
    role: str | None
    takes_entry_metadata: bool = False
    """Whether the client wants broker entry metadata, and may receive it."""
    memory_waits: MemoryWaits = NO_MEMORY_WAITS
    """Since when it gets or may send nothing for want of memory."""
    full_since_ms: float | None = None
    """The time since which the client receives no messages because it does not read, by the monotonic clock; None otherwise."""
    supports_partial_producer: bool = False
    """Whether it can produce to some partitions of a topic only; said by the client, shown in stats."""

    @property
    def unsent_bytes(self) -> int:
        """The size of sent data that the client has not read."""
        return 0

    @property
    def not_heard_because(self) -> str | None:
        """The reason, in words, why commands of the client are not processed now; None while they are."""
        return None

    @property
    def throttled_by(self) -> ThrottledPublish | None:
        """The waiting message that blocks all later commands of this client; None without one."""
        return None

    @abstractmethod
    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        """These messages are stored: entry ids run from `first_entry_id`. They hold nothing of the publish limit any more."""

    def admit_not_stored(self, count: int) -> int:
        """Return how many of `count` messages that are not stored may be accepted from this client now, and count them."""
        return count

    @abstractmethod
    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        """Answer messages that are not stored now: `id_part` is ledger id and entry id of them all."""

    @abstractmethod
    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        """Answer messages that are not stored with an error. `size_bytes`: their share of the publish limit, which is released."""

    @abstractmethod
    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        """Release the publish limit of messages that are not stored. Clients are not notified: the following close of their
        producer makes them send the messages again. A peer without such a notification receives `reason`.
        """

    @abstractmethod
    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        """Deliver entries to a consumer."""

    @abstractmethod
    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        """The acknowledgement is durable, or failed with `error`."""

    @abstractmethod
    def close_producer(self, producer_id: int) -> None:
        """Tell the client that its producer is closed: it looks the topic up again."""

    @abstractmethod
    def producer_ready(self, producer_id: int) -> None:
        """Tell the client that its producer, which waited, has exclusive access."""

    @abstractmethod
    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None:
        """Tell the client that its producer has waited for exclusive access in vain."""

    @abstractmethod
    def producer_fenced(self, producer_id: int) -> None:
        """Take nothing more of a producer that lost its topic to another one; the client learns it with its next message."""

    @abstractmethod
    def close_consumer(self, consumer_id: int) -> None:
        """Tell the client that its consumer is closed: it subscribes again."""

    @abstractmethod
    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None:
        """Tell the client whether its consumer is the active one of a Failover subscription."""

    @abstractmethod
    def reached_end_of_topic(self, consumer_id: int) -> None:
        """Tell the client that its consumer has acknowledged all that a terminated topic will ever hold."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Return whether the client answers a PING within the liveness timeout. If not, its connection is closed."""


def is_same_host(peer: Peer, other: Peer) -> bool:
    """Return whether both clients connect from the same IP address; ports are ignored."""
    return _host(peer) == _host(other)


def _host(peer: Peer) -> str:
    return peer.address.rpartition(":")[0]
