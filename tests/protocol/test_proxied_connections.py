"""CONNECT and REST calls of a Pulsar proxy: roles of proxy and client, forwarded credentials, and forged ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, RawClient, Type, opened
from tests.support.rest import call
from tests.support.secured import PACKAGE

from pybroker.wire import pulsar_api_pb2 as pb

SECRET = credentials.secret_key()
TOPIC = "persistent://public/default/proxied"
PERMISSIONS = "/admin/v2/namespaces/public/default/permissions"


def token(role: str, **claims: Any) -> str:
    return credentials.token(SECRET, sub=role, **claims)


def broker_with(directory: Any, **settings: str) -> BrokerProcess:
    (directory / "token.key").write_bytes(SECRET)
    fixed = {
        "authenticationEnabled": "true",
        "authenticationProviders": f"{PACKAGE}AuthenticationProviderToken",
        "tokenSecretKey": (directory / "token.key").as_uri(),
        "authenticationRefreshCheckSeconds": "1",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,root",
        "proxyRoles": "proxy,second-proxy",
    }
    return BrokerProcess(directory, {**fixed, **settings})


def grant(broker: BrokerProcess, role: str) -> None:
    headers = {"Authorization": f"Bearer {token('admin')}"}
    assert call(f"{broker.http_url}{PERMISSIONS}/{role}", "POST", body=["produce"], headers=headers).status == 204


@pytest.fixture(scope="module")
def naming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that trusts the role that a proxy names."""
    with broker_with(tmp_path_factory.mktemp("naming")).running_well() as broker:
        for role in ("proxy", "alice"):
            grant(broker, role)
        yield broker


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that checks the credentials of a proxy's client."""
    directory = tmp_path_factory.mktemp("checking")
    with broker_with(directory, authenticateOriginalAuthData="true").running_well() as broker:
        for role in ("proxy", "alice"):
            grant(broker, role)
        yield broker


def connect(client: RawClient, role: str, **fields: Any) -> dict[str, Any]:
    features = pb.FeatureFlags(supports_auth_refresh=True)
    return client.connect(
        auth_method_name="token", auth_data=token(role).encode(), feature_flags=features, proxy_version="4", **fields
    )


@pytest.mark.parametrize(
    ("role", "original", "text"),
    [
        ("proxy", "", "originalPrincipal must be provided"),
        ("proxy", "  ", "originalPrincipal must be provided"),
        ("proxy", "second-proxy", "originalPrincipal cannot be a proxy role"),
        ("proxy", "proxy", "originalPrincipal cannot be a proxy role"),
        ("alice", "admin", "without valid proxy role"),
        ("alice", "alice", "without valid proxy role"),
        ("admin", "alice", "without valid proxy role"),
    ],
)
def test_invalid_combination_of_roles_is_refused(naming: BrokerProcess, role: str, original: str, text: str) -> None:
    with opened(naming) as client:
        reply = connect(client, role, **({"original_principal": original} if original else {}))
        assert (reply["type"], reply["error"]) == ("ERROR", "AuthorizationError"), reply
        assert reply["message"].startswith("Invalid roles.")
        assert text in reply["message"]
        assert client.reply() == CLOSED


@pytest.mark.parametrize(("original", "is_allowed"), [("alice", True), ("bob", False), ("admin", True)])
def test_client_of_a_proxy_needs_its_own_permission(naming: BrokerProcess, original: str, is_allowed: bool) -> None:
    with opened(naming) as client:
        assert connect(client, "proxy", original_principal=original)["type"] == "CONNECTED"
        reply = client.open_producer(TOPIC)
        assert (reply["type"] == "PRODUCER_SUCCESS") is is_allowed, reply


def test_proxy_needs_the_permission_too(naming: BrokerProcess) -> None:
    with opened(naming) as client:
        assert connect(client, "second-proxy", original_principal="alice")["type"] == "CONNECTED"
        reply = client.open_producer(TOPIC)
        assert (reply["type"], reply["error"]) == ("ERROR", "AuthorizationError"), reply


def test_revoked_permission_of_the_proxy_closes_its_clients_producers(naming: BrokerProcess) -> None:
    headers = {"Authorization": f"Bearer {token('admin')}"}
    grant(naming, "second-proxy")
    with opened(naming) as client:
        connect(client, "second-proxy", original_principal="alice")
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
        assert call(f"{naming.http_url}{PERMISSIONS}/second-proxy", "DELETE", headers=headers).status == 204
        assert client.reply()["type"] == "CLOSE_PRODUCER"


def test_expired_credentials_of_the_proxy_end_the_connection(naming: BrokerProcess) -> None:
    with opened(naming) as client:
        data = token("proxy", exp=int(time.time()) + 2).encode()
        features = pb.FeatureFlags(supports_auth_refresh=True)
        reply = client.connect(
            auth_method_name="token", auth_data=data, original_principal="alice", feature_flags=features
        )
        assert reply["type"] == "CONNECTED"
        assert client.reply() == CLOSED, "a proxy that forwards no credentials cannot renew them"


def test_client_of_a_proxy_cannot_prolong_the_connection_with_its_own_credentials(naming: BrokerProcess) -> None:
    with opened(naming) as client:
        assert connect(client, "proxy", original_principal="alice")["type"] == "CONNECTED"
        client.send(
            Type.AUTH_RESPONSE, response=pb.AuthData(auth_method_name="token", auth_data=token("alice").encode())
        )
        reply = client.reply()
        assert (reply["type"], reply["error"]) == ("ERROR", "AuthenticationError"), reply
        assert client.reply() == CLOSED


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "no token"),
        ("nonsense", "token"),
        (credentials.token(credentials.secret_key(), sub="alice"), "token"),
        (token("alice", exp=1), "expired"),
    ],
)
def test_forwarded_credentials_are_checked(checking: BrokerProcess, data: str, text: str) -> None:
    with opened(checking) as client:
        fields = {"original_auth_data": data, "original_auth_method": "token"} if data else {}
        reply = connect(client, "proxy", original_principal="alice", **fields)
        assert (reply["type"], reply["error"]) == ("ERROR", "AuthenticationError"), reply
        assert client.reply() == CLOSED


def test_role_of_forwarded_credentials_counts_and_not_the_named_role(checking: BrokerProcess) -> None:
    with opened(checking) as client:
        fields = {"original_auth_data": token("bob"), "original_auth_method": "token"}
        assert connect(client, "proxy", original_principal="admin", **fields)["type"] == "CONNECTED"
        reply = client.open_producer(TOPIC)
        assert (reply["type"], reply["error"]) == ("ERROR", "AuthorizationError"), reply


def test_forwarded_credentials_are_renewed_through_the_proxy(checking: BrokerProcess) -> None:
    with opened(checking) as client:
        brief = token("alice", exp=int(time.time()) + 2)
        fields = {"original_auth_data": brief, "original_auth_method": "token"}
        assert connect(client, "proxy", original_principal="alice", **fields)["type"] == "CONNECTED"
        challenge = client.reply()
        assert (challenge["type"], challenge["challenge"]["auth_method_name"]) == ("AUTH_CHALLENGE", "token")
        renewed = pb.AuthData(auth_method_name="token", auth_data=token("alice").encode())
        client.send(Type.AUTH_RESPONSE, response=renewed)
        time.sleep(2.5)  # past the end of the first token
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"


@pytest.mark.parametrize(
    ("role", "original", "status"),
    [
        ("admin", None, 200),
        ("admin", "admin", 200),
        ("admin", "root", 401),
        ("proxy", None, 401),
        ("proxy", "second-proxy", 401),
        ("proxy", "admin", 401),  # the proxy is not a superuser
        ("alice", "admin", 401),
    ],
)
def test_rest_call_with_an_original_principal(
    naming: BrokerProcess, role: str, original: str | None, status: int
) -> None:
    headers = {"Authorization": f"Bearer {token(role)}"}
    if original is not None:
        headers["X-Original-Principal"] = original
    answer = call(naming.http_url + "/admin/v2/tenants", headers=headers)
    assert answer.status == status, answer


def test_rest_call_of_a_superuser_through_a_superuser_proxy(tmp_path: Any) -> None:
    with broker_with(tmp_path, superUserRoles="admin,proxy").running_well() as broker:
        for original, status in (("admin", 200), ("alice", 401)):
            headers = {"Authorization": f"Bearer {token('proxy')}", "X-Original-Principal": original}
            assert call(broker.http_url + "/admin/v2/tenants", headers=headers).status == status
        headers["X-Original-Principal"] = "admin"
        assert call(f"{broker.http_url}{PERMISSIONS}/bob", "POST", body=["produce"], headers=headers).status == 204
        deadline = time.monotonic() + 30  # the broker writes the audit log after the response
        while (
            " proxy_role=proxy path=/admin/v2/namespaces/public/default/permissions/bob" not in broker.log.read_text()
        ):
            assert time.monotonic() < deadline, "the audit log does not contain both roles"
            time.sleep(0.02)


def test_rest_call_with_several_original_principals_is_refused(tmp_path: Any) -> None:
    with broker_with(tmp_path, superUserRoles="admin,proxy").running_well() as broker:
        address = urlsplit(broker.http_url)
        with contextlib.closing(HTTPConnection(address.hostname or "", address.port, timeout=30)) as connection:
            connection.putrequest("GET", "/admin/v2/tenants")
            connection.putheader("Authorization", f"Bearer {token('proxy')}")
            connection.putheader("X-Original-Principal", "admin")
            connection.putheader("X-Original-Principal", "alice")
            connection.endheaders()
            response = connection.getresponse()
            assert (response.status, b"several original principals" in response.read()) == (401, True)


def test_without_authentication_a_named_principal_means_nothing(tmp_path: Any) -> None:
    with BrokerProcess(tmp_path).running_well() as broker, opened(broker) as client:
        assert client.connect(original_principal="admin")["type"] == "CONNECTED"
        assert client.open_producer(TOPIC)["type"] == "PRODUCER_SUCCESS"
