"""Login to the console with OpenID Connect: the code flow, the cookies of the session, and requests that misuse them."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.identity_provider import AUDIENCE, AUTHORIZE, TOKEN, IdentityProvider, send
from tests.support.rest import client_tls

HOST = "console.example"
CLIENT_ID, SECRET = "console", "secret/of:console"
PAGE = {"X-Pybroker-Console": "1"}
RIGHTS = "/admin/v3/console/rights"
SESSION, LOGIN = "pybroker-session", "pybroker-login"


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the reply sets, with their attributes."""
        lines = self.headers.get_all("set-cookie") or []
        return dict(line.partition("=")[::2] for line in lines)


class World:
    def __init__(self, process: BrokerProcess, provider: IdentityProvider, tls: ssl.SSLContext) -> None:
        self.process = process
        self.provider = provider
        self._tls = tls

    def send(self, method: str, path: str, **headers: str) -> Reply:
        """Send a request to the broker, without following redirects."""
        headers = {"Host": HOST, **headers}
        url = urlsplit(str(self.process.ready["http_url"]))
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()

    def at_provider(self, address: str) -> str:
        """Open the page of the identity provider. Return the path and query to which it sends the browser back."""
        url = urlsplit(address)
        connection = http.client.HTTPSConnection(url.hostname or "", url.port, context=self._tls)
        try:
            connection.request("GET", f"{url.path}?{url.query}")
            answer = connection.getresponse()
            answer.read()
            back = urlsplit(answer.headers["location"])
        finally:
            connection.close()
        return f"{back.path}?{back.query}"

    def begun(self) -> tuple[str, str]:
        """Begin a login. Return its cookie, and the path to which the identity provider sends the browser."""
        reply = self.send("GET", "/console/login")
        assert reply.status == 302, reply
        cookie = reply.cookies[LOGIN].partition(";")[0]
        return f"{LOGIN}={cookie}", self.at_provider(reply.headers["location"])

    def session(self) -> str:
        """Sign in. Return the cookie of the session."""
        cookie, path = self.begun()
        reply = self.send("GET", path, Cookie=cookie)
        assert reply.status == 302, reply
        return f"{SESSION}={reply.cookies[SESSION].partition(';')[0]}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("login")
    authority, provider = CertificateAuthority(directory), IdentityProvider("ES256")
    provider.clients[CLIENT_ID] = SECRET
    with provider.serving(authority.server()):
        settings = provider.login_settings(authority.certificate_path, HOST, CLIENT_ID) | {
            "consoleOpenIDMaxSessions": "3"
        }
        with BrokerProcess(directory, settings).running_well() as process:
            yield World(process, provider, client_tls(authority.certificate_path))
    log = process.log.read_text()
    assert "Traceback" not in log
    assert "eyJ" not in log, "a token is in the log"


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.provider.user = "app"
    shared.provider.id_token_claims.clear()
    shared.provider.faults.clear()


def test_login_begins_session_of_the_user(world: World) -> None:
    assert world.send("GET", RIGHTS, **PAGE).status == 401
    world.provider.user = "boss"
    cookie = world.session()
    reply = world.send("GET", RIGHTS, Cookie=cookie, **PAGE)
    assert (reply.status, '"role":"boss"' in reply.text, '"superuser":true' in reply.text) == (200, True, True)
    assert world.send("PUT", "/admin/v2/tenants/of-boss", Cookie=cookie, **PAGE).status != 401
    assert '"session":true' in world.send("GET", "/console/sign-in", Cookie=cookie).text
    asked = world.provider.authorize_requests[-1]
    assert (asked["client_id"], asked["scope"], asked["code_challenge_method"]) == (CLIENT_ID, "openid", "S256")


def test_cookies_are_hidden_from_scripts_and_other_sites(world: World) -> None:
    reply = world.send("GET", "/console/login")
    assert "; HttpOnly; SameSite=Lax" in reply.cookies[LOGIN]
    cookie = f"{LOGIN}={reply.cookies[LOGIN].partition(';')[0]}"
    back = world.send("GET", world.at_provider(reply.headers["location"]), Cookie=cookie)
    assert "; HttpOnly; SameSite=Strict" in back.cookies[SESSION]
    assert "; Max-Age=0" in back.cookies[LOGIN]
    assert back.headers["location"] == "/console/"
    assert "eyJ" not in str(back.headers), "the token stays in the broker"


def test_session_counts_only_in_requests_of_the_console_pages(world: World) -> None:
    cookie = world.session()
    assert world.send("GET", RIGHTS, Cookie=cookie).status == 401, "a link or form of another page"
    cross = {"Sec-Fetch-Site": "cross-site", **PAGE}
    assert world.send("PUT", "/admin/v2/tenants/x", Cookie=cookie, **cross).status == 403
    assert world.send("POST", "/console/logout", Cookie=cookie).status == 400
    assert world.send("GET", RIGHTS, Cookie=cookie, **PAGE).status == 200
    wrong = {"Authorization": "Bearer x.y.z", **PAGE}
    assert world.send("GET", RIGHTS, Cookie=cookie, **wrong).status == 401, "explicit credentials have priority"


def test_logout_ends_session(world: World) -> None:
    cookie = world.session()
    reply = world.send("POST", "/console/logout", Cookie=cookie, **PAGE)
    assert reply.status == 204
    assert "; Max-Age=0" in reply.cookies[SESSION]
    assert world.send("GET", RIGHTS, Cookie=cookie, **PAGE).status == 401


def test_oldest_session_ends_above_the_limit(world: World) -> None:
    cookies = [world.session() for _ in range(4)]
    statuses = [world.send("GET", RIGHTS, Cookie=each, **PAGE).status for each in cookies]
    assert statuses == [401, 200, 200, 200]


def test_callback_needs_cookie_and_state_of_its_login(world: World) -> None:
    cookie, path = world.begun()
    other_cookie, other_path = world.begun()
    assert world.send("GET", path).status == 400
    assert world.send("GET", path, Cookie=other_cookie).status == 400, "the login of another browser"
    assert world.send("GET", path.partition("?")[0], Cookie=cookie).status == 400
    forged = f"{LOGIN}={'A' * 200}"
    assert world.send("GET", path, Cookie=forged).status == 400
    assert world.send("GET", path, Cookie=cookie).status == 302
    assert world.send("GET", path, Cookie=cookie).status == 401, "a code is used once"
    assert world.send("GET", other_path, Cookie=other_cookie).status == 302


def test_code_of_another_login_is_refused(world: World) -> None:
    cookie, path = world.begun()
    _, other = world.begun()
    code = parse_qs(urlsplit(other).query)["code"][0]
    own = parse_qs(urlsplit(path).query)
    assert world.send("GET", f"/console/callback?code={code}&state={own['state'][0]}", Cookie=cookie).status == 401


@pytest.mark.parametrize("token", [None, 1, "", "a.b", "\ud800.\ud800.\ud800", "é.é.é"])
def test_answer_without_a_usable_token_begins_no_session(world: World, token: object) -> None:
    cookie, path = world.begun()
    world.provider.faults[TOKEN] = lambda handler: send(handler, {"id_token": token})
    reply = world.send("GET", path, Cookie=cookie)
    assert (reply.status, SESSION in reply.cookies) == (401, False)


@pytest.mark.parametrize(
    "claims",
    [
        *(
            {"nonce": "other"},
            {"nonce": None},
            {"nonce": "\ud800"},
            {"sub": "\ud800"},
            {"aud": "other"},
            {"aud": AUDIENCE},
        ),
        *({"iss": "https://other"}, {"exp": 1}),
    ],
)
def test_token_of_another_login_or_client_is_refused(world: World, claims: dict[str, Any]) -> None:
    world.provider.id_token_claims.update(claims)
    cookie, path = world.begun()
    reply = world.send("GET", path, Cookie=cookie)
    assert reply.status == 401, reply
    assert SESSION not in reply.cookies


def test_refusal_of_the_identity_provider_is_reported(world: World) -> None:
    world.provider.user = None
    cookie, path = world.begun()
    reply = world.send("GET", path, Cookie=cookie)
    assert reply.status == 401
    assert "access_denied" in reply.text


def test_identity_provider_that_fails_begins_no_session(world: World) -> None:
    cookie, path = world.begun()
    world.provider.faults[TOKEN] = lambda handler: send(handler, b"<html>", 200, "text/html")
    reply = world.send("GET", path, Cookie=cookie)
    assert (reply.status, SESSION in reply.cookies) == (401, False)


def test_login_at_a_host_that_is_not_allowed_is_refused(world: World) -> None:
    reply = world.send("GET", "/console/login", Host="localhost")
    assert reply.status == 400
    assert "consoleOpenIDRedirectUris" in reply.text
    assert AUTHORIZE not in str(reply.headers)
