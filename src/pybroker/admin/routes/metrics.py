"""`/metrics`: the Prometheus page, streamed so that a broker with thousands of topics goes on serving meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pybroker.admin.call import Call, route
from pybroker.admin.prometheus import CONTENT_TYPE, MetricsPage


class MetricsRoutes:
    """Serves one page object, which keeps label texts between scrapes."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def routes(self) -> list[Route]:
        return [route("GET", "/metrics", self.get)]

    async def get(self, call: Call) -> Response:
        return TextStream(self._page.slices())


class TextStream(Response):
    """Sends pieces of text as they are made, and lets the loop turn to others after each."""

    def __init__(self, pieces: Iterator[str]) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
