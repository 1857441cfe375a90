"""OpenID Connect: the official client and REST with tokens of a real identity provider, and providers that fail."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.commands import Run, runner, without_a_broker
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import DISCOVERY, KEYS, TOKEN, IdentityProvider
from tests.support.raw_client import CLOSED, RawClient, Type
from tests.support.rest import Answer, call

from pybroker.client.access import Access, oauth2_of
from pybroker.client.pulsar_client import PulsarClient
from pybroker.wire import pulsar_api_pb2 as pb

ROLE = "app"


class World:
    """A broker, an identity provider that it trusts, and another one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = CertificateAuthority(directory)
        self.provider = IdentityProvider("RS256")
        self.other = IdentityProvider("ES256")
        self.broker: BrokerProcess

    def start(self) -> BrokerProcess:
        settings = self.provider.settings(self.authority.certificate_path) | {
            "openIDAllowedTokenIssuers": f"{self.provider.issuer},{self.other.issuer}",
            "openIDKeyIdCacheMissRefreshSeconds": "0",
            "authenticationRefreshCheckSeconds": "1",
            "authorizationEnabled": "true",
            "superUserRoles": ROLE,
            "keepAliveIntervalSeconds": "30",
        }
        self.broker = BrokerProcess(self.directory, settings)
        return self.broker.start()

    def client(self, **parameters: str) -> pulsar.Client:
        authentication = pulsar.AuthenticationOauth2(self.provider.client_parameters(self.directory, **parameters))
        return pulsar.Client(
            str(self.broker.ready["broker_url"]),
            authentication=authentication,
            tls_trust_certs_file_path=str(self.authority.certificate_path),
            operation_timeout_seconds=5,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def rest(self, token: str, path: str = "/admin/v2/tenants") -> Answer:
        return call(str(self.broker.ready["http_url"]) + path, headers={"Authorization": f"Bearer {token}"})

    def connect(self, token: str) -> dict[str, Any]:
        client = RawClient(str(self.broker.ready["broker_url"]))
        reply = client.connect(auth_method_name="token", auth_data=token.encode())
        client.close()
        return reply


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("openid"))
    certificate = world.authority.server()
    with world.provider.serving(certificate), world.other.serving(certificate):
        world.start()
        yield world
        assert world.broker.stop() == 0
    log = world.broker.log.read_text()
    assert "Traceback" not in log
    assert "eyJ" not in log, "a token is in the log"


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.provider.faults.clear()
    shared.other.faults.clear()
    shared.provider.lifetime_s = 300.0


def test_official_client_gets_in_with_client_credentials(world: World, topic: str) -> None:
    client = world.client(scope="produce consume")
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"here")
    assert consumer.receive(10_000).data() == b"here"
    client.close()
    request = world.provider.token_requests[-1]
    assert (request["grant_type"], request["scope"]) == ("client_credentials", "produce consume")


def test_tokens_that_expire_are_renewed_on_an_open_connection(world: World, topic: str) -> None:
    world.provider.lifetime_s = 2.0
    issued = world.provider.requests[TOKEN]
    client = world.client()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ends_s = time.monotonic() + 30
    count = 0
    while world.provider.requests[TOKEN] < issued + 2 and time.monotonic() < ends_s:
        producer.send(str(count).encode())
        message = consumer.receive(10_000)
        assert message.data() == str(count).encode()
        consumer.acknowledge(message)
        count += 1
        time.sleep(0.1)
    assert world.provider.requests[TOKEN] >= issued + 2
    client.close()
    log = world.broker.log.read_text()
    assert log.count(f"topic={topic} producer=") == 1, "the producer was opened again"


def test_client_is_challenged_before_its_token_expires(world: World) -> None:
    client = RawClient(str(world.broker.ready["broker_url"]))
    token = world.provider.token(exp=time.time() + 1.5)
    features = pb.FeatureFlags(supports_auth_refresh=True)
    assert (
        client.connect(auth_method_name="token", auth_data=token.encode(), feature_flags=features)["type"]
        == "CONNECTED"
    )
    assert client.reply()["type"] == "AUTH_CHALLENGE"
    client.send(Type.AUTH_RESPONSE, response=pb.AuthData(auth_method_name="token", auth_data=token.encode()))
    # The same token is still valid, so the broker asks for another one after it has expired.
    assert client.reply()["type"] == "AUTH_CHALLENGE"
    assert client.reply() == CLOSED
    client.close()


def test_official_client_with_a_wrong_secret_does_not_get_in(world: World, topic: str) -> None:
    world.provider.clients["mallory"] = "wrong"
    parameters = world.provider.client_parameters(world.directory, "mallory")
    world.provider.clients["mallory"] = "right"
    client = pulsar.Client(
        str(world.broker.ready["broker_url"]),
        authentication=pulsar.AuthenticationOauth2(parameters),
        tls_trust_certs_file_path=str(world.authority.certificate_path),
        operation_timeout_seconds=1,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


def test_roles_of_both_issuers_are_used_over_http(world: World) -> None:
    assert world.rest(world.provider.token()).status == 200
    assert world.rest(world.other.token()).status == 200
    refused = world.rest(world.other.token("nobody"))
    assert refused.status == 401
    assert "'nobody'" in refused.json["reason"]


def test_refusals_are_the_same_on_both_protocols_and_counted(world: World) -> None:
    token = world.provider.token(aud="elsewhere")
    reply, answer = world.connect(token), world.rest(token)
    assert (reply["type"], reply["error"]) == ("ERROR", "AuthenticationError")
    assert (answer.status, answer.json["reason"]) == (401, reply["message"])
    metrics = call(str(world.broker.ready["http_url"]) + "/metrics").text
    assert 'provider_name="AuthenticationProviderOpenID",auth_method="token",reason="INVALID_JWT_CLAIM"} ' in metrics
    assert 'pulsar_expiring_token_minutes_bucket{cluster="standalone",le="5"} ' in metrics
    assert "pulsar_expired_token_total{" in metrics
    assert (
        'pulsar_authentication_success_total{cluster="standalone",provider_name="AuthenticationProviderOpenID"'
        in metrics
    )


def test_new_key_of_the_provider_is_fetched_with_its_first_token(world: World) -> None:
    world.other.rotate("EdDSA", "rotated")
    assert world.connect(world.other.token())["type"] == "CONNECTED"


def test_other_clients_do_not_wait_for_a_provider_that_does_not_respond(world: World) -> None:
    assert world.connect(world.provider.token())["type"] == "CONNECTED"
    world.other.rotate("ES256", "unreachable")
    ended = threading.Event()

    def wait(_handler: object) -> None:
        ended.wait(10)

    for path in (DISCOVERY, KEYS):
        world.other.faults[path] = wait
    fetches = world.other.requests[DISCOVERY]
    waiting = [RawClient(str(world.broker.ready["broker_url"])) for _ in range(20)]
    for client in waiting:
        data = world.other.token().encode()
        client.send(Type.CONNECT, client_version="raw", protocol_version=21, auth_method_name="token", auth_data=data)
        client.send(Type.PING)
        assert client.reply()["type"] == "PONG"
    assert world.connect(world.provider.token())["type"] == "CONNECTED"
    assert world.rest(world.provider.token()).status == 200
    ended.set()
    assert {client.reply()["error"] for client in waiting} == {"AuthenticationError"}
    assert world.other.requests[DISCOVERY] == fetches + 1, "all clients share one fetch"
    for client in waiting:
        client.close()


# --- clients of this project -------------------------------------------------------------------------------------------


def oauth2_file(world: World, **changes: str) -> Path:
    path = world.directory / "oauth2.json"
    path.write_text(json.dumps(json.loads(world.provider.client_parameters(world.directory)) | changes))
    return path


def access_to(world: World) -> Access:
    return Access(
        str(world.broker.ready["broker_url"]),
        str(world.broker.ready["http_url"]),
        oauth2=oauth2_of(oauth2_file(world).read_text()),
        tls_trust_certs_file=str(world.authority.certificate_path),
    )


async def test_asyncio_client_renews_its_tokens(world: World, topic: str) -> None:
    world.provider.lifetime_s = 2.0
    issued = world.provider.requests[TOKEN]
    async with PulsarClient(access_to(world)) as client:
        consumer = await client.consumer(topic, "s")
        producer = await client.producer(topic)
        ends_s = time.monotonic() + 30
        while world.provider.requests[TOKEN] < issued + 2 and time.monotonic() < ends_s:
            await producer.send(b"here")
            await consumer.ack(await consumer.receive(10))
            await asyncio.sleep(0.1)
    assert world.provider.requests[TOKEN] >= issued + 2
    assert world.broker.log.read_text().count(f"topic={topic} producer=") == 1, "the producer was opened again"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    return runner(capfdbinary)


def connection(world: World, **changes: str) -> list[str]:
    """Return the options of a command that uses client credentials."""
    options = ["--url", str(world.broker.ready["http_url"]), "--oauth2-file", str(oauth2_file(world, **changes))]
    return [*options, "--tls-trust-certs-file", str(world.authority.certificate_path)]


def test_command_line_uses_client_credentials(world: World, run: Run) -> None:
    found = run("api", "GET", "/admin/v2/tenants", *connection(world))
    assert (found.code, found.json) == (0, ["public", "pulsar"])
    refused = run("api", "GET", "/admin/v2/tenants", *connection(world, audience="elsewhere"))
    assert refused.code != 0
    assert "openIDAllowedAudiences" in refused.err


def test_identity_provider_that_refuses_a_client_is_named(world: World, run: Run) -> None:
    key = world.directory / "wrong.json"
    key.write_text(json.dumps({"client_id": "app", "client_secret": "wrong-secret"}))
    refused = run("topics", *connection(world, privateKey=key.as_uri()))
    assert refused.code != 0
    assert "invalid_client wrong client id or secret" in refused.err
    assert "wrong-secret" not in refused.err
    assert "Traceback" not in refused.err
