"""Official clients and REST calls through the real Pulsar proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.pulsar_proxy import PulsarProxy, pulsar_proxy
from tests.support.rest import call
from tests.support.secured import PACKAGE

pytestmark = [pytest.mark.long, pytest.mark.cluster]

SECRET = credentials.secret_key()
TOPIC = "persistent://public/default/proxied"


def token(role: str, **claims: Any) -> str:
    return credentials.token(SECRET, sub=role, **claims)


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role)}"}


@pytest.fixture(scope="module", params=["named", "forwarded"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarProxy]:
    """A proxy that names the role of its client, or forwards the client's credentials, which the broker checks."""
    directory: Path = tmp_path_factory.mktemp("proxied")
    (directory / "token.key").write_bytes(SECRET)
    authentication = {
        "authenticationEnabled": "true",
        "authenticationProviders": f"{PACKAGE}AuthenticationProviderToken",
        "tokenSecretKey": (directory / "token.key").as_uri(),
    }
    is_forwarded = str(request.param == "forwarded").lower()
    broker = BrokerProcess(
        directory,
        {
            **authentication,
            "authorizationEnabled": "true",
            "superUserRoles": "admin,proxy",
            "proxyRoles": "proxy",
            "authenticateOriginalAuthData": is_forwarded,
        },
    )
    with broker.running_well():
        path = "/admin/v2/namespaces/public/default/permissions/alice"
        granted = call(broker.http_url + path, "POST", body=["produce", "consume"], headers=bearer("admin"))
        assert granted.status == 204
        settings = {
            **authentication,
            "brokerServiceURL": broker.url,
            "brokerWebServiceURL": broker.http_url,
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{token('proxy')}",
            "forwardAuthorizationCredentials": is_forwarded,
        }
        with pulsar_proxy(directory, settings) as proxy:
            yield proxy


def client_of(proxy: PulsarProxy, role: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    authentication = pulsar.AuthenticationToken(token(role))
    return pulsar.Client(proxy.url, authentication, operation_timeout_seconds=10, logger=logger)


def test_client_of_the_proxy_has_its_own_permissions(proxied: PulsarProxy) -> None:
    client = client_of(proxied, "alice")
    consumer = client.subscribe(TOPIC, "s")
    client.create_producer(TOPIC).send(b"through the proxy")
    message = consumer.receive(30_000)
    assert message.data() == b"through the proxy"
    consumer.acknowledge(message)
    client.close()
    stranger = client_of(proxied, "bob")
    with pytest.raises(pulsar.AuthorizationError):
        stranger.create_producer(TOPIC)
    stranger.close()


def test_rest_call_through_the_proxy_has_the_permissions_of_its_client(proxied: PulsarProxy) -> None:
    path = f"{proxied.http_url}/admin/v2/tenants"
    assert call(path, headers=bearer("admin")).status == 200
    assert call(path, headers=bearer("alice")).status == 401
    assert call(path).status == 401
