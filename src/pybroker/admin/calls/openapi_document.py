"""Generator of the OpenAPI document from the routes: methods, paths, queries, docstrings and body types. Pure.

Arguments of `routing.route` give the details that a docstring cannot express.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.routing import BaseRoute, Route

from pybroker.admin.calls.routing import HandlerApp

if TYPE_CHECKING:
    from pybroker.admin.calls.queries import Query

Json = dict[str, Any]

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REASON = "#/components/schemas/Reason"
_TYPES = {str: "string", int: "integer", bool: "boolean"}
_REFERENCE = "#/components/schemas/{name}"

PARAMETERS = {
    "domain": "persistent or non-persistent",
    "bundle": "a hash range, such as 0x00000000_0x40000000",
    "topic": "local name of the topic; URL-encoded",
    "subscription": "name of the subscription; URL-encoded",
    "broker": "id of a broker: host:port of its HTTP address",
    "timestamp": "milliseconds since 1970",
    "rest": "the rest of the path",
}


class _Operation(NamedTuple):
    method: str
    path: str
    app: HandlerApp | None
    endpoint: Any


def document(routes: Iterable[BaseRoute], version: str) -> Json:
    operations = [_operation(route) for route in routes if isinstance(route, Route)]
    bodies = [operation.app.body for operation in operations if operation.app is not None and operation.app.body]
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    schema_of = iter(schemas)
    paths: dict[str, Json] = {}
    for operation in operations:
        has_body = operation.app is not None and operation.app.body
        described = _describe(operation, next(schema_of) if has_body else None)
        # The first matching route wins, as in request routing.
        paths.setdefault(operation.path, {}).setdefault(operation.method.lower(), described)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pybroker",
            "version": version,
            "description": "Administration, lookups and metrics of one broker; paths and bodies are Apache Pulsar's.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Reason": {"type": "object", "properties": {"reason": {"type": "string"}}}},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(route: Route) -> _Operation:
    methods = sorted((route.methods or {"GET"}) - {"HEAD"})
    assert len(methods) == 1, f"{route.path}: a route has one method"
    app = route.endpoint if isinstance(route.endpoint, HandlerApp) else None
    return _Operation(methods[0], _PARAMETER.sub(r"{\1}", route.path), app, app.handler if app else route.endpoint)


def _describe(operation: _Operation, body_schema: Json | None) -> Json:
    summary, description = _words(operation.endpoint)
    if inspect.ismethod(operation.endpoint):
        # One handler can serve many paths, so the path's last word is added.
        summary = f"{_last_word(operation.path)}: {summary}"
    described: Json = {
        "summary": summary,
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}").strip("_"),
        "tags": [_tag(operation.path)],
        "responses": _answers({} if operation.app is None else operation.app.answers),
    }
    if description:
        described["description"] = description
    parameters = [_parameter(name) for name in _PARAMETER.findall(operation.path)]
    if operation.app is not None:
        parameters += map(_query, operation.app.queries)
    if parameters:
        described["parameters"] = parameters
    if body_schema is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": body_schema}}}
    return described


def _words(handler: Any) -> tuple[str, str]:
    name = getattr(handler, "__name__", type(handler).__name__)
    first, _, description = (inspect.getdoc(handler) or "").partition("\n\n")
    summary, is_longer, _ = first.partition("\n")
    if is_longer:
        summary, dot, more = first.replace("\n", " ").partition(". ")
        summary, description = summary + dot.rstrip(), f"{more}\n\n{description}"
    return summary or name.strip("_").replace("_", " ").capitalize(), description.strip()


def _tag(path: str) -> str:
    segments = [segment for segment in path.split("/") if segment and segment not in {"admin", "v2", "v3"}]
    first = segments[0] if segments else "root"
    return "topics" if first.startswith("{") else first


def _last_word(path: str) -> str:
    return next(segment for segment in reversed(path.split("/")) if not segment.startswith("{"))


def _parameter(name: str) -> Json:
    described: Json = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if name in PARAMETERS:
        described["description"] = PARAMETERS[name]
    return described


def _query(query: Query) -> Json:
    schema: Json = {"type": _TYPES[query.type]}
    if query.type is int:
        schema["format"] = "int64"
    if query.values:
        schema["enum"] = list(query.values)
    if query.default is not None:
        schema["default"] = query.default
    return {
        "name": query.name,
        "in": "query",
        "required": query.is_required,
        "schema": schema,
        "description": query.text,
    }


def _answers(known: Any) -> Json:
    refused = {"application/json": {"schema": {"$ref": _REASON}}}
    answers: Json = {str(status): {"description": text} for status, text in known.items()}
    answers.setdefault("2XX", {"description": "Success; a result is JSON"})
    answers.setdefault("4XX", {"description": "Error; the body contains the reason", "content": refused})
    return answers
