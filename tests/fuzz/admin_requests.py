"""Requests to the REST interface as nobody should send them: made from the route table, so that every route gets some.

Names in paths, bodies and query strings are drawn from what exists in the broker, from what its documents are made of, and
from what has broken other servers. Query parameters and properties of documents are found in the source.
"""

import ast
import inspect
import json
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

import msgspec
from hypothesis import strategies as st
from starlette.routing import Route

import pybroker.model
from pybroker import admin
from pybroker.config.dynamic import dynamic_names

# What exists in the broker under test, by the name of the path's parameter; see `PREPARED` in the test.
EXISTING: dict[str, list[str]] = {
    "tenant": ["public", "acme"],
    "namespace": ["default", "ns"],
    "domain": ["persistent", "non-persistent"],
    "topic": ["t", "parts", "parts-partition-0"],
    "subscription": ["s"],
    "cluster": ["standalone", "east"],
    "bundle": ["0x00000000_0x40000000", "0x80000000_0xc0000000", "LARGEST"],
    "broker": ["127.0.0.1:8080"],
    "role": ["someone"],
    "name": dynamic_names(),
    "value": ["0", "1", "true", "range_equally_divide"],
    "rest": ["a", "a/b"],
}
NUMBERS = ["0", "1", "-1", "2147483648", "9223372036854775808", "1" * 40, "1e308", "0x10", "+1", " 1", "1_0", "٣", ""]
NASTY = [
    "..",
    ".",
    "%2e%2e",
    "%2F",
    "a%2Fb",
    "%00",
    "%ff%fe",
    "%25",
    "%",
    "%zz",
    "%0d%0aSet-Cookie:x",
    "%e2%80%ae",
    quote("ü\u2028☃\U0001f600"),
    quote("a b\t\n"),
    "x" * 1025,
    "x" * 5000,
    "__change_events",
    "t-partition-0",
    "t-partition-99999999999999999999",
    "t-partition--1",
    "*",
    "';--",
    "{topic}",
    "null",
    "brokers",
    "policies",
]
BODIES = [
    b"",
    b" ",
    b"null",
    b"true",
    b"0",
    b"-1",
    b'""',
    b"[]",
    b"{}",
    b"[null]",
    b'{"":null}',
    b"1e400",
    b"-1e400",
    b"NaN",
    b"1" * 4000,
    b"123456789012345678901234567890",
    b"9223372036854775807",
    b"-9223372036854775809",
    b"[" * 100_000,
    b"[" * 500 + b"]" * 500,
    b'{"a":' * 100_000,
    b'"\\ud800"',
    b'["\\ud800"]',
    b'{"\\ud800":"\\u0000"}',
    b"\xff\xfe",
    b'"\xff"',
    b'{"a":1,"a":2}',
    b'["produce"]',
    b'["a","b"]',
    b'{"a":"b"}',
    b'{"ledgerId":0,"entryId":0}',
    b'{"ledgerId":9223372036854775807,"entryId":9223372036854775807}',
    b'{"ledgerId":-1,"entryId":-1,"partitionIndex":-1}',
    b'{"ledgerId":1e30,"entryId":"0"}',
    b'{"ledgerId":0,"entryId":99999999999999999999}',
]


NASTY_NAMES = [*NASTY, *(quote(number, safe="") for number in NUMBERS)]


@dataclass(frozen=True)
class Request:
    """One request, with the path and query string as they are sent."""

    method: str
    target: str
    body: bytes

    def __repr__(self) -> str:
        body = self.body if len(self.body) <= 200 else self.body[:200] + b"..."
        return f"{self.method} {self.target[:400]} {body!r}"


@cache
def document_properties() -> tuple[str, ...]:
    """Every property of every document that the broker knows."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(pybroker.model.__path__):
        for _, kind in inspect.getmembers(import_module(f"pybroker.model.{module.name}"), inspect.isclass):
            if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
                names.update(field.encode_name for field in msgspec.structs.fields(kind))
    return tuple(sorted(names))


READERS = {"query", "query_integer", "queries", "flag"}
"""Methods of a Call that look into the query."""


@cache
def query_parameters() -> tuple[str, ...]:
    """Every query parameter that a handler asks for."""
    found = {"authoritative", "isGlobal"}
    for path in Path(admin.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
            if is_call and node.func.attr in READERS and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
                found.add(str(node.args[0].value))  # type: ignore[attr-defined]
    return tuple(sorted(found))


@cache
def json_values() -> st.SearchStrategy[Any]:
    """JSON that looks like documents of the broker, with the wrong things in them."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from(["", "a", "true", "1", "\0", "(", "x" * 2000, "ALWAYS", "persistent://public/default/t"])
    )
    keys = st.sampled_from(document_properties()) | st.sampled_from(["", "a", "standalone", "ü"])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
    )


@cache
def bodies() -> st.SearchStrategy[bytes]:
    return (
        st.sampled_from(BODIES) | json_values().map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20)
    )


@cache
def queries() -> st.SearchStrategy[str]:
    values = st.sampled_from(["", "true", "false", *NUMBERS, *NASTY, "persistent://public/default/t", "message_age"])
    pairs = st.tuples(st.sampled_from(query_parameters()), values.map(lambda text: quote(text, safe="%")))
    odd = st.sampled_from(["&&", "=", "%", "%ff=%ff", "a=b=c", "?", "a[]=1", "x=" + "y" * 3000])
    proper = st.lists(pairs, max_size=3).map(lambda found: "&".join(f"{key}={value}" for key, value in found))
    return st.just("") | proper | odd


@cache
def segments(name: str) -> st.SearchStrategy[str]:
    """What stands for a parameter of a path: mostly what exists, so that handlers get further than its name."""
    unknown = st.sampled_from(NASTY_NAMES)
    random = st.binary(min_size=1, max_size=6).map(lambda data: quote_from_bytes(data, safe=""))
    known = EXISTING.get(name)
    if known is None:
        return st.sampled_from([*NUMBERS[:4], "s", "t"]) | unknown | random
    return st.one_of(st.sampled_from(known), st.sampled_from(known), st.sampled_from(known), unknown, random)


def requests(routes: Sequence[Route]) -> st.SearchStrategy[Request]:
    """A request that one of `routes` gets, unless the names in it lead it to another one."""

    @st.composite
    def draw_request(draw: st.DrawFn) -> Request:
        route = draw(st.sampled_from(routes))
        path = "/".join(
            draw(segments(parameter)) if (parameter := _parameter(segment)) else segment
            for segment in route.path.split("/")
        )
        query = draw(queries())
        return Request(_method(route), path + (f"?{query}" if query else ""), draw(bodies()))

    return draw_request()


def sweep(routes: Sequence[Route], every: int = 1) -> Iterator[Request]:
    """Every route: with names that exist and each kind of body, then with each nasty name in each place.

    Of bodies and nasty names only one in `every`, which are other ones for the next route.
    """
    for index, route in enumerate(routes):
        method = _method(route)
        names = [parameter for segment in route.path.split("/") if (parameter := _parameter(segment))]
        good = {name: EXISTING.get(name, ["1"])[0] for name in names}
        yield Request(method, _filled(route.path, good), b"")
        if method in {"POST", "PUT"}:
            for body in BODIES[index % every :: every]:
                yield Request(method, _filled(route.path, good), body)
        for place, name in enumerate(names):
            for text in NASTY_NAMES[(index + place) % every :: every]:
                yield Request(method, _filled(route.path, {**good, name: text}), b"")


def in_order(routes: Sequence[Route]) -> list[Route]:
    """Routes that take something away after all others."""
    return sorted(routes, key=lambda route: _method(route) == "DELETE")


def _method(route: Route) -> str:
    return min((route.methods or {"GET"}) - {"HEAD"})


def _parameter(segment: str) -> str:
    return segment[1:-1].partition(":")[0] if segment.startswith("{") else ""


def _filled(path: str, names: dict[str, str]) -> str:
    return "/".join(names[name] if (name := _parameter(part)) else part for part in path.split("/"))
