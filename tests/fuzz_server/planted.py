"""A broker with a planted bug: `python -m tests.fuzz_server.planted serve ...`, the bug's name in the environment.

The bugs are of kinds that a fuzz run must find. `BUGS` names what to send to find each.
"""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

PLANTED = "FUZZ_BUG"


@dataclass(frozen=True)
class Planted:
    """What a run must send to find a bug, and a part of the fault that it must report."""

    sign: str
    counts: dict[str, int] = field(default_factory=dict)


BUGS = {
    "base64-unguarded": Planted("ERROR websocket.failed", {"sessions": 600}),
    "deep-json": Planted("a session ends with", {"sessions": 1500}),
    "compressed-size-unlimited": Planted("continues after compressed too large", {"sessions": 12000}),
    "text-size-unlimited": Planted("continues after too large", {"sessions": 3000}),
    "proxy-address-unguarded": Planted("ERROR task.failed task=proxied-port", {"headers": 600}),
    "proxy-header-timeout": Planted("a connection remains open", {"headers": 1500}),
    "socket-leak": Planted("sockets remain open", {"headers": 600}),
    "request-fails": Planted("500", {"requests": 3000}),
    "request-unanswered": Planted("no answer within", {"requests": 600}),
    "login-cookie-unsigned": Planted("to forged cookie", {"logins": 2000}),
    "login-nonce-ignored": Planted("302 b'' to callback with odd nonce", {"logins": 4000}),
    "login-state-ignored": Planted("to forged state", {"logins": 2000}),
    "logout-ignored": Planted("to session after logout", {"logins": 2000}),
    "session-of-any-page": Planted("session without the page's header is accepted", {"logins": 2000}),
    "token-claims-type": Planted("ERROR authentication.provider_failed", {"tokens": 600}),
    "token-signature-ignored": Planted("CONNECTED to a token", {"tokens": 600}),
}


def plant(name: str) -> None:
    """Patch the broker."""
    globals()["_" + name.replace("-", "_")]()


def _base64_unguarded() -> None:
    from binascii import a2b_base64

    from pybroker.websocket import json_forms

    class Unguarded(Exception):
        pass

    def decoded(text: str) -> bytes:
        try:
            return a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
        except ValueError as error:
            raise Unguarded(str(error)) from error

    json_forms.decoded_base64 = decoded


def _deep_json() -> None:
    from pybroker.websocket import json_forms

    def command_of(text: bytes) -> json_forms.ConsumerCommand:
        return json_forms._commands.decode(text)

    json_forms.command_of = command_of


def _text_size_unlimited() -> None:
    from pybroker.websocket.websocket_connection import WebSocketConnection

    made = WebSocketConnection.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **more)
        self._protocol.max_message_size = self._protocol.max_fragment_size = None

    WebSocketConnection.__init__ = init  # type: ignore[method-assign]


def _compressed_size_unlimited() -> None:
    """Only the compressed size is limited."""
    from pybroker.websocket.frame_compression import FrameCompression

    decode = FrameCompression.decode

    def unlimited(self: Any, frame: Any, *, max_size: int | None = None) -> Any:
        return decode(self, frame, max_size=None)

    FrameCompression.decode = unlimited  # type: ignore[method-assign]


def _proxy_address_unguarded() -> None:
    import ipaddress

    from pybroker.runtime import proxy_protocol

    def address(word: str, version: int) -> str:
        return str(ipaddress.ip_address(word))

    proxy_protocol._ip_address = address


def _proxy_header_timeout() -> None:
    from pybroker.runtime.proxied_port import ProxiedPort

    made = ProxiedPort.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **more)
        self._header_timeout_s = 3600.0

    ProxiedPort.__init__ = init  # type: ignore[method-assign]


def _socket_leak() -> None:
    """Refused connections are not closed."""
    from pybroker.runtime.proxied_port import ProxiedPort
    from pybroker.runtime.proxy_protocol import InvalidProxyHeader

    read, kept = ProxiedPort._read_header, []

    async def read_header(self: Any, connection: Any, peer: str) -> Any:
        try:
            return await read(self, connection, peer)
        except InvalidProxyHeader:
            kept.append(connection.dup())
            raise

    ProxiedPort._read_header = read_header  # type: ignore[method-assign]


def _token_claims_type() -> None:
    from pybroker.auth import token_claims

    def time_claim(claims: token_claims.Claims, name: str) -> float | None:
        value = claims.get(name)
        return None if value is None else float(value)

    token_claims.time_claim = time_claim


def _token_signature_ignored() -> None:
    """The algorithm `none` is accepted."""
    import jwt

    decode = jwt.PyJWS.decode

    def lax(self: Any, token: bytes, key: Any, algorithms: list[str]) -> bytes:
        payload: bytes = decode(
            self, token, key, algorithms=algorithms, options={"verify_signature": token[-1:] != b"."}
        )
        return payload

    jwt.PyJWS.decode = lax  # type: ignore[method-assign, assignment]


def _request_fails() -> None:
    """Some names in a path."""
    from pybroker.admin.http.application import Application

    check = Application._check_header_size

    def check_header_size(self: Any, scope: Any) -> None:
        check(self, scope)
        if b"%e2%80%ae" in scope["raw_path"]:
            raise IndexError("planted")

    Application._check_header_size = check_header_size  # type: ignore[method-assign]


def _request_unanswered() -> None:
    """Some names in a path."""
    import asyncio

    from pybroker.admin.http.application import Application

    authenticate = Application._authenticate

    async def authenticate_or_wait(self: Any, scope: Any) -> Any:
        if b"%e2%80%ae" in scope["raw_path"]:
            await asyncio.Event().wait()
        return await authenticate(self, scope)

    Application._authenticate = authenticate_or_wait  # type: ignore[method-assign]


def _login_cookie_unsigned() -> None:
    """Any cookie with the fields of a login is accepted."""
    import hmac

    from pybroker.admin.console import console_login

    class Lax:
        digest = staticmethod(hmac.digest)

        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            return len(one) == len(other) == 32 or hmac.compare_digest(one, other)

    console_login.hmac = Lax  # type: ignore[attr-defined, assignment]


def _login_nonce_ignored() -> None:
    from pybroker.auth.openid.login_flow import LoginFlow

    def check(self: Any, token: str, pending: Any) -> None:
        pass

    LoginFlow._check = check  # type: ignore[method-assign]


def _login_state_ignored() -> None:
    """Any state of the right length is accepted."""
    import hmac

    from pybroker.admin.console import console_login

    class Lax:
        digest = staticmethod(hmac.digest)

        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            return len(one) == len(other) == 64 or hmac.compare_digest(one, other)

    console_login.hmac = Lax  # type: ignore[attr-defined, assignment]


def _logout_ignored() -> None:
    from pybroker.admin.console.console_login import ConsoleLogin

    logout = ConsoleLogin.logout

    async def keep(self: Any, call: Any) -> Any:
        sessions = self._sessions.copy()
        response = await logout(self, call)
        self._sessions = sessions
        return response

    ConsoleLogin.logout = keep  # type: ignore[method-assign]


def _session_of_any_page() -> None:
    from starlette.datastructures import Headers, MutableHeaders

    from pybroker.admin.console.console_login import ConsoleLogin, _cookie

    def add_credentials(self: Any, scope: Any) -> None:
        headers = Headers(scope=scope)
        session = self._sessions.get(_cookie(headers, self._session_name))
        if session is not None and "authorization" not in headers:
            MutableHeaders(scope=scope)["authorization"] = f"Bearer {session.token.decode()}"

    ConsoleLogin.add_credentials = add_credentials  # type: ignore[method-assign]


if __name__ == "__main__":
    from pybroker import cli

    plant(os.environ[PLANTED])
    sys.exit(cli.main())
