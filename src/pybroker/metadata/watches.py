"""Listeners for changes below paths; shared by the implementations.

Invariant: a failing watch is logged and stops neither the others nor the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.metadata.metadata_store import Watch
from pybroker.runtime import logs


def prefix_below(path: str) -> str:
    """Return the common beginning of everything below `path`."""
    assert path.startswith("/"), path
    return path.rstrip("/") + "/"


class Watches:
    """The watches of one store."""

    def __init__(self) -> None:
        self._watches: list[tuple[str, str, Watch]] = []

    def add(self, prefix: str, watch: Watch) -> None:
        self._watches.append((prefix, prefix_below(prefix), watch))

    def tell(self, paths: Iterable[str]) -> None:
        if not self._watches:
            return
        for path in paths:
            for exact, below, watch in self._watches:
                if path == exact or path.startswith(below):
                    try:
                        watch(path)
                    except Exception as error:  # noqa: BLE001  (the boundary between the store and its listeners)
                        logs.error("metadata_watch.failed", path=path, exc_info=error)
