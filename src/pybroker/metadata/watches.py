"""Who wants to hear of changes below which path; shared by the back ends.

Invariant: one failing watch neither stops the others nor the store: it is logged and the rest are told.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.metadata.metadata_store import Watch
from pybroker.runtime import logs


def prefix_below(path: str) -> str:
    """The common beginning of everything below `path`."""
    assert path.startswith("/"), path
    return path.rstrip("/") + "/"


class Watches:
    """The watches of one store."""

    def __init__(self) -> None:
        self._watches: list[tuple[str, str, Watch]] = []

    def add(self, prefix: str, watch: Watch) -> None:
        """Tell `watch` of changes at or below `prefix` from now on."""
        self._watches.append((prefix, prefix_below(prefix), watch))

    def tell(self, paths: Iterable[str]) -> None:
        """Tell every watch of the changed paths that concern it."""
        if not self._watches:
            return
        for path in paths:
            for exact, below, watch in self._watches:
                if path == exact or path.startswith(below):
                    try:
                        watch(path)
                    except Exception as error:  # noqa: BLE001  (the boundary between the store and its listeners)
                        logs.error("metadata_watch.failed", path=path, exc_info=error)
