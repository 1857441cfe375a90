"""What consumers meet when stored entries are damaged, with autoSkipNonRecoverableData and without."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.raw_client import CLOSED, NOTHING, RawClient, Type, connected

from pybroker.cli import main

TOPIC = "persistent://public/default/damaged"
COUNT = 10
SKIP = {"autoSkipNonRecoverableData": "true"}


@pytest.fixture
def stored(tmp_path: Path) -> BrokerProcess:
    """A broker that was stopped with ten messages in one segment file."""
    broker = BrokerProcess(tmp_path)
    with broker.running(), connected(broker) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
        client.publish(1, COUNT)
    return broker


def segment_of(broker: BrokerProcess) -> Path:
    return next(path for path in broker.data.glob("ledgers/*.ledger") if b"m7" in path.read_bytes())


def damage_entry(path: Path) -> None:
    """Flip a bit in the payload of m4."""
    data = bytearray(path.read_bytes())
    data[data.rindex(b"m4", 0, data.rindex(b"m9")) + 1] ^= 1  # what describes them is behind all of them
    path.write_bytes(bytes(data))


def damage_last_entry(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.rindex(b"m9") + 1] ^= 1
    path.write_bytes(bytes(data))


def damage_block(path: Path) -> None:
    """Flip a bit in what describes all ten."""
    data = bytearray(path.read_bytes())
    data[data.index(b"PSBK") + 40] ^= 1
    path.write_bytes(bytes(data))


def damage_nothing_left(path: Path) -> None:
    """The file is gone: a start refuses that, until the operator accepts the loss."""
    path.unlink()
    assert main(["ledger", "repair", "--apply", "--accept-loss", str(path.parent.parent)]) == 0


def receive(client: RawClient, count: int) -> list[str]:
    """`count` payloads; fewer when nothing more comes."""
    client.send(Type.FLOW, consumer_id=1, messagePermits=100)
    found: list[str] = []
    while len(found) < count:
        reply: dict[str, Any] = client.reply()
        assert reply not in (CLOSED, NOTHING), found
        if reply["type"] == "MESSAGE":
            found.append(reply["payload"])
    return found


@pytest.mark.parametrize("sub_type", ["Exclusive", "Shared"])
@pytest.mark.parametrize(
    ("damage", "lost"),
    [(damage_entry, {4}), (damage_block, set(range(COUNT))), (damage_nothing_left, set(range(COUNT)))],
)
def test_with_auto_skip_a_consumer_gets_all_but_the_damaged_entries_and_later_ones(
    stored: BrokerProcess, damage: Callable[[Path], None], lost: set[int], sub_type: str
) -> None:
    damage(segment_of(stored))
    stored.settings.update(SKIP)
    with stored.running(), connected(stored) as client:
        assert client.subscribe(TOPIC, sub_type=sub_type)["type"] == "SUCCESS"
        assert client.open_producer(TOPIC, 1)["type"] == "PRODUCER_SUCCESS"
        client.publish(1, 1, first=COUNT)
        wanted = [f"m{number}" for number in range(COUNT + 1) if number not in lost]
        assert receive(client, len(wanted)) == wanted
        counters = ["pybroker_skipped_damaged_entries_total"]
        if damage is not damage_nothing_left:
            counters.append("pybroker_storage_damaged_entries_total")
        for counter in counters:
            until_metric(stored, lambda entries: entries == len(lost), counter)
    log = stored.log.read_text()
    assert "entries.skipped" in log
    assert "Traceback" not in log


def test_without_auto_skip_the_consumer_stays_in_front_of_the_damage_until_it_is_skipped(stored: BrokerProcess) -> None:
    damage_entry(segment_of(stored))
    with stored.running(), connected(stored) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        assert receive(client, 4) == ["m0", "m1", "m2", "m3"]
        assert client.replies() == []
        explained = json.loads(stored.get(f"/admin/v2/{TOPIC.replace('://', '/')}/subscription/sub/explain"))
        (finding,) = explained["findings"]
        assert finding["code"] == "read-failed"
        assert finding["evidence"]["readPosition"].endswith(":4")
        assert finding["evidence"]["waitingEntries"] == COUNT - 4
        assert finding["actions"][0]["path"].endswith("/message/1/4/acknowledge")
    log = stored.log.read_text()
    assert log.count("read.failed") == 1
    assert "autoSkipNonRecoverableData=true" in log
    stored.settings.update(SKIP)
    with stored.running(), connected(stored) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        assert receive(client, COUNT - 1) == [f"m{number}" for number in range(COUNT) if number != 4]


def test_what_was_skipped_stays_skipped(stored: BrokerProcess) -> None:
    damage_entry(segment_of(stored))
    stored.settings.update(SKIP)
    for _ in range(2):  # the second time it is acknowledged already, and may be passed over without the setting
        with stored.running(), connected(stored) as client:
            assert client.subscribe(TOPIC)["type"] == "SUCCESS"
            assert receive(client, COUNT - 1) == [f"m{number}" for number in range(COUNT) if number != 4]
        stored.settings.clear()
    assert stored.log.read_text().count("entries.skipped") == 1


def test_entries_that_are_to_be_sent_again_are_skipped_as_well(stored: BrokerProcess) -> None:
    """A consumer leaves with all ten; of what goes to the next one an entry can no longer be read."""
    stored.settings.update(SKIP)
    with stored.running(), connected(stored) as client:
        assert client.subscribe(TOPIC, sub_type="Shared")["type"] == "SUCCESS"
        assert len(receive(client, COUNT)) == COUNT
        damage_entry(segment_of(stored))
        assert client.request(Type.CLOSE_CONSUMER, consumer_id=1)["type"] == "SUCCESS"
        assert client.subscribe(TOPIC, sub_type="Shared")["type"] == "SUCCESS"
        assert receive(client, COUNT - 1) == [f"m{number}" for number in range(COUNT) if number != 4]


@pytest.mark.parametrize(
    ("damage", "last"), [(damage_last_entry, COUNT - 2), (damage_block, -1), (damage_nothing_left, -1)]
)
def test_the_last_message_is_the_last_one_that_can_be_read(
    stored: BrokerProcess, damage: Callable[[Path], None], last: int
) -> None:
    """A reader asks for it to know when it is at the end."""
    damage(segment_of(stored))
    with stored.running(), connected(stored) as client:
        assert client.subscribe(TOPIC)["type"] == "SUCCESS"
        answer = client.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert answer["type"] == "GET_LAST_MESSAGE_ID_RESPONSE"
        entry_id = int(answer["last_message_id"]["entryId"])
        assert entry_id == (last if last >= 0 else 2**64 - 1)
