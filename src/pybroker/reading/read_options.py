"""The options of an entry source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.client.rest import RestClient

if TYPE_CHECKING:
    from pybroker.client.access import Access

MODES = ("auto", "segment", "bulk", "binary")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The broker to read from, and the transport. Can be pickled; `repr` shows no secret."""

    access: Access
    mode: str = "auto"
    """One of `MODES`."""
    data_directory: Path | None = None
    """The broker's data directory, if this process can read it. None: the path that the broker reports to clients on its own
    host.
    """
    patience_s: float = 120.0
    """How long requests to a busy, restarting or unreachable broker are repeated."""
    contact_patience_s: float | None = None
    """How long requests to an `admin.url` that has never responded are repeated; shorter, because the URL may be wrong.
    None: `patience_s`.
    """

    def rest_client(self) -> RestClient:
        """Create a client for REST calls to the broker. Raises ClientError if no valid admin URL is set."""
        return RestClient(self.access, self.patience_s, self.contact_patience_s)
