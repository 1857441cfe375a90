"""Hostile HTTP requests, drawn from a seed. No IO.

Most are made from the broker's own OpenAPI document: a path with names that exist or that have broken other servers, parameters, a
body. The others are wrong below that: heads with changed bytes, two lengths, folded lines, bare line feeds, what is no HTTP at all.
"""

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz.admin_requests import (
    BODIES,
    EXISTING,
    NASTY,
    NASTY_NAMES,
    NUMBERS,
    document_properties,
    query_parameters,
)

METHODS = ("GET", "POST", "PUT", "DELETE")
# What an operator may do to everybody, so that nobody could say whether the broker is well: it is stopped, it is another cluster,
# or it is told to refuse.
HURTS_ALL = re.compile(
    r"(POST|PUT|DELETE) /admin/v2/brokers/(shutdown|configuration)|(POST|PUT|DELETE) /admin/v2/clusters/standalone"
)
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
VALUES = ("", "true", "false", *NUMBERS, *NASTY, "persistent://public/default/t")
HEADERS = (
    "Content-Type: application/json",
    "Accept: */*",
    "Accept-Encoding: gzip",
    "Accept: " + "a/b," * 200,
    "Authorization: Bearer x",
    "Authorization: Basic !!!",
    "X-Forwarded-For: 1.2.3.4",
    "Expect: nothing",
    "Content-Type: multipart/form-data",
    "Content-Type: application/json; charset=x",
    "Cookie: " + "c" * 3000,
)


@dataclass(frozen=True)
class HttpRequest:
    """Bytes to send. A proper one has an answer with a status; what becomes of any other is for the broker to say."""

    kind: str
    route: str  # method and path as the document names it
    data: bytes
    is_proper: bool


class RequestMaker:
    """Draws requests for the operations of one OpenAPI document."""

    def __init__(self, random: Random, document: dict[str, Any]) -> None:
        self._random = random
        self._operations = [
            (method.upper(), path)
            for path, methods in document["paths"].items()
            for method in methods
            if method.upper() in METHODS and not HURTS_ALL.match(f"{method.upper()} {path}")
        ]
        self._own_queries = {
            (method, path): [
                each["name"]
                for each in document["paths"][path][method.lower()].get("parameters", ())
                if each["in"] == "query"
            ]
            for method, path in self._operations
        }
        self._properties = document_properties()
        self._queries = query_parameters()

    def operations(self) -> list[tuple[str, str]]:
        return list(self._operations)

    def next(self) -> HttpRequest:
        draw = self._random.random()
        if draw < 0.80:
            return self.proper()
        if draw < 0.92:
            return self._changed()
        return self._raw()

    # --- proper ones

    def proper(self) -> HttpRequest:
        """Draw a request that must be answered."""
        while True:
            method, path = self._random.choice(self._operations)
            target = PARAMETER.sub(lambda found: self._segment(found.group(1)), path)
            target += self._query(self._own_queries[method, path])
            # A name that was drawn may lead to another route.
            if not HURTS_ALL.match(f"{method} {target}"):
                break
        body = self._body() if method in {"POST", "PUT"} or self._random.random() < 0.05 else b""
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{self._headers()}\r\n"
        return HttpRequest("proper", f"{method} {path}", head.encode() + body, is_proper=True)

    def _segment(self, name: str) -> str:
        random = self._random
        known = EXISTING.get(name, ["1", "s", "t"])
        if random.random() < 0.7:
            return random.choice(known)
        return random.choice(NASTY_NAMES) or "x"

    def _query(self, own: list[str]) -> str:
        """Mostly of what the operation takes, if it takes anything."""
        random = self._random
        if random.random() < 0.6:
            return ""
        pairs = [
            f"{random.choice(own if own and random.random() < 0.8 else self._queries)}={quote(random.choice(VALUES), safe='%')}"
            for _ in range(random.randrange(1, 4))
        ]
        return "?" + "&".join(pairs)

    def _headers(self) -> str:
        random = self._random
        return "".join(f"{line}\r\n" for line in random.sample(HEADERS, random.choice((0, 0, 1, 1, 2))))

    def _body(self) -> bytes:
        random = self._random
        draw = random.random()
        if draw < 0.4:
            return random.choice(BODIES)
        if draw < 0.9:
            return json.dumps(self._json(3)).encode()
        return random.randbytes(random.choice((1, 30, 3000)))

    def _json(self, depth: int) -> Any:
        random = self._random
        if depth and random.random() < 0.6:
            if random.random() < 0.3:
                return [self._json(depth - 1) for _ in range(random.randrange(4))]
            return {random.choice(self._properties): self._json(depth - 1) for _ in range(random.randrange(5))}
        return random.choice(
            (None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 1.5, "", "a", "true", "\0", "x" * 2000, "10")
        )

    # --- others

    def _changed(self) -> HttpRequest:
        proper = self.proper()
        data = bytearray(proper.data)
        for _ in range(self._random.choice((1, 1, 2, 6))):
            place = self._random.randrange(min(len(data), 300))
            data[place] = self._random.choice(
                (0, 9, 10, 13, 32, 37, 47, 58, 127, 128, 255, self._random.randrange(256))
            )
        if HURTS_ALL.match(bytes(data).decode("latin-1")):
            return proper
        return HttpRequest("changed bytes", proper.route, bytes(data), is_proper=False)

    def _raw(self) -> HttpRequest:
        random = self._random
        inner = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"
        start = b"POST /admin/v2/tenants/raw HTTP/1.1\r\nHost: localhost\r\n"
        kind, data = random.choice(
            (
                ("two lengths", start + b"Content-Length: 3\r\nContent-Length: 30\r\n\r\nabc" + inner),
                (
                    "length and chunks",
                    start + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
                ),
                ("folded line", start + b"X-A: 1\r\n folded\r\nContent-Length: 0\r\n\r\n"),
                ("bare line feeds", b"GET /admin/v2/clusters HTTP/1.1\nHost: localhost\n\n"),
                ("bad chunk", start + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
                ("huge chunk", start + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc"),
                ("negative length", start + b"Content-Length: -1\r\n\r\n"),
                ("huge length", start + b"Content-Length: 99999999999999999999\r\n\r\nabc"),
                ("unknown coding", start + b"Transfer-Encoding: gzip, x\r\n\r\nabc"),
                ("half a head", inner[: random.randrange(1, len(inner) - 1)]),
                ("half a body", start + b"Content-Length: 1000\r\n\r\nabc"),
                (
                    "long target",
                    b"GET /" + b"a" * random.choice((9000, 70_000)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                ),
                (
                    "many headers",
                    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * random.choice((200, 5000)) + b"\r\n",
                ),
                ("pipelined", inner * random.choice((2, 20, 200))),
                (
                    "version",
                    b"GET /admin/v2/clusters HTTP/"
                    + random.choice((b"0.9", b"1.0", b"2.0", b"9.9", b"x"))
                    + b"\r\n\r\n",
                ),
                (
                    "method",
                    random.choice((b"PRI * ", b"CONNECT a:1 ", b"TRACE / ", b"\x16\x03\x01"))
                    + b"HTTP/1.1\r\nHost: localhost\r\n\r\n",
                ),
                (
                    "upgrade",
                    inner[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n",
                ),
                ("expect", start + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"),
                ("no host", b"GET /admin/v2/clusters HTTP/1.1\r\n\r\n"),
                ("binary protocol", bytes.fromhex("0000001900000015080212110a0466757a7a2015")),
                ("garbage", random.randbytes(random.choice((1, 50, 5000)))),
            )
        )
        return HttpRequest(kind, "(raw)", data, is_proper=False)
