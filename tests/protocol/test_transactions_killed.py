"""Transactions of a raw client through kill -9 of the broker: all of one is there, or nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type, connected

from pybroker.wire import pulsar_api_pb2 as pb

SOURCE = "persistent://public/default/source"
SINK = "persistent://public/default/sink"
COMMIT, ABORT = 0, 1


def begin(client: RawClient) -> dict[str, int]:
    """A new transaction that takes from SOURCE and gives to SINK."""
    assert "error" not in client.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    answer = client.request(Type.NEW_TXN, tc_id=0, txn_ttl_seconds=600_000)
    ids = {
        "txnid_most_bits": int(answer.get("txnid_most_bits", 0)),
        "txnid_least_bits": int(answer["txnid_least_bits"]),
    }
    assert "error" not in client.request(Type.ADD_PARTITION_TO_TXN, **ids, partitions=[SINK])
    subscription = [pb.Subscription(topic=SOURCE, subscription="sub")]
    assert "error" not in client.request(Type.ADD_SUBSCRIPTION_TO_TXN, **ids, subscription=subscription)
    return ids


def give(client: RawClient, ids: dict[str, int], sequence_id: int, payload: bytes) -> None:
    client.send_message(1, sequence_id, payload, metadata=ids, **ids)
    assert client.reply()["type"] == "SEND_RECEIPT"


def take(client: RawClient, ids: dict[str, int], message: dict[str, Any]) -> dict[str, Any]:
    found = message["message_id"]
    position = pb.MessageIdData(ledgerId=int(found.get("ledgerId", 0)), entryId=int(found.get("entryId", 0)))
    return client.request(Type.ACK, consumer_id=1, ack_type=0, message_id=[position], **ids)


def consuming(client: RawClient, topic: str, permits: int = 100, subscription: str = "sub") -> list[dict[str, Any]]:
    """What a Shared consumer gets now."""
    assert client.subscribe(topic, 1, "Shared", subscription=subscription)["type"] == "SUCCESS"
    client.send(Type.FLOW, consumer_id=1, messagePermits=permits)
    return [each for each in client.replies() if each["type"] == "MESSAGE"]


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in messages]


def test_after_a_kill_open_transactions_hold_back_ended_ones_do_not_and_ends_still_come(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with broker.running():
        with connected(broker) as client:
            client.open_producer(SOURCE)
            client.publish(1, 3)
            client.send(Type.CLOSE_PRODUCER, producer_id=1, request_id=999)
            client.reply()
            client.open_producer(SINK)
            messages = consuming(client, SOURCE)
            assert len(messages) == 3
            committed, aborted, left_open = begin(client), begin(client), begin(client)
            for index, (ids, message) in enumerate(zip((committed, aborted, left_open), messages, strict=True)):
                give(client, ids, index, b"s%d" % index)
                assert "error" not in take(client, ids, message)
            assert "error" not in client.request(Type.END_TXN, **committed, txn_action=COMMIT)
            assert "error" not in client.request(Type.END_TXN, **aborted, txn_action=ABORT)
        broker.restart_after_kill()
        with connected(broker) as reader:
            first = payloads(consuming(reader, SINK))
        with connected(broker) as client:
            again = consuming(client, SOURCE)
            assert payloads(again) == ["m1"], "what was committed or is held came again, or what was aborted did not"
            assert "error" not in client.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
            assert take(client, left_open, again[0]).get("error") is None
            assert "error" not in client.request(Type.END_TXN, **left_open, txn_action=COMMIT)
        broker.restart_after_kill()
        with connected(broker) as reader:
            both = payloads(consuming(reader, SINK, subscription="other"))
        with connected(broker) as client:
            assert consuming(client, SOURCE) == []
        assert (first, both) == (["s0"], ["s0", "s2"])
