"""A further service on the web port, beside the admin API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from starlette.routing import Route


class WebService(ABC):
    """Routes and figures of one service."""

    @abstractmethod
    def routes(self) -> Sequence[Route]: ...

    @abstractmethod
    def figures(self) -> dict[str, int | float]:
        """Return the figures of the service for the metrics page, by name."""

    @abstractmethod
    async def close(self, deadline_s: float) -> None:
        """Refuse new work, and end the running work within `deadline_s` seconds. Idempotent."""
