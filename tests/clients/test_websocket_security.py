"""Credentials and permissions of WebSocket sessions, and sessions over TLS."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import credentials
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.secured import HTTP, HTTPS, PACKAGE, PROVIDERS, Secured, tls_settings
from tests.support.websockets import Refused, session

TOPIC = "persistent/acme/ns/t"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory)
    secret_file = directory / "token.key"
    secret_file.write_bytes(credentials.secret_key())
    settings = {
        **tls_settings(authority),
        "webSocketServiceEnabled": "true",
        "authenticationEnabled": "true",
        "authenticationProviders": PROVIDERS,
        "authenticationRefreshCheckSeconds": "1",
        "tokenSecretKey": secret_file.as_uri(),
        "basicAuthConf": str(credentials.htpasswd(directory, alice="password of alice")),
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "anonymousUserRole": "anonymous",
        "proxyRoles": "proxy",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{credentials.token(secret_file.read_bytes(), sub='admin')}",
    }
    assert PACKAGE in PROVIDERS
    with BrokerProcess(directory, settings).running_well() as process:
        found = Secured(process, authority, secret_file.read_bytes())
        tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
        assert found.rest("PUT", "/admin/v2/tenants/acme", "admin", body=tenant).status == 204
        assert found.rest("PUT", "/admin/v2/namespaces/acme/ns", "admin").status == 204
        for role, actions in {"alice": ["produce", "consume"], "writer": ["produce"], "reader": ["consume"]}.items():
            path = f"/admin/v2/namespaces/acme/ns/permissions/{role}"
            assert found.rest("POST", path, "admin", body=actions).status == 204
        assert (
            found.rest("POST", "/admin/v2/namespaces/acme/ns/permissions/proxy", "admin", body=["produce"]).status
            == 204
        )
        path = "/admin/v2/namespaces/public/default/permissions/anonymous"
        assert found.rest("POST", path, "admin", body=["produce"]).status == 204
        yield found


def bearer(secured: Secured, role: str, **claims: Any) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {secured.token(role, **claims)}"}}


async def refusal(secured: Secured, path: str, **options: Any) -> int:
    with pytest.raises(Refused) as refused:
        async with session(secured.url(HTTP), path, **options):
            pass
    return refused.value.status


async def test_token_in_header_or_query_opens_session_of_its_role(secured: Secured) -> None:
    path = f"v2/producer/{TOPIC}"
    async with session(secured.url(HTTP), path, **bearer(secured, "writer")) as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"
        stats = secured.rest("GET", f"/admin/v2/{TOPIC}/stats", "admin").json
        assert [each["appId"] for each in stats["publishers"] if "appId" in each] in ([], ["writer"])
    async with session(secured.url(HTTP), f"{path}?token={secured.token('writer')}") as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"


async def test_password_opens_session(secured: Secured) -> None:
    sent = base64.b64encode(b"alice:password of alice").decode()
    options = {"additional_headers": {"Authorization": f"Basic {sent}"}}
    async with session(secured.url(HTTP), f"v2/producer/{TOPIC}", **options) as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"


async def test_client_certificate_opens_session_with_its_own_permissions(secured: Secured) -> None:
    async with session(secured.url(HTTPS), f"v2/producer/{TOPIC}", ssl=secured.tls("alice")) as producer:
        assert (await producer.publish(b"x" * 100_000))["result"] == "ok"
    with pytest.raises(Refused) as refused:
        async with session(secured.url(HTTPS), f"v2/producer/{TOPIC}", ssl=secured.tls("reader")):
            pass
    assert refused.value.status == 403


async def test_session_through_proxy_has_role_of_its_client(secured: Secured) -> None:
    headers = {"Authorization": f"Bearer {secured.token('proxy')}"}
    path = f"v2/producer/{TOPIC}"
    assert await refusal(secured, path, additional_headers=headers) in (401, 403)
    assert await refusal(secured, path, additional_headers={**headers, "X-Original-Principal": "reader"}) == 403
    options = {"additional_headers": {**headers, "X-Original-Principal": "writer"}}
    async with session(secured.url(HTTP), path, **options) as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"


async def test_anonymous_session_has_permissions_of_anonymous_role(secured: Secured) -> None:
    async with session(secured.url(HTTP), "v2/producer/persistent/public/default/t") as producer:
        assert (await producer.publish(b"x"))["result"] == "ok"
    assert await refusal(secured, f"v2/producer/{TOPIC}") == 403


async def test_invalid_credentials_are_refused(secured: Secured) -> None:
    assert await refusal(secured, f"v2/producer/{TOPIC}?token=x.y.z") == 401


async def test_missing_permission_is_refused(secured: Secured) -> None:
    assert await refusal(secured, f"v2/producer/{TOPIC}", **bearer(secured, "reader")) == 403
    assert await refusal(secured, f"v2/consumer/{TOPIC}/s", **bearer(secured, "writer")) == 403
    assert await refusal(secured, f"v2/reader/{TOPIC}", **bearer(secured, "writer")) == 403
    letters = f"v2/consumer/{TOPIC}/s?subscriptionType=Shared&maxRedeliverCount=1"
    assert await refusal(secured, letters, **bearer(secured, "reader")) == 403
    several = "v3/consumer/s?topics=persistent://acme/ns/t,persistent://public/default/t"
    assert await refusal(secured, several, **bearer(secured, "reader")) == 403


async def test_statistics_need_administrator(secured: Secured) -> None:
    assert secured.rest("GET", "/admin/v2/proxy-stats/stats", "alice").status == 401
    assert secured.rest("GET", "/admin/v2/proxy-stats/stats", "admin").status == 200
    assert secured.rest("GET", "/admin/v2/proxy-stats/metrics", "boss").status == 401


async def test_session_ends_after_its_token_expires(secured: Secured) -> None:
    import time

    options = bearer(secured, "alice", exp=int(time.time()) + 2)
    async with session(secured.url(HTTP), f"v2/consumer/{TOPIC}/expiring", **options) as consumer:
        code, reason = await consumer.close_code()
    assert (code, reason) == (1008, "the credentials have expired: open a new session")
