"""`/metrics`: the Prometheus page, streamed so that a broker with thousands of topics goes on serving meanwhile."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pybroker import logs
from pybroker.admin.call import Call, ClientGone, route
from pybroker.admin.metrics.page import MetricsPage
from pybroker.admin.metrics.text import CONTENT_TYPE

SEND_BYTES = 65536
"""What goes to the connection at once: less costs a turn of the loop more often."""
_GZIP_WINDOW_BITS = 31
_FASTEST = 1  # The page repeats itself so much that more effort gains little.


class MetricsRoutes:
    """Serves one page object."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def routes(self) -> list[Route]:
        return [route("GET", "/metrics", self.get)]

    async def get(self, call: Call) -> Response:
        deadline_s = call.config.metrics_servlet_timeout_ms / 1000
        return TextStream(self._page.slices(), deadline_s, compress=_accepts_gzip(call))


def _accepts_gzip(call: Call) -> bool:
    for coding in call.headers.get("accept-encoding", "").split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class TextStream(Response):
    """Sends pieces of text as they are made, and lets the loop turn to others after each."""

    def __init__(
        self, pieces: Iterator[str], deadline_s: float, *, compress: bool = False, media_type: str = CONTENT_TYPE
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["vary"] = "Accept-Encoding"
        if compress:
            self.headers["content-encoding"] = "gzip"
        self._compressor = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP_WINDOW_BITS) if compress else None
        self._pieces = pieces
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._stream(send)
        except TimeoutError as error:
            # Whoever reads must see that the page is not whole.
            logs.warning("metrics.timed_out", deadline_s=self._deadline_s)
            raise ClientGone from error

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        held = bytearray()
        for piece in self._pieces:
            held += self._encoded(piece)
            if len(held) >= SEND_BYTES:
                await send({"type": "http.response.body", "body": bytes(held), "more_body": True})
                held.clear()
            await asyncio.sleep(0)
        if self._compressor is not None:
            held += self._compressor.flush()
        await send({"type": "http.response.body", "body": bytes(held), "more_body": False})

    def _encoded(self, text: str) -> bytes:
        data = text.encode()
        return data if self._compressor is None else self._compressor.compress(data)
