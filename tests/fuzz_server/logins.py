"""Hostile cookies, states, credentials and requests around the login to the console, drawn from a seed. No IO.

Each draw knows whether the broker may accept it. `None` means that both are right, for changes that can mean the same.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz_server.http_requests import HttpRequest
from tests.fuzz_server.tokens import ODD_VALUES, TokenMaker

HOST = "console.example"
SESSION, LOGIN = "pybroker-session", "pybroker-login"
PAGE = b"X-Pybroker-Console: 1"
RIGHTS = "/admin/v3/console/rights"
SUPERUSER, WEAK = "boss", "alice"
PASSWORDS = {SUPERUSER: "password of boss", WEAK: "password: of älice"}
ODD_HOSTS = (
    b"",
    b"localhost",
    b"console.example:1",
    b"CONSOLE.EXAMPLE",
    b"[",
    b"\xff",
    b"a b",
    b"x" * 3000,
    b"console.example\t",
)
ODD_TEXTS = (
    *("", "0", "x" * 64, "x" * 4096, "x" * 4097, "%00", "%ff%fe", "%ed%a0%80", "%0d%0aSet-Cookie:a=b", "%c3%a9" * 32),
    *("=" * 30, "[]", "%", "%u0000", "..", "a;b", "%25%32%35"),
)
MAX_HEAD_BYTES = 20_000
"""The broker refuses longer heads while they arrive, so that their connection may be reset."""


@dataclass(frozen=True)
class Attempt:
    """Header lines or text that stand for a credential, and whether the broker must accept it; None: either."""

    kind: str
    lines: tuple[bytes, ...]
    accepted: bool | None


@dataclass(frozen=True)
class Callback:
    """The path and the cookie with which a browser comes back from the identity provider."""

    kind: str
    target: str
    cookie: bytes
    accepted: bool | None


@dataclass(frozen=True)
class Begun:
    """A login that the broker has begun: its cookie, and state and code from the identity provider."""

    cookie: str
    state: str
    code: str

    @property
    def target(self) -> str:
        return callback(self.state, self.code)


def callback(state: str, code: str) -> str:
    return f"/console/callback?code={code}&state={state}"


def request(kind: str, target: str, *lines: bytes, method: str = "GET", host: bytes = HOST.encode()) -> HttpRequest:
    """Return a request that must be answered."""
    head = (f"{method} {target} HTTP/1.1".encode(), b"Host: " + host, b"Content-Length: 0", *lines)
    data = b"\r\n".join(head) + b"\r\n\r\n"
    return HttpRequest(kind, f"{method} {target.partition('?')[0]}", data, is_proper=len(data) < MAX_HEAD_BYTES)


def cookie_line(name: str, value: str | bytes) -> bytes:
    return b"Cookie: " + name.encode() + b"=" + (value.encode() if isinstance(value, str) else value)


class LoginMaker:
    """Draws what a browser may send during a login and with a session."""

    def __init__(self, random: Random, tokens: TokenMaker) -> None:
        self._random = random
        self._tokens = tokens

    # --- the callback

    def callback(self, begun: Begun, other: Begun) -> Callback:
        """A callback of the login `begun` that the broker must refuse. `other` is another login that has begun."""
        random = self._random
        draw = random.random()
        if draw < 0.2:
            return self._with_state(begun, other)
        if draw < 0.3:
            return Callback(
                "code of another login", callback(begun.state, other.code), self._plain(begun), accepted=False
            )
        if draw < 0.45:
            code = random.choice((*ODD_TEXTS, begun.code[:-1], begun.code + "x"))
            return Callback("odd code", callback(begun.state, code), self._plain(begun), accepted=False)
        if draw < 0.55:
            error = random.choice(("access_denied", *ODD_TEXTS))
            return Callback("error", f"{begun.target}&error={error}", self._plain(begun), accepted=False)
        if draw < 0.65:
            return Callback("cookie of another login", begun.target, self._plain(other), accepted=False)
        if draw < 0.8:
            return self._forged(begun)
        return Callback("changed cookie", begun.target, cookie_line(LOGIN, self._changed(begun.cookie)), accepted=False)

    def _plain(self, begun: Begun) -> bytes:
        return cookie_line(LOGIN, begun.cookie)

    def _with_state(self, begun: Begun, other: Begun) -> Callback:
        state = self._random.choice((other.state, begun.state[:-1], begun.state.upper() + "é", "0" * 64, *ODD_TEXTS))
        target = callback(quote(state, safe="%"), begun.code)
        if self._random.random() < 0.2:
            target = f"/console/callback?code={begun.code}"
        return Callback("forged state", target, self._plain(begun), accepted=False)

    def _forged(self, begun: Begun) -> Callback:
        """A pending login that the broker has not signed. Its state is that of the callback."""
        random = self._random
        now_ms = int(time.time() * 1000)
        content: Any = [now_ms, begun.state, "n" * 64, "v" * 64, f"http://{HOST}/console/callback"]
        content = random.choice((content, content, content[:2], [None] * 5, {}, now_ms, [now_ms, 1, 2, 3, 4]))
        mark = random.choice((b"\0" * 32, random.randbytes(32), b"", b"\0" * 31))
        data = mark + random.choice((json.dumps(content).encode(), b"[" * 1500, b"\xff" * 40, b""))
        cookie = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
        return Callback("forged cookie", begun.target, cookie_line(LOGIN, cookie), accepted=False)

    def claims(self) -> tuple[dict[str, Any], bool | None]:
        """A claim that replaces that of the ID token of a login, and whether the broker may accept the login."""
        random = self._random
        if random.random() < 0.5:
            wrong: tuple[dict[str, Any], ...] = (
                *({"nonce": "other"}, {"nonce": None}, {"nonce": 1}, {"nonce": ["x"]}, {"nonce": "\ud800"}),
                *({"aud": "other"}, {"aud": []}, {"aud": 1}, {"iss": "https://other"}, {"iss": None}, {"exp": 1}),
                *({"exp": None}, {"exp": "soon"}, {"nbf": 10**10}),
            )
            return random.choice(wrong), False
        return {"sub": random.choice(ODD_VALUES)}, None

    # --- cookies and other headers

    def _changed(self, value: str) -> bytes:
        """Change a cookie so that it means something else. Base64 without padding ignores bits of the last character."""
        random = self._random
        data = bytearray(value.encode())
        draw = random.random()
        if draw < 0.4:
            at = random.randrange(max(1, len(data) - 3))
            data[at] = data[at] ^ 1 if data[at] not in b"-_/:@`[" else ord("A")
            return bytes(data)
        if draw < 0.6:
            return bytes(data[: random.randrange(len(data) - 4)])
        if draw < 0.7:
            return bytes(data) * random.choice((2, 5, 40))
        return random.choice(
            (
                b"",
                b"\xff" * 30,
                b'"' + bytes(data) + b'"x',
                b"\x80" + bytes(data),
                b"x" * 4097,
                b"A" * 8000,
                b"x" * 60_000,
            )
        )

    def odd_cookies(self) -> bytes:
        """A header line of cookies that belong to no login and no session."""
        random = self._random
        name = random.choice((SESSION, LOGIN)).encode()
        value = random.choice(
            (
                *(b"", b"=", b"==;=", b"\xff\xfe", b"x" * 64, b"0" * 64, b"x" * 4096, b"x" * 4097, b"a" * 7000),
                *(b'"', b"a, " + name + b"=b", b"%00", b"null", b"[]", "é".encode(), b"x" * 100_000),
            )
        )
        pair = name + b"=" + value
        line = random.choice(
            (
                pair,
                *(
                    pair + b"; " + pair,
                    b"; ".join([pair[:60]] * 100),
                    b";" * 7000,
                    b"=" * 3000,
                    name,
                    name + b";" + pair,
                ),
                *(
                    b"__Host-" + pair,
                    b" ; ;" + pair + b";;",
                    b"$Version=1; " + pair,
                    pair.upper(),
                    b"\t" + pair + b"\t",
                ),
            )
        )
        return b"Cookie: " + line

    def odd_host(self) -> bytes:
        return self._random.choice(ODD_HOSTS)

    # --- credentials of a request

    def credentials(self, session: str) -> Attempt:
        """Credentials of a request. `session` is a session of a superuser; "" if there is none."""
        random = self._random
        draw = random.random()
        if draw < 0.1:
            return Attempt("no credentials", (), accepted=False)
        if draw < 0.3 and session:
            return self._session(session)
        if draw < 0.55:
            return self._password()
        if draw < 0.6:
            return Attempt("odd scheme", (b"Authorization: " + random.choice(ODD_SCHEMES),), accepted=False)
        token = self._tokens.next()
        data = token.data.translate(None, b"\0\r\n")
        accepted = token.accepted if data == token.data else None
        return Attempt(f"token, {token.kind}", (b"Authorization: Bearer " + data,), accepted)

    def _session(self, session: str) -> Attempt:
        random = self._random
        draw = random.random()
        if draw < 0.5:
            return Attempt("session", (cookie_line(SESSION, session), PAGE), accepted=True)
        if draw < 0.7:
            return Attempt("session without the page's header", (cookie_line(SESSION, session),), accepted=False)
        if draw < 0.8:
            lines = (cookie_line(SESSION, session), PAGE, b"Authorization: Bearer x.y.z")
            return Attempt("session and wrong token", lines, accepted=False)
        return Attempt("changed session", (cookie_line(SESSION, self._changed(session)), PAGE), accepted=False)

    def _password(self) -> Attempt:
        random = self._random
        user, password = random.choice(tuple(PASSWORDS.items()))
        plain = f"{user}:{password}".encode()
        draw = random.random()
        if draw < 0.5:
            return Attempt("password", (_basic(plain),), accepted=True)
        if draw < 0.6:  # few: each is a hash
            wrong = f"{random.choice((user, 'nobody', ''))}:wrong {random.randrange(1 << 30)}"
            return Attempt("wrong password", (_basic(wrong.encode()),), accepted=False)
        odd = random.choice(
            (
                *(
                    b"",
                    b":",
                    user.encode(),
                    b":" + plain,
                    plain.replace(b":", b"\0", 1),
                    plain + b"\0",
                    plain + b"x" * 5000,
                ),
                *(b"\xff:\xff", "é☃".encode() + plain, plain.upper(), user.encode() + b":" + b"x" * 73),
            )
        )
        if random.random() < 0.5:
            return Attempt("odd password", (_basic(odd),), accepted=False)
        line = b"Authorization: Basic " + random.choice(
            (b"!!!", b"=", b"\xff", b"A", b"e" * 7000, odd.translate(None, b"\0"))
        )
        return Attempt("malformed password", (line,), accepted=False)


ODD_SCHEMES = (
    *(b"", b" ", b"Bearer", b"Bearer ", b"Basic", b"bearer x", b"Digest username=x", b"Negotiate AAAA", b"Bearer\tx"),
    *(b"\xff", b"Bearer Bearer x", b"Basic Basic", b"x" * 6000, b",", b"Bearer x, Basic y"),
)


def _basic(data: bytes) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(data)
