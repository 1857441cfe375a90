"""Ledgers that are in the store and that no managed ledger names: what a crash leaves of them, and what only damage does.

The rule: metadata names a ledger before its first entry, and names it until its deletion is durable in the store's journal. So
whenever a process or a machine dies, a ledger without a name is empty: it was made, and not named in time. One that holds entries
shows that metadata was lost, and nothing is served then, as topics may be missing. Excepted are ledgers of which the store knows
that their deletion may be lost (`LedgerStore.is_name_certain`).

They are looked for once, at the start: a ledger of an earlier run is never named anew. What does not carry this broker's own mark
(`LedgerStore.is_own`) is left alone, named or not: to recover it would already stop another broker from appending to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerStore, told_ids
from pybroker.managed_ledger import ledger_list
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_ledger_info import FORMAT_VERSION, ManagedLedgerInfo, decode_info
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.metadata.metadata_store import MetadataStore, values_at
from pybroker.runtime import logs

_SEGMENTS = 4  # tenant, namespace, domain, topic
_DOCUMENTS_AT_ONCE = 200


@dataclass(slots=True)
class Leftovers:
    """Ledgers without a name."""

    empty_ids: list[int] = field(default_factory=list)
    entries: dict[int, int] = field(default_factory=dict)
    """By ledger, of those that hold any."""
    ids_not_given: list[int] = field(default_factory=list)
    """Beside them: ledgers that have a name, and that the store never made, as it knows."""

    def lost_names(self, store: LedgerStore) -> dict[int, int]:
        """Those of `entries` whose names were lost, and nothing else explains them."""
        return {ledger_id: count for ledger_id, count in self.entries.items() if store.is_name_certain(ledger_id)}


async def find_orphaned_ledgers(store: LedgerStore, metadata: MetadataStore, stored_ids: Collection[int]) -> Leftovers:
    """Those of `stored_ids` that nothing names; these are all the ledgers of earlier runs, listed before anything was opened.

    Nothing while one document cannot be read: who knows what it names. That, and a ledger that cannot be looked at, is logged.
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
        logs.error("leftovers.failed", error=str(error))
        return found
    for ledger_id in sorted(left):
        try:
            count = (await store.recover(ledger_id)).entry_count
        except StoreError as error:
            logs.error("leftovers.failed", ledger_id=ledger_id, error=str(error))  # the others do not depend on it
            continue
        if count:
            found.entries[ledger_id] = count
        else:
            found.empty_ids.append(ledger_id)
    return found


async def delete_orphaned_ledgers(store: LedgerStore, found: Leftovers) -> None:
    """Delete those that are empty. What holds entries is kept, for whoever repairs that."""
    deleted = 0
    for ledger_id in found.empty_ids:
        try:
            await store.delete_ledger(ledger_id)
            deleted += 1
        except StoreError as error:
            logs.error("leftovers.failed", ledger_id=ledger_id, error=str(error))
    logs.info("leftovers.deleted", ledgers=deleted)
    if found.entries:
        logs.warning(
            "leftovers.kept",
            ledgers=len(found.entries),
            ledger_ids=told_ids(found.entries),
            reason="no topic names them, yet they hold entries; the journal was not synced when that came about",
        )


def lost_names_text(directory: Path, lost: dict[int, int], *, has_topics: bool) -> str:
    """What is wrong where `lost` ledgers, with so many entries each, have no name, and what to do."""
    count = sum(lost.values())
    entries = "1 entry" if count == 1 else f"{count} entries"
    names = "names no topic" if not has_topics else "does not name them"
    return (
        f"{directory} holds ledgers with entries, and its metadata.db {names}: {entries} in ledger {told_ids(lost)}. What topics"
        " held is missing from metadata.db: put the right one back, with its -wal and metadata.end of the same moment; or see"
        " what `pybroker ledger repair` would do, which sets these ledgers aside; or use --data with another directory."
        " `pybroker ledger verify` says what is there"
    )


def named_ledger_ids(info: ManagedLedgerInfo) -> list[int]:
    """Every ledger that `info` names, also those that are to be deleted. Raises StoreError."""
    return [*LedgerList.decode(bytes(info.ledgers), 0).ledger_ids(), *other_ledger_ids(info)]


def other_ledger_ids(info: ManagedLedgerInfo) -> list[int]:
    """Those that `info` names beside its list."""
    return [*info.trimmed, *(() if info.compacted is None else (info.compacted.ledger,))]


class _Named(msgspec.Struct):
    """Of a document, what names a ledger; each part as in `managed_ledger_info.py` and `ledger_list.py`."""

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
    """What `named_ledger_ids` says of the document at `path`, at a twentieth of its cost: a start asks this of every topic.

    Raises StoreError.
    """
    names = _names_in(value)
    if names is None:
        return named_ledger_ids(decode_info(path, value))  # which says what is wrong with it
    found = [ledger.id for ledger in names.ledgers.ledgers]
    found += names.trimmed
    if names.compacted is not None:
        found.append(names.compacted.ledger)
    return found


def _names_in(value: bytes) -> _Names | None:
    """Decode the ledger ids; None for a managed ledger info that this version cannot read."""
    try:
        names = _NAMES.decode(value)
    except msgspec.DecodeError:
        return None
    is_newer = names.version > FORMAT_VERSION or names.ledgers.version > ledger_list.FORMAT_VERSION
    return None if is_newer else names


async def named_entry_counts(metadata: MetadataStore) -> dict[int, int | None]:
    """Return the ledgers that topics read from, with their entry counts; None for a ledger that was not closed.

    Unreadable managed ledger infos are skipped: the topic reports the error when it is loaded.
    """
    counts: dict[int, int | None] = {}
    try:
        async for _, value in managed_ledger_documents(metadata):
            counts |= entry_counts_in(value)
    except StoreError as error:
        logs.error("leftovers.failed", error=str(error))
    return counts


def entry_counts_in(value: bytes) -> dict[int, int | None]:
    """Return the same for one managed ledger info; nothing for a deleted topic, because its ledgers are deleted one by
    one."""
    names = _names_in(value)
    if names is None or names.deleted:
        return {}
    counts: dict[int, int | None] = {row.id: row.entries if row.sealed else None for row in names.ledgers.ledgers}
    if names.compacted is not None:
        counts[names.compacted.ledger] = names.compacted.entries
    return counts


async def path_that_names_ledgers(metadata: MetadataStore) -> str:
    """One managed ledger that names ledgers, "" when none does. Raises StoreError."""
    async for path, value in managed_ledger_documents(metadata):
        if ledger_ids_in(path, value):
            return path
    return ""


async def managed_ledger_documents(metadata: MetadataStore) -> AsyncIterator[tuple[str, bytes]]:
    """Path and value of every managed ledger's document. Raises StoreError."""
    async for segments, versioned in values_at(metadata, MANAGED_LEDGERS, _SEGMENTS, _DOCUMENTS_AT_ONCE):
        yield "/".join((MANAGED_LEDGERS, *segments)), versioned.value
