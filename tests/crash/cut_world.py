"""A broker whose every file operation is recorded, what its clients are told, and the judgement of what a power cut left of it.

The clients are attached without a socket. Three kinds of topics are written to at once: one with a Shared subscription, whose
messages are acknowledged one by one and partly delayed, one that is compacted again and again, and some that come and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.memory_broker import START_MS, SetClock
from tests.support.recorded_disk import Event, Note, RecordedDisk
from tests.support.recording_peer import RecordingPeer

from pybroker import broker_process
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_compaction import CompactionStatus
from pybroker.config import BrokerConfig
from pybroker.disk.disk import Disk, DiskFile, FileSystemSync, Pieces
from pybroker.errors import BrokerError, TopicNotFound
from pybroker.local_store.checkpoint import checkpoint
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.model.events import Ack, SendRun
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.runtime.runtime import Runtime
from pybroker.tools.data_files import opened
from pybroker.tools.stored_state import Finding
from pybroker.tools.verify import Verifier
from pybroker.wire import pulsar_api_pb2 as pb

PLAIN = "persistent://public/default/plain"
COMPACTED = "persistent://public/default/compacted"
KEYS = 7
DAY_MS = 86_400_000


class UnsyncedDisk(Disk):
    """For judging a state: nobody cuts the power again, and nothing waits for the device."""

    def open_for_write(self, path: Path) -> DiskFile:
        return UnsyncedFile(super().open_for_write(path)._descriptor)

    def sync_directory(self, directory: Path) -> None:
        """Not needed."""

    def open_file_system(self, directory: Path) -> FileSystemSync | None:
        return None

    def open_database(self, path: Path) -> Any:
        connection = super().open_database(path)
        connection.execute("PRAGMA synchronous=OFF")
        return connection


class UnsyncedFile(DiskFile):
    """A file of it."""

    def write_at(self, pieces: Pieces, offset: int, *, durable: bool) -> None:
        super().write_at(pieces, offset, durable=False)

    def sync(self) -> None:
        """Not needed."""


def config(directory: Path, *, direct_io: bool) -> BrokerConfig:
    settings: dict[str, Any] = {
        "data_directory": str(directory),
        "broker_service_port": 0,
        "web_service_port": 0,
        "bind_address": "127.0.0.1",
        "journal_direct_io": direct_io,
        "checkpoint_max_entries": 60,
        "managed_ledger_max_entries_per_ledger": 40,
        "managed_ledger_min_ledger_rollover_time_minutes": 0,
        "default_retention_time_in_minutes": -1,
        "default_retention_size_in_mb": -1,
        "broker_deduplication_enabled": True,
        "broker_deduplication_entries_interval": 10,
        "storage_reserve_mb": 1,
        "storage_min_free_space_mb": 0,
        "cursor_flush_interval_ms": 5,
        "metrics_page_interval_ms": 0,
    }
    return BrokerConfig(**settings)


def small_options(**options: Any) -> LocalStoreOptions:
    return LocalStoreOptions(**{**options, "journal_file_bytes": 64 << 10, "max_batch_bytes": 16 << 10})


@asynccontextmanager
async def running(directory: Path, disk: Disk, *, direct_io: bool = False) -> AsyncIterator[broker_process.Broker]:
    """A whole broker on `directory`, with small journal files and ledgers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_process, "LocalStoreOptions", small_options)
        if direct_io:  # as with many ledgers
            patch.setattr(checkpoint, "MAX_SINGLE_SYNCS", 1)
        runtime = Runtime(config(directory, direct_io=direct_io), SetClock())
        broker = broker_process.Broker(runtime, broker_process.OwnProcess(), disk)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.close()


class Client(RecordingPeer):
    """One producer of a topic, and everything that it was told."""

    def __init__(self, topic: Topic, disk: RecordedDisk | None) -> None:
        super().__init__()
        self.topic = topic
        self._disk = disk
        self._producer = Producer(topic.producer_registry.remove, 1, "p", False, 0, self, {}, START_MS)
        topic.producer_registry.add(self._producer)

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        super().send_receipts(run, ledger_id, first_entry_id)
        if self._disk is not None:
            places = {number: Position(ledger_id, first_entry_id + at) for at, number in enumerate(run.sequence_ids)}
            self._disk.note("receipts", (str(self.topic.name), places))

    async def publish(self, numbers: Sequence[int], random: Random) -> None:
        await self.topic.deduplication.settled("p")  # as for whoever attaches under this name
        run = SendRun(1)
        for number in numbers:
            meta = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=START_MS)
            meta.partition_key = f"k{number % KEYS}"
            if number % 5 == 0 and str(self.topic.name) == PLAIN:
                meta.deliver_at_time = START_MS + DAY_MS
            header = meta.SerializeToString()
            run.sequence_ids.append(number)
            run.highest_sequence_ids.append(0)
            run.message_counts.append(1)
            body = random.randbytes(random.choice((10, 300, 1500))) + b"#%d" % number
            run.payloads.append(len(header).to_bytes(4, "big") + header + body)
        run.size_bytes = sum(map(len, run.payloads))
        self.topic.publish(self._producer, run)
        await self._producer.drained()
        assert not self.errors

    def leave(self) -> None:
        self._producer.detach()


class Reader(RecordingPeer):
    """A consumer with room for everything, which acknowledges with receipts."""

    def __init__(self, disk: RecordedDisk | None) -> None:
        super().__init__()
        self._disk = disk
        self._asked: dict[int, list[Position]] = {}

    async def open(self, topic: Topic, kind: str = "Shared", name: str = "s", *, compacted: bool = False) -> Reader:
        subscription = await topic.subscription(name, True, True, {})
        self.consumer = Consumer(subscription, 1, "c", 0, 0, self, {}, START_MS)
        self.consumer.reads_compacted = compacted
        topic.attach(subscription, self.consumer, kind)
        self.consumer.flow(100_000)
        return self

    def acknowledge(self, positions: list[Position]) -> None:
        ack = Ack(1)
        ack.request_id = len(self._asked)
        for ledger_id in sorted({position.ledger_id for position in positions}):
            ack.groups.append((ledger_id, sorted(p.entry_id for p in positions if p.ledger_id == ledger_id)))
        self._asked[ack.request_id] = positions
        if self._disk is not None:
            self._disk.note("acks_sent", positions)
        self.consumer.subscription.acknowledge(self.consumer, ack)

    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        assert error is None, error
        if self._disk is not None:
            self._disk.note("acks", self._asked[request_id])


async def record(directory: Path, seed: int, *, direct_io: bool) -> RecordedDisk:
    """Two lives of a broker, with a stop in order between them and at the end."""
    disk = RecordedDisk(directory)
    random = Random(seed)
    sent = dict.fromkeys((PLAIN, COMPACTED), 0)
    for life in range(2):
        async with running(directory, disk, direct_io=direct_io) as broker:
            topics = {name: await _topic(broker, name) for name in sent}
            clients = {name: Client(topic, disk) for name, topic in topics.items()}
            reader = await Reader(disk).open(topics[PLAIN])
            done: set[Position] = set()
            for step in range(12):
                for name, client in clients.items():
                    count = random.randint(1, 9)
                    disk.note("sent", (name, sent[name] + count))
                    again = max(0, sent[name] - 3)  # what was stored already is sent again
                    await client.publish(range(again, sent[name] + count), random)
                    sent[name] += count
                await asyncio.sleep(0.001)
                new = [position for position in dict.fromkeys(reader.delivered) if position not in done]
                if chosen := random.sample(new, len(new) // 2):
                    done.update(chosen)
                    reader.acknowledge(chosen)
                if step % 4 == 1:
                    await _compact(topics[COMPACTED], disk)
                if step % 4 == 3:
                    await _come_and_go(broker, disk, f"persistent://public/default/gone-{life}-{step}", random)
    return disk


async def record_start(directory: Path, *, direct_io: bool) -> RecordedDisk:
    """A start on what a power cut has left, until all topics are loaded, and a stop."""
    disk = RecordedDisk(directory)
    async with running(directory, disk, direct_io=direct_io) as broker:
        for name in (PLAIN, COMPACTED):
            await _topic(broker, name)
    return disk


async def _topic(broker: broker_process.Broker, name: str) -> Topic:
    topic = await broker.service.topics.get(TopicName.parse(name), may_create=True)
    assert isinstance(topic, Topic)
    return topic


async def _compact(topic: Topic, disk: RecordedDisk) -> None:
    assert topic.compaction.start()
    async with asyncio.timeout(60):
        while topic.compaction.status is CompactionStatus.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert topic.compaction.status is CompactionStatus.SUCCESS, topic.compaction.last_error
    assert topic.ledger.compacted is not None
    disk.note("compacted", topic.ledger.compacted.horizon)


async def _come_and_go(broker: broker_process.Broker, disk: RecordedDisk, name: str, random: Random) -> None:
    topic = await _topic(broker, name)
    client = Client(topic, None)
    await client.publish(range(5), random)
    client.leave()
    await topic.delete()
    disk.note("deleted", name)


@dataclass
class Told:
    """What clients knew at a cut."""

    receipts: dict[str, dict[int, Position]] = field(default_factory=lambda: {PLAIN: {}, COMPACTED: {}})
    sent: dict[str, int] = field(default_factory=dict)
    acked: set[Position] = field(default_factory=set)
    maybe_acked: set[Position] = field(default_factory=set)
    horizon: Position | None = None
    deleted: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, events: Sequence[Event], cut: int) -> Told:
        told = cls()
        for note in events[:cut]:
            if not isinstance(note, Note):
                continue
            if note.kind == "receipts":
                name, places = note.value
                told.receipts[name].update(places)
            elif note.kind == "sent":
                told.sent[note.value[0]] = note.value[1]
            elif note.kind == "acks":
                told.acked.update(note.value)
            elif note.kind == "acks_sent":
                told.maybe_acked.update(note.value)
            elif note.kind == "compacted":
                told.horizon = note.value
            elif note.kind == "deleted":
                told.deleted.append(note.value)
        return told


def judge(directory: Path, told: Told) -> None:
    """Start a broker on what the cut left, and look at all of it. Raises AssertionError and what a start raises."""
    (directory / "LOCK").touch()  # made without a sync, and only the process needs it
    if told.sent or (directory / "checkpoint.db").exists():  # else nobody ever got further than to begin
        require_sound(directory, "before the start")
    asyncio.run(_judge_broker(directory, told))
    require_sound(directory, "after the stop")


async def _judge_broker(directory: Path, told: Told) -> None:
    async with running(directory, UnsyncedDisk()) as broker:
        for name in told.sent:
            await _judge_topic(broker, name, told)
        for name in told.deleted:
            with pytest.raises(TopicNotFound):
                await broker.service.topics.get(TopicName.parse(name), may_create=False)


async def _judge_topic(broker: broker_process.Broker, name: str, told: Told) -> None:
    topic = await _topic(broker, name)
    found = await _entries(topic)
    numbers = list(found.values())
    assert numbers == list(range(len(numbers))), "a message is missing, twice, or in another place"
    receipts = told.receipts[name]
    for number, position in receipts.items():
        assert found.get(position) == number, f"{number} was receipted at {position}"
    if name == PLAIN:
        await _judge_cursor(broker, topic, found, told)
    if name == COMPACTED:
        await _judge_view(topic, found, told)
    client = Client(topic, None)
    await client.publish(range(told.sent[name]), Random(1))
    again = await _entries(topic)
    assert list(again.values()) == list(range(told.sent[name])), "what was sent again is there twice, or not at all"
    assert len(set(again)) == len(again)
    assert {position: again[position] for position in found} == found, "a position was given twice"


async def _judge_cursor(broker: broker_process.Broker, topic: Topic, found: dict[Position, int], told: Told) -> None:
    if not told.receipts[PLAIN]:
        return
    clock = broker.runtime.clock
    assert isinstance(clock, SetClock)
    clock.now_ms += 2 * DAY_MS  # everything is due
    reader = await Reader(None).open(topic)
    wanted = set(found) - told.maybe_acked
    async with asyncio.timeout(60):
        while not wanted <= set(reader.delivered):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.002)
    delivered = reader.delivered
    assert not told.acked & set(delivered), "an acknowledgement with a receipt is undone"
    assert set(delivered) <= set(found)
    assert len(delivered) == len(set(delivered)), "delivered twice"


async def _judge_view(topic: Topic, found: dict[Position, int], told: Told) -> None:
    view = topic.ledger.compacted
    if told.horizon is not None:
        assert view is not None, "the compacted view is lost"
        assert view.horizon >= told.horizon, "an older view is back"
    if not found:
        return
    reader = await Reader(None).open(topic, "Exclusive", "reads-compacted", compacted=True)
    last = {number % KEYS: position for position, number in found.items()}
    async with asyncio.timeout(60):
        while not set(last.values()) <= set(reader.delivered):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert reader.delivered == sorted(set(reader.delivered)), "a key's older message behind a newer one"
    if view is not None:
        inside = [found[position] % KEYS for position in reader.delivered if position <= view.horizon]
        assert len(inside) == len(set(inside)), "a key twice in the view"


async def _entries(topic: Topic) -> dict[Position, int]:
    """The number of every message by its position."""
    found: dict[Position, int] = {}
    for ledger_id in topic.ledger.ledgers.ledger_ids():
        position = Position(ledger_id, 0)
        while (run := await topic.ledger.read_if_there(position, 1000, 1 << 20)) is not None:
            for at, payload in enumerate(run.payloads):
                place = Position(run.ledger_id, run.first_entry_id + at)
                assert place not in found
                found[place] = int(bytes(payload).rpartition(b"#")[2])
            position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
    return found


def require_sound(directory: Path, when: str) -> None:
    found = findings(directory)
    assert not found, f"{when}, ledger verify says: {found}"


def findings(directory: Path) -> list[str]:
    """What `ledger verify` calls damage."""
    damages: list[Finding] = []
    with opened(directory) as files:
        Verifier(files, damages.append, lambda done, total: None).run()
    return [finding.line() for finding in damages if finding.is_damage]
