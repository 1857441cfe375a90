"""Search tree over path segments, which finds the REST routes that can match a path.

The tree avoids matching each of several hundred routes against a path of up to 8 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

_REST = "{rest:path}"
"""The only parameter that matches several segments; no segment follows it."""


class _Node:
    __slots__ = ("ends", "fixed", "open_ends", "parameter")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.ends: list[int] = []
        self.open_ends: list[int] = []
        """Routes whose last parameter matches all further segments."""

    def child(self, segment: str) -> _Node:
        if "{" not in segment:
            return self.fixed.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter


class RouteTable:
    """All routes in order. Immutable."""

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp) -> None:
        self._default = default
        self._routes: list[Route] = []
        self._root = _Node()
        self._routers: dict[tuple[int, ...], Router] = {}
        for index, route in enumerate(routes):
            assert isinstance(route, Route), "each route serves one path"
            self._routes.append(route)
            segments = route.path.removesuffix(_REST).split("/")
            assert ":" not in "".join(segments), "each other parameter matches one segment"
            is_open = route.path.endswith(_REST)
            node = self._root
            for segment in segments[:-1] if is_open else segments:
                node = node.child(segment)
            (node.open_ends if is_open else node.ends).append(index)

    def router(self, path: str) -> Router:
        """Return a router that tries the possible routes of the path in order."""
        found = tuple(sorted(self.candidates(path)))
        router = self._routers.get(found)
        if router is None:
            routes = [self._routes[index] for index in found]
            router = self._routers[found] = Router(routes, redirect_slashes=False, default=self._default)
        return router

    def candidates(self, path: str) -> list[int]:
        """Return the indexes of all matching routes, unordered, and possibly of a few routes that do not match."""
        nodes, found = [self._root], []
        for segment in path.split("/"):
            reached = []
            for node in nodes:
                found += node.open_ends
                fixed = node.fixed.get(segment)
                if fixed is not None:
                    reached.append(fixed)
                if node.parameter is not None:
                    reached.append(node.parameter)
            if not reached:
                return found
            nodes = reached
        for node in nodes:
            found += node.ends
            found += node.open_ends
        return found
