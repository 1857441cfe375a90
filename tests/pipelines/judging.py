"""What is at rest, compared with what was sent: rows of the tables, messages of the copy, files, leases."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from tests.pipelines.sending import Content, Place, quiet_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

SHOWN = 3


def compare(what: str, sent: Iterable[Content], found: Iterable[Content]) -> list[str]:
    """As multisets."""
    wanted, there = Counter(sent), Counter(found)
    problems = []
    for word, difference in (("lost", wanted - there), ("too many", there - wanted)):
        if difference:
            examples = [(each.value[:24], each.key, each.event_time_ms, n) for each, n in difference.most_common(SHOWN)]
            problems.append(f"{what}: {difference.total()} {word}, such as {examples}")
    return problems


def compare_places(what: str, told: Mapping[bytes, Place], rows: pa.Table) -> list[str]:
    """Each row has the message id that its producer was told."""
    columns = [rows[name].to_pylist() for name in ("value", "__ledgerId", "__entryId", "__batchIndex")]
    wrong = []
    for value, *found in zip(*columns, strict=True):
        place = told.get(value)
        if place is not None and tuple(found) != (place.ledger_id, place.entry_id, place.batch_index):
            wrong.append((value[:24], place, found))
    return [f"{what}: {len(wrong)} rows have another message id, such as {wrong[:SHOWN]}"] if wrong else []


def contents(rows: pa.Table) -> list[Content]:
    values, keys = rows["value"].to_pylist(), rows["__key"].to_pylist()
    properties = [tuple(sorted(each or ())) for each in rows["__messageProperties"].to_pylist()]
    times = rows["__eventTime"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    return [Content(*each) for each in zip(values, keys, properties, times, strict=True)]


def messages(broker: BrokerProcess, topic: str, subscription: str) -> list[Content]:
    """What a subscription of the official client has from its beginning on, to the end."""
    client = quiet_client(broker.url)
    consumer = client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
    last = consumer.get_last_message_id()
    found = []
    while True:
        message = consumer.receive(20_000)
        key = message.partition_key()
        properties = tuple(sorted(message.properties().items()))
        found.append(
            Content(message.data(), key.encode() if key else None, properties, message.event_timestamp() or None)
        )
        if _order(message.message_id()) >= _order(last):
            break
    client.close()
    return found


def _order(message_id: Any) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class IcebergAtRest:
    """An Iceberg table of the catalog that a lake makes by itself."""

    def __init__(self, directory: Path, table: str) -> None:
        place = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
        catalog = load_catalog("pybroker", **place)
        self._table = catalog.load_table(table)
        self._directory = directory

    def rows(self) -> pa.Table:
        return self._table.scan().to_arrow()

    def files_of_nobody(self) -> set[str]:
        """Data files and lists of manifests that no version names."""
        named = set(self._table.inspect.all_files().column("file_path").to_pylist())
        named |= {snapshot.manifest_list for snapshot in self._table.metadata.snapshots}
        on_disk = [*self._directory.rglob("*.parquet"), *self._directory.rglob("snap-*.avro")]
        return {str(path) for path in on_disk} - {path.removeprefix("file://") for path in named}


class DeltaAtRest:
    """A Delta table, read by delta-rs."""

    def __init__(self, directory: Path, table: str) -> None:
        self._directory = directory / table
        self._table = DeltaTable(str(self._directory))

    def rows(self) -> pa.Table:
        return self._table.to_pyarrow_table()

    def files_of_nobody(self) -> set[str]:
        on_disk = {str(path) for path in self._directory.rglob("*.parquet") if "_delta_log" not in path.parts}
        return on_disk - set(self._table.file_uris())


def leases_that_stay(broker: BrokerProcess, timeout_s: float) -> list[str]:
    """Leases that are still there after so long: the readers are dead, so each must have ended by itself."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        listed = call(f"{broker.http_url}/admin/v3/entries/persistent/public/default/leases").json
        if not listed or time.monotonic() > deadline_s:
            return [f"a lease stays: {each}" for each in listed]
        time.sleep(0.5)
