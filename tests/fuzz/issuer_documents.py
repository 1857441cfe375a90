"""Hostile responses of an identity provider, drawn from a seed, and a judge of the client that reads them.

A response is raw bytes for a request of the discovery document or of the keys. The judge fetches the keys of an issuer with a
hostile response in one of the two places. What must hold: the fetch ends in time with keys or with a logged failure, never
with another exception; the keys are exactly those that the document publishes and that may be used; redirects and
documents above the limit are refused; afterwards, a valid response gives valid keys again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.identity_provider import Key, new_key, public_jwk

from pybroker.auth.openid import json_download
from pybroker.auth.openid.issuer_keys import DISCOVERY_PATH, IssuerKeys, KeyTimes
from pybroker.auth.openid.json_download import MAX_DOCUMENT_BYTES, DownloadLimits
from pybroker.auth.openid.key_set import MAX_KEYS
from pybroker.errors import AuthenticationError
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

ALGORITHMS = ("ES256", "ES384", "ES512", "EdDSA", "RS256")
SHORT_S = 0.15
"""How long the client waits for a response that is not complete."""
LONG_S = 20.0
"""How long the client waits for other responses, on a busy machine."""
FETCH_S = 10.0
"""How long a fetch may take in all with an incomplete response."""
KEYS_PATH = "/keys"
ELSEWHERE = "/elsewhere"
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**63, 10**300, 1e308, float("inf"), float("nan"), "", " ", "\0", "\ud800", "é☃"),
    *("x" * 3000, "A" * 12_000, "AQAB", "=", "!!!", [], {}, [[]], [None], {"a": {}}, ["sig"], ["verify"], "sig", "enc"),
    *("RSA", "EC", "OKP", "oct", "P-256", "P-521", "Ed25519", "Ed448", "secp256k1", "ES256", "none", "HS256"),
)
JWK_MEMBERS = ("kty", "crv", "x", "y", "n", "e", "kid", "use", "alg", "key_ops", "k", "d", "x5c", "unknown")
DISCOVERY_MEMBERS = ("issuer", "jwks_uri", "token_endpoint", "unknown")
DEPTHS = (10, 100, 200, 300, 320, 450, 900, 950, 990, 3000, 100_000)


@cache
def some_key(number: int) -> tuple[Key, str]:
    """Return one of several keys with its algorithm. The same in each run of a process."""
    algorithm = ALGORITHMS[number % len(ALGORITHMS)]
    return new_key(algorithm), algorithm


@cache
def small_rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=1024)  # the client must not use it


@dataclass
class HostileResponse:
    """A raw response. `kinds` names all that was done to it."""

    kinds: list[str]
    data: bytes
    pause_s: float = 0.0
    """Time between the pieces of the response."""
    pieces: int = 1
    """Number of pieces in which the server sends the response."""
    stays_open: bool = False
    """The server does not close the connection after the response."""
    expected: dict[str, int] | None = None
    """For the keys of a correct response: numbers of keys by key id. None: whatever the client makes of it."""
    is_refused: bool = False
    """The client must not use this response."""


class ResponseMaker:
    """Draws responses of one issuer."""

    def __init__(self, random: Random, issuer: str) -> None:
        self._random = random
        self._issuer = issuer

    # --- documents

    def discovery(self) -> dict[str, Any]:
        return {"issuer": self._issuer, "jwks_uri": self._issuer + KEYS_PATH, "token_endpoint": self._issuer + "/token"}

    def key_set(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Return a valid key set, other keys at each call, and its numbers of keys by key id."""
        random = self._random
        numbers = {f"kid {random.randrange(50)}": random.randrange(12) for _ in range(random.choice((1, 1, 2, 5)))}
        keys = [public_jwk(some_key(number)[0], key_id, some_key(number)[1]) for key_id, number in numbers.items()]
        return {"keys": keys}, numbers

    # --- responses

    def valid(self, *, is_keys: bool) -> HostileResponse:
        document, expected = self.key_set() if is_keys else (self.discovery(), None)
        return HostileResponse(["valid"], self._http(json.dumps(document).encode()), expected=expected)

    def next(self, *, is_keys: bool) -> HostileResponse:
        random = self._random
        draw = random.random()
        if draw < 0.1:
            return self.valid(is_keys=is_keys)
        if draw < 0.7:
            return self._odd_document(is_keys=is_keys)
        document: Any = self.key_set()[0] if is_keys else self.discovery()
        return self._odd_transport(json.dumps(document).encode())

    def _http(self, body: bytes, content_type: str = "application/json") -> bytes:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1", "replace") + body

    def _odd_document(self, *, is_keys: bool) -> HostileResponse:
        random = self._random
        make = random.choice((self._odd_keys, self._odd_keys, self._same_key_ids, self._bad_keys, self._many_keys))
        if not is_keys:
            make = self._odd_discovery
        draw = random.random()
        if draw < 0.2:
            return HostileResponse(["no object"], self._http(self._no_object()), is_refused=True)
        if draw < 0.3:
            return self._huge(is_keys=is_keys)
        response = make()
        if draw > 0.8:
            self._change_bytes(response)
        return response

    def _no_object(self) -> bytes:
        random = self._random
        depth = random.choice(DEPTHS)
        return random.choice(
            (
                *(b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff\xfe", b"{'a':1}", b"NaN", b"\xef\xbb\xbf{"),
                *(b"[" * depth, b'{"keys":' * depth, b"[" * depth + b"]" * depth, b'{"a":' + b"9" * 5000 + b"}"),
                b"<html>Service unavailable</html>",
            )
        )

    def _nested(self) -> Any:
        """A value that the JSON parser may just accept; deeper code must not fail because of it."""
        found: Any = "x"
        for _ in range(self._random.choice(DEPTHS[:9])):
            found = [found] if self._random.random() < 0.9 else {"a": found}
        return found

    def _odd_value(self) -> Any:
        return self._nested() if self._random.random() < 0.4 else self._random.choice(ODD_VALUES)

    def _odd_discovery(self) -> HostileResponse:
        random = self._random
        document = self.discovery()
        for _ in range(random.choice((1, 1, 2))):
            name = random.choice(DISCOVERY_MEMBERS)
            document[name] = random.choice((self._odd_value(), self._odd_url()))
        is_refused = document["issuer"] != self._issuer
        return HostileResponse(["odd discovery"], self._http(_dumped(document)), is_refused=is_refused)

    def _odd_url(self) -> str:
        return self._random.choice(
            (
                *(
                    "ftp://localhost/keys",
                    "file:///etc/passwd",
                    "javascript:x",
                    "http://",
                    "http://[",
                    "http://a:99999/",
                ),
                *(
                    "http://localhost:0/",
                    "http://user:pass@localhost/keys",
                    "http://127.0.0.1:1/keys",
                    "//localhost/keys",
                ),
                *("http://localhost\r\nX: y/", "http://localhost/\x00", "http://" + "a" * 300 + "/", "http://é/", " "),
                *(self._issuer + "/" + "x" * 60_000, self._issuer + "/keys#x", self._issuer, self._issuer + "/missing"),
            )
        )

    def _odd_keys(self) -> HostileResponse:
        random = self._random
        document, _ = self.key_set()
        keys = document["keys"]
        for _ in range(random.choice((1, 1, 2, 4))):
            draw = random.random()
            if draw < 0.1:
                document["keys"] = self._odd_value()
                break
            if draw < 0.2:
                keys.append(self._odd_value())
            else:
                each = random.choice([key for key in keys if isinstance(key, dict)])
                each[random.choice((*JWK_MEMBERS, "kty", "crv", "kty", "crv"))] = self._odd_value()
        return HostileResponse(["odd keys"], self._http(_dumped(document)))

    def _same_key_ids(self) -> HostileResponse:
        """Several keys with one key id: the first usable one counts, or none, but never a later one."""
        random = self._random
        numbers = [random.randrange(12) for _ in range(random.choice((2, 3, 10)))]
        keys = [public_jwk(some_key(number)[0], "same", some_key(number)[1]) for number in numbers]
        return HostileResponse(["same key ids"], self._http(_dumped({"keys": keys})), expected={"same": numbers[0]})

    def _bad_keys(self) -> HostileResponse:
        """Keys that must not be used: for encryption, symmetric, private use only, too small, or of another algorithm."""
        random = self._random
        key, algorithm = some_key(random.randrange(12))
        usable = public_jwk(key, "bad", algorithm)
        bad = random.choice(
            (
                usable | {"use": "enc"},
                usable | {"key_ops": ["sign"]},
                usable | {"alg": "HS256"},
                usable | {"alg": "none"},
                usable | {"kid": ""},
                usable | {"kid": "x" * 2000},
                {"kty": "oct", "k": "AAAA", "kid": "bad", "alg": "HS256", "use": "sig"},
                public_jwk(small_rsa_key(), "bad", "RS256"),
                usable | {"kty": "RSA", "n": "AQAB" * 6000, "e": "AQAB"},
                usable | {"kty": "RSA", "n": "A" * 200_000, "e": "AQAB"},
            )
        )
        document, expected = self.key_set()
        document["keys"].insert(random.randrange(len(document["keys"]) + 1), bad)
        return HostileResponse(["bad keys"], self._http(_dumped(document)), expected=expected)

    def _many_keys(self) -> HostileResponse:
        random = self._random
        count = random.choice((MAX_KEYS, MAX_KEYS + 1, 1000))
        key, algorithm = some_key(random.randrange(3))
        document = public_jwk(key, None, algorithm)
        keys = [{**document, "kid": str(number)} for number in range(count)]
        return HostileResponse(["many keys"], self._http(_dumped({"keys": keys})), is_refused=count > MAX_KEYS)

    def _huge(self, *, is_keys: bool) -> HostileResponse:
        document: dict[str, Any] = self.key_set()[0] if is_keys else self.discovery()
        document["padding"] = "x" * MAX_DOCUMENT_BYTES
        body = _dumped(document)
        data = self._http(body)
        if self._random.random() < 0.5:
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:]))
            data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        return HostileResponse(["huge"], data, is_refused=True)

    def _change_bytes(self, response: HostileResponse) -> None:
        random = self._random
        changed = bytearray(response.data)
        start = changed.index(b"\r\n\r\n") + 4 if random.random() < 0.8 else 0
        for _ in range(random.choice((1, 1, 3, 10))):
            if start < len(changed):
                changed[random.randrange(start, len(changed))] = random.choice(
                    (0, 34, 44, 91, 123, 125, 255, random.randrange(256))
                )
        response.kinds.append("changed bytes")
        response.data, response.expected, response.is_refused = bytes(changed), None, False

    def _odd_transport(self, body: bytes) -> HostileResponse:
        random = self._random
        valid = self._http(body)
        cut = random.randrange(len(valid))
        makes: tuple[Callable[[], HostileResponse], ...] = (
            lambda: HostileResponse(["truncated"], valid[:cut], is_refused=True),
            lambda: HostileResponse(["truncated, open"], valid[:cut], stays_open=True, is_refused=True),
            lambda: HostileResponse(["slow"], valid, pause_s=SHORT_S / 4, pieces=20, is_refused=True),
            lambda: HostileResponse(["in pieces"], valid, pieces=5),
            self._redirect,
            lambda: HostileResponse(["other content type"], self._http(body, self._content_type())),
            lambda: HostileResponse(["status"], valid.replace(b"200 OK", self._status(), 1), is_refused=True),
            lambda: HostileResponse(["no HTTP"], self._no_http(body), is_refused=True),
            lambda: HostileResponse(["lengths"], self._lengths(body)),
        )
        return random.choice(makes)()

    def _redirect(self) -> HostileResponse:
        random = self._random
        target = random.choice((self._issuer + ELSEWHERE, ELSEWHERE, "file:///etc/passwd", "", "x" * 3000))
        status = random.choice((300, 301, 302, 303, 307, 308))
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
        return HostileResponse(["redirect"], head.encode(), is_refused=True)

    def _content_type(self) -> str:
        return self._random.choice(
            ("text/html", "", "x" * 3000, "application/octet-stream", "\xff", "text/plain; charset=utf-16")
        )

    def _status(self) -> bytes:
        return self._random.choice(
            (b"204 No", b"206 Part", b"304 Same", b"401 No", b"404 No", b"500 No", b"503 No", b"999 Odd")
        )

    def _no_http(self, body: bytes) -> bytes:
        return self._random.choice(
            (
                *(
                    b"",
                    b"\0" * 100,
                    body,
                    b"HTTP/2 200 OK\r\n\r\n" + body,
                    b"HTTP/1.1 abc OK\r\n\r\n",
                    b"\x16\x03\x01\x02\x00",
                ),
                b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
                b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" + body,
                b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + body,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n" + body,
                b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
            )
        )

    def _lengths(self, body: bytes) -> bytes:
        return self._random.choice(
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) // 2) + body,
                b"HTTP/1.1 200 OK\r\n\r\n" + body,
                b"HTTP/1.0 200 OK\r\n\r\n" + body,
                b"HTTP/1.1 100 Continue\r\n\r\n" + self._http(body),
                self._http(body) + self._http(b"{}"),
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n"
                % (len(body), body),
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body),
            )
        )


def _dumped(document: object) -> bytes:
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return b"{}"


# --- the judge


class ManualClock(Clock):
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ms(self) -> float:
        return self.now_s * 1000


@dataclass
class Provider:
    """A server whose responses are set for each path."""

    issuer: str = ""
    responses: dict[str, HostileResponse] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode("latin-1")
            self.requests.append(path)
            response = self.responses.get(path)
            if response is None:
                response = HostileResponse(["missing"], b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
            size = -(-len(response.data) // response.pieces) or 1
            for start in range(0, len(response.data), size):
                writer.write(response.data[start : start + size])
                await writer.drain()
                await asyncio.sleep(response.pause_s)
            if response.stays_open:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has closed the connection
        finally:
            writer.close()


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    found = Provider()
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    found.issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()


class Judge:
    """Fetches keys with hostile responses, and raises AssertionError for a fault of the client."""

    def __init__(self, random: Random, provider: Provider) -> None:
        self.kinds: dict[str, int] = {}
        self._random = random
        self._provider = provider
        self._maker = ResponseMaker(random, provider.issuer)
        self._clock = ManualClock()
        self._tls = ssl.create_default_context()

    async def round(self) -> None:
        """Fetch the keys of a new issuer object twice: with a hostile response, and then with valid ones."""
        is_keys = self._random.random() < 0.7
        hostile = self._maker.next(is_keys=is_keys)
        for kind in hostile.kinds:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        tasks = TaskOwner("fuzz")
        problem = partial(json_download.url_problem, requires_https=False)
        is_incomplete = bool(hostile.pause_s) or hostile.stays_open
        limits = DownloadLimits(LONG_S, SHORT_S if is_incomplete else LONG_S)
        download = partial(json_download.download_json, limits=limits, tls=self._tls)
        keys = IssuerKeys(self._provider.issuer, KeyTimes(1, 2, 1), problem, download, self._clock, tasks)
        hostile_path, other_path = (KEYS_PATH, DISCOVERY_PATH) if is_keys else (DISCOVERY_PATH, KEYS_PATH)
        other = self._maker.valid(is_keys=not is_keys)
        elsewhere = self._maker.valid(is_keys=is_keys)
        self._provider.responses = {hostile_path: hostile, other_path: other, ELSEWHERE: elsewhere}
        self._provider.requests.clear()
        expected = hostile.expected if is_keys else None
        await self._fetch(keys, hostile, expected)
        self._clock.now_s += 100  # the keys are too old, and the pause after a failure is over
        valid = self._maker.valid(is_keys=True)
        self._provider.responses = {KEYS_PATH: valid, DISCOVERY_PATH: self._maker.valid(is_keys=False)}
        await self._fetch(keys, valid, None if is_incomplete else valid.expected)
        await tasks.close()

    async def _fetch(self, keys: IssuerKeys, response: HostileResponse, expected: dict[str, int] | None) -> None:
        shown = f"{response.kinds}: {response.data[:300]!r}"
        with logged_errors() as errors:
            try:
                async with asyncio.timeout(FETCH_S if response.pause_s or response.stays_open else 3 * LONG_S):
                    await keys.key("no such key id")
                raise AssertionError(f"a key of an unknown key id after {shown}")
            except AuthenticationError:
                pass
            except TimeoutError:
                raise AssertionError(f"the fetch did not end after {shown}") from None
            await asyncio.sleep(0)  # the end of the task is logged in the next iteration
        assert not errors, f"{errors[0]} after {shown}"
        found = keys._keys
        assert len(found) <= MAX_KEYS, shown
        assert ELSEWHERE not in self._provider.requests, f"a redirect was followed after {shown}"
        assert not (response.is_refused and found), f"{len(found)} keys are used after {shown}"
        for each in found.values():
            assert not isinstance(each.key, rsa.RSAPublicKey) or 2048 <= each.key.key_size <= 8192, shown
            assert not {"none", "HS256"} & set(each.algorithms), shown
        if expected is not None:
            assert set(found) == set(expected), f"{set(found)} in place of {set(expected)} after {shown}"
            for key_id, number in expected.items():
                assert found[key_id].key == some_key(number)[0].public_key(), f"another key {key_id!r} after {shown}"


class _Errors(logging.Handler):
    """The errors in the log, such as those of tasks."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.texts.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    handler, logger = _Errors(), logging.getLogger("pybroker")
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


async def fuzz(seed: int, rounds: int) -> dict[str, int]:
    """Judge `rounds` responses. Return how often each kind was drawn. Raises AssertionError with the response."""
    async with provider() as server:
        judge = Judge(Random(f"issuer {seed}"), server)
        for _ in range(rounds):
            await judge.round()
        return judge.kinds
