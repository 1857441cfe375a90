"""Login in the browser with OpenID Connect (`consoleOpenIDIssuer`): the routes, cookies and sessions.

Operation: `/console/login` sends the browser to the identity provider, and keeps the pending login in a signed cookie.
`/console/callback` receives the code and begins a session. The session's cookie contains a random id; the ID token stays
in the broker, which checks it for each request like a token of the header Authorization.

A page of another site, of another port or of another name cannot use the session: the cookie is HttpOnly and
SameSite=Strict, and it counts only in requests with the header X-Pybroker-Console, which such a page cannot send.
"""

from __future__ import annotations

import base64
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.admin.console.console_pages import HEADERS
from pybroker.auth import provider_names
from pybroker.auth.authentication import RemoteClient
from pybroker.auth.locations import decoded_base64
from pybroker.auth.openid.pending_login import PendingLogin
from pybroker.errors import AdminError, AuthenticationError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from starlette.types import Scope

    from pybroker.auth.openid.login_flow import LoginFlow
    from pybroker.broker.service import BrokerService

CALLBACK_PATH = "/console/callback"
PAGE_HEADER = "x-pybroker-console"
"""The header with which the pages of the console send their requests."""
LOGIN_S = 600
"""Time for the login at the identity provider."""
MAX_COOKIE_CHARACTERS = 4096
_ENDED = "The login has expired, or was begun in another browser: open the console and sign in again"


class _Session(NamedTuple):
    token: bytes
    expires_at_s: float


class ConsoleLogin:
    """The pending logins and the sessions of one broker. The number of sessions is at most `consoleOpenIDMaxSessions`;
    a further session ends the oldest one.
    """

    def __init__(self, broker: BrokerService) -> None:
        config = broker.runtime.config
        self._broker = broker
        self._clock, self._random = broker.runtime.clock, broker.runtime.random
        self._redirect_uris = config.console_open_id_redirect_uris
        self._max_sessions = config.console_open_id_max_sessions
        self._flow: LoginFlow | None = None
        if config.console_open_id_issuer:
            from pybroker.auth.openid.login_flow import LoginFlow  # noqa: PLC0415  (only for its users)

            self._flow = LoginFlow(config, self._clock, self._random)
        self._key = self._random.randbytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        is_secure = all(uri.startswith("https:") for uri in self._redirect_uris)
        prefix, self._secure = ("__Host-", "; Secure") if is_secure else ("", "")
        self._session_name = f"{prefix}pybroker-session"
        self._login_name = f"{prefix}pybroker-login"

    def routes(self) -> list[Route]:
        return [
            route("GET", "/console/sign-in", self.get_sign_in),
            route("GET", "/console/login", self.login),
            route(
                "GET",
                CALLBACK_PATH,
                self.callback,
                queries=(
                    Query("code", "the code of the identity provider"),
                    Query("state", "the state of the login"),
                    Query("error", "why the identity provider refused the login"),
                ),
            ),
            route("POST", "/console/logout", self.logout),
        ]

    # --- requests with a session ---------------------------------------------------------------------------------------

    def add_credentials(self, scope: Scope) -> None:
        """Add the token of the request's session as the header Authorization. Does nothing without a session, or if the
        request already has this header.
        """
        if not self._sessions:
            return
        headers = Headers(scope=scope)
        if PAGE_HEADER not in headers or "authorization" in headers:
            return
        session = self._sessions.get(_cookie(headers, self._session_name))
        if session is not None:
            MutableHeaders(scope=scope)["authorization"] = f"Bearer {session.token.decode()}"

    # --- routes --------------------------------------------------------------------------------------------------------

    async def get_sign_in(self, call: Call) -> Response:
        """Return two flags: `openid`, whether `/console/login` can be used, and `session`, whether the caller has a
        session.
        """
        session = self._sessions.get(_cookie(call.headers, self._session_name))
        has_session = session is not None and session.expires_at_s > self._clock.wall_ms() / 1000
        return json_response({"openid": self._flow is not None, "session": has_session})

    async def login(self, call: Call) -> Response:
        """Redirect the browser (302) to the identity provider. 404 if the login is not configured, 503 if the identity
        provider does not respond correctly.
        """
        flow = self._required_flow()
        try:
            url, pending = await flow.begin(self._redirect_uri(call))
        except AuthenticationError as error:
            raise AdminError(503, f"Cannot sign in: {error}") from error
        return self._redirect(url, self._set(self._login_name, self._signed(pending), LOGIN_S, "Lax"))

    async def callback(self, call: Call) -> Response:
        """Complete a login after the identity provider has redirected the browser to this path: begin a session, and
        redirect to the console. 400 if the login is unknown or expired, 401 if it is refused.
        """
        flow = self._required_flow()
        pending = self._pending(_cookie(call.headers, self._login_name))
        state = call.query("state") or ""
        if pending is None or not hmac.compare_digest(state.encode(), pending.state.encode()):
            raise AdminError(400, _ENDED)
        if (refusal := call.query("error")) is not None:
            raise AdminError(401, f"The identity provider refused the login: {refusal[:100]!r}")
        client = call.scope["client"]
        address = client[0] if client else ""
        try:
            token = await flow.complete(pending, call.query("code") or "")
            identity = await self._broker.authentication.authenticate(
                provider_names.TOKEN, token, RemoteClient(address)
            )
        except AuthenticationError as error:
            logs.info("console.login_refused", address=address, reason=str(error))
            raise AdminError(401, f"Cannot sign in: {error}") from error
        assert identity.expires_at_s is not None, "the provider oidc requires an expiry time"
        logs.info("console.login", role=identity.role, address=address)
        lifetime_s = max(0, round(identity.expires_at_s - self._clock.wall_ms() / 1000))
        session_id = self._begin_session(_Session(token, identity.expires_at_s))
        return self._redirect(
            "/console/",
            self._set(self._session_name, session_id, lifetime_s, "Strict"),
            self._set(self._login_name, "", 0, "Lax"),
        )

    async def logout(self, call: Call) -> Response:
        """End the session of the caller, and delete its cookie. 204 also without a session."""
        if PAGE_HEADER not in call.headers:
            raise AdminError(400, f"The request needs the header {PAGE_HEADER}, which the pages of the console send")
        self._sessions.pop(_cookie(call.headers, self._session_name), None)
        response = Response(status_code=204)
        response.raw_headers.append(self._set(self._session_name, "", 0, "Strict"))
        return response

    def _required_flow(self) -> LoginFlow:
        if self._flow is None:
            raise AdminError(404, "Login with OpenID Connect is not configured (consoleOpenIDIssuer)")
        return self._flow

    def _redirect_uri(self, call: Call) -> str:
        """Return the allowed address for the host of the request. Raises AdminError 400."""
        host = call.headers.get("host", "").lower()
        for uri in self._redirect_uris:
            if urlsplit(uri).netloc.lower() == host:
                return uri
        raise AdminError(
            400, f"Cannot sign in at {host[:100]!r}: consoleOpenIDRedirectUris contains no address of this host"
        )

    def _redirect(self, location: str, *cookies: tuple[bytes, bytes]) -> Response:
        headers = {**HEADERS, "location": location, "cache-control": "no-store"}
        response = Response(status_code=302, headers=headers)
        response.raw_headers.extend(cookies)
        return response

    def _set(self, name: str, value: str, lifetime_s: int, same_site: str) -> tuple[bytes, bytes]:
        text = f"{name}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite={same_site}{self._secure}"
        return b"set-cookie", text.encode()

    # --- pending logins and sessions -----------------------------------------------------------------------------------

    def _signed(self, pending: PendingLogin) -> str:
        content = msgspec.json.encode([self._clock.wall_ms(), *pending])
        return _text(hmac.digest(self._key, content, "sha256") + content)

    def _pending(self, text: str) -> PendingLogin | None:
        """Return the pending login of a cookie; None if the broker has not written it, or too long ago."""
        data = decoded_base64(text.encode()) or b""
        mark, content = data[:32], data[32:]
        if not hmac.compare_digest(mark, hmac.digest(self._key, content, "sha256")):
            return None
        begun_ms, *fields = msgspec.json.decode(content, type=list)
        return PendingLogin(*fields) if self._clock.wall_ms() - begun_ms < LOGIN_S * 1000 else None

    def _begin_session(self, session: _Session) -> str:
        now_s = self._clock.wall_ms() / 1000
        for key in [key for key, each in self._sessions.items() if each.expires_at_s <= now_s]:
            del self._sessions[key]
        while len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
        session_id = self._random.randbytes(32).hex()
        self._sessions[session_id] = session
        return session_id


def _cookie(headers: Headers, name: str) -> str:
    """Return the value of a cookie; "" without it."""
    for header in headers.getlist("cookie"):
        for pair in header[: 2 * MAX_COOKIE_CHARACTERS].split(";"):
            key, equals, value = pair.strip().partition("=")
            if equals and key == name and len(value) <= MAX_COOKIE_CHARACTERS:
                return value
    return ""


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
