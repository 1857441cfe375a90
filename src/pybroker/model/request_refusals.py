"""Counters of rejected client requests by command and cause, and the decision which rejections are logged. Pure.

A rejected client often repeats its request hundreds of times a minute. So one rejection of each command and cause is
logged per interval, with the number of rejections since the last line.
"""

from __future__ import annotations

from collections.abc import Iterator

LOG_INTERVAL_S = 60.0
MAX_CAUSES = 256
"""Maximum number of pairs of command and cause; further pairs count as `OTHER`.

Commands and causes are names of the protocol, so the limit is not reached.
"""
OTHER = "other"


class _Row:
    __slots__ = ("logged_s", "total", "unlogged")

    def __init__(self) -> None:
        self.total = 0
        self.unlogged = 0
        self.logged_s = float("-inf")


class Refusals:
    """The rejected requests of one broker."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def add(self, command: str, cause: str, count: int, now_s: float) -> int:
        """Count rejections of a command. Return the number of rejections since the last log line if a log line is due,
        else 0.
        """
        key = (command, cause)
        if key not in self._rows and len(self._rows) >= MAX_CAUSES:
            key = (OTHER, OTHER)
        row = self._rows.setdefault(key, _Row())
        row.total += count
        row.unlogged += count
        if now_s < row.logged_s + LOG_INTERVAL_S:
            return 0
        unlogged, row.unlogged, row.logged_s = row.unlogged, 0, now_s
        return unlogged

    def totals(self) -> Iterator[tuple[str, str, int]]:
        for (command, cause), row in self._rows.items():
            yield command, cause, row.total
