"""Encryption by the broker for WebSocket sessions, with keys of its key reader."""

from __future__ import annotations

import asyncio
import base64
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.credentials import private_pem, public_pem, rsa_key
from tests.support.rest import call
from tests.support.websockets import Refused, session

from pybroker.embedding.embedded_broker import EmbeddedBroker, embed

TOPIC = "persistent/public/default/t"
ACTIONS = ("FAIL", "DISCARD", "CONSUME")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    directory.mkdir()
    for number, name in enumerate(("a", "b")):
        (directory / f"{name}.public.pem").write_bytes(public_pem(rsa_key(number)))
        (directory / f"{name}.private.pem").write_bytes(private_pem(rsa_key(number)))
    (directory / "bad.public.pem").write_text("no key")
    return directory


@pytest.fixture
async def broker(keys: Path) -> AsyncIterator[EmbeddedBroker]:
    settings = {"cryptoKeyReaderFactoryClassName": "files", "cryptoKeyDirectory": str(keys)}
    async with embed(webSocketServiceEnabled=True, **settings) as broker:
        yield broker


async def rest(broker: EmbeddedBroker, method: str, path: str, body: object = None) -> Any:
    answer = await asyncio.to_thread(call, broker.admin_url + path, method, body=body)
    return answer.json if answer.text else None


async def backlog(broker: EmbeddedBroker, subscription: str) -> int:
    stats = await rest(broker, "GET", f"/admin/v2/{TOPIC}/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def payload(message: Any) -> bytes:
    return base64.b64decode(message["payload"])


@pytest.mark.parametrize("options", ["", "&compressionType=ZSTD", "&batchingEnabled=true&compressionType=LZ4"])
async def test_broker_encrypts_and_decrypts_with_named_keys(broker: EmbeddedBroker, options: str) -> None:
    await rest(broker, "POST", "/admin/v2/namespaces/public/default/encryptionRequired", True)
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/s") as consumer,
        session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=a,b{options}") as producer,
    ):
        for number in range(20):
            await producer.send({"payload": base64.b64encode(b"secret %d" % number).decode(), "key": "k"})
        assert [(await producer.receive())["result"] for _ in range(20)] == ["ok"] * 20
        for number in range(20):
            received = await consumer.receive()
            assert payload(received) == b"secret %d" % number
            context = received["encryptionContext"]
            assert (set(context["keys"]), context["encrypted"]) == ({"a", "b"}, False)
            await consumer.ack(received)
    assert await backlog(broker, "s") == 0


async def test_stored_entry_is_encrypted_for_each_named_key(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=a,b,a") as producer:
        await producer.publish(b"secret")
    path = f"/admin/v2/{TOPIC}/examinemessage?initialPosition=earliest&messagePosition=1"

    def examined() -> tuple[bytes, str | None]:
        with urllib.request.urlopen(broker.admin_url + path) as response:
            return response.read(), response.headers["X-Pulsar-Is-Encrypted"]

    content, is_encrypted = await asyncio.to_thread(examined)
    assert b"secret" not in content
    assert is_encrypted == "true"


async def test_message_without_private_key_follows_the_failure_action(broker: EmbeddedBroker, keys: Path) -> None:
    (keys / "b.private.pem").unlink()
    async with (
        session(broker.admin_url, f"v2/consumer/{TOPIC}/FAIL") as failing,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/DISCARD?cryptoFailureAction=DISCARD") as discarding,
        session(broker.admin_url, f"v2/consumer/{TOPIC}/CONSUME?cryptoFailureAction=CONSUME") as consuming,
        session(broker.admin_url, f"v2/reader/{TOPIC}?messageId=earliest&cryptoFailureAction=CONSUME") as reader,
        session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=b&batchingEnabled=true") as sealed,
        session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=a") as producer,
    ):
        await sealed.publish(b"for b")
        await producer.publish(b"for a")
        for consumer in (failing, discarding):
            received = await consumer.receive()
            assert payload(received) == b"for a"
            await consumer.ack(received)
        for consumer in (consuming, reader):
            received = [await consumer.receive() for _ in range(2)]
            assert [each["encryptionContext"]["encrypted"] for each in received] == [True, False]
            assert received[0]["encryptionContext"]["batchSize"] == 1
            assert payload(received[1]) == b"for a"
            for each in received:
                await consumer.ack(each)
    assert [await backlog(broker, action) for action in ACTIONS] == [1, 0, 0]


async def test_plain_and_encrypted_messages_arrive_in_order(broker: EmbeddedBroker) -> None:
    async with session(broker.admin_url, f"v2/producer/{TOPIC}") as plain:
        for number in range(40):
            if number % 4:
                await plain.publish(b"%d" % number)
            else:  # a session of its own, so each message has another data key
                async with session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=a") as producer:
                    await producer.publish(b"%d" % number)
    async with session(broker.admin_url, f"v2/reader/{TOPIC}?messageId=earliest") as reader:
        assert [await reader.payload() for _ in range(40)] == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("none", "no public key 'none'"),
        ("a,none", "no public key 'none'"),
        ("..%2Fkeys%2Fa", "no public key '../keys/a'"),
        ("bad", "'bad' is neither a public key nor a certificate"),
        ("", "the parameter contains no key name"),
        (",", "the parameter contains no key name"),
        (",".join(f"k{number}" for number in range(17)), "more than 16 keys"),
        (base64.b64encode(b"{}").decode(), "an encryption key in the JSON object has an empty name or no keyValue"),
    ],
)
async def test_producer_with_unusable_key_is_refused(broker: EmbeddedBroker, names: str, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        async with session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys={names}"):
            pass
    assert refused.value.status == 400
    assert reason in refused.value.reason


async def test_named_keys_need_a_key_reader() -> None:
    async with embed(webSocketServiceEnabled=True) as broker:
        with pytest.raises(Refused) as refused:
            async with session(broker.admin_url, f"v2/producer/{TOPIC}?encryptionKeys=a"):
                pass
        assert refused.value.status == 400
        assert "cryptoKeyReaderFactoryClassName" in refused.value.reason
