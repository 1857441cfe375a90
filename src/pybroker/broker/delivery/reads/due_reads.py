"""Reads of delayed entries that are due. One read covers entries that are close together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker.dispatch.delayed.delayed_entries import Delayed
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

READ_GAP_ENTRIES = 8
"""Maximum gap between two due entries that are read together, because one larger read is cheaper than two reads."""


def read_due_cached(ledger: ManagedLedger, due: Sequence[Delayed], max_bytes: int) -> list[EntryRun] | None:
    """Return the due entries if all of them are in memory, else None. Also None if a run of consecutive entries is
    larger than `max_bytes`.
    """
    runs = []
    for ledger_id, first, last in _spans(due, 0):
        run = ledger.read_cached(Position(ledger_id, first), last - first + 1, max_bytes)
        if run is None or len(run.payloads) <= last - first:
            return None
        runs.append(run)
    return runs


async def read_due(
    ledger: ManagedLedger, due: Sequence[Delayed], max_bytes: int
) -> tuple[list[EntryRun], list[Delayed]]:
    """Read due entries in order, up to `max_bytes`. Return the entries that were read, and the due entries that were
    not read because they are beyond `max_bytes` or were trimmed. Raises StoreError.
    """
    found: dict[Position, tuple[bytes, int]] = {}
    left_bytes = max_bytes
    wanted = {each.position for each in due}
    for ledger_id, first, last in _spans(sorted(due, key=lambda each: each[1:]), READ_GAP_ENTRIES):
        at = first
        while at <= last and left_bytes > 0:
            run = await ledger.read_if_there(Position(ledger_id, at), last - at + 1, left_bytes)
            if run is None:
                break  # acknowledged and trimmed since
            for payload, message_count in zip(run.payloads, run.message_counts, strict=True):
                left_bytes -= len(payload)
                if Position(ledger_id, at) in wanted:
                    found[Position(ledger_id, at)] = (payload, message_count)
                at += 1
    runs = []
    for ledger_id, first, last in _spans([each for each in due if each.position in found], 0):
        entries = [found[Position(ledger_id, entry_id)] for entry_id in range(first, last + 1)]
        runs.append(EntryRun(ledger_id, first, [payload for payload, _ in entries], [count for _, count in entries]))
    return runs, [each for each in due if each.position not in found]


def _spans(due: Sequence[Delayed], max_gap: int) -> list[tuple[int, int, int]]:
    """Return ranges (ledger id, first, last) that cover the due entries; neighbours in a range are at most `max_gap`
    entries apart.
    """
    spans: list[tuple[int, int, int]] = []
    for _, ledger_id, entry_id in due:
        if spans and spans[-1][0] == ledger_id and 0 < entry_id - spans[-1][2] <= max_gap + 1:
            spans[-1] = (ledger_id, spans[-1][1], entry_id)
        else:
            spans.append((ledger_id, entry_id, entry_id))
    return spans
