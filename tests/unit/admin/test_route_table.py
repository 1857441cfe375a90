"""The route table selects the same route as a search of all routes."""

from __future__ import annotations

import random

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send
from tests.unit.admin.fake_broker import served

from pybroker.admin.http.route_table import RouteTable


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    pass


def first_match(routes: list[BaseRoute], path: str, method: str) -> tuple[str, bool]:
    """Return the path of the selected route, and whether it accepts the method."""
    scope = {"type": "http", "path": path, "method": method, "root_path": ""}
    partial = ""
    for route in routes:
        assert isinstance(route, Route)
        match, _ = route.matches(scope)
        if match is Match.FULL:
            return route.path, True
        if match is Match.PARTIAL:
            partial = partial or route.path
    return partial, False


async def test_few_routes_are_asked_and_the_right_one_is_found() -> None:
    async with served() as http:
        routes = list(http.server.routes)
    table = RouteTable(routes, nothing)
    rng = random.Random(3)
    words = sorted({segment for route in routes if isinstance(route, Route) for segment in route.path.split("/")})
    for _ in range(5_000):
        route = rng.choice(routes)
        assert isinstance(route, Route)
        segments = [rng.choice(words) if "{" in each else each for each in route.path.split("/")]
        if rng.random() < 0.3:
            segments[rng.randrange(len(segments))] = rng.choice(["x", "", "a%2Fb"])
        path = "/".join(segments)
        method = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD"])
        assert first_match(table.router(path).routes, path, method) == first_match(routes, path, method)


async def test_a_long_path_is_searched_by_few_routes() -> None:
    async with served() as http:
        table = RouteTable(http.server.routes, nothing)
    for path in ("/admin/v2/persistent/public/default/" + "%41" * 2000, "/" + "a/" * 4000, "/admin/v2/" + "a" * 8000):
        assert len(table.router(path).routes) <= 12
