"""The OpenAPI document contains every route and follows the standard."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import msgspec
import pytest
from starlette.routing import Route
from tests.fuzz.admin_requests import READERS
from tests.unit.admin.fake_broker import served

from pybroker.admin.calls.call import Call, empty_ok
from pybroker.admin.calls.openapi_document import document
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import HandlerApp, route
from pybroker.admin.policies.policy_table_routes import LevelCalls


class Wish(msgspec.Struct):
    """What somebody wants."""

    name: str
    amount: int = 0


async def make_wish(_call: Call) -> Any:
    """Wish for something.

    At most once a day.
    """
    return empty_ok()


async def count_wishes(_call: Call) -> Any:
    return empty_ok()


HOW_MANY = (
    Query("limit", "so many", int, 10),
    Query("order", "the first or the last", values=("asc", "desc")),
    Query("whose", "of whom", is_required=True),
    Query("granted", "only those", bool),
)


async def grant_wishes(_call: Call) -> Any:
    """Grant all wishes of those who have wished for something that can be had
    for nothing. The others wait.

    For a year at most.
    """
    return empty_ok()


WISHES = [
    route("POST", "/admin/v2/wishes/granted", grant_wishes),
    route("POST", "/admin/v2/wishes/{tenant}/{rest:path}", make_wish, body=Wish, answers={204: "It is noted"}),
    route("GET", "/admin/v2/wishes", count_wishes, queries=HOW_MANY),
    route("POST", "/admin/v2/wishes", make_wish, body=list[Wish]),
]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for key, text in value.items() if key == "$ref")
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def require_valid(described: dict[str, Any]) -> None:
    """Check the rules of OpenAPI 3.1 that a document made from routes could break."""
    assert described["openapi"].startswith("3.1.")
    assert described["info"]["title"]
    assert described["info"]["version"]
    identities = set()
    for path, operations in described["paths"].items():
        assert path.startswith("/")
        named = re.findall(r"\{(\w+)\}", path)
        assert re.sub(r"\{\w+\}", "", path).count("{") == 0, path
        assert len(named) == len(set(named)), path
        for method, operation in operations.items():
            assert method in {"get", "put", "post", "delete", "patch"}
            parameters = operation.get("parameters", [])
            in_path = [each for each in parameters if each["in"] == "path"]
            assert [each["name"] for each in in_path] == named
            assert all(each["required"] for each in in_path)
            queried = [each["name"] for each in parameters if each["in"] == "query"]
            assert len(in_path) + len(queried) == len(parameters)
            assert len(set(queried)) == len(queried), path
            assert operation["responses"]
            assert operation["summary"]
            assert operation["operationId"] not in identities
            identities.add(operation["operationId"])
    schemas = described["components"]["schemas"]
    assert {text.removeprefix("#/components/schemas/") for text in references(described)} <= schemas.keys()


def test_an_operation_is_described_by_its_route_and_the_docstring_of_its_handler() -> None:
    described = document(WISHES, "1")
    require_valid(described)
    wish = described["paths"]["/admin/v2/wishes/{tenant}/{rest}"]["post"]
    assert (wish["summary"], wish["description"]) == ("Wish for something.", "At most once a day.")
    assert wish["tags"] == ["wishes"]
    assert wish["responses"]["204"] == {"description": "It is noted"}
    body = wish["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Wish"}
    assert described["components"]["schemas"]["Wish"]["required"] == ["name"]
    assert set(described["paths"]["/admin/v2/wishes"]) == {"get", "post"}
    assert described["paths"]["/admin/v2/wishes"]["get"]["summary"] == "Count wishes"


def test_a_sentence_that_goes_on_in_the_next_line_is_told_whole() -> None:
    granted = document(WISHES, "1")["paths"]["/admin/v2/wishes/granted"]["post"]
    assert granted["summary"] == "Grant all wishes of those who have wished for something that can be had for nothing."
    assert granted["description"] == "The others wait.\n\nFor a year at most."


def test_what_a_route_reads_of_the_query_is_described_with_types_and_defaults() -> None:
    limit, order, whose, granted = document(WISHES, "1")["paths"]["/admin/v2/wishes"]["get"]["parameters"]
    assert limit == {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "format": "int64", "default": 10},
        "description": "so many",
    }
    assert order["schema"] == {"type": "string", "enum": ["asc", "desc"]}
    assert (whose["required"], whose["schema"]) == (True, {"type": "string"})
    assert (granted["required"], granted["schema"]) == (False, {"type": "boolean"})


def test_two_types_of_one_name_do_not_stand_for_each_other() -> None:
    other = msgspec.defstruct("Wish", [("colour", str)], module="elsewhere")
    described = document([*WISHES, route("PUT", "/w", make_wish, body=other)], "1")
    require_valid(described)
    assert len([name for name in described["components"]["schemas"] if "Wish" in name]) == 2


@pytest.fixture
async def all_described() -> Any:
    async with served() as http:
        answer = await http.call("GET", "/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        return answer.json, [each for each in http.server.routes if isinstance(each, Route)]


async def test_every_route_of_the_broker_is_in_the_document(all_described: Any) -> None:
    described, routes = all_described
    require_valid(described)
    for each in routes:
        path = re.sub(r":\w+\}", "}", each.path)
        for method in each.methods - {"HEAD"}:
            assert described["paths"][path][method.lower()]


UNKNOWN = "*"
"""A parameter with a name that is not in the code."""


def names_read(handler: Callable[..., Any], seen: set[object]) -> Iterator[str]:
    """Yield the parameters that a handler reads, also by functions that it calls."""
    function = inspect.unwrap(getattr(handler, "__func__", handler))
    if function in seen:
        return
    seen.add(function)
    owner = getattr(handler, "__self__", None)
    within = [each.cell_contents for each in function.__closure__ or ()]
    for code in codes_of(function.__code__):
        yield from names_in(code, function.__globals__)
        within += [getattr(owner, name, function.__globals__.get(name)) for name in code.co_names]
    for called in within:
        if inspect.isroutine(called) and (called.__module__ or "").startswith("pybroker.admin."):
            yield from names_read(called, seen)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code and that of its inner functions."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)


def names_in(code: CodeType, constants: Mapping[str, object]) -> Iterator[str]:
    """Yield the names that the code passes, as literals or as constants of its module."""
    instructions = list(dis.get_instructions(code))
    for index, each in enumerate(instructions):
        if each.opname in {"LOAD_METHOD", "LOAD_ATTR"} and each.argval in READERS:
            name = next(found for found in instructions[index + 1 :] if found.opname not in {"CACHE", "PUSH_NULL"})
            value = constants.get(name.argval) if name.opname == "LOAD_GLOBAL" else name.argval
            is_known = name.opname in {"LOAD_CONST", "LOAD_GLOBAL"} and isinstance(value, str)
            yield str(value) if is_known else UNKNOWN


async def test_a_route_reads_what_it_declares_of_the_query_and_nothing_else(all_described: Any) -> None:
    _, routes = all_described
    wrong = {}
    for each in routes:
        app = each.endpoint if isinstance(each.endpoint, HandlerApp) else None
        handlers = [each.endpoint] if app is None else [app.handler, *(asks for _, asks in app._unserved_subjects)]
        seen: set[object] = set()
        read = {name for handler in handlers for name in names_read(handler, seen)}  # type: ignore[arg-type]
        declared = {query.name for query in app.queries} if app is not None else set()
        owner = getattr(handlers[0], "__self__", None)
        if isinstance(owner, LevelCalls):  # one handler for many policies: their rows name the parameters
            possible = {owner._level.path if name == UNKNOWN else name for name in read}
            is_right = declared <= possible
        else:
            is_right = declared == read
        if not is_right:
            wrong[f"{min(each.methods)} {each.path}"] = (declared, read)
    assert not wrong


async def test_calls_that_look_into_a_subscription_say_what_they_take(all_described: Any) -> None:
    paths = all_described[0]["paths"]
    subscription = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}"
    queries = {
        path.removeprefix(subscription): [
            each["name"] for each in operations["get"]["parameters"] if each["in"] == "query"
        ]
        for path, operations in paths.items()
        if path.startswith(f"{subscription}/") and "get" in operations
    }
    page, key = ["limit", "after"], ["key", "keyBase64"]
    assert queries["/explain"] == [*key, "consumer", "messageId", "authoritative"]
    assert queries["/hash"] == key
    assert queries["/unacked"] == ["consumer", *key, "hash", "minAgeMs", "withProperties", *page]
    assert queries["/drainingHashes"] == queries["/waiting"] == queries["/delayed"] == page
    assert queries["/ackHoles"] == ["limit"]
