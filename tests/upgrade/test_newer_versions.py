"""A broker refuses data of a newer version of pybroker with a text that names the version, and changes nothing.

Each test opens the newest sample after one version number in it was raised by one.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, new_client, until
from tests.crash.stored_topics import ROOT, Stores
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.upgrade.sample_content import DELAYED, ONCE, PARTS, PLAIN, SENT, TYPED
from tests.upgrade.samples import SETTINGS, SOURCES, load, unpack

from pybroker.broker.transactions import transaction_buffer
from pybroker.cli import main
from pybroker.dispatch.delayed import delayed_record
from pybroker.errors import StoreError
from pybroker.local_store.checkpoint.checkpoint_rows import TABLE_VERSION, row_checksum
from pybroker.managed_ledger import cursor_record, ledger_list
from pybroker.managed_ledger.info import managed_ledger_info
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR, decode_info, delayed_record_id
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.metadata.sqlite_table import LAYOUT_VERSION
from pybroker.storage_format.journal_layout import JOURNAL_VERSION
from pybroker.storage_format.segment_layout import SEGMENT_VERSION, TRAILER_BYTES
from pybroker.transactions import records

NEWEST = max(SOURCES)
VERSION_OFFSET = 8
"""Of the header of a journal file or segment."""
TRAILER_VERSION_OFFSET = 4
"""Of the trailer of a segment."""


def _unpack(state: str, target: Path) -> None:
    """Unpack the newest sample, with its metadata in the current layout: a start converts them before it reads other files."""
    unpack(NEWEST, state, target)

    async def convert() -> None:
        await (await SqliteMetadataStore.open(target / "metadata.db", mark=target / "metadata.end")).close()

    asyncio.run(convert())


# --- versions of the whole directory -----------------------------------------------------------------------------------


def _raise_checkpoint(data: Path) -> str:
    _change(
        data / "checkpoint.db",
        f"UPDATE facts SET value = {TABLE_VERSION + 1}, checksum = {row_checksum('version', TABLE_VERSION + 1)}"
        " WHERE name = 'version'",
    )
    return f"checkpoint.db cannot be opened: it has version {TABLE_VERSION + 1}, {_reads(TABLE_VERSION)}"


def _change_tables_of_checkpoint(data: Path) -> str:
    """A newer version has other tables."""
    _change(data / "checkpoint.db", "ALTER TABLE unsealed ADD COLUMN origin INTEGER NOT NULL DEFAULT 0")
    return _raise_checkpoint(data)


def _add_fact_to_checkpoint(data: Path) -> str:
    """A newer version stores one more number."""
    _change(data / "checkpoint.db", f"INSERT INTO facts VALUES ('future', 7, {row_checksum('future', 7)})")
    known = "this version of pybroker does not know its value future: start the newer version that wrote it"
    return f"checkpoint.db cannot be opened: {known}"


def _raise_metadata(data: Path) -> str:
    _change(data / "metadata.db", f"PRAGMA user_version = {LAYOUT_VERSION + 1}")
    return (
        f"metadata.db cannot be opened: the database has layout {LAYOUT_VERSION + 1}, but this pybroker reads only layouts up "
        f"to {LAYOUT_VERSION}: start the newer version that wrote it"
    )


def _reads(version: int) -> str:
    return f"but this version of pybroker reads only versions up to {version}: start the newer version that wrote it"


def _change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def _raise_at(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] += 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "raise_version",
    [_raise_checkpoint, _change_tables_of_checkpoint, _add_fact_to_checkpoint, _raise_metadata],
)
def test_start_refuses_directory_of_newer_version(raise_version: Callable[[Path], str], tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("killed", broker.data)
    text = raise_version(broker.data)
    before = _contents(broker.data)
    with pytest.raises(RuntimeError) as refused:
        broker.start()
    assert text in str(refused.value)
    assert "ledger repair" not in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert _contents(broker.data) == before
    main(["ledger", "repair", str(broker.data), "--apply", "--accept-loss"])
    assert _contents(broker.data) == before, "a repair discards nothing"


def test_start_refuses_journal_file_of_newer_version(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("killed", broker.data)
    path = max((broker.data / "journal").glob("*.journal"))
    right = path.read_bytes()
    _raise_at(path, VERSION_OFFSET)
    batch, newer_batch = (b"PJBT" + version.to_bytes(2, "little") for version in (JOURNAL_VERSION, JOURNAL_VERSION + 1))
    newer = path.read_bytes().replace(batch, newer_batch)
    path.write_bytes(newer)
    with pytest.raises(RuntimeError) as refused:
        broker.start()
    known = f"version {JOURNAL_VERSION + 1}, but this version of pybroker supports only version {JOURNAL_VERSION}"
    assert f"{path.name} cannot be read: the journal file has {known}: start the newer version that wrote it" in str(
        refused.value
    )
    assert main(["ledger", "repair", str(broker.data), "--apply", "--accept-loss"]) == 2
    assert path.read_bytes() == newer, "a repair discards nothing"
    # The start has replayed the files before it. It continues when it can read this one.
    path.write_bytes(right)
    with BrokerProcess(tmp_path, SETTINGS).running_well():
        pass
    assert main(["ledger", "verify", str(broker.data)]) == 0


def _contents(data: Path) -> dict[str, str]:
    """The digests of the files with stored data, and of the rows of databases: SQLite may merge their logs."""
    contents = {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*")
        if path.suffix in (".journal", ".ledger")
    }
    for path in data.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            contents[path.name] = "\n".join(connection.iterdump())
    return contents


# --- versions of one topic ---------------------------------------------------------------------------------------------


async def _change_info(stores: Stores, topic: str, keys: tuple[str, ...], version: int) -> None:
    found = await stores.metadata.get(ROOT + topic)
    assert found is not None
    document = inner = json.loads(found.value)
    for key in keys[:-1]:
        inner = inner[key]
    assert inner[keys[-1]] == version - 1
    inner[keys[-1]] = version
    await stores.metadata.put(ROOT + topic, json.dumps(document).encode())


async def _raise_cursor(stores: Stores) -> None:
    cursor_id = await _cursor_id(stores, PLAIN, "individual")
    await _append(stores, cursor_id, bytes([cursor_record.FORMAT_VERSION + 1, 0]))


async def _raise_transaction_snapshot(stores: Stores) -> None:
    cursor_id = await _cursor_id(stores, SENT, TRANSACTIONS_CURSOR)
    record = b"\x91" + bytes([transaction_buffer.FORMAT_VERSION + 1])  # an array of one number in MessagePack
    await _append(stores, delayed_record_id(cursor_id), record)


async def _cursor_id(stores: Stores, topic: str, name: str) -> str:
    found = await stores.metadata.get(ROOT + topic)
    assert found is not None
    return decode_info(ROOT + topic, found.value).cursors[name].id


async def _append(stores: Stores, cursor_id: str, record: bytes) -> None:
    done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    stores.store.append_delta(cursor_id, record, done.set_result)
    assert await done is None


async def _open_and(change: Callable[[Stores], Awaitable[None]], data: Path) -> None:
    stores = await Stores.open(data)
    await change(stores)
    await stores.close()


def _knows(version: int) -> str:
    return f"version {version + 1}, but this broker reads only versions up to {version}"


async def _raise_versions_of_topics(stores: Stores) -> None:
    await _change_info(stores, TYPED, ("version",), managed_ledger_info.FORMAT_VERSION + 1)
    await _change_info(stores, ONCE, ("ledgers", "version"), ledger_list.FORMAT_VERSION + 1)
    await _raise_cursor(stores)
    await _raise_transaction_snapshot(stores)


TOPICS = {
    TYPED: managed_ledger_info.FORMAT_VERSION,
    ONCE: ledger_list.FORMAT_VERSION,
    PLAIN: cursor_record.FORMAT_VERSION,
    SENT: transaction_buffer.FORMAT_VERSION,
}
"""Topics with data of a newer version, and the versions that the broker knows."""


def test_topics_of_newer_versions_are_refused_and_others_serve(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("stopped", broker.data)
    asyncio.run(_open_and(_raise_versions_of_topics, broker.data))
    with broker.running():
        topics = f"{broker.http_url}/admin/v2/persistent/public/default"
        for topic in TOPICS:
            refused = call(f"{topics}/{topic}/subscription/new", "PUT")
            assert refused.status >= 500, topic
        served = call(f"{topics}/{PARTS}-partition-0/stats")
        assert served.status == 200, served
    log = broker.log.read_text()
    for topic, version in TOPICS.items():
        refusals = [line for line in log.splitlines() if topic in line and _knows(version) in line]
        assert any("start the newer version that wrote it" in line for line in refusals), topic


# --- versions of single records and files ------------------------------------------------------------------------------


async def _raise_transaction_log(stores: Stores) -> None:
    """Append a record to the log of the first coordinator."""
    log = await stores.factory.open("/managed-ledgers/pulsar/system/persistent/__transaction_log_0")
    payload = json.dumps({"v": records.FORMAT_VERSION + 1, "kind": "new", "least": 1, "last": 1}).encode()
    log.append([payload], [1], len(payload), None)


def test_coordinator_with_log_of_newer_version_serves_no_transactions(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("stopped", broker.data)
    asyncio.run(_open_and(_raise_transaction_log, broker.data))
    with broker.running():
        until(lambda: _knows(records.FORMAT_VERSION) in broker.log.read_text())
        assert call(f"{broker.http_url}/admin/v2/persistent/public/default/{PLAIN}/stats").status == 200


async def _raise_delayed(stores: Stores) -> None:
    cursor_id = await _cursor_id(stores, DELAYED, "s")
    await _append(stores, delayed_record_id(cursor_id), bytes([delayed_record.FORMAT_VERSION + 1]).ljust(64, b"\0"))


def test_delayed_index_of_newer_version_is_rebuilt_from_the_messages(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("stopped", broker.data)
    asyncio.run(_open_and(_raise_delayed, broker.data))
    subscription = load(NEWEST, "stopped").subscription(DELAYED, "s")
    with broker.running():
        client = new_client(broker.url)
        consumer = client.subscribe(DELAYED, "s", pulsar.ConsumerType.Shared)
        texts = {consumer.receive(30_000).data().decode() for _ in subscription.left[:-1]}
        assert texts < set(subscription.left)
        assert_nothing_arrives(consumer)
        client.close()
    assert _knows(delayed_record.FORMAT_VERSION) in broker.log.read_text()


def test_start_refuses_segment_of_newer_version(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    _unpack("stopped", broker.data)
    ledger_id = int(load(NEWEST, "stopped").messages[PLAIN][0].id.partition(":")[0])
    path = broker.data / "ledgers" / f"{ledger_id:020}.ledger"
    _raise_at(path, VERSION_OFFSET)
    _raise_at(path, path.stat().st_size - TRAILER_BYTES + TRAILER_VERSION_OFFSET)
    before = _contents(broker.data)
    with pytest.raises(RuntimeError) as refused:
        broker.start()
    version = f"version {SEGMENT_VERSION + 1}, but this version of pybroker supports only version {SEGMENT_VERSION}"
    advice = "start the newer version that wrote it"
    assert f"the file of ledger {ledger_id} has {version}: {advice}" in str(refused.value)
    assert _contents(broker.data) == before
