"""Broker entry metadata: fields that the broker prepends to each stored entry (`brokerEntryMetadataInterceptors`).

Message indexes increase without gaps. After a restart they continue from the topic's last entry, or, if that entry was
trimmed, from `StoredInfo.last_index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.config import ConfigError
from pybroker.errors import DamagedEntries
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.wire.broker_entry_metadata import broker_metadata, with_broker_metadata

NO_INDEX = -1
"""Last index of a topic on which no message has an index yet."""


@dataclass(frozen=True, slots=True)
class AddedMetadata:
    """Fields of the broker entry metadata that are enabled."""

    timestamp: bool
    index: bool


def added_metadata(interceptors: Sequence[str]) -> AddedMetadata | None:
    """Return the fields that the configured `interceptors` (Java class names) add; None without interceptors. Raises
    ConfigError for an unknown class.
    """
    if not interceptors:
        return None
    names = {name.rpartition(".")[2] for name in interceptors}
    unknown = names - {"AppendIndexMetadataInterceptor", "AppendBrokerTimestampMetadataInterceptor"}
    if unknown:
        raise ConfigError(
            f"brokerEntryMetadataInterceptors contains an unknown interceptor: {', '.join(sorted(unknown))}"
        )
    return AddedMetadata("AppendBrokerTimestampMetadataInterceptor" in names, "AppendIndexMetadataInterceptor" in names)


class EntryMetadata:
    """Adds broker entry metadata to the entries of one topic before they are stored."""

    def __init__(self, added: AddedMetadata, ledger: ManagedLedger) -> None:
        """The caller has called `restore` for `ledger`."""
        document = ledger.document
        assert document.last_index is not None
        self._added = added
        self._document = document
        self._given = document.last_index  # includes messages that are not durable yet

    def put_in_front(self, payloads: Sequence[bytes], message_counts: Sequence[int], now_ms: int) -> list[bytes]:
        """Return the entries `payloads` with broker entry metadata prepended, and assign message indexes.
        `message_counts`: number of messages in each entry.

        If the ledger refuses the entries, the caller must call `take_back`.
        """
        timestamp_ms = now_ms if self._added.timestamp else None
        if not self._added.index:
            return [with_broker_metadata(payload, timestamp_ms, None) for payload in payloads]
        stored: list[bytes] = []
        index = self._given
        for payload, message_count in zip(payloads, message_counts, strict=True):
            index += message_count
            stored.append(with_broker_metadata(payload, timestamp_ms, index))
        self._given = index
        return stored

    def stored(self, message_count: int) -> None:
        if self._added.index:
            assert self._document.last_index is not None
            self._document.last_index += message_count

    def take_back(self, message_count: int) -> None:
        """Make the indexes of the last `message_count` messages available again, because these messages were not
        stored.
        """
        if self._added.index:
            self._given -= message_count
            assert self._document.last_index is not None
            assert self._given >= self._document.last_index


async def restore(ledger: ManagedLedger, added: AddedMetadata | None) -> None:
    """Determine the last message index of the topic during its load, and set it in `ledger.document`. On failure, close
    the ledger and raise StoreError.
    """
    document = ledger.document
    known = document.last_index
    if known is None and added is None:
        return
    try:
        last = await _index_of_last_entry(ledger)
        document.last_index = last if last is not None else NO_INDEX if known is None else known
        if document.last_index != known:
            # Entries without an index may follow; then the index is stored nowhere else.
            await document.save()
    except BaseException:
        await ledger.close()
        raise


async def _index_of_last_entry(ledger: ManagedLedger) -> int | None:
    last = ledger.last_confirmed
    try:
        run = await ledger.read_if_there(last, 1, 1) if ledger.ledgers.has_entry(last) else None
    except DamagedEntries as damage:
        # The exact index is unknown. An index that is too high leaves a gap, which does less harm than a repeated index.
        counted = ledger.ledgers.message_count
        index = (ledger.document.last_index or 0) + (ledger.ledgers.entry_count if counted is None else counted)
        logs.error("entry_index.guessed", managed_ledger=ledger.name, index=index, error=str(damage))
        return index
    return None if run is None else broker_metadata(run.payloads[0]).index


async def first_with_index(ledger: ManagedLedger, index: int) -> Position:
    """Return the position of the entry that contains the message with the given index, or the position after the last
    entry if no entry contains it. Raises StoreError.
    """
    ledgers = ledger.ledgers
    ids = [row.ledger_id for row in ledgers.rows() if row.entry_count]

    async def is_before(ledger_id: int, entry_id: int) -> bool:
        run = await ledger.read_if_there(Position(ledger_id, entry_id), 1, 1)
        found = None if run is None else broker_metadata(run.payloads[0]).index
        return found is None or found < index

    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if await is_before(ids[middle], ledgers.entry_count_of(ids[middle]) - 1):
            low = middle + 1
        else:
            high = middle
    if low == len(ids):
        return ledgers.end_position
    ledger_id = ids[low]
    low, high = 0, ledgers.entry_count_of(ledger_id) - 1
    while low < high:
        middle = (low + high) // 2
        if await is_before(ledger_id, middle):
            low = middle + 1
        else:
            high = middle
    return Position(ledger_id, low)
