"""Compacted views, cursors with properties and snapshots of transactions, encoded and decoded by the classes of a Java broker."""

from __future__ import annotations

import subprocess

from tests.support.bookkeeper_cluster import EXCHANGE
from tests.support.java_broker import class_path

from pybroker.bookkeeper_store.documents.cursor_documents import decode_position_info, state_of_entry
from pybroker.bookkeeper_store.documents.cursor_node import (
    COMPACTED_LEDGER,
    COMPACTION_CURSOR,
    DEDUPLICATION_CURSOR,
    CursorNode,
)
from pybroker.broker.cluster.java_snapshot_format import encode_snapshot
from pybroker.compaction.stored_entry import PulsarFormat
from pybroker.managed_ledger.cursor_record import CursorRecord
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo, CursorInfo
from pybroker.model.names import TopicName
from pybroker.model.position import Position

PROGRAM = EXCHANGE.parent / "PulsarFormats.java"
TOPIC = "persistent://public/default/topic"


def java(*words: str) -> list[str]:
    """Run commands of the program, and return their results."""
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path(), str(PROGRAM), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return [line[1:] for line in result.stdout.splitlines() if line.startswith("=")]


class _Record:
    """The documents of a managed ledger, which are not stored."""

    async def save(self) -> None: ...

    async def put_beside(self, path: str, value: bytes, expected_version: int) -> None: ...


def cursor(name: str, properties: dict[str, str], view: CompactedInfo | None = None) -> str:
    """Return the document of a cursor, as this broker stores it."""
    node = CursorNode("/managed-ledgers/t", name, None, _Record())
    return node.encode(CursorInfo("id", (3, 4), properties), view, 1).hex()


def test_formats_are_read_by_java_and_those_of_java_are_read() -> None:
    stored = PulsarFormat()
    view = CompactedInfo(12, 2, 100, (5, 6))
    compacted, position, *told = java(
        *("write-compacted", "7", "9", "entry"),
        *("write-position", "7", "9", "p", "17"),
        *("read-compacted", stored.encode(Position(1 << 40, 0), b"own entry").hex()),
        *("read-snapshot", encode_snapshot(TopicName.parse(TOPIC), Position(1 << 40, -1)).hex()),
        *("read-cursor", cursor(COMPACTION_CURSOR, {}, view)),
        *("read-cursor", cursor(DEDUPLICATION_CURSOR, {"p": "17", "q": "-1"})),
    )
    assert told == [
        f"{1 << 40}:0 own entry",
        f"{TOPIC} {1 << 40}:-1 0",
        f"-1 5:6 {COMPACTED_LEDGER}=12",
        "-1 3:4 p=17 q=-1",
    ]
    entry = stored.decode(bytes.fromhex(compacted), 1)
    assert (entry.position, entry.payload) == (Position(7, 9), b"entry")
    state = decode_position_info("c", bytes.fromhex(position))
    assert {each.name: each.value for each in state.properties} == {"p": 17}
    assert CursorRecord(state_of_entry(state)).mark_delete_position == Position(7, 9)
