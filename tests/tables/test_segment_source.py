"""Segment files of a broker on this host: the same entries as in bulk, whatever happens to the files meanwhile."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.tables.stored import bodies_of, body_of, payload_of, publish, ranges_of

from pybroker.client import ClientError
from pybroker.client.access import Access
from pybroker.reading.entry_source import DataLoss, EntrySource, ReadingFailed
from pybroker.reading.positions import EntryRange
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.reading.transports.bulk_source import BulkSource
from pybroker.reading.transports.segment_source import SegmentSource

TOPIC = "persistent://public/default/t"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that this test may kill, and that trims nothing."""
    keeps_all = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    process = BrokerProcess(tmp_path, keeps_all).start()
    yield process
    process.stop()


def options(broker: BrokerProcess, mode: str = "auto", directory: Path | None = None) -> SourceOptions:
    return SourceOptions(Access(broker.url, broker.http_url), mode, directory, patience_s=20)


@contextlib.contextmanager
def opened(broker: BrokerProcess, mode: str) -> Iterator[EntrySource]:
    with contextlib.closing(open_source(options(broker, mode))) as source:
        yield source


@contextlib.contextmanager
def client_of(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    with contextlib.closing(new_client(broker.url)) as client:
        yield client


def restarted_with(broker: BrokerProcess, count: int, *, size: int = 100) -> list[bytes]:
    """Messages in a sealed ledger."""
    with client_of(broker) as client:
        sent = publish(client, TOPIC, count, size=size)
    assert broker.stop() == 0
    broker.start()
    return sent


def files_of(broker: BrokerProcess) -> Path:
    return broker.data / "ledgers"


def test_all_ways_see_what_a_reader_sees(own_broker: BrokerProcess) -> None:
    sent = restarted_with(own_broker, 3000)
    with client_of(own_broker) as client:
        sent += publish(client, TOPIC, 50, serial=3000)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        seen = [reader.read_next(10_000).data() for _ in sent]
    assert seen == sent
    for mode in ("auto", "segment", "bulk"):
        with opened(own_broker, mode) as source:
            assert isinstance(source, BulkSource if mode == "bulk" else SegmentSource)
            assert bodies_of(source, source.plan(TOPIC)) == sent


def test_a_file_that_is_deleted_is_read_to_its_end_and_then_is_data_loss(own_broker: BrokerProcess) -> None:
    sent = restarted_with(own_broker, 200, size=100_000)
    with opened(own_broker, "segment") as source:
        entries = ranges_of(source.plan(TOPIC))[0]
        runs = source.read(entries)
        found = [next(runs)]
        source.rest.json("DELETE", "/admin/v2/persistent/public/default/t?force=true")  # type: ignore[attr-defined]
        assert not list(files_of(own_broker).glob(f"*{entries.ledger_id}.ledger"))
        found += runs
        assert [body_of(payload_of(run, i)) for run in found for i in range(run.entry_count)] == sent
        with pytest.raises(DataLoss, match="are lost"):
            list(source.read(entries))


@pytest.mark.parametrize("mode", ["segment", "bulk"])
def test_damage_is_data_loss_of_exactly_the_damaged_entries(own_broker: BrokerProcess, mode: str) -> None:
    sent = restarted_with(own_broker, 100, size=1000)
    with opened(own_broker, mode) as source:
        entries = ranges_of(source.plan(TOPIC))[0]
        path = files_of(own_broker) / f"{entries.ledger_id:020d}.ledger"
        data = bytearray(path.read_bytes())
        place = data.index(sent[40], data.index(b"39:xx"))
        data[place + 500] ^= 1
        path.write_bytes(data)
        before = EntryRange(TOPIC, entries.ledger_id, 0, 40)
        behind = EntryRange(TOPIC, entries.ledger_id, 41, 100)
        for part, expected in [(before, sent[:40]), (behind, sent[41:])]:
            found = [body_of(payload_of(run, i)) for run in source.read(part) for i in range(run.entry_count)]
            assert found == expected
        with pytest.raises(DataLoss, match=f"{entries.ledger_id}:40 to {entries.ledger_id}:40 are damaged"):
            list(source.read(entries))


def test_a_directory_that_is_not_the_brokers_is_refused_and_passed_over(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    other = tmp_path / "copy"
    (other / "ledgers").mkdir(parents=True)
    (other / "run.id").write_text("0" * 32)
    with pytest.raises(ReadingFailed, match="not the data directory of the broker"):
        open_source(options(own_broker, "segment", other))
    source = open_source(options(own_broker, "auto", other))
    assert type(source) is BulkSource
    source.close()
    with pytest.raises(ReadingFailed, match="cannot be read"):
        open_source(options(own_broker, "segment", tmp_path / "nowhere"))


def test_a_broker_that_keeps_nothing_in_files_is_read_in_bulk(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"ledgerStore": "memory", "metadataStore": "memory"}).running() as broker:
        with client_of(broker) as client:
            sent = publish(client, TOPIC, 100)
        with opened(broker, "auto") as source:
            assert type(source) is BulkSource
            assert bodies_of(source, source.plan(TOPIC)) == sent


def test_a_mode_that_nobody_knows_or_that_lacks_an_address_is_refused() -> None:
    with pytest.raises(ReadingFailed, match="use one of"):
        open_source(SourceOptions(Access("pulsar://127.0.0.1:1"), "fast"))
    with pytest.raises(ClientError, match=r"admin\.url"):
        open_source(SourceOptions(Access("pulsar://127.0.0.1:1"), "bulk"))
