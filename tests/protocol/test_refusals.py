"""Refused commands of clients are counted by command and cause, and one of each is logged per minute, with what it was about."""

from __future__ import annotations

import logging

import pytest
from tests.support.async_client import AsyncClient, Type
from tests.support.memory_broker import MemoryBroker

from pybroker.broker.topic.topic import Topic
from pybroker.model.request_refusals import Refusals
from pybroker.wire import pulsar_api_pb2 as pb

MISSING = "persistent://missing/missing/t"


def totals(broker: MemoryBroker) -> dict[tuple[str, str], int]:
    refusals: Refusals = broker.service.runtime.stats.refusals
    return {(command, cause): total for command, cause, total in refusals.totals()}


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == "client.refused"]


async def test_repeated_refusal_is_counted_each_time_and_logged_once(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pybroker"):
        for client in clients[:3]:
            answer = await client.request(Type.PARTITIONED_METADATA, topic=MISSING)
            assert answer["error"] == "TopicNotFound"
            answer = await client.request(Type.PRODUCER, topic=MISSING, producer_id=1)
            assert answer["type"] == "ERROR"
    assert totals(broker) == {("PARTITIONED_METADATA", "TopicNotFound"): 3, ("PRODUCER", answer["error"]): 3}
    rows = logged(caplog)
    assert [(row["command"], row["topic"], row["count"], row["client"]) for row in rows] == [
        ("PARTITIONED_METADATA", MISSING, 1, "test"),
        ("PRODUCER", MISSING, 1, "test"),
    ]
    assert all(row["reason"] and row["connection"] for row in rows)


async def test_refusals_without_error_response_are_counted_too(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    """A transaction's response, an acknowledgement, a command that is too large to be read, and a protocol violation."""
    first, second = clients[:2]
    refused = await first.request(Type.END_TXN, txnid_most_bits=99 << 48, txnid_least_bits=1, txn_action=pb.COMMIT)
    acked = first.ask(
        Type.ACK, consumer_id=7, ack_type=pb.CommandAck.Individual, message_id=[pb.MessageIdData(ledgerId=1, entryId=1)]
    )
    assert (await first.answer(acked))["error"] == "ConsumerNotFound"
    pairs = [pb.KeyValue(key="k", value="v")] * 30_000
    answer = await first.request(Type.PRODUCER, topic=str(topic.name), producer_id=1, metadata=pairs)
    assert answer["error"] == "MetadataError"
    second.send(Type.CONNECTED, server_version="only brokers send this")
    await second.closed()
    assert totals(broker) == {
        ("END_TXN", refused["error"]): 1,
        ("ACK", "ConsumerNotFound"): 1,
        ("PRODUCER", "MetadataError"): 1,
        ("any", "ProtocolViolation"): 1,
    }
