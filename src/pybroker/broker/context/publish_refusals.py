"""Recent rejections of producers and messages, which `explain` shows, also after the client has disconnected. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pybroker.errors import BrokerError

MAX_REFUSALS = 1000
"""Maximum number of records, of up to about 1 KiB each. At the limit, the oldest record is dropped."""
MAX_REFUSALS_PER_TOPIC = 16
KEPT_MS = 3_600_000
"""Lifetime of a record after its last rejection."""
MAX_NAME = 128
MAX_TEXT = 400


@dataclass(slots=True)
class Refusal:
    """Rejections of one producer, or of its messages. Times are in milliseconds since 1970."""

    producer: str
    """Empty if the client requested a generated name."""
    address: str
    error: type[BrokerError]
    text: str
    is_of_messages: bool
    """True if messages were rejected, False if the producer itself was rejected."""
    first_ms: int
    last_ms: int
    count: int

    def is_of(self, producer: str) -> bool:
        return bool(self.producer) and self.producer == producer[:MAX_NAME]


# The producer's name (for a producer without a name, its host, because clients reconnect from another port), and whether
# messages were rejected.
_Key = tuple[str, bool]


class Refusals:
    """Bounded table of recent rejections of all topics. A producer's record is removed when the producer is admitted."""

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[str, _Key], Refusal] = OrderedDict()  # oldest first
        self._by_topic: dict[str, OrderedDict[_Key, Refusal]] = {}  # the same records by topic; none is empty

    def __len__(self) -> int:
        return len(self._all)

    def note(
        self,
        topic: str,
        producer: str,
        address: str,
        error: BrokerError,
        now_ms: int,
        *,
        is_of_messages: bool = False,
        count: int = 1,
    ) -> None:
        key = ((producer or _host(address))[:MAX_NAME], is_of_messages)
        before = self._all.pop((topic, key), None)
        of_topic = self._by_topic.setdefault(topic, OrderedDict())
        refusal = Refusal(
            producer[:MAX_NAME],
            address[:MAX_NAME],
            BrokerError.by_code.get(error.code, type(error)),
            _shortened(str(error)),
            is_of_messages,
            now_ms if before is None else before.first_ms,
            now_ms,
            count if before is None else before.count + count,
        )
        self._all[topic, key] = of_topic[key] = refusal
        of_topic.move_to_end(key)
        if len(of_topic) > MAX_REFUSALS_PER_TOPIC:
            self._drop(topic, next(iter(of_topic)))
        if len(self._all) > MAX_REFUSALS:
            self._drop(*next(iter(self._all)))

    def admitted(self, topic: str, producer: str, address: str) -> None:
        of_topic = self._by_topic.get(topic)
        if of_topic is not None:
            for name in (producer[:MAX_NAME], _host(address)[:MAX_NAME]):
                if (name, False) in of_topic:
                    self._drop(topic, (name, False))

    def forget(self, topic: str) -> None:
        """Remove the records of a deleted topic."""
        for key in list(self._by_topic.get(topic, ())):
            self._drop(topic, key)

    def of(self, topic: str, now_ms: int) -> list[Refusal]:
        """Return the topic's records, latest first, without expired ones."""
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            return []
        for key, refusal in list(of_topic.items()):
            if now_ms - refusal.last_ms > KEPT_MS:
                self._drop(topic, key)
        return [*reversed(of_topic.values())]

    def check_invariants(self) -> None:
        listed = {(topic, key) for topic, of_topic in self._by_topic.items() for key in of_topic}
        assert listed == self._all.keys(), "both tables must contain the same records"
        assert all(self._by_topic.values()), "empty tables must be removed"
        assert len(self._all) <= MAX_REFUSALS
        assert all(len(of_topic) <= MAX_REFUSALS_PER_TOPIC for of_topic in self._by_topic.values())

    def _drop(self, topic: str, key: _Key) -> None:
        del self._all[topic, key]
        of_topic = self._by_topic[topic]
        del of_topic[key]
        if not of_topic:
            del self._by_topic[topic]


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
