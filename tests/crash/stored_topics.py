"""Topics in a data directory that is to be damaged: the process that makes them and is killed, and what is found of them.

Run as a program it makes them below the directory that it is given, with a journal that is "synced" or not, prints what it was
promised as JSON, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.data_directories import copy_data_directory

from pybroker.compaction.stored_entry import OwnFormat
from pybroker.compaction.view import read_view
from pybroker.dispatch.delayed.delayed_entries import DelayedRun
from pybroker.dispatch.delayed.delayed_record import encode_more, encode_whole, stored_runs
from pybroker.errors import DamagedEntries, StoreError
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.ledgers.known_data import KnownData, decode_mark, encode_mark
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.data_directory import DataDirectoryLock
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.start_up import older_table_text
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.orphaned_ledgers import (
    delete_orphaned_ledgers,
    find_orphaned_ledgers,
    lost_names_text,
    named_entry_counts,
)
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata.metadata_paths import JOURNAL_MARK
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

OPTIONS = LocalStoreOptions(
    direct_io=False, journal_file_bytes=1 << 17, checkpoint_max_bytes=1 << 30, reserve_bytes=1 << 16, read_threads=1
)
UNSYNCED_OPTIONS = replace(OPTIONS, sync_data=False)
LIMITS = LedgerLimits(max_entries_per_ledger=40, min_rollover_ms=0)
ROOT = "/managed-ledgers/public/default/persistent/"
TOPICS = ("orders", "logs", "invoices", "mails")
DELETED_TOPIC = "deleted"
SUBSCRIPTIONS = ("one by one", "in holes")
RUNS = 3
OLDER = "older"
"""The directory as it was after an earlier stop."""
KILLED = "killed"
"""The directory that the process left when it was killed."""
STOPPED = "stopped"
"""The same after one more start and an orderly stop."""
DELAYED = {"orders": SUBSCRIPTIONS[0], "logs": SUBSCRIPTIONS[1]}
"""Subscriptions of which delayed entries are stored; those of `orders` as records, those of `logs` as a snapshot and records."""
COMPACTED = ("invoices", "mails")
DUE_MS = 4_000_000_000_000


def payload(topic: str, number: int) -> bytes:
    """What every reader can work out again; those of `logs` are so large that a ledger of them has several blocks."""
    return f"{topic}:{number};".encode() * (400 if topic == "logs" else 1 + number % 30)


@dataclass
class Promised:
    """Of one topic: positions of its entries in their order, and for each subscription those whose acknowledgement was stored."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    acked: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    delayed: list[tuple[int, int]] = field(default_factory=list)
    """Positions whose due times are stored."""
    view: list[tuple[int, int]] = field(default_factory=list)
    """Positions in the compacted view, in its order."""
    view_ledger: int = -1


class _Topic(ManagedLedgerListener):
    """Appends, acknowledges, and waits until that is stored."""

    def __init__(self, name: str, ledger: ManagedLedger, promised: Promised) -> None:
        self.ledger = ledger
        self._name = name
        self._promised = promised
        self._stored = asyncio.Semaphore(0)
        ledger.listen(self)

    def entries_added(self, runs: list[AppendRun]) -> None:
        for run in runs:
            for number in range(len(run.payloads)):
                self._promised.entries.append((run.ledger_id, run.first_entry_id + number))
                self._stored.release()

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        raise AssertionError("these stores know the outcome of every append")

    def fenced(self, error: StoreError) -> None:
        raise AssertionError("nobody else writes here") from error

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        raise AssertionError from error

    async def append(self, count: int) -> None:
        first = len(self._promised.entries)
        for number in range(first, first + count):
            data = payload(self._name, number)
            self.ledger.append([data], [1], len(data), None)
            await self._stored.acquire()

    async def acknowledge(self, subscription: str, numbers: range) -> None:
        cursor = self.ledger.cursors[subscription]
        for number in numbers:
            position = self._promised.entries[number]
            cursor.state.acknowledge(position[0], [position[1]])
            self._promised.acked[subscription].append(position)
        await _written(cursor)

    async def delay(self, stores: Stores, subscription: str, numbers: range) -> None:
        """Store when these entries are due, as a broker does that holds them back."""
        cursor = self.ledger.cursors[subscription]
        record_id = await cursor.announce_delayed()
        for number in numbers:
            position = self._promised.entries[number]
            record = encode_more([_due(*position)])
            done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
            stores.store.append_delta(record_id, record, done.set_result)
            assert await done is None
            self._promised.delayed.append(position)
        if self._name == "logs":
            stores.store.attach(record_id, _DelayedOwner(self._promised))

    async def compact(self, stores: Stores, *, is_finished: bool = True) -> None:
        """Every third entry stays, as if the others had keys that come again."""
        numbers = range(0, len(self._promised.entries), 3)
        places = [self._promised.entries[number] for number in numbers]
        payloads = [OwnFormat().encode(Position(*self._promised.entries[n]), payload(self._name, n)) for n in numbers]
        before = self.ledger.compacted
        ledger_id = await self.ledger.begin_compacted(self.ledger.compacted_drops)
        size_bytes = sum(map(len, payloads))
        written = _Written()
        stores.store.append(AppendRun(written, ledger_id, 0, payloads, [1] * len(payloads), size_bytes, None))
        await written.done
        if not is_finished:
            return
        await stores.store.seal(ledger_id)
        horizon = self.ledger.last_confirmed
        view = CompactedInfo(ledger_id, len(payloads), size_bytes, (horizon.ledger_id, horizon.entry_id))
        await self.ledger.replace_compacted(before, view)
        self._promised.view, self._promised.view_ledger = places, ledger_id


class _Written(AppendListener):
    """Waits for one run."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        assert error is None
        self.done.set_result(None)


class _DelayedOwner(CursorOwner):
    """Gives a checkpoint the whole of what is delayed."""

    def __init__(self, promised: Promised) -> None:
        self._promised = promised

    def snapshot(self) -> bytes:
        return encode_whole([_due(*position) for position in self._promised.delayed])


def _due(ledger_id: int, entry_id: int) -> DelayedRun:
    return DelayedRun(ledger_id, entry_id, array("Q", [DUE_MS + entry_id << 22]))


async def _written(cursor: ManagedCursor) -> None:
    done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    cursor.changed(done.set_result)
    assert await done is None


def _never(error: BaseException) -> None:
    raise AssertionError from error


@dataclass
class Stores:
    """What a broker opens at its start, in the same order."""

    metadata: SqliteMetadataStore
    store: LocalStore
    factory: ManagedLedgerFactory

    @staticmethod
    async def open(directory: Path, options: LocalStoreOptions = OPTIONS) -> Stores:
        metadata = await SqliteMetadataStore.open(directory / "metadata.db", mark=directory / "metadata.end")
        try:
            found = await metadata.get(JOURNAL_MARK)
            mark = decode_mark(None if found is None else found.value)
            known = KnownData(mark, await named_entry_counts(metadata))
            store = await LocalStore.open(directory, options, _never, known=known)
            await metadata.keep_beside(JOURNAL_MARK, lambda: encode_mark(store.mark()))
        except BaseException:
            await metadata.close()
            raise
        resources = LedgerResources(store, EntryCache(0), LIMITS, Clock(), 5, lambda _: 0)
        factory = ManagedLedgerFactory(resources, store, metadata)
        return Stores(metadata, store, factory)

    async def close(self) -> None:
        await self.factory.close()
        await self.store.close()
        await self.metadata.close()


async def _make(root: Path, options: LocalStoreOptions) -> None:
    directory = root / KILLED
    directory.mkdir()
    DataDirectoryLock(directory).release()
    promised = {name: Promised(acked={subscription: [] for subscription in SUBSCRIPTIONS}) for name in TOPICS}
    for run in range(RUNS):
        if run == RUNS - 1:
            copy_data_directory(directory, root / OLDER)
        stores = await Stores.open(directory, options)
        topics = [_Topic(name, await stores.factory.open(ROOT + name), promised[name]) for name in TOPICS]
        if run == 0:
            for topic in topics:
                for subscription in SUBSCRIPTIONS:
                    await stores.factory.create_cursor(
                        topic.ledger, subscription, topic.ledger.last_confirmed, {"a": "b"}
                    )
            deleted = _Topic(DELETED_TOPIC, await stores.factory.open(ROOT + DELETED_TOPIC), Promised())
            await deleted.append(10)
        await _traffic(topics, 70)
        await _delay_and_compact(stores, topics)
        if run == RUNS - 1:
            # All of it is in segments and in the table, and then there is more, which is in the journal only.
            assert await stores.store._checkpointer.run()
            await stores.factory.delete(await stores.factory.open(ROOT + DELETED_TOPIC))
            await _traffic(topics, 30)
            await _delay_and_compact(stores, topics[:-1])
            await topics[-1].compact(stores, is_finished=False)
            sys.stdout.write(json.dumps({name: vars(topic) for name, topic in promised.items()}) + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        await stores.close()


async def _delay_and_compact(stores: Stores, topics: list[_Topic]) -> None:
    for topic in topics:
        count = len(topic._promised.entries)
        if topic._name in DELAYED:
            await topic.delay(stores, DELAYED[topic._name], range(count - 20, count, 4))
        if topic._name in COMPACTED:
            await topic.compact(stores)


async def _traffic(topics: list[_Topic], count: int) -> None:
    for topic in topics:
        first = len(topic._promised.entries)
        await topic.append(count)
        await topic.acknowledge(SUBSCRIPTIONS[0], range(first, first + count // 2))
        await topic.acknowledge(SUBSCRIPTIONS[1], range(first + 1, first + count, 3))


@dataclass
class Found:
    """What a start makes of a directory. Everything in `wrong` is a broken promise."""

    refused: str = ""
    """Why nothing could be opened."""
    refused_topics: dict[str, str] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Positions whose entry is said to be damaged."""
    missing_ledgers: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    has_told_gap: bool = False
    """Something is gone, and a log line says so."""

    @property
    def kind(self) -> str:
        """The outcome in a word."""
        if self.wrong:
            return "wrong"
        if self.refused:
            return "start refused"
        if self.refused_topics:
            return "topic refused"
        return "gap" if self.gaps or self.missing_ledgers or self.has_told_gap else "right"


async def look(directory: Path, promised: dict[str, Promised], options: LocalStoreOptions = OPTIONS) -> Found:
    """Open the directory as a start does, read every entry and every cursor, and close it."""
    found = Found()
    try:
        stores = await Stores.open(directory, options)
    except StoreError as error:
        found.refused = str(error) or "no text"
        return found
    try:
        earlier_ids = set(await stores.store.list_ledgers())
        leftovers = await find_orphaned_ledgers(stores.store, stores.metadata, earlier_ids)
        if leftovers.ids_not_given:
            found.refused = older_table_text("checkpoint.db", leftovers.ids_not_given)
            return found
        if lost := leftovers.lost_names(stores.store):
            found.refused = lost_names_text(directory, lost, has_topics=True)
            return found
        await delete_orphaned_ledgers(stores.store, leftovers)
        for name, topic in promised.items():
            try:
                if not await stores.factory.exists(ROOT + name):
                    found.wrong.append(f"topic {name} is gone")
                    continue
                ledger = await stores.factory.open(ROOT + name)
            except StoreError as error:
                found.refused_topics[name] = str(error)
                continue
            if ledger.current_ledger_id in earlier_ids | {ledger_id for ledger_id, _ in topic.entries}:
                found.wrong.append(f"ledger id {ledger.current_ledger_id} is given out again")
            await _look_at_entries(name, ledger, topic, found)
            _look_at_cursors(name, ledger, topic, found)
            _look_at_delayed(name, ledger, topic, found)
            await _look_at_view(name, stores, ledger, topic, found)
        try:
            if await stores.factory.exists(ROOT + DELETED_TOPIC):
                found.wrong.append("the deleted topic is back")
        except StoreError as error:
            found.refused_topics[DELETED_TOPIC] = str(error)
    finally:
        await stores.close()
    return found


async def _look_at_entries(name: str, ledger: ManagedLedger, topic: Promised, found: Found) -> None:
    wanted = dict(zip(topic.entries, range(len(topic.entries)), strict=True))
    there = sum(row.entry_count for row in ledger.ledgers.rows())
    if there > len(wanted):
        found.wrong.append(f"{name} has {there} entries of {len(wanted)}")
    read: set[tuple[int, int]] = set()
    for position in wanted:
        if position in read or position in found.gaps or position[0] in found.missing_ledgers:
            continue
        if not ledger.ledgers.has_entry(Position(*position)):
            found.wrong.append(f"{name} has no entry {position}")
            continue
        try:
            run = await ledger.read(Position(*position), 100, 1 << 20)
        except DamagedEntries as error:
            found.gaps += [(error.ledger_id, entry) for entry in range(error.first_entry_id, error.last_entry_id + 1)]
            if position not in found.gaps:
                found.wrong.append(f"{position} is not in the damage that reading it names: {error}")
            continue
        except StoreError as error:
            if f"{position[0]}" not in str(error):
                found.wrong.append(f"reading {position} says {error}")
            found.missing_ledgers.add(position[0])
            continue
        if (run.ledger_id, run.first_entry_id) != position:
            found.wrong.append(f"{name} answers {run.ledger_id}:{run.first_entry_id} to {position}")
        for index, data in enumerate(run.payloads):
            place = (run.ledger_id, run.first_entry_id + index)
            read.add(place)
            if place not in wanted or data != payload(name, wanted[place]):
                found.wrong.append(f"{name} has wrong bytes at {place}")


def _look_at_cursors(name: str, ledger: ManagedLedger, topic: Promised, found: Found) -> None:
    for subscription, acked in topic.acked.items():
        cursor = ledger.cursors.get(subscription)
        if cursor is None:
            found.wrong.append(f"{name} has lost the subscription {subscription!r}")
            continue
        there = {entry for entry in topic.entries if ledger.ledgers.has_entry(Position(*entry))}
        deleted = {entry for entry in there if cursor.state.is_deleted(*entry)}
        if undone := set(acked) & there - deleted:
            found.wrong.append(f"{name}, {subscription!r}: {len(undone)} acknowledgements undone, first {min(undone)}")
        if more := deleted - set(acked):
            found.wrong.append(f"{name}, {subscription!r}: {len(more)} never acknowledged, first {min(more)}")


def _look_at_delayed(name: str, ledger: ManagedLedger, topic: Promised, found: Found) -> None:
    """What is stored in vain does no harm; but an entry that is not to wait, or for another time, would not be delivered."""
    for subscription, cursor in ledger.cursors.items():
        wanted = set(topic.delayed if DELAYED.get(name) == subscription else ())
        there = set()
        for run in stored_runs(cursor.stored_delayed):
            place = (run.ledger_id, run.entry_id)
            if place not in wanted or run.due_ms != DUE_MS + run.entry_id:
                found.wrong.append(f"{name}, {subscription!r}: {place} was never delayed until {run.due_ms}")
            there.add(place)
        if lost := wanted - there:
            found.wrong.append(f"{name}, {subscription!r}: {len(lost)} due times lost, first {min(lost)}")


async def _look_at_view(name: str, stores: Stores, ledger: ManagedLedger, topic: Promised, found: Found) -> None:
    view = ledger.compacted
    if (-1 if view is None else view.ledger) != topic.view_ledger:
        found.wrong.append(f"{name} has the view {view}")
        return
    index = 0
    while view is not None and index < view.entries:
        try:
            entries = await read_view(stores.store, view, index, 100, 1 << 20)
        except DamagedEntries as error:
            ids = range(error.first_entry_id, error.last_entry_id + 1)
            if error.ledger_id != view.ledger or index not in ids:
                found.wrong.append(f"{view.ledger}:{index} is not in the damage that reading it names: {error}")
            found.gaps += [(view.ledger, entry) for entry in ids]
            index = max(index, error.last_entry_id) + 1
            continue
        except StoreError as error:
            if f"{view.ledger}" not in str(error):
                found.wrong.append(f"reading the view {view.ledger}:{index} says {error}")
            found.missing_ledgers.add(view.ledger)
            break
        for entry in entries:
            wanted = topic.view[index] if index < len(topic.view) else None
            if tuple(entry.position) != wanted or entry.payload != payload(name, topic.entries.index(wanted)):
                found.wrong.append(f"{name} has something else at {view.ledger}:{index} of its view")
            index += 1
    if view is not None and index != len(topic.view) and view.ledger not in found.missing_ledgers:
        found.wrong.append(f"{name} has {index} entries of {len(topic.view)} in its view")


def promised_from(line: str) -> dict[str, Promised]:
    """What the process printed."""
    said: dict[str, dict[str, Any]] = json.loads(line)
    return {
        name: Promised(
            [(ledger_id, entry_id) for ledger_id, entry_id in topic["entries"]],
            {key: [(ledger_id, entry_id) for ledger_id, entry_id in acked] for key, acked in topic["acked"].items()},
            [(ledger_id, entry_id) for ledger_id, entry_id in topic["delayed"]],
            [(ledger_id, entry_id) for ledger_id, entry_id in topic["view"]],
            topic["view_ledger"],
        )
        for name, topic in said.items()
    }


if __name__ == "__main__":
    logs.configure("error")
    asyncio.run(_make(Path(sys.argv[1]), OPTIONS if sys.argv[2:] == ["synced"] else UNSYNCED_OPTIONS))
