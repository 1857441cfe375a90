"""Acknowledgement gaps of a subscription, and the reasons why ledgers are not trimmed. Computed from memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.broker.inspection.pages import Steps
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.model.position import Position

MAX_REASONS = 50
"""Maximum number of listed reasons; the reasons that keep the most bytes come first."""
_KINDS = {TRANSACTIONS_CURSOR: "transactions", COMPACTION_SUBSCRIPTION: "compaction", "pulsar.dedup": "deduplication"}


class AcknowledgedRange(NamedTuple):
    """Consecutive individually deleted entries after the mark-delete position. Both ends are inclusive."""

    first: Position
    last: Position

    @property
    def entries(self) -> int:
        return self.last.entry_id - self.first.entry_id + 1


@dataclass(slots=True)
class Kept:
    """A reason why ledgers are kept (cursor, reader, or policy), with the number and size of these ledgers."""

    kind: str
    name: str = ""
    ledgers: int = 0
    bytes: int = 0
    first_ledger_id: int = -1

    def add(self, ledger_id: int, size_bytes: int) -> None:
        if self.first_ledger_id < 0:
            self.first_ledger_id = ledger_id
        self.ledgers += 1
        self.bytes += size_bytes


@dataclass(slots=True)
class Held:
    """The ledgers that this subscription needs, and all reasons why ledgers of the topic are kept."""

    ledgers: int = 0
    bytes: int = 0
    reasons: list[Kept] = field(default_factory=list)
    more_reasons: int = 0


def acknowledged_behind(subscription: Subscription, limit: int) -> tuple[list[AcknowledgedRange], int]:
    state = subscription.cursor.state
    found = [AcknowledgedRange(*each) for each in state.deleted_ranges(limit)]
    return found, max(0, state.deleted_range_count - len(found))


def held(topic: Topic, subscription: Subscription) -> Steps[Held]:
    """Return the number and size of the ledgers that `subscription` needs, and the reasons why ledgers of the topic are
    not deleted, each with the number and size of its ledgers.

    A ledger with several reasons is counted for each of them.
    """
    ledger, found = topic.ledger, Held()
    reasons: dict[tuple[str, str], Kept] = {}
    now_ms = topic.runtime.clock.monotonic_ms()
    leases = topic.broker_context.read_leases.on(str(topic.name), now_ms)

    def keep(kind: str, name: str, row: Any) -> None:
        reasons.setdefault((kind, name), Kept(kind, name)).add(row.ledger_id, row.size_bytes)

    for row in list(ledger.ledgers.rows()):
        is_needed = False
        for name, cursor in list(ledger.cursors.items()):
            if cursor.is_durable and row.entry_count and not cursor.state.has_deleted_all_of(row.ledger_id):
                is_needed = True
                keep(_KINDS.get(name, "subscription"), name, row)
                if name == subscription.name:
                    found.ledgers += 1
                    found.bytes += row.size_bytes
            yield
        if not subscription.is_durable and not subscription.cursor.state.has_deleted_all_of(row.ledger_id):
            found.ledgers += 1
            found.bytes += row.size_bytes
        for lease in leases:
            if lease.ledger_id <= row.ledger_id:
                is_needed = True
                keep("lease", lease.owner.reader, row)
        if not row.is_sealed or row.ledger_id == ledger.current_ledger_id:
            keep("open-ledger", "", row)
        elif not is_needed and row.entry_count:
            # The next maintenance deletes it.
            limits = ledger.retention
            keep("retention" if limits.time_ms and limits.size_bytes else "next-trim", "", row)
        yield
    buffer = topic.transactions.buffer
    for txn, opened in list(buffer.open.items())[:MAX_REASONS] if buffer is not None else ():
        # The first messages of open transactions determine the position of the transactions' own cursor, which is
        # counted above.
        reasons[("open-transaction", str(txn))] = Kept(
            "open-transaction", str(txn), first_ledger_id=opened.first.ledger_id
        )
    for txn in list(subscription.cursor.state.held.open)[:MAX_REASONS]:
        reasons[("transaction-acknowledgements", str(txn))] = Kept("transaction-acknowledgements", str(txn))
    listed = sorted(reasons.values(), key=lambda each: (-each.bytes, each.kind, each.name))
    found.reasons, found.more_reasons = listed[:MAX_REASONS], max(0, len(listed) - MAX_REASONS)
    return found
