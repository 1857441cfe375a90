"""What is asked about one message of a subscription, and what a rule is told when it asks for more.

Rules do no IO: where they need the entry itself, or whether the compacted view has it, they say so (`Want`), are told, and look at
everything again, as it may have changed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pybroker.model.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.model.findings import Finding
    from pybroker.model.transactions import TxnId


class Want(Enum):
    """What has to be looked up before there is an answer."""

    ENTRY = "the entry as it is stored"
    VIEW = "whether the compacted view has it"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What a read of the entry gave: it, or why it gave nothing."""

    payload: bytes | None
    message_count: int = 0
    problem: str = ""
    is_damaged: bool = False
    """It will never be read."""


@dataclass(frozen=True, slots=True)
class TransactionSeen:
    """What the broker knows of an open transaction beyond the topic; times are milliseconds since 1970."""

    opened_ms: int
    timeout_ms: int
    owner: str | None


@dataclass(slots=True)
class LookedUp:
    """What was, so far."""

    entry: StoredEntry | None = None
    is_in_view: bool | None = None


@dataclass(frozen=True, slots=True)
class Reasons:
    """What is found of the message itself, and of what else to say why: who has it, its key's hash, or all of the subscription."""

    findings: list[Finding]
    of_subscription: bool = False
    of_consumer: ConsumerState | None = None
    of_hash: int | None = None


class MessageQuestion:
    """One question, for as long as it is answered."""

    def __init__(
        self, topic: Topic, subscription: Subscription, position: Position, batch_index: int | None = None
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.position = position
        self.batch_index = batch_index
        self.known = LookedUp()
        self.transaction_of: Callable[[TxnId], TransactionSeen | None] = _unknown
        """What its coordinator knows of a transaction, if that serves."""

    @property
    def message_id(self) -> str:
        return str(self.position) if self.batch_index is None else f"{self.position}:{self.batch_index}"

    @property
    def payload(self) -> bytes | None:
        """The entry, if it was read."""
        return None if self.known.entry is None else self.known.entry.payload


def _unknown(_: TxnId) -> TransactionSeen | None:
    return None
