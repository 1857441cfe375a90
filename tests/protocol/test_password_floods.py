"""Floods of wrong passwords on both ports: an honest client is not held up, and the broker goes on."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import passlib.hash  # type: ignore[import-untyped]
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, RawClient, Type, opened
from tests.support.rest import call

FLOODERS = 16


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("passwords")
    hashes = passlib.hash.sha512_crypt.using(rounds=100_000)
    users = directory / "htpasswd"
    users.write_text("".join(f"{name}:{hashes.hash('password of ' + name)}\n" for name in ("alice", "bob", "carol")))
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "basic",
        "basicAuthConf": str(users),
        "basicAuthMaxFailuresPerSecondPerIp": "1000",
    }
    with BrokerProcess(directory, settings).running() as broker:
        yield broker


def send_connect(client: RawClient, user: str, password: str) -> None:
    client.send(
        Type.CONNECT,
        client_version="raw",
        protocol_version=21,
        auth_method_name="basic",
        auth_data=f"{user}:{password}".encode(),
    )


def test_an_honest_connect_is_not_held_up_by_sixteen_who_guess(guarded: BrokerProcess) -> None:
    answered: list[str] = []
    with ExitStack() as stack:
        flooders = [stack.enter_context(opened(guarded)) for _ in range(FLOODERS)]
        honest = stack.enter_context(opened(guarded))
        for number, flooder in enumerate(flooders):
            send_connect(flooder, "nobody", f"guess {number}")
            flooder.send(Type.PING)
            assert flooder.reply()["type"] == "PONG"  # so the CONNECT has been taken, too
        send_connect(honest, "alice", "password of alice")

        def wait_for(client: RawClient) -> None:
            answered.append(client.reply()["type"])

        waiting = [threading.Thread(target=wait_for, args=[client]) for client in (*flooders, honest)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
    assert sorted(answered) == ["CONNECTED"] + ["ERROR"] * FLOODERS
    assert answered.index("CONNECTED") <= FLOODERS // 2


def test_over_http_as_well(guarded: BrokerProcess) -> None:
    def ask(user: str, password: str) -> int:
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        return call(f"{guarded.http_url}/admin/v2/clusters", headers={"Authorization": f"Basic {credentials}"}).status

    statuses: list[int] = []
    flood = [
        threading.Thread(target=lambda number=number: statuses.append(ask("nobody", f"http guess {number}")))
        for number in range(FLOODERS)
    ]
    for thread in flood:
        thread.start()
    assert ask("bob", "password of bob") == 200
    assert call(f"{guarded.http_url}/metrics").status == 200
    for thread in flood:
        thread.join()
    assert statuses == [401] * FLOODERS


def test_a_connection_that_waits_for_its_password_may_not_go_on_without(guarded: BrokerProcess) -> None:
    for command in (Type.CONNECT, Type.AUTH_RESPONSE, Type.LOOKUP):
        with opened(guarded) as hasty:
            send_connect(hasty, "carol", f"wrong {command}")
            if command == Type.CONNECT:
                send_connect(hasty, "carol", "password of carol")
            elif command == Type.LOOKUP:
                hasty.send(command, topic="t", request_id=1)
            else:
                hasty.send(command)
            assert hasty.reply() == CLOSED
