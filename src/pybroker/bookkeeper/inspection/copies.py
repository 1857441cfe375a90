"""The copies of each entry of a ledger: which bookies have it, and with which bytes.

Two copies of an entry may have different last confirmed entries in their headers: a recovery by the Java client, and its
auto-recovery, encode the header again. Payload and length must be equal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import NamedTuple

from pybroker.bookkeeper.bookie_connection import ReadResult
from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.errors import OK, UNREACHABLE, DamagedEntry, NoSuchEntry, NoSuchLedger, error_of
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import Entry, EntryFormat

_FIRST_COUNT = 4
_BYTES_AT_ONCE = 16 * 1024 * 1024
_MISSING = frozenset({NoSuchEntry.code, NoSuchLedger.code})


class CopyState(Enum):
    """The state of the copy of an entry on one bookie."""

    VALID = "valid"
    MISSING = "missing"
    DAMAGED = "damaged"
    """The bytes do not match the digest, the ledger or the entry."""
    DIFFERENT = "different"
    """The digest is valid, and most other copies have another payload; or no payload has a majority."""
    UNREACHABLE = "unreachable"
    """The bookie cannot be reached or does not answer in time."""
    REFUSED = "refused"
    """The bookie answered with an error, for example because it lost its disk."""


class EntryCopy(NamedTuple):
    """The copy of an entry on one bookie.

    `detail` describes the problem for states other than VALID, MISSING and UNREACHABLE.
    """

    bookie_id: str
    state: CopyState
    detail: str = ""


class EntryCopies(NamedTuple):
    """All copies of an entry, in the order of its write set."""

    entry_id: int
    copies: list[EntryCopy]


def compare_copies(format_: EntryFormat, entry_id: int, answers: Sequence[tuple[str, ReadResult]]) -> list[EntryCopy]:
    """Return the state of each copy of an entry, from the responses of all bookies of its write set."""
    found: list[EntryCopy] = []
    entries: dict[str, Entry] = {}
    for bookie_id, (code, body) in answers:
        state, detail = CopyState.VALID, ""
        if code == OK:
            try:
                entries[bookie_id] = format_.unpack(body, entry_id)
            except DamagedEntry as error:
                state, detail = CopyState.DAMAGED, str(error)
        elif code in _MISSING:
            state = CopyState.MISSING
        elif code == UNREACHABLE:
            state = CopyState.UNREACHABLE
        else:
            state, detail = CopyState.REFUSED, type(error_of(code, "")).__name__
        found.append(EntryCopy(bookie_id, state, detail))
    counts = Counter((each.length_bytes, each.payload) for each in entries.values())
    if len(counts) < 2:
        return found
    (most, count), (_, second) = counts.most_common(2)
    return [
        EntryCopy(each.bookie_id, CopyState.DIFFERENT, "its payload differs from the other copies")
        if each.bookie_id in entries
        and (count == second or (entries[each.bookie_id].length_bytes, entries[each.bookie_id].payload) != most)
        else each
        for each in found
    ]


async def read_copies(
    format_: EntryFormat,
    metadata: LedgerMetadata,
    pool: BookiePool,
    options: BookKeeperOptions,
    first_entry_id: int,
    last_entry_id: int,
) -> AsyncIterator[EntryCopies]:
    """Yield the copies of each entry in a range, with several requests in flight. Reads do not fence the ledger."""
    write_sets = metadata.quorums.write_sets()
    count = _FIRST_COUNT
    while first_entry_id <= last_entry_id:
        end = min(last_entry_id + 1, first_entry_id + count)
        reads: list[list[tuple[str, asyncio.Future[ReadResult]]]] = []
        for entry_id in range(first_entry_id, end):
            ensemble = metadata.segment_of(entry_id).ensemble
            bookie_ids = [ensemble[index] for index in write_sets[entry_id % len(write_sets)]]
            reads.append([(each, pool.connection(each).read(format_.ledger_id, entry_id)) for each in bookie_ids])
        size_bytes = 0
        for entry_id, replicas in enumerate(reads, first_entry_id):
            answers = [(bookie_id, await read) for bookie_id, read in replicas]
            size_bytes += sum(len(answer.body) for _, answer in answers)
            yield EntryCopies(entry_id, compare_copies(format_, entry_id, answers))
        average_bytes = max(1, size_bytes // (end - first_entry_id))
        count = max(1, min(2 * count, options.max_concurrent_reads, _BYTES_AT_ONCE // average_bytes))
        first_entry_id = end
