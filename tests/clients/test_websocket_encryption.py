"""Encrypted messages between the official client and WebSocket sessions, whose messages the broker encrypts."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import private_pem, public_pem, rsa_key
from tests.support.websockets import session

TOPIC = "persistent/public/default/{}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "app.public.pem").write_bytes(public_pem(rsa_key()))
    (directory / "app.private.pem").write_bytes(private_pem(rsa_key()))
    return directory


@pytest.fixture(scope="module")
def broker(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "webSocketServiceEnabled": "true",
        "cryptoKeyReaderFactoryClassName": "files",
        "cryptoKeyDirectory": str(keys),
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running_well() as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield found
    found.close()


@pytest.fixture
def reader(keys: Path) -> pulsar.CryptoKeyReader:
    return pulsar.CryptoKeyReader(str(keys / "app.public.pem"), str(keys / "app.private.pem"))


@pytest.mark.parametrize("options", ["", "&batchingEnabled=true&compressionType=ZLIB", "&compressionType=ZSTD"])
async def test_official_client_decrypts_messages_that_the_broker_encrypted(
    broker: BrokerProcess, client: pulsar.Client, reader: pulsar.CryptoKeyReader, options: str
) -> None:
    topic = TOPIC.format(f"from-websocket-{len(options)}")
    consumer = client.subscribe(topic.replace("persistent/", "persistent://"), "s", crypto_key_reader=reader)
    async with session(broker.http_url, f"v2/producer/{topic}?encryptionKeys=app{options}") as producer:
        for number in range(10):
            answer = await producer.publish(b"secret %d" % number, properties={"n": str(number)}, key="k")
            assert answer["result"] == "ok"
    for number in range(10):
        message = consumer.receive(10_000)
        assert message.data() == b"secret %d" % number
        assert (message.properties(), message.partition_key()) == ({"n": str(number)}, "k")
        consumer.acknowledge(message)


@pytest.mark.parametrize("kind", ["single", "batched", "chunked"])
async def test_session_receives_decrypted_messages_of_the_official_client(
    broker: BrokerProcess, client: pulsar.Client, reader: pulsar.CryptoKeyReader, kind: str
) -> None:
    topic = TOPIC.format(f"to-websocket-{kind}")
    producer = client.create_producer(
        topic.replace("persistent/", "persistent://"),
        encryption_key="app",
        crypto_key_reader=reader,
        batching_enabled=kind == "batched",
        batching_max_messages=4,
        chunking_enabled=kind == "chunked",
        compression_type=pulsar.CompressionType.LZ4 if kind == "batched" else pulsar.CompressionType.NONE,
    )
    contents = [b"%d " % number * (1_000_000 if kind == "chunked" else 1) for number in range(10, 14)]
    contents = [content * (2 if kind == "chunked" else 1) for content in contents]
    async with session(broker.http_url, f"v2/consumer/{topic}/s?subscriptionInitialPosition=Earliest") as consumer:
        for content in contents:
            producer.send_async(content, None)
        producer.flush()
        for content in contents:
            received = await consumer.receive()
            assert base64.b64decode(received["payload"]) == content
            assert received["encryptionContext"]["encrypted"] is False
            assert set(received["encryptionContext"]["keys"]) == {"app"}
            await consumer.ack(received)
    producer.close()
