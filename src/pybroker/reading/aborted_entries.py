"""Stored entries that clients never receive: messages of aborted transactions, and transaction markers.

Invariant: an entry is returned only after its state (aborted or not) is known. A read plan ends before the first
message of the oldest open transaction, so the states of its entries are final. The plan reports these states. For a
range that was planned in another process or an earlier run, this class requests the plan of its ledger first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap

from pybroker.reading.entry_source import ReadingFailed
from pybroker.reading.positions import Place

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.reading.plans import Plans
    from pybroker.reading.positions import EntryRange, TopicPlan

MAX_KNOWN = 10_000
"""Maximum number of remembered ledgers. Older ones are requested again."""
_END = (1 << 62) - 1


class _Known(NamedTuple):
    first_entry_id: int
    end_entry_id: int
    hidden: BitMap | None
    """None if the ledger has no such entries, which is the usual case."""


class AbortedEntries:
    """The known aborted entries of one entry source."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()

    def planned(self, plan: TopicPlan) -> None:
        for ledger in plan.ledgers:
            key = (plan.topic, ledger.ledger_id)
            hidden = BitMap.deserialize(ledger.hidden) if ledger.hidden else None
            self._known[key] = _Known(ledger.first_entry_id, ledger.end_entry_id, hidden)
            self._known.move_to_end(key)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def marked(self, entries: EntryRange, runs: Iterator[EntryRun]) -> Iterator[EntryRun]:
        """Yield the runs of `entries`, with aborted entries and markers flagged in them. Raises DataLoss or
        ReadingFailed if it is unknown which entries are aborted.
        """
        hidden = self._among(entries)
        if hidden is None:
            yield from runs
            return
        try:
            for run in runs:
                yield _marked(run, hidden)
        finally:
            if isinstance(runs, Generator):
                runs.close()

    def _among(self, entries: EntryRange) -> BitMap | None:
        known = self._known.get((entries.topic, entries.ledger_id))
        if not _covers(known, entries):
            known = self._asked(entries)
        return None if known is None else known.hidden

    def _asked(self, entries: EntryRange) -> _Known | None:
        """Request the plan of the whole ledger, and remember its aborted entries; None if the ledger does not exist."""
        start, end = Place(entries.ledger_id, 0), Place(entries.ledger_id, _END)
        (plan,) = self._plans.of([(entries.topic, start, end)], with_points=False)
        self.planned(plan)
        known = self._known.get((entries.topic, entries.ledger_id)) if plan.ledgers else None
        if plan.is_held_back and plan.end.ledger_id == entries.ledger_id and not _covers(known, entries):
            reached = f"{plan.end.ledger_id}:{plan.end.entry_id}"
            raise ReadingFailed(
                f"topic {entries.topic}: entries up to {entries.ledger_id}:{entries.end_entry_id} were requested, but readers may "
                f"receive only entries up to {reached}, because a transaction is open: plan the read again"
            )
        return known


def _covers(known: _Known | None, entries: EntryRange) -> bool:
    return (
        known is not None
        and known.first_entry_id <= entries.first_entry_id
        and known.end_entry_id >= entries.end_entry_id
    )


def _marked(run: EntryRun, hidden: BitMap) -> EntryRun:
    if not hidden.range_cardinality(run.first_entry_id, run.end_entry_id):
        return run
    marked = np.zeros(run.entry_count, np.bool_)
    among = hidden & BitMap(range(run.first_entry_id, run.end_entry_id))
    marked[np.asarray(among.to_array(), np.int64) - run.first_entry_id] = True
    return replace(run, hidden=marked)
