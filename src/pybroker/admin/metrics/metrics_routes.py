"""`/metrics`: the Prometheus page.

The page is written once for all requests within metricsPageIntervalMs, and sent to a limited number of clients
concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from pybroker.admin.calls.call import Call, ClientGone
from pybroker.admin.calls.routing import route
from pybroker.admin.metrics.exposition_text import CONTENT_TYPE
from pybroker.admin.metrics.shared_page import PageNotWritten, SharedPage
from pybroker.errors import AdminError
from pybroker.memory.broker_memory import Holding
from pybroker.runtime import logs
from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permits import NoPermit, Permits

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.memory.broker_memory import Memory

SEND_BYTES = 65536
"""Size of a write. Smaller writes need more event loop iterations."""
RETRY_AFTER_S = 1
IMPATIENCE = 10
"""Factor by which the deadline of a client that does not read is shorter while other clients wait."""


class MetricsRoutes:
    """Route of the metrics page."""

    def __init__(self, page: SharedPage, config: BrokerConfig, memory: Memory) -> None:
        self._page = page
        self._memory = memory
        self._deadline_s = config.metrics_servlet_timeout_ms / 1000
        self._stall_s = config.http_write_timeout_ms / 1000
        self.permits = Permits(config.metrics_max_concurrent_requests, config.metrics_max_pending_requests)

    def routes(self) -> list[Route]:
        return [route("GET", "/metrics", self.get)]

    async def get(self, call: Call) -> Response:
        return _PageResponse(self, call.holder, compress=_accepts_gzip(call))

    async def send(self, send: Send, start: Message, holder: Holder, *, compress: bool) -> None:
        """Send `start` (the response head) and the page when a permit is available. Raises AdminError 503 if no permit
        becomes free in time, and ClientGone if the page cannot be sent completely.
        """
        room = Holding(self._memory, self._memory.answers)
        try:
            async with asyncio.timeout(self._deadline_s), self.permits.held(holder, self._deadline_s):
                # A part of the page as text, and its decompressor. Reserve without waiting: operators need metrics most
                # when memory is short, and metricsMaxConcurrentRequests limits the clients.
                room.count(2 * SEND_BYTES)
                await send(start)
                page = self._page.current()
                with page.read():
                    async for part in page.compressed() if compress else page.plain():
                        await self._send_part(send, {"type": "http.response.body", "body": part, "more_body": True})
                    await self._send_part(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except NoPermit as error:
            raise AdminError(
                503,
                (
                    "The broker cannot send /metrics to more clients at the same time "
                    "(limits: metricsMaxConcurrentRequests, metricsMaxPendingRequests and metricsServletTimeoutMs): "
                    f"{error}"
                ),
                RETRY_AFTER_S,
            ) from error
        except (TimeoutError, PageNotWritten) as error:
            # Disconnect, so that the client detects an incomplete page.
            raise ClientGone from error
        finally:
            room.close()

    async def _send_part(self, send: Send, part: Message) -> None:
        step_s = self._stall_s / IMPATIENCE
        for _ in range(IMPATIENCE):
            try:
                # A cancelled `send` has written nothing, so it can be repeated.
                async with asyncio.timeout(step_s):
                    await send(part)
                    return
            except TimeoutError as error:
                if self.permits.waiting:
                    raise ClientGone from error
        raise ClientGone


def _accepts_gzip(call: Call) -> bool:
    for coding in call.headers.get("accept-encoding", "").split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class _PageResponse(Response):
    def __init__(self, owner: MetricsRoutes, holder: Holder, *, compress: bool) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        del self.headers["content-length"]
        self.headers["vary"] = "Accept-Encoding"
        if compress:
            self.headers["content-encoding"] = "gzip"
        self._owner = owner
        self._holder = holder
        self._compress = compress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._owner.send(send, start, self._holder, compress=self._compress)


class TextStream(Response):
    """Response whose text is sent while it is generated."""

    def __init__(self, pieces: Iterator[str], deadline_s: float, *, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._pieces = pieces
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._stream(send)
        except TimeoutError as error:
            # Disconnect, so that the client detects an incomplete response.
            logs.warning("http.response_timed_out", path=scope["path"], deadline_s=self._deadline_s)
            raise ClientGone from error

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        held = bytearray()
        for piece in self._pieces:
            held += piece.encode()
            if len(held) >= SEND_BYTES:
                await send({"type": "http.response.body", "body": bytes(held), "more_body": True})
                held.clear()
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": bytes(held), "more_body": False})
