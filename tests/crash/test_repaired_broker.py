"""The official client on directories that were damaged and repaired: the rest is served, subscriptions go on where they were.

Whatever does not come was named by `ledger repair`, by topic and position, or is damage that `ledger verify` names.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import assert_nothing_arrives, close_after_kill, new_client
from tests.crash.test_damage import not_told
from tests.support.broker_process import BrokerProcess
from tests.support.data_directories import copy_data_directory

from pybroker.cli import main
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

pytestmark = pytest.mark.long

TOPICS = ("exclusive", "shared", "large")
ROOT = "persistent://public/default/"
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "autoSkipNonRecoverableData": "true",
}
COUNT = 130
SUBSCRIPTION = "a sub"
ACK_FLUSH_S = 1.1  # acknowledgements without a receipt are durable within a second

Place = tuple[int, int]


@dataclass
class Stored:
    """What a broker was given before it was killed: bodies by position, and the positions that were acknowledged."""

    data: Path
    sent: dict[str, dict[Place, bytes]] = field(default_factory=dict)
    acked: dict[str, set[Place]] = field(default_factory=dict)


def place_of(message_id: pulsar.MessageId | pulsar.Message) -> Place:
    found = message_id.message_id() if isinstance(message_id, pulsar.Message) else message_id
    return found.ledger_id(), found.entry_id()


def body(topic: str, number: int) -> bytes:
    return f"{topic} {number};".encode() * (3000 if topic == "large" else 1)


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    kind = pulsar.ConsumerType.Shared if topic == "shared" else pulsar.ConsumerType.Exclusive
    return client.subscribe(ROOT + topic, SUBSCRIPTION, kind)


def is_acknowledged(topic: str, number: int) -> bool:
    return number % 3 == 0 if topic == "shared" else number < 40


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A stop in the middle, so that there are a table and sealed ledgers, then a journal behind them, and a kill."""
    directory = tmp_path_factory.mktemp("stored")
    broker = BrokerProcess(directory, SETTINGS)
    made = Stored(broker.data)
    for start in (0, COUNT // 2):
        broker.start()
        client = new_client(broker.url)
        for topic in TOPICS:
            consumer = subscribe(client, topic)
            producer = client.create_producer(ROOT + topic, batching_enabled=False)
            sent, acked = made.sent.setdefault(topic, {}), made.acked.setdefault(topic, set())
            for number in range(start, start + COUNT // 2):
                sent[place_of(producer.send(body(topic, number)))] = body(topic, number)
            numbers = {data: number for number in range(COUNT) for data in (body(topic, number),)}
            for _ in range(len(sent.keys() - acked)):
                message = consumer.receive(30_000)
                if is_acknowledged(topic, numbers[message.data()]):
                    consumer.acknowledge(message)
                    acked.add(place_of(message))
        if start:
            time.sleep(ACK_FLUSH_S)
            broker.kill()
            close_after_kill(client)
        else:
            client.close()
            assert broker.stop() == 0
    yield made
    shutil.rmtree(directory)


def lose_the_table(data: Path) -> None:
    for name in ("checkpoint.db", "checkpoint.db-wal"):
        (data / name).unlink()


def damage_the_table(data: Path) -> None:
    for path in data.glob("checkpoint.db*"):
        content = bytearray(path.read_bytes())
        content[100:] = bytes(len(content) - 100)
        path.write_bytes(bytes(content))


def lose_the_journal(data: Path) -> None:
    for path in data.glob("journal/0*.journal"):
        path.unlink()


def tear_the_journal(data: Path) -> None:
    path = max(data.glob("journal/0*.journal"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    content = path.read_bytes()
    path.write_bytes(content[: len(content.rstrip(b"\0")) * 2 // 3].ljust(len(content), b"\0"))


def forget_a_topic(data: Path) -> None:
    async def forget() -> None:
        store = await SqliteMetadataStore.open(data / "metadata.db", mark=data / "metadata.end")
        assert await store.delete("/managed-ledgers/public/default/persistent/exclusive")
        await store.close()

    asyncio.run(forget())


def lose_a_segment_and_the_table(data: Path) -> None:
    max(data.glob("ledgers/*.ledger"), key=lambda path: path.stat().st_size).unlink()
    lose_the_table(data)


def damage_the_metadata_and_the_table(data: Path) -> None:
    """A bit in the value of one topic, wherever SQLite keeps it now."""
    damage_the_table(data)
    for path in data.glob("metadata.db*"):
        path.write_bytes(path.read_bytes().replace(b"/exclusive/a%20sub#", b"/exclusive/a%20suc#"))


@dataclass(frozen=True)
class Damage:
    """`keeps_acks`: whether all that was acknowledged is known all the same."""

    do: Callable[[Path], None]
    keeps_acks: bool
    lost_topics: tuple[str, ...] = ()


DAMAGES = [
    Damage(lose_the_table, keeps_acks=False),
    Damage(damage_the_table, keeps_acks=False),
    Damage(lose_the_journal, keeps_acks=False),
    Damage(tear_the_journal, keeps_acks=False),
    Damage(forget_a_topic, keeps_acks=True, lost_topics=("exclusive",)),
    Damage(lose_a_segment_and_the_table, keeps_acks=False),
    Damage(damage_the_metadata_and_the_table, keeps_acks=False, lost_topics=("exclusive",)),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.do.__name__)
def test_a_repaired_broker_serves_all_that_was_not_damaged(
    stored: Stored, damage: Damage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    copy_data_directory(stored.data, broker.data)
    damage.do(broker.data)
    with pytest.raises(RuntimeError, match=r"did not start"):
        broker.start()
    assert "Traceback" not in broker.log.read_text()
    capsys.readouterr()
    assert main(["ledger", "repair", str(broker.data), "--apply", "--accept-loss"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lost: ")]
    main(["ledger", "verify", str(broker.data)])
    told = said + capsys.readouterr().out.splitlines()
    broker.log.write_text("")
    left: dict[str, Any] = {}
    for run in range(2):
        with broker.running_well():
            client = new_client(broker.url)
            for topic in TOPICS:
                if topic in damage.lost_topics:
                    assert any(f"/{topic}: " in line or f"/{topic}'" in line for line in said), said
                    continue
                there = served(client, topic, stored, told)
                unread = there - stored.acked[topic]
                came = resumed(client, topic, stored, unread)
                again = came & stored.acked[topic]
                if again:
                    assert not damage.keeps_acks, (topic, sorted(again)[:3])
                    assert any(re.search(rf"/{topic}, '{SUBSCRIPTION}': .*acknowledgements", line) for line in said), (
                        said
                    )
                assert left.setdefault(topic, came) == came, "the next start goes on where this one did"
            if run:
                goes_on(client)
            client.close()


def served(client: pulsar.Client, topic: str, stored: Stored, told: list[str]) -> set[Place]:
    """What a reader gets, all of it right; what it does not get was told."""
    reader = client.create_reader(ROOT + topic, pulsar.MessageId.earliest)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found[place_of(message)] = message.data()
    reader.close()
    sent = stored.sent[topic]
    assert found.items() <= sent.items()
    missing = [f"{topic} has no entry {place}" for place in sorted(sent.keys() - found.keys())]
    assert not_told(missing, told) == [], told
    return set(found)


def resumed(client: pulsar.Client, topic: str, stored: Stored, unread: set[Place]) -> set[Place]:
    """What the subscription still has to get: `unread`, and perhaps more."""
    consumer = subscribe(client, topic)
    found: dict[str, Any] = {}
    try:
        while True:
            message = consumer.receive(10_000 if unread - found.keys() else 300)
            found[place_of(message)] = message.data()  # type: ignore[index]
    except pulsar.Timeout:
        consumer.close()
    assert found.items() <= stored.sent[topic].items()
    assert found.keys() >= unread, (topic, sorted(unread - found.keys())[:3])
    return set(found)  # type: ignore[arg-type]


def goes_on(client: pulsar.Client) -> None:
    """All topics take messages as if nothing had been."""
    for topic in TOPICS:
        consumer = client.subscribe(ROOT + topic, "another", initial_position=pulsar.InitialPosition.Latest)
        producer = client.create_producer(ROOT + topic)
        for number in range(5):
            producer.send(b"%d" % number)
        assert [consumer.receive(30_000).data() for _ in range(5)] == [b"%d" % number for number in range(5)]
        assert_nothing_arrives(consumer)
        consumer.close()
