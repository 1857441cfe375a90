"""Encrypted messages between the official Java client and WebSocket sessions, with RSA and EC keys."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import PrivateKey, public_pem, rsa_key
from tests.support.java import java_command
from tests.support.websockets import session

pytestmark = [pytest.mark.cluster, pytest.mark.java]

PROGRAM = Path(__file__).with_name("JavaEncryption.java")
TIMEOUT_S = 120
MESSAGES = 5
KEYS: dict[str, PrivateKey] = {
    "rsa": rsa_key(),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
    "k256": ec.generate_private_key(ec.SECP256K1()),
}


async def test_java_client_and_websocket_sessions_decrypt_messages_of_each_other(tmp_path: Path) -> None:
    keys, data = tmp_path / "keys", tmp_path / "data"
    keys.mkdir()
    data.mkdir()
    for name, key in KEYS.items():
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        (keys / f"{name}.private.pem").write_bytes(private)
        (keys / f"{name}.public.pem").write_bytes(public_pem(key))
    settings = {
        "webSocketServiceEnabled": "true",
        "cryptoKeyReaderFactoryClassName": "files",
        "cryptoKeyDirectory": str(keys),
    }
    with BrokerProcess(data, settings).running_well() as broker:
        for name in KEYS:
            topic = f"persistent/public/default/to-java-{name}"
            async with session(broker.http_url, f"v2/producer/{topic}?encryptionKeys={name}") as producer:
                for number in range(MESSAGES):
                    assert (await producer.publish(f"websocket {number}".encode()))["result"] == "ok"
        prefix = "persistent://public/default/"
        command = java_command(PROGRAM, "exchange", broker.url, prefix, str(keys), str(MESSAGES), *KEYS)
        run = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert run.returncode == 0, run.stderr
        expected = [f"{name} websocket {number}" for name in KEYS for number in range(MESSAGES)]
        assert run.stdout.splitlines()[-len(expected) :] == expected, run.stdout + run.stderr
        for name in KEYS:
            path = f"v2/consumer/persistent/public/default/from-java-{name}/s?subscriptionInitialPosition=Earliest"
            async with session(broker.http_url, path) as consumer:
                for number in range(MESSAGES):
                    message = await consumer.receive()
                    assert base64.b64decode(message["payload"]) == f"java {number}".encode()
                    assert message["encryptionContext"]["encrypted"] is False
                    await consumer.ack(message)
