"""Counts of messages by namespace, over running and ended sessions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.model.names import TopicName
from pybroker.websocket.consumer_session import ConsumerSession
from pybroker.websocket.producer_session import ProducerSession
from pybroker.websocket.publish_latency import PublishLatency, bucket_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pybroker.websocket.session import Session

MAX_NAMESPACES = 1000
"""Namespaces of ended sessions that are remembered; the counts of the oldest are dropped."""


class Totals:
    """The counts of one namespace."""

    def __init__(self) -> None:
        self.published = self.published_bytes = self.failed = 0
        self.delivered = self.delivered_bytes = self.acked = 0
        self.latency = PublishLatency()

    def add(self, session: Session) -> None:
        if isinstance(session, ProducerSession):
            self.published += session.messages_sent
            self.published_bytes += session.bytes_sent
            self.failed += session.messages_failed
            self.latency.counts = [
                one + other for one, other in zip(self.latency.counts, session.latency.counts, strict=True)
            ]
        elif isinstance(session, ConsumerSession):
            self.delivered += session.messages_delivered
            self.delivered_bytes += session.bytes_delivered
            self.acked += session.messages_acked

    def merged(self, other: Totals) -> None:
        for name in ("published", "published_bytes", "failed", "delivered", "delivered_bytes", "acked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latency.counts = [one + two for one, two in zip(self.latency.counts, other.latency.counts, strict=True)]

    def document(self, namespace: str) -> dict[str, object]:
        """Return the counts in the form of Pulsar's proxy metrics."""
        latencies = zip(bucket_names(), self.latency.counts, strict=True)
        return {
            "metrics": {
                "ns_msg_publish_rate": self.published,
                "ns_byte_publish_rate": self.published_bytes,
                "ns_msg_failure_rate": self.failed,
                "ns_msg_deliver_rate": self.delivered,
                "ns_byte_deliver_rate": self.delivered_bytes,
                "ns_msg_ack_rate": self.acked,
                **{f"ns_msg_publish_latency_{name}": count for name, count in latencies},
            },
            "dimensions": {"namespace": namespace},
        }


class NamespaceTotals:
    """Totals of all namespaces."""

    def __init__(self) -> None:
        self._ended: dict[str, Totals] = {}

    def ended(self, session: Session) -> None:
        namespace = namespace_of(session.topic)
        totals = self._ended.pop(namespace, None) or Totals()
        totals.add(session)
        self._ended[namespace] = totals
        if len(self._ended) > MAX_NAMESPACES:
            del self._ended[next(iter(self._ended))]

    def current(self, sessions: Iterable[Session]) -> dict[str, Totals]:
        """Return the totals of the running `sessions` and of all ended sessions, by namespace."""
        found: dict[str, Totals] = {}
        for namespace, totals in self._ended.items():
            found.setdefault(namespace, Totals()).merged(totals)
        for session in sessions:
            found.setdefault(namespace_of(session.topic), Totals()).add(session)
        return found


def namespace_of(topics: str) -> str:
    """Return the namespace of the first topic in `topics`: topic names separated by commas, or a pattern."""
    first = topics.partition(",")[0]
    parts = first.partition("://")[2].split("/") if "://" in first else first.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else str(TopicName.parse(first).namespace)
