"""Entry filters of one subscription, and the effect of their verdicts on dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.delivery.stages import PassOver, Stage
from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.wire import entry_columns

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase

RESCHEDULE_S = 1.0
"""Delay after which a rescheduled entry is filtered again."""


class FilterJury:
    """Evaluation of all entry filters for one subscription."""

    def __init__(self, subscription: SubscriptionBase, filters: tuple[EntryFilter, ...]) -> None:
        self.filters = filters
        self._judged = subscription
        self._has_failed = False

    def accepted(self, payloads: list[bytes], message_counts: list[int]) -> tuple[list[bytes], list[int]]:
        """Return the messages of a non-persistent topic that all filters accept: their payloads and message counts."""
        position = Position(0, 0)
        verdicts = [self.verdict(self.entry(position, payload)) for payload in payloads]
        if not self._count(verdicts, message_counts):
            return payloads, message_counts
        kept = [index for index, verdict in enumerate(verdicts) if verdict is Verdict.ACCEPT]
        return [payloads[index] for index in kept], [message_counts[index] for index in kept]

    def entry(self, position: Position, payload: bytes) -> FilteredEntry:
        judged = self._judged
        return FilteredEntry(str(judged.topic.name), judged.name, judged.properties, position, payload)

    def rejects(self, position: Position, payload: bytes) -> bool:
        """Return whether the current filters reject the entry, for `explain`. Filter statistics do not count this
        evaluation.
        """
        return self.verdict(self.entry(position, payload)) is Verdict.REJECT

    def verdict(self, entry: FilteredEntry) -> Verdict:
        """Apply the entry filters in order. Return the first verdict other than ACCEPT, else ACCEPT. An exception in a
        filter counts as RESCHEDULE and is logged once.
        """
        try:
            for each in self.filters:
                verdict = each.judge(entry)
                if verdict is not Verdict.ACCEPT:
                    return verdict
        except Exception as error:  # noqa: BLE001  (the filter is foreign code)
            if not self._has_failed:
                self._has_failed = True
                logs.error(
                    "entry_filter.failed",
                    topic=entry.topic,
                    subscription=entry.subscription,
                    filter=type(each).__name__,
                    position=entry.position,
                    exc_info=error,
                )
            return Verdict.RESCHEDULE
        return Verdict.ACCEPT

    def _count(self, verdicts: list[Verdict], message_counts: list[int]) -> bool:
        counters = self._judged.counters
        for verdict, message_count in zip(verdicts, message_counts, strict=True):
            counters.filter_processed += message_count
            if verdict is Verdict.REJECT:
                counters.filter_rejected += message_count
            elif verdict is Verdict.RESCHEDULE:
                counters.filter_rescheduled += message_count
            else:
                counters.filter_accepted += message_count
        return any(verdict is not Verdict.ACCEPT for verdict in verdicts)


class FilterChain(FilterJury, Stage):
    """Step of dispatching that filters the entries of a subscription on a persistent topic."""

    def __init__(
        self,
        subscription: SubscriptionBase,
        filters: tuple[EntryFilter, ...],
        cursor: ManagedCursor,
        pass_over: PassOver,
    ) -> None:
        super().__init__(subscription, filters)
        self._subscription = subscription
        self._cursor = cursor
        self._pass_over = pass_over
        self.is_waiting = False
        """For types with one active consumer: reads are stopped, because the next entry was rescheduled."""
        self.deferred_entries = 0
        self.deferred_first: Position | None = None

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Return the accepted entries. Rejected entries are acknowledged. Entries with the verdict RESCHEDULE are read
        again later.
        """
        verdicts = [
            self.verdict(self.entry(Position(entries.ledger_id, entry_id), payload))
            for entry_id, payload in zip(entries.entry_ids, entries.payloads, strict=True)
        ]
        if not self._count(verdicts, entries.message_counts):
            return entries
        if Verdict.RESCHEDULE in verdicts and dispatcher.active_consumer is not None:
            first = verdicts.index(Verdict.RESCHEDULE)
            self._stop_at(Position(entries.ledger_id, entries.entry_ids[first]))
            verdicts = verdicts[:first]
        else:
            later = [index for index, verdict in enumerate(verdicts) if verdict is Verdict.RESCHEDULE]
            if later:
                self._look_again(dispatcher, plan, entries.rows(later))
        rejected = _of(entries, verdicts, Verdict.REJECT)
        if rejected:
            self._pass_over(entries.ledger_id, rejected)
        return entries.rows([index for index, verdict in enumerate(verdicts) if verdict is Verdict.ACCEPT])

    def _stop_at(self, position: Position) -> None:
        self._cursor.read_position = position
        self.is_waiting = True
        self.deferred_entries, self.deferred_first = 1, position
        self._subscription.runtime.call_later(RESCHEDULE_S, self._go_on)

    def _go_on(self) -> None:
        self.is_waiting = False
        self.deferred_entries = 0
        self._subscription.wake()

    def _look_again(self, dispatcher: Dispatcher, plan: ReadPlan, entries: AssignInput) -> None:
        positions = [Position(entries.ledger_id, entry_id) for entry_id in entries.entry_ids]
        later = ReadPlan(len(positions), plan.max_bytes, positions, plan.epoch)
        key_hashes = entry_columns.key_hashes(entries.payloads) if dispatcher.needs_key_hashes else []

        self.deferred_entries += len(positions)
        self.deferred_first = positions[0]

        def give_back() -> None:
            self.deferred_entries -= len(positions)
            dispatcher.put_back(later, key_hashes)
            self._subscription.wake()

        self._subscription.runtime.call_later(RESCHEDULE_S, give_back)


def _of(entries: AssignInput, verdicts: list[Verdict], wanted: Verdict) -> list[int]:
    return [entries.entry_ids[index] for index, verdict in enumerate(verdicts) if verdict is wanted]
