"""Sessions of every kind (binary, WebSocket, console) and authentication method end when a permission is revoked."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support import credentials
from tests.support.async_client import AsyncClient
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import IdentityProvider
from tests.support.secured import HTTP, HTTPS, PLAIN, PROVIDERS, TLS, Secured, tls_settings
from tests.support.websockets import session

from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
METHODS = ("tls", "basic", "token", "oidc")
TOPIC = "persistent/acme/ns/t"
NAME = "persistent://acme/ns/t"
PERMISSIONS = "/admin/v2/namespaces/acme/ns/permissions"
BOTH = ["produce", "consume"]


@dataclass
class World:
    secured: Secured
    provider: IdentityProvider

    def headers(self, method: str, role: str) -> dict[str, str]:
        match method:
            case "tls":
                return {}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(f'{role}:password of {role}'.encode()).decode()}"}
            case "oidc":
                return {"Authorization": f"Bearer {self.provider.token(role)}"}
        return {"Authorization": f"Bearer {self.secured.token(role)}"}

    @asynccontextmanager
    async def connected(self, method: str, role: str) -> AsyncIterator[AsyncClient]:
        """Yield a connection of the binary protocol with the credentials of `role`."""
        tls = self.secured.tls(role) if method == "tls" else None
        url = urlsplit(self.secured.url(PLAIN if tls is None else TLS))
        client = AsyncClient(*await asyncio.open_connection(url.hostname, url.port, ssl=tls))
        data = self.headers(method, role).get("Authorization", "").partition(" ")[2].encode()
        sent = base64.b64decode(data) if method == "basic" else data
        name = "token" if method == "oidc" else method
        client.send(Type.CONNECT, client_version="t", protocol_version=21, auth_method_name=name, auth_data=sent)
        assert (await client.next())["type"] == "CONNECTED"
        try:
            yield client
        finally:
            await client.close()

    def http(self, method: str, role: str) -> tuple[str, ssl.SSLContext | None]:
        """Return the address of the web port, and the TLS settings of `role`, for its credentials."""
        return (self.secured.url(HTTPS), self.secured.tls(role)) if method == "tls" else (self.secured.url(HTTP), None)

    def grant(self, role: str, actions: list[str] = BOTH) -> None:
        assert self.secured.rest("POST", f"{PERMISSIONS}/{role}", "admin", body=actions).status == 204

    def revoke(self, role: str) -> None:
        assert self.secured.rest("DELETE", f"{PERMISSIONS}/{role}", "admin").status == 204


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("sessions")
    authority, provider = CertificateAuthority(directory), IdentityProvider("ES256")
    secret_file = directory / "token.key"
    secret_file.write_bytes(credentials.secret_key())
    passwords = {f"{kind}-basic": f"password of {kind}-basic" for kind in ("binary", "websocket", "console")}
    with provider.serving(authority.server()):
        settings = {
            **tls_settings(authority),
            **provider.settings(authority.certificate_path),
            "authenticationProviders": f"{PROVIDERS},oidc",
            "webSocketServiceEnabled": "true",
            "consoleSampleIntervalMs": "100",
            "tokenSecretKey": secret_file.as_uri(),
            "basicAuthConf": str(credentials.htpasswd(directory, **passwords)),
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{credentials.token(secret_file.read_bytes(), sub='admin')}",
        }
        with BrokerProcess(directory, settings).running_well() as process:
            secured = Secured(process, authority, secret_file.read_bytes())
            tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
            assert secured.rest("PUT", "/admin/v2/tenants/acme", "admin", body=tenant).status == 204
            assert secured.rest("PUT", "/admin/v2/namespaces/acme/ns", "admin").status == 204
            assert secured.rest("PUT", f"/admin/v2/{TOPIC}", "admin").status == 204
            yield World(secured, provider)


@pytest.mark.parametrize("method", METHODS)
async def test_binary_session_loses_its_producer_and_consumer(world: World, method: str) -> None:
    role = f"binary-{method}"
    await asyncio.to_thread(world.grant, role)
    async with world.connected(method, role) as client:
        assert "error" not in await client.request(Type.PRODUCER, topic=NAME, producer_id=1)
        assert "error" not in await client.answer(client.subscribe(NAME, subscription=role))
        await asyncio.to_thread(world.revoke, role)
        assert {(await client.next())["type"] for _ in range(2)} == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
        assert (await client.request(Type.PRODUCER, topic=NAME, producer_id=2))["error"] == "AuthorizationError"
        await asyncio.to_thread(world.grant, role)
        assert "error" not in await client.request(Type.PRODUCER, topic=NAME, producer_id=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["producer", "consumer", "reader", "pattern"])
async def test_websocket_session_ends_with_the_reason(world: World, method: str, kind: str) -> None:
    role = f"websocket-{method}"
    await asyncio.to_thread(world.grant, role)
    paths = {
        "producer": f"v2/producer/{TOPIC}",
        "consumer": f"v2/consumer/{TOPIC}/{role}",
        "reader": f"v2/reader/{TOPIC}",
        "pattern": f"v3/consumer/{role}-pattern?topicsPattern={NAME}.*",
    }
    url, tls = world.http(method, role)
    options: dict[str, Any] = {"additional_headers": world.headers(method, role)}
    if tls is not None:
        options["ssl"] = tls
    async with session(url, paths[kind], **options) as socket:
        if kind == "producer":
            assert (await socket.publish(b"x"))["result"] == "ok"
        await asyncio.to_thread(world.revoke, role)
        code, reason = await socket.close_code()
    assert code in {1008, 1011}
    assert role in reason or "not authorized" in reason


@asynccontextmanager
async def event_stream(world: World, method: str, role: str) -> AsyncIterator[asyncio.StreamReader]:
    url, tls = world.http(method, role)
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    fields = {"Host": parts.netloc, "Accept": "text/event-stream", **world.headers(method, role)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"GET /admin/v3/console/live/{TOPIC} HTTP/1.1\r\n{lines}\r\n".encode())
    try:
        assert b" 200 " in await reader.readline()
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize("method", METHODS)
async def test_console_session_ends_with_the_reason(world: World, method: str) -> None:
    role = f"console-{method}"
    await asyncio.to_thread(world.grant, role)
    async with event_stream(world, method, role) as stream, asyncio.timeout(10):
        await stream.readuntil(b"event: begin")
        await asyncio.to_thread(world.revoke, role)
        await stream.readuntil(b"event: end")
        assert role.encode() in await stream.readuntil(b"\n\n")
