"""Reads of the entries of one page of a list, within memory that the caller has reserved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pybroker.errors import DamagedEntries, StoreError

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_ledger import ManagedLedger
    from pybroker.model.position import Position

READ_BYTES = 256 * 1024
READ_GAP_ENTRIES = 8
"""Maximum gap between two entries that are read together, because one larger read is cheaper than two reads."""
MAX_RUN_ENTRIES = 128


class ReadEntry(NamedTuple):
    """A read entry. `payload` is None if the entry is damaged; `problem` is the error."""

    position: Position
    payload: bytes | None
    message_count: int
    problem: str = ""


async def read_entries(ledger: ManagedLedger, positions: Sequence[Position]) -> AsyncIterator[ReadEntry]:
    """Yield the entries in ascending order. Trimmed entries are omitted. Raises StoreError."""
    at = 0
    while at < len(positions):
        first = positions[at]
        span = 1
        for position in positions[at + 1 : at + MAX_RUN_ENTRIES]:
            ahead = position.entry_id - (first.entry_id + span)
            if position.ledger_id != first.ledger_id or ahead > READ_GAP_ENTRIES or span >= MAX_RUN_ENTRIES:
                break
            span = position.entry_id - first.entry_id + 1
        if not ledger.ledgers.has_entry(first):
            at += 1
            continue
        run = ledger.read_cached(first, span, READ_BYTES)
        try:
            if run is None:
                run = await ledger.read_if_there(first, span, READ_BYTES)
        except DamagedEntries as error:
            at += 1
            yield ReadEntry(first, None, 1, str(error))
            continue
        except StoreError:
            if ledger.ledgers.has_entry(first):
                raise
            run = None
        if run is None:
            at += 1
            continue
        end = run.first_entry_id + len(run.payloads)
        while at < len(positions) and positions[at].ledger_id == run.ledger_id and positions[at].entry_id < end:
            index = positions[at].entry_id - run.first_entry_id
            yield ReadEntry(positions[at], run.payloads[index], run.message_counts[index])
            at += 1
