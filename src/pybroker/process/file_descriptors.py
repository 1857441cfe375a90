"""Limit of open files and sockets of the process, divided between connections and the store's files.

A reserve is for files, so that many connections cannot prevent the journal from opening a file. The rest is divided
between clients and HTTP. A connection beyond its share is closed, and makes the broker not ready.
"""

from __future__ import annotations

from typing import NamedTuple, Self

try:
    import resource
except ImportError:
    _HAS_LIMIT = False  # on Windows
else:
    _HAS_LIMIT = True

FEW = 4096
"""A lower limit is reported at start: a few thousand clients would reach it."""
_ENOUGH = 1 << 20  # used if there is no hard limit
_HTTP_PART = 4


class Descriptors(NamedTuple):
    """Limit of open files of the process, and its division: files of the store (`reserved`), connections of clients
    (`max_clients`), and HTTP connections (`max_http`).
    """

    limit: int
    reserved: int
    max_clients: int
    max_http: int

    @classmethod
    def share_out(cls, limit: int, reserve: int, max_http: int) -> Self:
        """Divide `limit`. `reserve` and `max_http` are the wanted numbers of reserved descriptors and HTTP connections:
        the reserve gets at most half of the limit, HTTP at most a quarter of the rest, and clients get all others.
        """
        reserved = min(reserve, limit // 2)
        left = limit - reserved
        http = max(1, min(max_http, left // _HTTP_PART))
        return cls(limit, reserved, max(1, left - http), http)

    @classmethod
    def of_process(cls, reserve: int, max_http: int) -> Self:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _HAS_LIMIT else _ENOUGH
        return cls.share_out(min(limit, _ENOUGH), reserve, max_http)


def raise_limit() -> None:
    if not _HAS_LIMIT:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # macOS has a lower limit; the current one then stays
