"""The OpenAPI document: every route is in it, and it is what the standard says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.routing import Route
from tests.unit.admin.fake_broker import served

from pybroker.admin.calls.call import Call, empty_ok
from pybroker.admin.calls.openapi_document import document
from pybroker.admin.calls.routing import route


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


WISHES = [
    route("POST", "/admin/v2/wishes/{tenant}/{rest:path}", make_wish, body=Wish, answers={204: "It is noted"}),
    route("GET", "/admin/v2/wishes", count_wishes),
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
    """The rules of OpenAPI 3.1 that a document made from routes could break."""
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
            assert [each["name"] for each in operation.get("parameters", [])] == named
            assert all(each["in"] == "path" and each["required"] for each in operation.get("parameters", []))
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
