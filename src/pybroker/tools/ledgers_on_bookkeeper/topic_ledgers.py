"""The ledgers of one topic on BookKeeper: ledgers of entries, of cursors, and of the compacted view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote_plus

from pybroker.bookkeeper import Entry, LedgerReader, LedgerState
from pybroker.bookkeeper.errors import BookKeeperError, EntryUnavailable, InvalidMetadata, NoSuchEntry, NoSuchLedger
from pybroker.bookkeeper_store.documents.cursor_documents import (
    STATE_IN_DOCUMENT,
    decode_cursor_info,
    decode_position_info,
    range_count,
    state_of_document,
    state_of_entry,
)
from pybroker.bookkeeper_store.documents.managed_ledger_documents import Extras, decode_extras, decode_pulsar_info
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedLedgerInfo as PulsarInfo
from pybroker.bookkeeper_store.pulsar_records import EXTRAS_ROOT, document_path
from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.metadata import metadata_paths
from pybroker.model.names import TopicName
from pybroker.tools.items import Item
from pybroker.tools.ledgers_on_bookkeeper.connecting import EXIT_FOUND, EXIT_OK, LedgerTool
from pybroker.tools.ledgers_on_bookkeeper.dumping import dump_ledger, open_without_recovery
from pybroker.tools.ledgers_on_bookkeeper.listing import ledger_item
from pybroker.tools.ledgers_on_bookkeeper.verifying import Verification
from pybroker.zookeeper.errors import NoNode

COMPACTED_LEDGER_PROPERTY = "CompactedTopicLedger"
"""The property of the cursor `__compaction` in which Java brokers store the id of the compacted ledger."""
ENTRIES, CURSOR, COMPACTED = "entries", "cursor", "compacted"


class NamedLedger(NamedTuple):
    """A ledger in the topic's metadata documents. `entries` and `size_bytes` are the values in the document; None if
    there are none.
    """

    ledger_id: int
    role: str
    entries: int | None = None
    size_bytes: int | None = None


@dataclass(slots=True)
class TopicDocuments:
    """The metadata documents of a topic. `states` has the complete state of each cursor by name."""

    topic: TopicName
    info: PulsarInfo
    extras: Extras | None
    cursors: dict[str, ManagedCursorInfo]
    states: dict[str, CursorRecord]
    compacted_id: int | None

    def ledgers(self) -> list[NamedLedger]:
        found = []
        for row in sorted(self.info.ledger_info, key=lambda row: row.ledger_id):
            is_counted = row.entries > 0
            entries, size_bytes = (row.entries, row.size) if is_counted else (None, None)
            found.append(NamedLedger(row.ledger_id, ENTRIES, entries, size_bytes))
        cursors = sorted(self.cursors.values(), key=lambda each: each.cursors_ledger_id)
        found += [
            NamedLedger(each.cursors_ledger_id, CURSOR)
            for each in cursors
            if each.cursors_ledger_id != STATE_IN_DOCUMENT
        ]
        if self.compacted_id is not None:
            found.append(NamedLedger(self.compacted_id, COMPACTED))
        return found


class TopicReader:
    """Reads the metadata documents of a topic, and counts and prints unreadable documents."""

    def __init__(self, tool: LedgerTool, topic: TopicName) -> None:
        self._tool = tool
        self._topic = topic
        self.damage_count = 0

    def damage(self, text: str, **more: object) -> None:
        self.damage_count += 1
        self._tool.write({"kind": "damage", **more, "text": text})

    async def read(self) -> TopicDocuments:
        """Read the topic's metadata documents. Raises StoreError if the topic does not exist or its document is
        damaged, and ZooKeeperError.
        """
        path = metadata_paths.managed_ledger(self._topic)
        document = document_path(path)
        zookeeper = self._tool.zookeeper
        try:
            value, _ = await zookeeper.get(document)
            names = await zookeeper.children(document)
        except NoNode as error:
            raise StoreError(
                f"topic {self._topic} has no managed ledger in the metadata store. Check its name: a partitioned topic has ledgers"
                " only for its partitions (TOPIC-partition-0)"
            ) from error
        info = decode_pulsar_info(path, value)
        extras = None
        try:
            stored, _ = await zookeeper.get(EXTRAS_ROOT + path)
            extras = decode_extras(path, stored)
        except NoNode:
            pass
        found = TopicDocuments(self._topic, info, extras, {}, {}, None)
        for name in sorted(names):
            try:
                value, _ = await zookeeper.get(f"{document}/{name}")
            except NoNode:
                continue  # deleted meanwhile
            await self._read_cursor(found, unquote_plus(name), value)
        return found

    async def _read_cursor(self, found: TopicDocuments, name: str, value: bytes) -> None:
        try:
            cursor = decode_cursor_info(name, value)
            found.cursors[name] = cursor
            found.states[name] = CursorRecord(state_of_document(cursor))
            properties = {each.name: each.value for each in cursor.properties}
            if cursor.cursors_ledger_id != STATE_IN_DOCUMENT:
                last = await _last_entry(await open_without_recovery(self._tool, cursor.cursors_ledger_id))
                if last is not None:
                    entry = decode_position_info(name, last.payload)
                    found.states[name] = CursorRecord(state_of_entry(entry))
                    properties |= {each.name: each.value for each in entry.properties}
        except NoSuchLedger:
            self.damage(f"cursor ledger {cursor.cursors_ledger_id} does not exist", cursor=name)
        except (BookKeeperError, StoreError) as error:
            self.damage(str(error), cursor=name)
        else:
            compacted_id = properties.get(COMPACTED_LEDGER_PROPERTY)
            if compacted_id is not None and found.compacted_id is None:
                found.compacted_id = compacted_id


async def _last_entry(reader: LedgerReader) -> Entry | None:
    """Return the last entry of the ledger. In an open ledger it may be after the last confirmed entry."""
    found = None if reader.last_readable < 0 else await reader.read_entry(reader.last_readable)
    if reader.metadata.state is LedgerState.CLOSED:
        return found
    next_entry_id = reader.last_readable + 1
    while True:
        try:
            found = await reader.read_entry(next_entry_id)
        except (NoSuchEntry, EntryUnavailable):
            return found
        next_entry_id += 1


async def list_topic(tool: LedgerTool, topic: TopicName) -> int:
    """Print the topic, its ledgers, and its cursors. Return the exit code."""
    reader = TopicReader(tool, topic)
    documents = await reader.read()
    _write_topic(tool, documents)
    for named in documents.ledgers():
        metadata = await _metadata(tool, reader, named)
        if metadata is not None:
            tool.write(metadata | {"role": named.role})
    _write_cursors(tool, documents)
    return EXIT_FOUND if reader.damage_count else EXIT_OK


async def dump_topic(tool: LedgerTool, topic: TopicName, *, with_payloads: bool) -> int:
    """Print the topic, the entries of its ledgers, and its cursors. Return the exit code."""
    reader = TopicReader(tool, topic)
    documents = await reader.read()
    _write_topic(tool, documents)
    exit_code = EXIT_OK
    for named in documents.ledgers():
        if named.role == CURSOR:
            continue  # Its last entry is the state below.
        try:
            exit_code |= await dump_ledger(tool, named.ledger_id, 0, None, with_payloads=with_payloads)
        except BookKeeperError as error:
            reader.damage(str(error), ledger=named.ledger_id, role=named.role)
    _write_cursors(tool, documents)
    return EXIT_FOUND if reader.damage_count else exit_code


async def verify_topic(tool: LedgerTool, topic: TopicName) -> int:
    """Read every copy of every entry of the topic's ledgers, and compare the numbers of entries with the topic's
    metadata. Return the exit code.
    """
    reader = TopicReader(tool, topic)
    documents = await reader.read()
    verification = Verification(tool)
    for named in documents.ledgers():
        metadata = await _metadata(tool, reader, named)
        if metadata is None:
            continue
        stored = (metadata["entries"], metadata["size_bytes"])
        if named.entries is not None and stored != (named.entries, named.size_bytes):
            reader.damage(
                f"the managed ledger info lists {named.entries} entries with {named.size_bytes} bytes, but the ledger has"
                f" {stored[0]} entries with {stored[1]} bytes",
                ledger=named.ledger_id,
            )
        await verification.verify_one(named.ledger_id)
    exit_code = verification.finish({"topic": str(topic), "problems": reader.damage_count})
    return EXIT_FOUND if reader.damage_count else exit_code


async def _metadata(tool: LedgerTool, reader: TopicReader, named: NamedLedger) -> Item | None:
    try:
        return ledger_item(named.ledger_id, await tool.client.ledger_metadata(named.ledger_id))
    except NoSuchLedger:
        text = "the metadata of the topic lists the ledger, but the ledger does not exist"
    except InvalidMetadata as error:
        text = str(error)
    reader.damage(text, ledger=named.ledger_id, role=named.role)
    return None


def _write_topic(tool: LedgerTool, documents: TopicDocuments) -> None:
    named = [each for each in documents.ledgers() if each.role == ENTRIES]
    tool.write(
        {
            "kind": "topic",
            "topic": str(documents.topic),
            "ledgers": len(named),
            "entries_in_closed_ledgers": sum(each.entries or 0 for each in named),
            "bytes_in_closed_ledgers": sum(each.size_bytes or 0 for each in named),
            "cursors": len(documents.cursors),
            "terminated": documents.info.HasField("terminated_position"),
            "properties": {each.key: each.value for each in documents.info.properties},
        }
    )


def _write_cursors(tool: LedgerTool, documents: TopicDocuments) -> None:
    for name, cursor in documents.cursors.items():
        item: Item = {"kind": "cursor", "cursor": name}
        if cursor.cursors_ledger_id != STATE_IN_DOCUMENT:
            item["ledger"] = cursor.cursors_ledger_id
        state = documents.states.get(name)
        if state is not None:
            item |= {
                "mark_delete": str(state.mark_delete_position),
                "acknowledged_ranges": range_count(state),
                "acknowledged_behind": sum(map(len, state.holes.values())),
                "partly_acknowledged_batches": len(state.ack_sets),
            }
        if cursor.cursor_properties:
            item["properties"] = {each.name: each.value for each in cursor.cursor_properties}
        tool.write(item)
