"""Topics with known content, and the bodies of what a source reads of them."""

from __future__ import annotations

import itertools
from collections import Counter

import pulsar
from tests.support.broker_process import BrokerProcess

from pybroker.columns.entry_run import EntryRun
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.positions import EntryRange, TopicPlan


def publish(client: pulsar.Client, topic: str, count: int, *, size: int = 10, serial: int = 0) -> list[bytes]:
    """`count` single messages; their payloads."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    sent = [(b"%d:" % (serial + index)).ljust(size, b"x") for index in range(count)]
    failures: list[pulsar.Result] = []
    for body in sent:
        producer.send_async(body, lambda result, _: failures.append(result) if result != pulsar.Result.Ok else None)
    producer.flush()
    producer.close()
    assert not failures
    return sent


def stored(broker: BrokerProcess, topic: str) -> Counter[int]:
    """How often each number is there that a sink has written."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: Counter[int] = Counter()
    while reader.has_message_available():
        found[int(reader.read_next(10_000).data())] += 1
    client.close()
    return found


def once(*ranges: range) -> Counter[int]:
    return Counter(itertools.chain(*ranges))


def ranges_of(plan: TopicPlan) -> list[EntryRange]:
    return [EntryRange(plan.topic, each.ledger_id, each.first_entry_id, each.end_entry_id) for each in plan.ledgers]


def payload_of(run: EntryRun, index: int) -> bytes:
    """The stored entry."""
    start = int(run.starts[index])
    return bytes(memoryview(run.data)[start : start + int(run.lengths[index])])


def body_of(entry: bytes) -> bytes:
    """The payload behind the metadata of a message that was sent alone and uncompressed, with its checksum."""
    assert entry[:2] == b"\x0e\x01"
    metadata_bytes = int.from_bytes(entry[6:10], "big")
    return entry[10 + metadata_bytes :]


def bodies_of(source: EntrySource, plan: TopicPlan) -> list[bytes]:
    found = []
    for entries in ranges_of(plan):
        next_entry_id = entries.first_entry_id
        for run in source.read(entries):
            assert (run.ledger_id, run.first_entry_id) == (entries.ledger_id, next_entry_id)
            next_entry_id = run.end_entry_id
            found += [body_of(payload_of(run, index)) for index in range(run.entry_count)]
        assert next_entry_id == entries.end_entry_id
    return found
