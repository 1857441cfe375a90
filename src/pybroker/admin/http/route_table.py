"""Which routes a path can mean at all: those with as many segments, and the same ones where a route names one.

Asking each of some hundred routes in turn costs a search of the whole path each time, and a path may be 8 KiB long.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

_REST = "{rest:path}"
"""The one parameter that stands for several segments; nothing comes behind it."""


class RouteTable:
    """The routes by their numbers of segments; made once.

    Invariant: there is a router for each set of routes that some path can mean, of which there are fewer than routes squared.
    """

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp) -> None:
        self._default = default
        self._routes: list[Route] = []
        self._fixed: list[list[tuple[int, str]]] = []
        self._by_count: dict[int, list[int]] = {}
        self._of_any_count: list[int] = []
        self._routers: dict[tuple[int, ...], Router] = {}
        for index, route in enumerate(routes):
            assert isinstance(route, Route), "everything that is served is a route of its own"
            segments = route.path.removesuffix(_REST).split("/")
            assert ":" not in "".join(segments), "a parameter of one segment each"
            if route.path.endswith(_REST):
                segments.pop()
                self._of_any_count.append(index)
            else:
                self._by_count.setdefault(len(segments), []).append(index)
            self._routes.append(route)
            self._fixed.append([(place, segment) for place, segment in enumerate(segments) if "{" not in segment])

    def router(self, path: str) -> Router:
        """Decides among the routes that `path` can mean: in their order, the first that matches wins."""
        segments = path.split("/")
        of_count = self._by_count.get(len(segments), [])
        found = tuple(
            index for index in sorted([*of_count, *self._of_any_count]) if self._can_mean(segments, self._fixed[index])
        )
        router = self._routers.get(found)
        if router is None:
            routes = [self._routes[index] for index in found]
            router = self._routers[found] = Router(routes, redirect_slashes=False, default=self._default)
        return router

    @staticmethod
    def _can_mean(segments: list[str], fixed: list[tuple[int, str]]) -> bool:
        return all(place < len(segments) and segments[place] == segment for place, segment in fixed)
