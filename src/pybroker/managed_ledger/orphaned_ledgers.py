"""Orphaned ledgers: ledgers in the store that no topic and no cursor lists in the metadata, left by a crash or by
damage.

Metadata lists a ledger before its first entry, and until its deletion is durable. So after a crash, an orphaned ledger
is empty. An orphaned ledger with entries proves that metadata was lost. Then the broker does not start, because topics
may be missing. Exceptions are ledgers whose deletion may have been lost (`LedgerStore.is_name_certain`).

The search runs once, at the start. Ledgers without this broker's mark (`LedgerStore.is_own`) are ignored: recovering
one would stop another broker from appending to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerStore, told_ids
from pybroker.managed_ledger import ledger_list
from pybroker.managed_ledger.info.managed_ledger_info import FORMAT_VERSION, ManagedLedgerInfo, decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.runtime import logs

_SEGMENTS = 4  # tenant, namespace, domain, topic
_DOCUMENTS_AT_ONCE = 200


@dataclass(slots=True)
class Leftovers:
    """The orphaned ledgers that a search has found."""

    empty_ids: list[int] = field(default_factory=list)
    entries: dict[int, int] = field(default_factory=dict)
    """The orphaned ledgers with entries: numbers of entries by ledger id."""
    ids_not_given: list[int] = field(default_factory=list)
    """Ledgers that the metadata lists, and that were never created as far as the store knows."""

    def lost_names(self, store: LedgerStore) -> dict[int, int]:
        """Return the orphaned ledgers that prove a loss of metadata, as numbers of entries by ledger id. Orphaned ledgers
        with entries are omitted if they may be deleted ledgers that exist again, because a power failure undid the
        deletion.
        """
        return {ledger_id: count for ledger_id, count in self.entries.items() if store.is_name_certain(ledger_id)}


async def find_orphaned_ledgers(store: LedgerStore, metadata: MetadataStore, stored_ids: Collection[int]) -> Leftovers:
    """Return the orphaned ledgers among `stored_ids`, the ids of all ledgers that earlier broker processes have left.
    The caller must list these ids before it opens a managed ledger.

    If a metadata value cannot be read, no ledger is reported as orphaned, because the value may list any ledger. The
    error is logged.
    """
    found = Leftovers()
    left = {ledger_id for ledger_id in stored_ids if store.is_own(ledger_id)}
    try:
        async for path, value in managed_ledger_documents(metadata):
            named = ledger_ids_in(path, value)
            left.difference_update(named)
            if named and not store.is_id_given(max(named)):
                found.ids_not_given += [ledger_id for ledger_id in named if not store.is_id_given(ledger_id)]
    except StoreError as error:
        logs.error("orphaned_ledgers.failed", error=str(error))
        return found
    for ledger_id in sorted(left):
        try:
            count = (await store.recover(ledger_id)).entry_count
        except StoreError as error:
            logs.error(
                "orphaned_ledgers.failed", ledger_id=ledger_id, error=str(error)
            )  # the other ledgers do not depend on it
            continue
        if count:
            found.entries[ledger_id] = count
        else:
            found.empty_ids.append(ledger_id)
    return found


async def delete_orphaned_ledgers(store: LedgerStore, found: Leftovers) -> None:
    """Delete the orphaned ledgers that are empty. Ledgers with entries stay for a repair."""
    deleted = 0
    for ledger_id in found.empty_ids:
        try:
            await store.delete_ledger(ledger_id)
            deleted += 1
        except StoreError as error:
            logs.error("orphaned_ledgers.failed", ledger_id=ledger_id, error=str(error))
    logs.info("orphaned_ledgers.deleted", ledgers=deleted)
    if found.entries:
        logs.warning(
            "orphaned_ledgers.kept",
            ledgers=len(found.entries),
            ledger_ids=told_ids(found.entries),
            reason="the ledgers contain entries, but belong to no topic; the journal was not synced when their deletion was lost",
        )


def lost_names_text(directory: Path, lost: dict[int, int], *, has_topics: bool) -> str:
    """Return the error text, with the remedy, for the orphaned ledgers `lost` (numbers of entries by ledger id) in the
    data directory `directory`. `has_topics`: whether the metadata contains topics.
    """
    count = sum(lost.values())
    entries = "1 entry" if count == 1 else f"{count} entries"
    names = "lists no topic" if not has_topics else "does not list these ledgers"
    return (
        f"The data directory {directory} contains ledgers with entries, but its metadata.db {names}: {entries} in ledger "
        f"{told_ids(lost)}. The metadata of the topics is missing. Restore metadata.db, metadata.db-wal and metadata.end from the "
        "same backup; or run `pybroker ledger repair`, which shows how it would move these ledgers away; or use --data with "
        "another directory. `pybroker ledger verify` lists the stored data"
    )


def named_ledger_ids(info: ManagedLedgerInfo) -> list[int]:
    """Return the ids of all ledgers that a managed ledger info contains, including ledgers that must be deleted. Raises
    StoreError.
    """
    return [*LedgerList.decode(bytes(info.ledgers), 0).ledger_ids(), *other_ledger_ids(info)]


def other_ledger_ids(info: ManagedLedgerInfo) -> list[int]:
    """Return the ids of the ledgers that a managed ledger info contains in addition to the ledgers of the topic:
    trimmed ledgers that must be deleted, and ledgers of compacted views.
    """
    return [*info.trimmed, *(() if info.compacted is None else (info.compacted.ledger,))]


class _Named(msgspec.Struct):
    """The properties that name ledgers, as in `managed_ledger_info.py` and `ledger_list.py`."""

    id: int
    sealed: bool = True
    entries: int = 0


class _NamedList(msgspec.Struct):
    version: int
    ledgers: list[_Named]


class _NamedView(msgspec.Struct):
    ledger: int
    entries: int


class _Names(msgspec.Struct):
    version: int
    ledgers: _NamedList
    trimmed: list[int] = []
    compacted: _NamedView | None = None
    deleted: bool = False


_NAMES = msgspec.json.Decoder(_Names)


def ledger_ids_in(path: str, value: bytes) -> list[int]:
    """Return the ids of all ledgers in the managed ledger info `value`, stored at `path`, as `named_ledger_ids` does.
    Decode only the ids, because each start of the broker reads the value of every topic. Raises StoreError.
    """
    names = _names_in(value)
    if names is None:
        return named_ledger_ids(decode_info(path, value))  # raises the precise error
    found = [ledger.id for ledger in names.ledgers.ledgers]
    found += names.trimmed
    if names.compacted is not None:
        found.append(names.compacted.ledger)
    return found


def _names_in(value: bytes) -> _Names | None:
    """Return None for a managed ledger info that this version cannot read."""
    try:
        names = _NAMES.decode(value)
    except msgspec.DecodeError:
        return None
    is_newer = names.version > FORMAT_VERSION or names.ledgers.version > ledger_list.FORMAT_VERSION
    return None if is_newer else names


async def named_entry_counts(metadata: MetadataStore) -> dict[int, int | None]:
    """Return the ledgers of all topics in the metadata, with their numbers of entries; None for a ledger that was not
    closed. Unreadable managed ledger infos are skipped.
    """
    counts: dict[int, int | None] = {}
    try:
        async for _, value in managed_ledger_documents(metadata):
            counts |= entry_counts_in(value)
    except StoreError as error:
        logs.error("orphaned_ledgers.failed", error=str(error))
    return counts


def entry_counts_in(value: bytes) -> dict[int, int | None]:
    """Return the ledgers in the stored managed ledger info `value`, with their numbers of entries; None for a ledger
    that was not closed. The result is empty for a deleted topic, and for an unreadable value.
    """
    names = _names_in(value)
    if names is None or names.deleted:
        return {}
    counts: dict[int, int | None] = {row.id: row.entries if row.sealed else None for row in names.ledgers.ledgers}
    if names.compacted is not None:
        counts[names.compacted.ledger] = names.compacted.entries
    return counts


async def path_that_names_ledgers(metadata: MetadataStore) -> str:
    """Return the path of a managed ledger info that lists a ledger; "" if there is none. Raises StoreError."""
    async for path, value in managed_ledger_documents(metadata):
        if ledger_ids_in(path, value):
            return path
    return ""


async def managed_ledger_documents(metadata: MetadataStore) -> AsyncIterator[tuple[str, bytes]]:
    async for segments, versioned in values_at(metadata, MANAGED_LEDGERS, _SEGMENTS, _DOCUMENTS_AT_ONCE):
        yield "/".join((MANAGED_LEDGERS, *segments)), versioned.value
