"""`pybroker ledger` with real bookies: list, dump, verify and orphans; no command fences or changes a ledger."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.zookeeper_server import free_port

from pybroker.bookkeeper import BookKeeperOptions, DigestType, LedgerState, Quorums
from pybroker.bookkeeper.ledger_metadata import Segment, decode_metadata
from pybroker.bookkeeper.protocol.entry_format import EntryFormat
from pybroker.bookkeeper.protocol.frames import add_request
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo, ManagedLedgerInfo, PositionInfo
from pybroker.cli.program import main
from pybroker.ledgers.ledger_properties import ClusterMark, managed_ledger_properties
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

Run = tuple[int, list[dict[str, Any]], str]
TOPIC = "public/default/persistent/t"


class Command:
    """Runs `pybroker ledger` in this process, in a thread."""

    def __init__(self, cluster: BookKeeperCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._store = f"zk:{cluster.zookeeper.address}"
        self._capsys = capsys

    async def __call__(self, *words: str, store: str | None = None) -> Run:
        arguments = [
            "ledger",
            *words,
            "--metadata-store",
            store or self._store,
            "--json",
            "--timeout",
            "0.3" if store else "20",
        ]
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, arguments)
        captured = self._capsys.readouterr()
        return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.fixture
def command(cluster: BookKeeperCluster, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(cluster, capsys)


def entry_of_pulsar(sequence_id: int, key: str) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p1", sequence_id=sequence_id, publish_time=1_700_000_000_000, partition_key=key
    )
    return framed(metadata, b"payload")


async def test_open_ledger_is_listed_and_dumped_without_fencing(cluster: BookKeeperCluster, command: Command) -> None:
    options = BookKeeperOptions(quorums=Quorums(3, 2, 2), password=b"secret")
    async with connected(cluster, options) as client:
        writer = await client.create_ledger(managed_ledger_properties(ClusterMark("c1", 1), TOPIC))
        for number in range(5):
            await writer.add(entry_of_pulsar(number, f"k{number}"))
        await writer.add(b"no entry of Pulsar")
        name = str(writer.ledger_id)

        code, items, _ = await command("list", "--state", "OPEN", "--property", f"pulsar/managed-ledger={TOPIC}")
        assert code == 0
        (found,) = [each for each in items if each["ledger"] == writer.ledger_id]
        assert (found["state"], found["entries"], found["write_quorum"]) == ("OPEN", None, 2)
        assert found["segments"] == [{"first_entry": 0, "bookies": list(writer.ensemble)}]
        assert found["properties"]["pybroker/cluster"] == "c1"

        code, items, _ = await command("dump", "--ledger", name, "--payloads")
        assert code == 0
        assert [each["kind"] for each in items] == ["ledger", "note", *["entry"] * 5]
        assert items[3]["position"] == f"{name}:1"
        assert (items[3]["key"], items[3]["producer"], items[3]["messages"]) == ("k1", "p1", 1)
        assert bytes.fromhex(items[3]["payload"]) == entry_of_pulsar(1, "k1")

        code, items, _ = await command("verify", "--ledger", name)
        assert (code, items[-1]["entries"], items[-1]["copies"]) == (0, 5, 10)

        await writer.add(b"still possible")
        metadata = await client.close_ledger(writer)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 6)
        code, items, _ = await command("dump", "--ledger", name, "--first", "5", "--last", "5")
        assert (code, [each.get("position") for each in items]) == (0, [None, f"{name}:5"])
        assert "producer" not in items[1]


async def test_ledger_of_java_is_dumped_and_verified(cluster: BookKeeperCluster, command: Command) -> None:
    arguments = ("write", "20", "3", "3", "2", "CRC32", "secret", "open")
    (name,) = await asyncio.to_thread(cluster.exchange, *arguments)
    code, items, _ = await command("dump", "--ledger", name, "--payloads")
    assert code == 0
    assert items[0]["properties"] == {"application": "java"}
    assert bytes.fromhex(items[2]["payload"]) == b"java 0"
    assert items[-1]["position"] == f"{name}:18"
    code, items, _ = await command("verify", "--ledger", name)
    assert (code, items[-1]["copies"]) == (0, 57)
    _, *entries = await asyncio.to_thread(cluster.exchange, "read", name, "CRC32", "secret")  # recovers it
    assert len(entries) == 20
    code, items, _ = await command("verify", "--ledger", name)
    assert (code, items[-1]["entries"], items[-1]["copies"]) == (0, 20, 60)


async def test_errors_tell_what_to_do(cluster: BookKeeperCluster, command: Command) -> None:
    code, items, error = await command("dump", "--ledger", "987654321")
    assert (code, items) == (2, [])
    assert "Ledger 987654321 does not exist" in error
    assert "pybroker ledger list" in error
    for words in (("list",), ("verify", "--ledger", "1")):
        code, _, error = await command(*words, store=f"zk:127.0.0.1:{free_port()}")
        assert code == 2
        assert "Check --metadata-store, and that ZooKeeper runs" in error
    code, _, error = await command("dump")
    assert (code, "needs --ledger N or --topic" in error) == (2, True)
    code, _, error = await command("verify", "data")
    assert (code, "either DIR for a data directory, or --metadata-store" in error) == (2, True)


async def test_orphans_are_listed_with_reasons(cluster: BookKeeperCluster, command: Command) -> None:
    async with connected(cluster, BookKeeperOptions(quorums=Quorums(1, 1, 1))) as client:
        writers = [
            await client.create_ledger(managed_ledger_properties(ClusterMark("orphans", 1), TOPIC)) for _ in range(3)
        ]
        await client.create_ledger(managed_ledger_properties(ClusterMark("another", 1), TOPIC))
        await client.create_ledger({"application": b"pulsar"})
        named, cursor, orphan = (each.ledger_id for each in writers)
        zookeeper = ZooKeeperClient(
            ServerAddresses.parse(cluster.zookeeper.address), ClientOptions(session_timeout_ms=10_000)
        )
        await zookeeper.start(30)
        document = b"\x0a" + bytes([2]) + b"\x08" + bytes([named])
        await zookeeper.create(f"/managed-ledgers/{TOPIC}", document, makes_parents=True)
        await zookeeper.create(f"/managed-ledgers/{TOPIC}/sub", b"\x08" + bytes([cursor]) + b"\x10\x01\x18\x02")
        words = ("orphans", "--cluster", "orphans", "--min-age-hours")

        code, items, _ = await command(*words, "24")
        assert (code, {each["reason"] for each in items[:-1]}) == (
            0,
            {"it was created recently, or its time of creation is in the future"},
        )
        assert (items[-1]["of_this_cluster"], items[-1]["orphans"], items[-1]["young"]) == (3, 0, 3)
        await asyncio.sleep(0.05)
        code, items, _ = await command(*words, "0.00001")
        assert [(each["kind"], each.get("ledger")) for each in items] == [("orphan", orphan), ("summary", None)]

        await zookeeper.set(f"/managed-ledgers/{TOPIC}", b"\x47\x78compressed")
        code, _, error = await command(*words, "0.00001")
        assert (code, "damaged" in error) == (2, True)
        await zookeeper.delete(f"/managed-ledgers/{TOPIC}/sub")
        await zookeeper.delete(f"/managed-ledgers/{TOPIC}")
        await zookeeper.close()


async def test_topic_is_listed_dumped_and_verified_by_its_documents(
    cluster: BookKeeperCluster, command: Command
) -> None:
    topic = "persistent://public/default/by documents"
    path = "/managed-ledgers/public/default/persistent/by+documents"
    async with connected(cluster, BookKeeperOptions(quorums=Quorums(2, 2, 2))) as client:
        ids = []
        for number in range(2):
            writer = await client.create_ledger()
            for each in range(3 + number):
                await writer.add(entry_of_pulsar(each, "k"))
            ids.append((writer.ledger_id, await client.close_ledger(writer)))
        state = PositionInfo(ledger_id=ids[0][0], entry_id=1)
        deleted = state.individual_deleted_messages.add()
        deleted.lower_endpoint.ledger_id = deleted.upper_endpoint.ledger_id = ids[1][0]
        deleted.lower_endpoint.entry_id, deleted.upper_endpoint.entry_id = 0, 2
        cursor = await client.create_ledger()
        await cursor.add(state.SerializeToString())
        info = ManagedLedgerInfo()
        (first, metadata), (last, _) = ids
        info.ledger_info.add(ledger_id=first, entries=3, size=metadata.length_bytes, timestamp=1)
        info.ledger_info.add(ledger_id=last, timestamp=0)
        document = ManagedCursorInfo(cursors_ledger_id=cursor.ledger_id, mark_delete_ledger_id=first)
        document.mark_delete_entry_id = -1
        zookeeper = ZooKeeperClient(
            ServerAddresses.parse(cluster.zookeeper.address), ClientOptions(session_timeout_ms=10_000)
        )
        await zookeeper.start(30)
        await zookeeper.create(path, info.SerializeToString(), makes_parents=True)
        await zookeeper.create(f"{path}/sub+1", document.SerializeToString())

        code, items, _ = await command("list", "--topic", topic)
        assert code == 0
        assert [(each["kind"], each.get("role")) for each in items] == [
            ("topic", None),
            ("ledger", "entries"),
            ("ledger", "entries"),
            ("ledger", "cursor"),
            ("cursor", None),
        ]
        assert (items[0]["ledgers"], items[0]["entries_in_closed_ledgers"], items[0]["cursors"]) == (2, 3, 1)
        assert items[-1] == {
            "kind": "cursor",
            "cursor": "sub 1",
            "ledger": cursor.ledger_id,
            "mark_delete": f"{first}:1",
            "acknowledged_ranges": 1,
            "acknowledged_behind": 2,
            "partly_acknowledged_batches": 0,
        }
        code, items, _ = await command("dump", "--topic", topic)
        assert (code, sum(each["kind"] == "entry" for each in items)) == (0, 7)  # not that of the cursor ledger
        code, items, _ = await command("verify", "--topic", topic)
        assert (code, items[-1]["ledgers"], items[-1]["copies"], items[-1]["problems"]) == (0, 3, 14, 0)

        info.ledger_info[0].entries = 5
        missing = info.ledger_info.add(ledger_id=last + 1_000_000, timestamp=0).ledger_id
        await zookeeper.set(path, info.SerializeToString())
        await client.delete_ledger(cursor.ledger_id)
        code, items, _ = await command("verify", "--topic", topic)
        texts = [each["text"] for each in items if each["kind"] == "damage"]
        assert code == 1
        assert any(f"cursor ledger {cursor.ledger_id} does not exist" in text for text in texts)
        assert any("lists 5 entries" in text and "has 3" in text for text in texts)
        assert {each["ledger"] for each in items if "but the ledger does not exist" in each.get("text", "")} == {
            missing,
            cursor.ledger_id,
        }
        code, _, error = await command("list", "--topic", "persistent://public/default/unknown")
        assert (code, "has no managed ledger" in error) == (2, True)
        await zookeeper.delete(f"{path}/sub+1")
        await zookeeper.delete(path)
        await zookeeper.close()
        for ledger_id, _ in ids:
            await client.delete_ledger(ledger_id)


class Answered:
    """Waits for the answers to adds of single bookies."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def add_answered(self, entry_id: int, index: int, bookie_id: str, code: int) -> bool:
        self.codes.append(code)
        return False

    def confirm(self) -> None: ...


async def test_verify_and_dump_find_bad_copies(cluster: BookKeeperCluster, command: Command) -> None:
    async with connected(cluster, BookKeeperOptions(quorums=Quorums(3, 3, 3))) as client:
        writer = await client.create_ledger()
        for number in range(20):
            await writer.add(b"entry %d" % number)
        ledger_id, (first, second, third) = writer.ledger_id, writer.ensemble
        format_ = EntryFormat(ledger_id, DigestType.CRC32C, b"")
        valid = [format_.pack(number, number - 1, 1000, b"payload") for number in range(24)]
        copies = {
            20: {first: format_.pack(20, 19, 1000, b"another"), second: valid[20], third: valid[20]},
            21: {first: valid[21], second: valid[21][:-1] + b"x", third: valid[21]},
            22: {first: valid[22], second: valid[22]},
            23: {first: valid[23][:-1] + b"x"},
        }
        answered = Answered()
        for entry_id, stored in copies.items():
            for bookie_id, body in stored.items():
                frame = add_request(format_.master_key, body)
                client.pool.connection(bookie_id).add(answered, 0, ledger_id, entry_id, frame)
        async with asyncio.timeout(20):
            while len(answered.codes) < 9:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert set(answered.codes) == {0}
        store = client._store
        found = await store.read(ledger_id)
        closed = decode_metadata(found.value).closed(23, 1000)
        version = await store.write(ledger_id, closed.encode(), found.version)

        code, items, _ = await command("verify", "--ledger", str(ledger_id))
        assert code == 1
        bad = {(each["state"], each["bookie"], each["first"], each["count"]) for each in items[:-1]}
        assert bad == {
            ("different", first, f"{ledger_id}:20", 1),
            ("damaged", second, f"{ledger_id}:21", 1),
            ("missing", third, f"{ledger_id}:22", 2),
            ("damaged", first, f"{ledger_id}:23", 1),
            ("missing", second, f"{ledger_id}:23", 1),
        }
        summary = items[-1]
        assert (summary["entries"], summary["copies"], summary["missing"], summary["damaged"]) == (24, 72, 3, 2)
        assert summary["entries_without_valid_copy"] == 1

        code, items, _ = await command("dump", "--ledger", str(ledger_id), "--first", "21")
        assert (code, [each["kind"] for each in items]) == (1, ["ledger", "entry", "entry", "damage"])
        assert "has no valid replica" in items[-1]["text"]

        gone = f"127.0.0.1:{free_port()}"
        moved = replace(closed, segments=(Segment(0, (first, gone, third)),), last_entry_id=19)
        await store.write(ledger_id, moved.encode(), version)
        code, items, _ = await command("verify", "--ledger", str(ledger_id))
        assert (code, items[0]["state"], items[0]["bookie"], items[0]["count"]) == (1, "unreachable", gone, 20)
        code, items, _ = await command("dump", "--ledger", str(ledger_id), "--first", "19")
        assert (code, items[-1]["position"]) == (0, f"{ledger_id}:19")
        await client.delete_ledger(ledger_id)
