"""The copy of one topic: its ledgers, its compacted ledger, and its cursors.

Operation: each source ledger is copied into a new ledger of the target, closed, and read again to compare all entries.
Then the target's managed ledger info and the states of the cursors are written, and everything is read from the target
once more. The source changes only as by a broker start: its open ledger is recovered.

Failure: the next run continues with the progress file. An assigned ledger that was not recorded yet stays in the
target, empty.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pybroker.compaction.stored_entry import format_in
from pybroker.errors import StoreError
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, LedgerPurpose, LedgerStore, LedgerSummary
from pybroker.managed_ledger.cursor_record import CursorRecord, encode_whole
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.info_records import LoadedInfo
from pybroker.managed_ledger.info.managed_ledger_info import (
    TRANSACTIONS_CURSOR,
    CompactedInfo,
    CursorInfo,
    ManagedLedgerInfo,
)
from pybroker.managed_ledger.ledger_list import LedgerList, LedgerRow
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.managed_ledger.trimmed_ledgers import TrimmedLedgers
from pybroker.model.position import Position
from pybroker.tools.copying_topics.copy_progress import CopiedLedger, ProgressFile, progress_path
from pybroker.tools.copying_topics.opening import Side
from pybroker.tools.copying_topics.position_map import PositionMap

READ_ENTRIES = 1000
READ_BYTES = 1 << 20
_LENGTH_BYTES = 8
Convert = Callable[[bytes], bytes]
Report = Callable[[int, int], None]
"""Receives the entries and bytes of a step."""


class TopicContents(NamedTuple):
    """The contents of a managed ledger according to its info. Counts of an open ledger are not known."""

    ledgers: int
    open_ledgers: int
    entries: int
    size_bytes: int
    cursors: int
    has_compacted: bool


class Copied(NamedTuple):
    """The result of a verified copy. `was_complete`: an earlier run had completed the copy."""

    contents: TopicContents
    was_complete: bool


def contents_of(info: ManagedLedgerInfo) -> TopicContents:
    ledgers = LedgerList.decode(bytes(info.ledgers), 0)
    return TopicContents(
        len(ledgers),
        len(ledgers.open_ledger_ids()),
        sum(row.entry_count for row in ledgers.rows()),
        ledgers.size_bytes,
        len(info.cursors),
        info.compacted is not None,
    )


class TopicCopy:
    """The copy of one topic. `directory`: the data directory of the local side."""

    def __init__(self, source: Side, target: Side, path: str, directory: Path, report: Report) -> None:
        self._source = source
        self._target = target
        self._path = path
        self._report = report
        self._file = ProgressFile(progress_path(directory, path, target.kind), target.name)
        self._progress = self._file.progress

    async def run(self) -> Copied:
        """Copy the topic and verify the copy. After StoreError or OSError, a later run continues."""
        progress = self._progress
        source, target = await self._source.records.load(self._path), await self._target.records.load(self._path)
        if source.info is None or source.info.deleted:
            raise StoreError(f"topic {self._path} does not exist in {self._source.name}")
        self._require_own(target)
        ledgers = await self._recovered(source.info)
        if progress.is_complete:
            await self._verify(source, target, ledgers)
            return Copied(self._contents(source.info), True)
        states = await self._states(source.info, ledgers)
        await self._copy_compacted_positions(source.info, ledgers)
        for row in ledgers.rows():
            await self._copy_ledger(row)
        positions = self._positions()
        for state in states.values():
            positions.state(state)  # before anything is named
        await self._copy_compacted(source.info, positions)
        progress.is_named = True
        self._file.save()
        await self._name(source.info, ledgers, target, positions, states)
        await self._verify(source, await self._target.records.load(self._path), ledgers)
        progress.is_complete = True
        self._file.save()
        return Copied(self._contents(source.info), False)

    # --- the source --------------------------------------------------------------------------------------------------

    async def _recovered(self, info: ManagedLedgerInfo) -> LedgerList:
        ledgers = LedgerList.decode(bytes(info.ledgers), 0)
        for ledger_id in ledgers.open_ledger_ids():
            ledgers.close_ledger(await self._source.ledgers.recover(ledger_id), info.created)
        return ledgers

    async def _states(self, info: ManagedLedgerInfo, ledgers: LedgerList) -> dict[str, bytes]:
        """Return the complete states of the cursors. The cursor of transactions is reset: the broker restores its state
        from the entries. Raises StoreError if a cursor has pending transaction acks.
        """
        states: dict[str, bytes] = {}
        for name, cursor in info.cursors.items():
            if name == TRANSACTIONS_CURSOR:
                continue
            snapshot, deltas = await self._source.cursors.load(cursor.id)
            state = CursorState.restore(ledgers, Position(*cursor.position), snapshot, deltas)
            states[name] = state.snapshot()
            if state.held:
                raise StoreError(
                    f"subscription {name} of topic {self._path} has pending acknowledgements of a transaction: start the "
                    "broker, end the transaction, and copy again"
                )
        return states

    # --- ledgers -----------------------------------------------------------------------------------------------------

    async def _copy_ledger(self, row: LedgerRow) -> None:
        progress = self._progress
        copied = progress.of(row.ledger_id)
        if copied is not None and copied.is_complete:
            if copied.entries != row.entry_count:
                raise StoreError(
                    f"the source was changed after an earlier copy: ledger {row.ledger_id} of topic {self._path} has "
                    f"{row.entry_count} entries, but had {copied.entries} when it was copied. Delete the topic in the "
                    "target, and its progress file in copies/ of the data directory, and copy again"
                )
            self._report(copied.entries, copied.bytes)
            return
        if copied is not None:
            # Later ledgers must have larger ids, so this ledger and all later ones begin again.
            index = progress.ledgers.index(copied)
            for each in progress.ledgers[index:]:
                await self._target.ledgers.delete_ledger(each.target)
            del progress.ledgers[index:]
        copied = CopiedLedger(
            row.ledger_id, await self._target.ledgers.create_ledger(LedgerPurpose.ENTRIES, self._path)
        )
        progress.ledgers.append(copied)
        self._file.save()
        await self._copy_entries(copied, row.entry_count, _unchanged)

    async def _copy_entries(self, copied: CopiedLedger, entry_count: int, convert: Convert) -> None:
        store, listener, digest = self._target.ledgers, _Appends(), hashlib.sha256()
        next_entry_id = 0
        while next_entry_id < entry_count:
            run = await self._source.ledgers.read(
                copied.source, next_entry_id, min(READ_ENTRIES, entry_count - next_entry_id), READ_BYTES
            )
            payloads = [convert(each) for each in run.payloads]
            _add_to(digest, payloads)
            size_bytes = sum(map(len, payloads))
            await listener.stored()
            listener.begin()
            store.append(
                AppendRun(listener, copied.target, next_entry_id, payloads, run.message_counts, size_bytes, None)
            )
            next_entry_id += len(payloads)
            copied.messages += sum(run.message_counts)
            copied.bytes += size_bytes
            self._report(len(payloads), size_bytes)
        await listener.stored()
        summary = await store.seal(copied.target)
        copied.entries = next_entry_id
        if (summary.entry_count, summary.size_bytes) != (copied.entries, copied.bytes):
            raise StoreError(
                f"the copy is damaged: ledger {copied.target} in {self._target.name} has {summary.entry_count} "
                f"entries with {summary.size_bytes} bytes instead of {copied.entries} entries with "
                f"{copied.bytes} bytes. Delete the topic in the target and copy it again"
            )
        found = await digest_of(store, copied.target, copied.entries)
        if found != digest.hexdigest():
            raise StoreError(
                f"the copy is damaged: ledger {copied.target} in {self._target.name} differs from ledger "
                f"{copied.source} in {self._source.name}. Delete the topic in the target and copy it again"
            )
        copied.digest = found
        self._file.save()

    def _positions(self) -> PositionMap:
        rows = [(each.source, each.target, each.entries) for each in self._progress.ledgers]
        return PositionMap(rows, self._progress.reserved)

    # --- the compacted ledger ----------------------------------------------------------------------------------------

    async def _copy_compacted_positions(self, info: ManagedLedgerInfo, ledgers: LedgerList) -> None:
        """Reserve target ids for trimmed ledgers that occur in positions of compacted entries. These ids precede the
        ids of the copied ledgers.
        """
        progress = self._progress
        if info.compacted is None or progress.ledgers:
            return
        named: set[int] = set()
        next_entry_id = 0
        stored_format = format_in(self._source.ledgers)
        while next_entry_id < info.compacted.entries:
            run = await self._source.ledgers.read(info.compacted.ledger, next_entry_id, READ_ENTRIES, READ_BYTES)
            stored = zip(run.payloads, run.message_counts, strict=True)
            named.update(stored_format.decode(payload, count).position.ledger_id for payload, count in stored)
            next_entry_id += len(run.payloads)
        progress.reserved = {}
        for ledger_id in sorted({*named, info.compacted.horizon[0]}):
            if not ledgers.has_ledger(ledger_id):
                target_id = await self._target.ledgers.create_ledger(LedgerPurpose.ENTRIES, self._path)
                await self._target.ledgers.delete_ledger(target_id)
                progress.reserved[ledger_id] = target_id

    async def _copy_compacted(self, info: ManagedLedgerInfo, positions: PositionMap) -> None:
        progress = self._progress
        if info.compacted is None or (progress.compacted is not None and progress.compacted.is_complete):
            return
        if progress.compacted is not None:
            await self._target.ledgers.delete_ledger(progress.compacted.target)
        target_id = await self._target.ledgers.create_ledger(
            LedgerPurpose.COMPACTED, self._path, positions.mark(Position(*info.compacted.horizon))
        )
        progress.compacted = CopiedLedger(info.compacted.ledger, target_id)
        self._file.save()

        source_format, target_format = format_in(self._source.ledgers), format_in(self._target.ledgers)

        def convert(stored: bytes) -> bytes:
            entry = source_format.decode(stored, 1)
            return target_format.encode(positions.entry(entry.position), entry.payload)

        await self._copy_entries(progress.compacted, info.compacted.entries, convert)

    # --- the managed ledger info and the cursors ---------------------------------------------------------------------

    async def _name(
        self,
        info: ManagedLedgerInfo,
        ledgers: LedgerList,
        target: LoadedInfo,
        positions: PositionMap,
        states: dict[str, bytes],
    ) -> None:
        progress = self._progress
        listed = LedgerList()
        for row, copied in zip(ledgers.rows(), progress.ledgers, strict=True):
            listed.add_ledger(copied.target)
            messages = copied.messages if row.message_count is None else row.message_count
            listed.close_ledger(LedgerSummary(copied.target, copied.entries, messages, copied.bytes), row.closed_ms)
        document = StoredInfo(target.record, listed)
        document.created_ms, document.properties, document.last_index = info.created, info.properties, info.last_index
        document.cursor_serial, document.is_terminated = info.serial, info.terminated
        document.gone = TrimmedLedgers(progress.ledgers[0].target - 1)
        if info.compacted is not None and progress.compacted is not None:
            document.compacted = CompactedInfo(
                progress.compacted.target,
                progress.compacted.entries,
                progress.compacted.bytes,
                positions.mark(Position(*info.compacted.horizon)),
            )
        first = Position(progress.ledgers[0].target, -1)
        for name, cursor in info.cursors.items():
            mark = (
                first
                if name == TRANSACTIONS_CURSOR
                else CursorRecord(positions.state(states[name])).mark_delete_position
            )
            properties = {} if name == TRANSACTIONS_CURSOR else cursor.properties
            document.cursors[name] = CursorInfo(cursor.id, mark, properties)
        await document.save()
        store = self._target.cursors
        for name, cursor in document.cursors.items():
            state = encode_whole(first, {}, {}) if name == TRANSACTIONS_CURSOR else positions.state(states[name])
            store.attach(cursor.id, _StateOwner(state))
            written = _Written()
            store.append_delta(cursor.id, state, written)
            await written.done()
            await store.detach(cursor.id)

    # --- verification ------------------------------------------------------------------------------------------------

    def _require_own(self, target: LoadedInfo) -> None:
        if target.info is None or (target.info.deleted and not self._progress.is_named):
            if target.info is None and self._progress.is_complete:
                raise StoreError(
                    f"topic {self._path} was copied to {self._target.name} earlier, and was then deleted there: "
                    "delete the progress file of this topic in copies/ of the data directory, and copy again"
                )
            if target.info is not None:
                raise StoreError(
                    f"topic {self._path} is being deleted in {self._target.name}: start a broker on "
                    f"{self._target.name} once, which completes the deletion"
                )
            return
        ids = LedgerList.decode(bytes(target.info.ledgers), 0).ledger_ids()
        if not self._progress.is_named or ids != [each.target for each in self._progress.ledgers]:
            raise StoreError(
                f"topic {self._path} already exists in {self._target.name} with other content ({len(ids)} "
                "ledgers): delete the topic there first"
            )

    async def _verify(self, source: LoadedInfo, target: LoadedInfo, ledgers: LedgerList) -> None:
        assert source.info is not None
        if target.info is None:
            raise StoreError(
                f"the check of the copy failed: topic {self._path} is not in {self._target.name}. Copy the topic again"
            )
        positions, progress = self._positions(), self._progress
        for row, copied in zip(ledgers.rows(), progress.ledgers, strict=True):
            if row.ledger_id != copied.source or row.entry_count != copied.entries:
                raise StoreError(
                    f"the check of the copy failed: the source was changed, since ledger {row.ledger_id} of "
                    f"topic {self._path} differs from the copied ledger. Copy the topic again"
                )
        found = LedgerList.decode(bytes(target.info.ledgers), 0)
        if found.ledger_ids() != [each.target for each in progress.ledgers]:
            raise StoreError(
                f"the check of the copy failed: the list of ledgers of topic {self._path} in {self._target.name} differs "
                "from the source. Delete the topic in the target and copy it again"
            )
        for ledger_id in found.open_ledger_ids():  # Pulsar's document has no counts of the last ledger
            found.close_ledger(await self._target.ledgers.recover(ledger_id), 0)
        if [row.entry_count for row in found.rows()] != [each.entries for each in progress.ledgers]:
            raise StoreError(
                f"the check of the copy failed: the number of entries in the ledgers of topic {self._path} in "
                f"{self._target.name} differs from the source. Delete the topic in the target and copy it again"
            )
        for name, expected in (await self._states(source.info, ledgers)).items():
            cursor = target.info.cursors.get(name)
            if cursor is None:
                raise StoreError(
                    f"the check of the copy failed: cursor {name} of topic {self._path} is missing in "
                    f"{self._target.name}. Delete the topic in the target and copy it again"
                )
            snapshot, deltas = await self._target.cursors.load(cursor.id)
            state = CursorState.restore(found, Position(*cursor.position), snapshot, deltas).snapshot()
            if _comparable(state) != _comparable(positions.state(expected)):
                raise StoreError(
                    f"the check of the copy failed: cursor {name} of topic {self._path} in {self._target.name} differs "
                    "from the source. Delete the topic in the target and copy it again"
                )
            if cursor.properties != source.info.cursors[name].properties:
                raise StoreError(
                    f"the check of the copy failed: the properties of cursor {name} of topic {self._path} in "
                    f"{self._target.name} differ from the source. Delete the topic in the target and copy it again"
                )

    def _contents(self, info: ManagedLedgerInfo) -> TopicContents:
        ledgers = self._progress.ledgers
        return TopicContents(
            len(ledgers),
            0,
            sum(each.entries for each in ledgers),
            sum(each.bytes for each in ledgers),
            len(info.cursors),
            self._progress.compacted is not None,
        )


async def digest_of(store: LedgerStore, ledger_id: int, entry_count: int) -> str:
    """Return the SHA-256 of a ledger's entries and their lengths, in hexadecimal digits. Raises StoreError."""
    digest, next_entry_id = hashlib.sha256(), 0
    while next_entry_id < entry_count:
        run = await store.read(ledger_id, next_entry_id, min(READ_ENTRIES, entry_count - next_entry_id), READ_BYTES)
        _add_to(digest, run.payloads)
        next_entry_id += len(run.payloads)
    return digest.hexdigest()


def _add_to(digest: hashlib._Hash, payloads: list[bytes]) -> None:
    for payload in payloads:
        digest.update(len(payload).to_bytes(_LENGTH_BYTES, "big"))
        digest.update(payload)


def _comparable(state: bytes) -> tuple[object, ...]:
    record = CursorRecord(state)
    holes = {ledger_id: list(each) for ledger_id, each in record.holes.items() if each}
    return record.mark_delete_position, holes, record.ack_sets


def _unchanged(payload: bytes) -> bytes:
    return payload


class _Appends(AppendListener):
    def __init__(self) -> None:
        self._done: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self._done = asyncio.get_running_loop().create_future()

    async def stored(self) -> None:
        if self._done is not None:
            await self._done

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        assert self._done is not None
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


class _StateOwner(CursorOwner):
    def __init__(self, state: bytes) -> None:
        self._state = state

    def snapshot(self) -> bytes:
        return self._state


class _Written:
    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: StoreError | None) -> None:
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    async def done(self) -> None:
        await self._future
