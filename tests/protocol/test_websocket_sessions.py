"""Sessions of the WebSocket API on a real server: stored, delivered, acknowledged and refused messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.rest import Answer, call
from tests.support.websockets import Refused, Socket, session

from pybroker.client.message import EARLIEST, LATEST, MessageId
from pybroker.embedding.embedded_broker import EmbeddedBroker, embed
from pybroker.websocket.json_forms import encoded_id

TOPIC = "persistent/public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with embed(webSocketServiceEnabled=True) as broker:
        yield broker


async def rest(broker: EmbeddedBroker, method: str, path: str, body: object = None) -> Answer:
    return await asyncio.to_thread(call, broker.admin_url + path, method, body=body)


def message(payload: bytes, **members: object) -> dict[str, object]:
    return {"payload": base64.b64encode(payload).decode(), **members}


# --- producers ---------------------------------------------------------------------------------------------------------


async def test_published_message_reaches_consumer_with_its_members(broker: EmbeddedBroker) -> None:
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}?producerName=p") as producer,
    ):
        answer = await producer.publish(
            b"hello", context="c1", key="k", properties={"a": "b", "n": 5}, eventTime="2020-01-01T01:00:00.5+01:00"
        )
        assert answer == {
            "result": "ok",
            "messageId": answer["messageId"],
            "context": "c1",
            "errorCode": 0,
            "schemaVersion": 0,
        }
        received = await consumer.receive()
        assert received["messageId"] == answer["messageId"]
        del received["messageId"], received["publishTime"]
        assert received == {
            "payload": base64.b64encode(b"hello").decode(),
            "properties": {"a": "b", "n": "5"},
            "redeliveryCount": 0,
            "eventTime": "2020-01-01T00:00:00.5Z",
            "key": "k",
        }


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("no JSON", "send-error:3"),
        ("", "send-error:3"),
        ("[]", "send-error:3"),
        ("[" * 100_000, "send-error:3"),
        ('{"payload": "YQ==", "properties": [1]}', "send-error:3"),
        ("{}", "send-error:7"),
        ('{"payload": "!!"}', "send-error:7"),
        ('{"payload": "YQ==", "eventTime": "yesterday"}', "send-error:7"),
        ('{"payload": "YQ==", "eventTime": "2020-01-01T00:00:00"}', "send-error:7"),
        ('{"payload": "YQ==", "properties": {"a": null}}', "send-error:7"),
        ('{"payload": "YQ"}', "ok"),
        ('{"payload": ""}', "ok"),
        ('{"payload": "YQ==", "unknown": 1}', "ok"),
    ],
)
async def test_each_text_of_producer_is_answered(broker: EmbeddedBroker, text: str, result: str) -> None:
    async with session(broker.admin_url, f"v2/producer/{TOPIC}") as producer:
        await producer.send(text)
        assert (await producer.receive())["result"] == result
        assert (await producer.publish(b"next"))["result"] == "ok"


async def test_binary_frame_of_producer_is_refused_and_session_continues(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/producer/{TOPIC}") as producer:
        await producer.send(b"binary")
        assert (await producer.receive())["result"] == "send-error:3"
        assert (await producer.publish(b"next"))["result"] == "ok"


async def test_message_to_terminated_topic_fails_and_session_continues(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/producer/{TOPIC}") as producer:
        await producer.publish(b"last")
        await rest(broker, "POST", f"/admin/v2/{TOPIC}/terminate")
        for _ in range(2):
            answer = await producer.publish(b"late", context="x")
            assert (answer["result"], answer["context"]) == ("send-error:8", "x")
    with pytest.raises(Refused) as refused:
        async with session(broker.admin_url, f"v2/producer/{TOPIC}"):
            pass
    assert refused.value.status == 503


async def test_initial_sequence_id_precedes_first_message(broker: EmbeddedBroker) -> None:
    await rest(broker, "PUT", f"/admin/v2/{TOPIC}")
    await rest(broker, "POST", f"/admin/v2/{TOPIC}/deduplicationEnabled", True)
    for expected in ("ok", "ok"):
        async with session(broker.admin_url, f"v2/producer/{TOPIC}?producerName=p&initialSequenceId=10") as producer:
            assert (await producer.publish(b"x"))["result"] == expected
    async with session(broker.admin_url, f"v2/reader/{TOPIC}?messageId=earliest") as reader:
        await reader.receive()
        assert await reader.is_quiet()  # the second was a duplicate


async def test_batched_messages_are_acknowledged_in_order(broker: EmbeddedBroker) -> None:
    options = "batchingEnabled=true&batchingMaxMessages=50&batchingMaxPublishDelay=5&compressionType=ZSTD"
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}?{options}") as producer,
    ):
        for number in range(200):
            await producer.send(message(b"%d" % number, context=str(number)))
        assert [(await producer.receive())["context"] for _ in range(200)] == [str(number) for number in range(200)]
        for number in range(200):
            received = await consumer.receive()
            assert base64.b64decode(received["payload"]) == b"%d" % number
            await consumer.ack(received)
    assert await backlog(broker, "s") == 0


async def test_key_selects_partition_of_message(broker: EmbeddedBroker) -> None:
    await rest(broker, "PUT", f"/admin/v2/{TOPIC}/partitions", 4)
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}?messageRoutingMode=RoundRobinPartition") as producer,
    ):
        ids = [decoded((await producer.publish(b"k", key="one"))["messageId"]).partition for _ in range(3)]
        assert len(set(ids)) == 1
        ids = [decoded((await producer.publish(b"n"))["messageId"]).partition for _ in range(4)]
        assert set(ids) == {0, 1, 2, 3}
        for _ in range(7):
            await consumer.ack(await consumer.receive())
    stats = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/partitioned-stats")).json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0


# --- consumers ---------------------------------------------------------------------------------------------------------


async def backlog(broker: EmbeddedBroker, subscription: str) -> int:
    stats = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/stats")).json
    return int(stats["subscriptions"][subscription]["msgBacklog"])


async def filled(broker: EmbeddedBroker, count: int, topic: str = TOPIC) -> list[Any]:
    async with session(broker.admin_url, f"v2/producer/{topic}") as producer:
        return [(await producer.publish(b"%d" % number)) for number in range(count)]


def decoded(text: str) -> Any:
    from pybroker.websocket.json_forms import decoded_id

    return decoded_id(text)


async def test_consumer_gets_no_more_than_receiver_queue_size_unacknowledged(broker: EmbeddedBroker) -> None:
    async with session(
        broker.admin_url, f"v2/consumer/{TOPIC}/s?receiverQueueSize=2&subscriptionInitialPosition=Earliest"
    ) as consumer:
        await filled(broker, 4)
        first, second = await consumer.receive(), await consumer.receive()
        assert await consumer.is_quiet()
        stats = (await rest(broker, "GET", "/admin/v2/proxy-stats/stats")).json["persistent://public/default/t"]
        (shown,) = stats["consumerStats"]
        assert shown["unackedMessages"] == 2
        assert "receiverQueueSize" in shown["waitsFor"]
        topic_stats = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/stats")).json
        (metadata,) = (each["metadata"] for each in topic_stats["subscriptions"]["s"]["consumers"])
        assert metadata == {"webSocketClient": shown["remoteConnection"]}
        await consumer.ack(first)
        await consumer.ack(first)  # twice: this frees no second slot
        third = await consumer.receive()
        assert base64.b64decode(third["payload"]) == b"2"
        assert await consumer.is_quiet()
        await consumer.ack(second)
        assert await consumer.payload() == b"3"


async def test_negatively_acknowledged_message_is_redelivered(broker: EmbeddedBroker) -> None:
    options = "subscriptionType=Shared&negativeAckRedeliveryDelay=10"
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s?{options}") as consumer:
        await filled(broker, 1)
        received = await consumer.receive()
        await consumer.send({"type": "negativeAcknowledge", "messageId": received["messageId"]})
        again = await consumer.receive()
        assert (again["messageId"], again["redeliveryCount"]) == (received["messageId"], 1)


async def test_unacknowledged_message_is_redelivered_after_ack_timeout(broker: EmbeddedBroker) -> None:
    options = "subscriptionType=Shared&ackTimeoutMillis=1000&receiverQueueSize=1"
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s?{options}") as consumer:
        await filled(broker, 1)
        received = await consumer.receive()
        again = await consumer.receive()
        assert (again["messageId"], again["redeliveryCount"]) == (received["messageId"], 1)


async def test_message_is_stored_in_dead_letter_topic_after_redeliveries(broker: EmbeddedBroker) -> None:
    options = (
        "subscriptionType=Shared&negativeAckRedeliveryDelay=10&maxRedeliverCount=1&deadLetterSubscriptionName=letters"
    )
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s?{options}") as consumer:
        (sent,) = await filled(broker, 1)
        for redelivery_count in (0, 1):
            received = await consumer.receive()
            assert received["redeliveryCount"] == redelivery_count
            await consumer.send({"type": "negativeAcknowledge", "messageId": received["messageId"]})
        letters = f"v2/consumer/{TOPIC}-s-DLQ/letters?subscriptionInitialPosition=Earliest"
        async with session(broker.admin_url, letters) as dead:
            letter = await dead.receive()
        assert base64.b64decode(letter["payload"]) == b"0"
        assert letter["properties"]["REAL_TOPIC"] == "persistent://public/default/t"
        assert letter["properties"]["ORIGIN_MESSAGE_ID"] == str(decoded(sent["messageId"]))
        assert await consumer.is_quiet()
    assert await backlog(broker, "s") == 0


async def test_pull_mode_sends_messages_only_for_permits(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s?pullMode=true") as consumer:
        await filled(broker, 3)
        assert await consumer.is_quiet()
        await consumer.send({"type": "permit", "permitMessages": 2})
        assert [await consumer.payload(), await consumer.payload()] == [b"0", b"1"]
        assert await consumer.is_quiet()
        await consumer.send({"type": "permit", "permitMessages": 1})
        assert await consumer.payload() == b"2"


async def test_unsubscribe_deletes_subscription(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        await filled(broker, 1)
        await consumer.receive()
        await consumer.send({"type": "unsubscribe"})
        while (await rest(broker, "GET", f"/admin/v2/{TOPIC}/subscriptions")).json:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await consumer.is_quiet()


async def test_end_of_topic_is_reported_after_last_message(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        await filled(broker, 1)
        await rest(broker, "POST", f"/admin/v2/{TOPIC}/terminate")
        received = await consumer.receive()
        await consumer.send({"type": "isEndOfTopic"})
        assert await consumer.receive() == {"endOfTopic": False}
        await consumer.ack(received)
        while True:
            await consumer.send({"type": "isEndOfTopic"})
            if (await consumer.receive())["endOfTopic"]:
                break


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "null",
        "{}",
        '{"messageId": "!!"}',
        '{"messageId": "YQ=="}',
        '{"type": "permit"}',
        '{"type": 1}',
    ],
)
async def test_unreadable_command_closes_consumer_session(broker: EmbeddedBroker, text: str) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        await consumer.send(text)
        code, reason = await consumer.close_code()
    assert code == 1007
    assert reason.startswith("Failed to de-serialize from JSON")


@pytest.mark.parametrize("members", [{}, {"type": "negativeAcknowledge"}])
async def test_acknowledgement_of_id_that_no_message_has_is_ignored(
    broker: EmbeddedBroker, members: dict[str, str]
) -> None:
    path = f"v2/consumer/{TOPIC}/s?subscriptionType=Shared&negativeAckRedeliveryDelay=0"
    async with session(broker.admin_url, path) as consumer:
        for message_id in (
            EARLIEST,
            LATEST,
            MessageId(1 << 63, 0),
            MessageId(0, 1 << 63),
            MessageId(0, 0, batch_size=2),
            MessageId(0, 0, batch_index=2, batch_size=2),
            MessageId(0, 0, batch_index=(1 << 31) - 2, batch_size=(1 << 31) - 1),
        ):
            await consumer.send({"messageId": base64.b64encode(encoded_id(message_id)).decode(), **members})
        await filled(broker, 1)
        assert await consumer.payload() == b"0"


async def test_unacknowledged_messages_go_to_next_session(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        await filled(broker, 2)
        await consumer.ack(await consumer.receive())
        await consumer.receive()
    async with opened_again(broker, f"v2/consumer/{TOPIC}/s") as consumer:
        assert await consumer.payload() == b"1"


@asynccontextmanager
async def opened_again(broker: EmbeddedBroker, path: str) -> AsyncIterator[Socket]:
    """Open a session as soon as the former one has left its exclusive subscription."""
    async with AsyncExitStack() as stack:
        while True:
            try:
                opened = await stack.enter_async_context(session(broker.admin_url, path))
            except Refused as refused:
                if refused.status != 409:
                    raise
            else:
                yield opened
                return
            await asyncio.sleep(0.01)


async def test_consumer_of_several_topics_acknowledges_each_at_its_topic(broker: EmbeddedBroker) -> None:
    names = [f"persistent://public/default/{name}" for name in ("a", "b")]
    async with session(broker.admin_url, f"v3/consumer/s?topics={','.join(names)}") as consumer:
        for name in names:
            await filled(broker, 2, name.replace("://", "/"))
        for _ in range(4):
            await consumer.ack(await consumer.receive())
    for name in names:
        stats = (await rest(broker, "GET", f"/admin/v2/{name.replace('://', '/')}/stats")).json
        assert stats["subscriptions"]["s"]["msgBacklog"] == 0


async def test_pattern_consumer_reads_matching_topics(broker: EmbeddedBroker) -> None:
    for name in ("a1", "a2", "b1"):
        await filled(broker, 1, f"persistent/public/default/{name}")
    path = "v3/consumer/s?topicsPattern=persistent://public/default/a.*&subscriptionInitialPosition=Earliest"
    async with session(broker.admin_url, path) as consumer:
        await consumer.receive()
        await consumer.receive()
        assert await consumer.is_quiet()


async def test_texts_before_a_close_are_handled(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        async with session(broker.admin_url, f"v2/producer/{TOPIC}") as producer:
            for number in range(200):
                await producer.send(message(b"%d" % number))
        received = [await consumer.receive() for _ in range(200)]
        for each in received:
            await consumer.ack(each)
    while await backlog(broker, "s"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# --- readers -----------------------------------------------------------------------------------------------------------


async def test_reader_begins_after_its_message_id(broker: EmbeddedBroker) -> None:
    answers = await filled(broker, 3)
    start = answers[0]["messageId"].replace("+", "%2B")
    async with session(broker.admin_url, f"v2/reader/{TOPIC}?messageId={start}") as reader:
        assert [await reader.payload(), await reader.payload()] == [b"1", b"2"]
    async with session(broker.admin_url, f"v2/reader/{TOPIC}") as reader:
        assert await reader.is_quiet()


async def test_reader_gets_more_messages_for_acknowledgements(broker: EmbeddedBroker) -> None:
    await filled(broker, 3)
    async with session(broker.admin_url, f"v2/reader/{TOPIC}?messageId=earliest&receiverQueueSize=2") as reader:
        first = await reader.receive()
        await reader.receive()
        assert await reader.is_quiet()
        await reader.ack(first)
        assert await reader.payload() == b"2"


# --- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"v2/producer/{TOPIC}?compressionType=x", 400),
        (f"v2/producer/{TOPIC}?sendTimeoutMillis=x", 400),
        (f"v2/producer/{TOPIC}?encryptionKeys=a", 400),
        (f"v2/consumer/{TOPIC}/s?subscriptionType=x", 400),
        (f"v2/consumer/{TOPIC}/s?ackTimeoutMillis=5", 400),
        (f"v2/consumer/{TOPIC}/s?deadLetterTopic=x", 400),
        (f"v2/consumer/{TOPIC}", 400),
        (f"v2/reader/{TOPIC}?messageId=x!", 400),
        ("v2/producer/other/public/default/t", 400),
        ("v3/consumer/s", 400),
        ("v3/consumer/s?topics=a&topicsPattern=b", 400),
        ("v3/consumer/s?topicsPattern=persistent://public/default/(", 400),
        ("v2/producer/persistent/no/such/t", 404),
        ("v2/other/persistent/public/default/t", 404),
    ],
)
async def test_refused_session_has_status_and_reason(broker: EmbeddedBroker, path: str, status: int) -> None:
    with pytest.raises(Refused) as refused:
        async with session(broker.admin_url, path):
            pass
    assert refused.value.status == status
    assert refused.value.reason


async def test_second_producer_of_name_and_second_exclusive_consumer_are_refused(broker: EmbeddedBroker) -> None:
    for path in (f"v2/producer/{TOPIC}?producerName=p", f"v2/consumer/{TOPIC}/s"):
        async with session(broker.admin_url, path):
            with pytest.raises(Refused) as refused:
                async with session(broker.admin_url, path):
                    pass
            assert refused.value.status == 409


async def test_request_without_handshake_is_refused(broker: EmbeddedBroker) -> None:
    answer = await rest(broker, "GET", f"/ws/v2/producer/{TOPIC}")
    assert answer.status == 405
    assert "WebSocket client" in answer.json["reason"]


HANDSHAKE = (
    f"GET /ws/v2/producer/{TOPIC} HTTP/1.1",
    "Host: localhost",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


async def handshake(broker: EmbeddedBroker, *lines: str, after: bytes = b"") -> tuple[int, bytes]:
    """Send a request head. Return the status, and the bytes after the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.admin_url.rpartition(":")[2]))
    writer.write("\r\n".join((*lines, "", "")).encode() + after)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    rest_of_answer = await asyncio.wait_for(reader.read(1000), 10) if after else b""
    writer.close()
    return int(head.split()[1]), rest_of_answer


async def test_handshake_is_answered_and_early_frame_is_handled(broker: EmbeddedBroker) -> None:
    ping = b"\x89\x82" + bytes(4) + b"hi"
    assert await handshake(broker, *HANDSHAKE, after=ping) == (101, b"\x8a\x02hi")


@pytest.mark.parametrize(
    "lines",
    [
        (HANDSHAKE[0].replace("1.1", "1.0"), *HANDSHAKE[1:]),
        (*HANDSHAKE, "Content-Length: 5"),
        (*HANDSHAKE, "Transfer-Encoding: chunked"),
        (*HANDSHAKE[:4], HANDSHAKE[5]),
        (*HANDSHAKE[:5], "Sec-WebSocket-Version: 8"),
        (*HANDSHAKE[:4], "Sec-WebSocket-Key: short", HANDSHAKE[5]),
        (*HANDSHAKE, "X-Control: \x7f"),
    ],
)
async def test_invalid_handshake_is_refused(broker: EmbeddedBroker, lines: tuple[str, ...]) -> None:
    body = b"5\r\nhello\r\n0\r\n\r\n" if "chunked" in lines[-1] else b"hello"
    status, _ = await handshake(broker, *lines, after=body)
    assert status == 400


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_frames_are_compressed_only_if_enabled_and_offered(is_enabled: bool) -> None:
    async with (
        embed(webSocketServiceEnabled=True, webSocketCompressionEnabled=is_enabled) as broker,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as offering,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/p", compression=None) as plain,
        session(broker.admin_url, f"v2/producer/{TOPIC}") as producer,
    ):
        assert bool(offering.connection.protocol.extensions) == is_enabled
        assert not plain.connection.protocol.extensions
        await producer.publish(b"x" * 300_000)
        for consumer in (offering, plain):
            assert await consumer.payload() == b"x" * 300_000


async def test_page_of_other_host_is_refused_without_authentication(broker: EmbeddedBroker) -> None:
    with pytest.raises(Refused) as refused:
        async with session(broker.admin_url, f"v2/producer/{TOPIC}", origin="http://evil.example"):
            pass
    assert refused.value.status == 403
    async with session(broker.admin_url, f"v2/producer/{TOPIC}", origin="http://127.0.0.1:3000") as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"


@pytest.mark.parametrize("origin", ["http://[", "//[::1", "null", ""])
async def test_page_with_origin_without_valid_host_is_refused(broker: EmbeddedBroker, origin: str) -> None:
    assert (await handshake(broker, *HANDSHAKE, f"Origin: {origin}"))[0] == 403


async def test_page_is_refused_if_host_of_request_is_invalid(broker: EmbeddedBroker) -> None:
    lines = [line for line in HANDSHAKE if not line.startswith("Host:")]
    assert (await handshake(broker, *lines, "Host: [", "Origin: http://["))[0] in {400, 403, 421}


async def test_service_is_off_by_default() -> None:
    async with embed() as broker:
        with pytest.raises(Refused) as refused:
            async with session(broker.admin_url, f"v2/producer/{TOPIC}"):
                pass
    assert refused.value.status == 404


async def test_stopping_broker_closes_sessions() -> None:
    async with (
        embed(webSocketServiceEnabled=True) as broker,
        session(broker.admin_url, f"v2/producer/{TOPIC}") as producer,
    ):
        await producer.publish(b"x")
        closing = asyncio.ensure_future(broker.close())
        code, _ = await producer.close_code()
        await closing
    assert code == 1001


async def test_statistics_show_sessions_and_totals(broker: EmbeddedBroker) -> None:
    async with (
        session(broker.admin_url, f"v2/producer/{TOPIC}") as producer,
        session(broker.admin_url, f"v2/reader/{TOPIC}"),
    ):
        await producer.publish(b"12345")
        stats = (await rest(broker, "GET", f"/admin/v2/proxy-stats/{TOPIC}/stats")).json
        assert stats["producerStats"][0]["numberOfMsgPublished"] == 1
        assert stats["consumerStats"][0]["subscriptionName"].startswith("reader-")
        page = (await rest(broker, "GET", "/metrics")).text
    assert "pybroker_websocket_producers{" in page
    (totals,) = (await rest(broker, "GET", "/admin/v2/proxy-stats/metrics")).json
    assert totals["dimensions"] == {"namespace": "public/default"}
    assert totals["metrics"]["ns_byte_publish_rate"] == 5
    assert (await rest(broker, "GET", f"/admin/v2/proxy-stats/{TOPIC}/stats")).status == 404


# --- back-pressure -----------------------------------------------------------------------------------------------------


async def waits_for(broker: EmbeddedBroker, kind: str, expected: str) -> None:
    """Wait until the only session of a kind shows the expected reason for its wait."""
    while True:
        stats = (await rest(broker, "GET", "/admin/v2/proxy-stats/stats")).json["persistent://public/default/t"]
        (shown,) = stats[kind]
        if expected in (shown["waitsFor"] or ""):
            return
        await asyncio.sleep(0.02)


async def test_consumer_that_does_not_read_stops_requesting_and_continues_later(broker: EmbeddedBroker) -> None:
    count, payload = 300, b"x" * 50_000
    async with session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer:
        consumer.connection.transport.pause_reading()
        async with session(broker.admin_url, f"v2/producer/{TOPIC}?compressionType=LZ4") as producer:
            for _ in range(count):
                await producer.publish(payload)
        await waits_for(broker, "consumerStats", "the client to read")
        stats = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/stats")).json
        (shown,) = stats["subscriptions"]["s"]["consumers"]
        assert shown["availablePermits"] == 0
        assert shown["msgOutCounter"] < count
        explained = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/subscription/s/explain")).json
        assert "for WebSocket" in str(explained)
        consumer.connection.transport.resume_reading()
        for _ in range(count):
            received = await consumer.receive()
            await consumer.ack(received)
    assert await backlog(broker, "s") == 0
    assert broker.broker.runtime.memory.budget.parts["websockets"].used_bytes == 0


async def test_producer_that_does_not_read_its_answers_is_not_read(broker: EmbeddedBroker) -> None:
    count = 1500
    text = '{"payload": "", "context": "%s"}' % ("c" * 20_000)
    async with session(broker.admin_url, f"v2/producer/{TOPIC}?batchingEnabled=true") as producer:
        producer.connection.transport.pause_reading()
        sending = asyncio.ensure_future(send_all(producer, text, count))
        published = -1
        while True:  # until no more messages are published
            stats = (await rest(broker, "GET", "/admin/v2/proxy-stats/stats")).json["persistent://public/default/t"]
            if stats["producerStats"][0]["numberOfMsgPublished"] == published and published > 0:
                break
            published = stats["producerStats"][0]["numberOfMsgPublished"]
            await asyncio.sleep(0.2)
        assert published < count
        assert not sending.done()
        producer.connection.transport.resume_reading()
        for _ in range(count):
            assert (await producer.receive())["result"] == "ok"
        await sending


async def send_all(producer: Socket, text: str, count: int) -> None:
    for _ in range(count):
        await producer.send(text)


async def test_sessions_that_disconnect_abruptly_leave_nothing(broker: EmbeddedBroker) -> None:
    async with AsyncExitStack() as stack:
        sockets = []
        for number in range(100):
            kind = ("producer", "reader", "consumer")[number % 3]
            path = f"v2/{kind}/{TOPIC}" + (f"/s{number}" if kind == "consumer" else "")
            sockets.append(await stack.enter_async_context(session(broker.admin_url, path)))
        for number, each in enumerate(sockets):
            await each.send(message(b"x" * 1000) if number % 3 == 0 else {"type": "isEndOfTopic"})
            each.connection.transport.abort()
    while (await rest(broker, "GET", "/admin/v2/proxy-stats/stats")).json:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    while True:
        stats = (await rest(broker, "GET", f"/admin/v2/{TOPIC}/stats")).json
        consumers = [each for found in stats["subscriptions"].values() for each in found["consumers"]]
        if not stats["publishers"] and not consumers:
            break
        await asyncio.sleep(0.01)
    assert broker.broker.runtime.memory.budget.parts["websockets"].used_bytes == 0


async def test_text_of_one_mebibyte_is_stored_and_larger_one_closes_session(broker: EmbeddedBroker) -> None:
    payload = b"x" * 780_000
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}") as producer,
    ):
        assert (await producer.publish(payload))["result"] == "ok"
        assert await consumer.payload() == payload
        await producer.send(message(b"x" * 800_000))
        assert (await producer.close_code())[0] == 1009


async def test_topic_unload_does_not_end_sessions(broker: EmbeddedBroker) -> None:
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}") as producer,
    ):
        await producer.publish(b"before")
        await consumer.ack(await consumer.receive())
        await rest(broker, "PUT", f"/admin/v2/{TOPIC}/unload")
        await producer.publish(b"after")
        assert await consumer.payload() == b"after"


# --- encryption --------------------------------------------------------------------------------------------------------

KEYS = quote(base64.b64encode(b'{"k": {"keyValue": "AQI=", "metadata": {"m": "v"}}}').decode())


async def test_encrypted_message_is_delivered_as_it_is_with_its_context(broker: EmbeddedBroker) -> None:
    await rest(broker, "POST", "/admin/v2/namespaces/public/default/encryptionRequired", True)
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s?cryptoFailureAction=CONSUME") as consumer,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/d?cryptoFailureAction=DISCARD") as discarding,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/f") as failing,
        session(broker.admin_url, f"v2/producer/{TOPIC}?batchingEnabled=true&encryptionKeys={KEYS}") as producer,
    ):
        answer = await producer.publish(
            b"secret", encryptionParam="Aw==", compressionType="LZ4", uncompressedMessageSize=100
        )
        assert answer["result"] == "ok"
        assert (await producer.publish(b"x", compressionType="LZ4"))["result"] == "send-error:7"
        assert (await producer.publish(b"x", encryptionParam="!"))["result"] == "send-error:7"
        received = await consumer.receive()
        assert base64.b64decode(received["payload"]) == b"secret"
        assert received["encryptionContext"] == {
            "keys": {"k": {"keyValue": "AQI=", "metadata": {"m": "v"}}},
            "param": "Aw==",
            "compressionType": "LZ4",
            "uncompressedMessageSize": 100,
            "batchSize": None,
            "encrypted": True,
        }
        await consumer.ack(received)
        assert await discarding.is_quiet()
        assert await failing.is_quiet()
        assert [await backlog(broker, name) for name in "sdf"] == [0, 0, 1]
