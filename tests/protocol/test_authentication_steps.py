"""Authentication in several steps, by a provider of a Python package: AUTH_CHALLENGE and AUTH_RESPONSE."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import plugin_packages
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, DeadClient, RawClient, Type, opened
from tests.support.rest import call

from pybroker.auth.authentication import MAX_STEPS
from pybroker.wire import pulsar_api_pb2 as pb

SOURCE = '''
import asyncio
import hashlib

from pybroker.auth.authentication_provider import AuthenticationProvider, AuthenticationState, Challenge, Identity
from pybroker.errors import AuthenticationError, NotAllowedError


class Digest(AuthenticationProvider):
    """The client sends its name, and then the hash of the challenge and its password."""

    method = "digest"

    @classmethod
    def create(cls, environment):
        provider = cls()
        provider.environment = environment
        return provider

    def new_state(self, client):
        return Exchange(self)


class Exchange(AuthenticationState):
    def __init__(self, provider):
        self.provider = provider
        self.name = None

    async def authenticate(self, data):
        if data == b"broken":
            raise ValueError("the secret is swordfish")
        if data == b"banned":
            raise NotAllowedError("the client is banned")
        if data == b"again":
            return Challenge(b"more")
        if data == b"slow":
            await asyncio.sleep(0.3)
        if self.name is None:
            self.name = "alice" if data == b"PulsarAuthRefresh" else data.decode()
            return Challenge(b"nonce")
        if data != hashlib.sha256(b"nonce" + self.name.encode()).digest():
            raise AuthenticationError("wrong answer", "WRONG_ANSWER")
        lifetime_s = 0.5 if self.name == "brief" else 1000
        return Identity(self.name, "digest", self.provider.environment.now_s() + lifetime_s)
'''


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("steps")
    points = {"pybroker.authentication": {"org.example.Digest": "digest_plugin:Digest"}}
    plugins = plugin_packages.install(directory / "plugins", "digest_plugin", SOURCE, points)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.example.Digest",
        "authenticationRefreshCheckSeconds": "1",
        "authenticateMetricsEndpoint": "false",
    }
    broker = BrokerProcess(directory, settings)
    broker.environment = {"PYTHONPATH": f"{plugins}:src"}
    with broker.running():
        yield broker
    assert "swordfish" not in broker.log.read_text()


def digest(name: str) -> bytes:
    return hashlib.sha256(b"nonce" + name.encode()).digest()


def begin(client: RawClient, data: bytes) -> dict[str, Any]:
    features = pb.FeatureFlags(supports_auth_refresh=True)
    return client.connect(auth_method_name="digest", auth_data=data, feature_flags=features)


def respond(client: RawClient, data: bytes) -> dict[str, Any]:
    client.send(Type.AUTH_RESPONSE, response=pb.AuthData(auth_method_name="digest", auth_data=data))
    return client.reply()


def challenge_of(reply: dict[str, Any]) -> bytes:
    assert reply["type"] == "AUTH_CHALLENGE", reply
    assert reply["challenge"]["auth_method_name"] == "digest"
    return base64.b64decode(reply["challenge"]["auth_data"])


def assert_refused(client: RawClient, reply: dict[str, Any], text: str) -> None:
    assert (reply["type"], reply["error"]) == ("ERROR", "AuthenticationError"), reply
    assert text in reply["message"]
    assert client.reply() == CLOSED


def test_client_that_answers_the_challenge_is_connected(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        assert challenge_of(begin(client, b"alice")) == b"nonce"
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"
        assert respond(client, digest("alice"))["type"] == "CONNECTED"
        assert client.open_producer("persistent://public/default/steps")["type"] == "PRODUCER_SUCCESS"


def test_wrong_answer_to_challenge_is_refused(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        begin(client, b"alice")
        assert_refused(client, respond(client, digest("bob")), "wrong answer")
    metrics = call(str(stepping.ready["http_url"]) + "/metrics").text
    labels = 'provider_name="Digest",auth_method="digest",reason="WRONG_ANSWER"'
    assert f'pulsar_authentication_failures_total{{cluster="standalone",{labels}}} 1' in metrics


def test_number_of_steps_is_limited(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        begin(client, b"again")
        for _ in range(MAX_STEPS - 1):
            challenge_of(respond(client, b"again"))
        assert_refused(client, respond(client, b"again"), f"more than {MAX_STEPS} steps")


def test_second_answer_during_a_step_closes_the_connection(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        begin(client, b"again")
        response = pb.AuthData(auth_method_name="digest", auth_data=b"slow")
        client.send(Type.AUTH_RESPONSE, response=response)
        client.send(Type.AUTH_RESPONSE, response=response)
        assert client.reply() == CLOSED


def test_other_command_between_two_steps_closes_the_connection(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        begin(client, b"alice")
        client.send(Type.LOOKUP, topic="t", request_id=1)
        assert client.reply() == CLOSED


def test_exception_of_a_provider_refuses_the_client_without_its_text(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        assert_refused(client, begin(client, b"broken"), "the authentication provider Digest failed")
    assert "authentication.provider_failed" in stepping.log.read_text()


def test_other_error_of_a_provider_ends_the_connection(stepping: BrokerProcess) -> None:
    with opened(stepping) as client:
        reply = begin(client, b"banned")
        assert (reply["type"], reply["error"], reply["message"]) == ("ERROR", "NotAllowedError", "the client is banned")
        assert client.reply() == CLOSED


def test_method_with_several_steps_is_refused_over_http(stepping: BrokerProcess) -> None:
    url = str(stepping.ready["http_url"]) + "/admin/v2/clusters"
    answer = call(url, headers={"Authorization": "digest alice"})
    assert answer.status == 401
    assert "needs several steps" in answer.json["reason"]


def test_credentials_are_renewed_in_several_steps(stepping: BrokerProcess) -> None:
    client = DeadClient(str(stepping.ready["broker_url"]))
    begin(client, b"brief")
    assert respond(client, digest("brief"))["type"] == "CONNECTED"
    assert challenge_of(client.reply()) == b"PulsarAuthRefresh"
    assert challenge_of(respond(client, b"brief")) == b"nonce"
    client.send(Type.AUTH_RESPONSE, response=pb.AuthData(auth_method_name="digest", auth_data=digest("brief")))
    assert client.open_producer("persistent://public/default/steps")["type"] == "PRODUCER_SUCCESS"
    assert challenge_of(client.reply()) == b"PulsarAuthRefresh"
    assert client.reply() == CLOSED
    client.close()
