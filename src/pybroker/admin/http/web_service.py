"""A further service on the web port, beside the admin API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from pybroker.admin.metrics.exposition_text import Number


class WebService(ABC):
    """Routes and figures of one service. The HTTP server closes it before it waits for the open connections."""

    @abstractmethod
    def routes(self) -> Sequence[Route]: ...

    @abstractmethod
    def figures(self) -> dict[str, Number]:
        """Return the values of the service for the metrics page, by the keys of the broker's metrics."""

    @abstractmethod
    async def close(self) -> None: ...
