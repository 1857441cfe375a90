"""Ranges with damage in the middle, and with entries that brokers send to nobody: all the other messages are read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.tables.stored import publish, ranges_of
from tests.tables.test_segment_source import TOPIC, client_of, files_of, opened, restarted_with

from pybroker.reading.entry_source import DataLoss, EntrySource
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.message_batches import MessageReader, MessageReading


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose files this test may damage, and that trims nothing."""
    keeps_all = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    process = BrokerProcess(tmp_path, keeps_all).start()
    yield process
    process.stop()


def values_of(source: EntrySource) -> list[bytes]:
    reader = MessageReader(source, MessageReading(("value",)))
    plan = source.plan(TOPIC)
    return [
        value for part in ranges_of(plan) for batch in reader.read(part) for value in batch.column("value").to_pylist()
    ]


@pytest.mark.parametrize("mode", ["segment", "bulk"])
def test_all_messages_around_damage_are_read_where_loss_is_allowed(own_broker: BrokerProcess, mode: str) -> None:
    sent = restarted_with(own_broker, 100, size=1000)
    with opened(own_broker, mode) as source:
        (entries,) = ranges_of(source.plan(TOPIC))
        path = files_of(own_broker) / f"{entries.ledger_id:020d}.ledger"
        data = bytearray(path.read_bytes())
        for number in (31, 32, 77):
            data[data.index(b"%d:xx" % number) + 500] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataLoss, match=f"{entries.ledger_id}:31"):
            values_of(source)
        assert values_of(LossyReads(source)) == [*sent[:31], *sent[33:77], *sent[78:]]


@pytest.mark.parametrize("mode", ["segment", "bulk"])
def test_a_damaged_block_takes_no_more_along_than_up_to_the_next_place_of_the_index(
    own_broker: BrokerProcess, mode: str
) -> None:
    sent = restarted_with(own_broker, 60, size=200_000)
    with opened(own_broker, mode) as source:
        (ledger,) = source.plan(TOPIC).ledgers
        path = files_of(own_broker) / f"{ledger.ledger_id:020d}.ledger"
        data = bytearray(path.read_bytes())
        # The header of the block with entry 31 lies in front of its first entry, behind the payload before that.
        place = data.index(b"31:xx", data.index(b"30:xx"))
        header = data.rindex(b"x" * 100, 0, place) + 100
        for index in range(header, place):
            data[index] ^= 0xFF
        path.write_bytes(data)
        found = values_of(LossyReads(source))
        end = found.index(sent[30]) + 1
        assert found[:end] == sent[:31]
        behind = min(point.entry_id for point in ledger.points if point.entry_id > 31)
        assert found[end:][-(60 - behind) :] == sent[behind:]
        assert set(found) <= set(sent)
        assert len(found) < len(sent)


def test_messages_around_markers_are_read_over_the_binary_protocol(own_broker: BrokerProcess) -> None:
    with client_of(own_broker) as client:
        sent = publish(client, TOPIC, 10)
    with connected(own_broker) as raw:
        raw.open_producer(TOPIC)
        for number in range(3):
            raw.send_message(1, number, b"marker", metadata={"marker_type": 10})
            raw.reply()
    with client_of(own_broker) as client:
        sent += publish(client, TOPIC, 10, serial=10)
    with connected(own_broker) as raw:
        raw.open_producer(TOPIC)
        raw.send_message(1, 3, b"marker", metadata={"marker_type": 10})
        raw.reply()
    for mode in ("binary", "bulk"):
        with opened(own_broker, mode) as source:
            assert values_of(source) == sent
