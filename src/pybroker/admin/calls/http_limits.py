"""What all HTTP requests share, and what one request holds of it until its answer is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from pybroker.errors import AdminError
from pybroker.permits import NoPermit, Permits

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

SMALL_BYTES = 64 * 1024
"""Bodies and answers up to this size are not counted: the number of connections bounds them."""
RETRY_AFTER_S = 1


class HttpLimits:
    """Owned by the application."""

    def __init__(self, config: BrokerConfig) -> None:
        pending = config.http_max_pending_requests
        self.timeout_s = config.http_pending_request_timeout_ms / 1000
        # Bodies wait in the socket. An answer that waits is in memory already, so one for which there is no room is refused.
        self.requests = Permits(config.http_max_request_bytes, pending)
        self.responses = Permits(config.http_max_response_bytes, 0)
        self.documents = Permits(1, pending)  # Threads of one interpreter: more at once make none faster.
        self.views = Permits(config.http_max_viewed_message_bytes, pending)


class Share:
    """What one request holds; everything is given back by `close`."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._held = AsyncExitStack()

    async def of_requests(self, size_bytes: int) -> None:
        """Room for a body. Raises AdminError 503."""
        await self._hold(self.limits.requests, size_bytes, "httpMaxRequestBytes")

    async def of_responses(self, size_bytes: int) -> None:
        """Room for an answer. Raises AdminError 503."""
        await self._hold(self.limits.responses, size_bytes, "httpMaxResponseBytes")

    async def of_views(self, size_bytes: int) -> None:
        """Room for messages to look at. Raises AdminError 503."""
        await self._hold(self.limits.views, size_bytes, "httpMaxViewedMessageBytes")

    @asynccontextmanager
    async def of_documents(self) -> AsyncIterator[None]:
        """The turn to read a large document, until the context ends. Raises AdminError 503."""
        try:
            async with self.limits.documents.held(1, self.limits.timeout_s):
                yield
        except NoPermit as error:
            raise AdminError(503, f"The broker is busy with other documents: {error}", RETRY_AFTER_S) from error

    async def _hold(self, permits: Permits, size_bytes: int, key: str) -> None:
        try:
            await self._held.enter_async_context(permits.held(size_bytes, self.limits.timeout_s))
        except NoPermit as error:
            raise AdminError(503, f"The broker is busy with other requests ({key}): {error}", RETRY_AFTER_S) from error

    async def close(self) -> None:
        await self._held.aclose()
