"""Messages of transactions, for tests without a client."""

from __future__ import annotations

from tests.support.memory_broker import MemoryBroker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def txn(least: int, most: int = 0) -> TxnId:
    return TxnId(most, least)


def entry_of(
    of: TxnId | None, sequence_id: int = 0, payload: bytes = b"x", key: str = "", producer: str = "p"
) -> bytes:
    """Return one message, optionally in a transaction."""
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=1)
    if key:
        metadata.partition_key = key
    if of is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = of.most, of.least
    return framed(metadata, payload)


def run_in(of: TxnId | None, count: int, first: int = 0, key: str = "") -> SendRun:
    """Return a run of `count` messages of producer id 1."""
    run = SendRun(1, of)
    for index in range(first, first + count):
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(entry_of(of, index, key=key))
    run.size_bytes = sum(map(len, run.payloads))
    return run


async def send(
    broker: MemoryBroker, topic: Topic, of: TxnId | None, count: int = 1, first: int = 0, key: str = "", name: str = "p"
) -> list[Position]:
    """Send messages and return their positions when they are stored."""
    peer = RecordingPeer()
    producer = broker.producer(topic, peer, name)
    topic.publish(producer, run_in(of, count, first, key))
    await broker.until(lambda: len(peer.receipts) + len(peer.errors) + peer.dropped == count)
    await broker.rolled_over(topic)
    producer.detach()
    if peer.errors:
        raise peer.errors[0]
    return peer.receipts
