"""How many files and sockets the process may have open, and how connections share that with the files of the store.

The soft limit is raised to the hard one at start. Of it a reserve is kept for files, so that a flood of connections never keeps the
journal, a checkpoint or a read from opening one; the rest is shared out between clients and HTTP. A connection that would go beyond
its share is closed as soon as it is accepted, which is logged, counted and a reason not to be ready.
"""

from __future__ import annotations

from typing import NamedTuple, Self

try:
    import resource
except ImportError:
    _HAS_LIMIT = False  # such as on Windows
else:
    _HAS_LIMIT = True

FEW = 4096
"""A limit below is told at start: a few thousand clients would reach it."""
_ENOUGH = 1 << 20  # where there is no hard limit
_HTTP_PART = 4


class Descriptors(NamedTuple):
    """The limit, and what connections may take of it."""

    limit: int
    reserved: int
    max_clients: int
    max_http: int

    @classmethod
    def share_out(cls, limit: int, reserve: int, max_http: int) -> Self:
        """At most half of `limit` is reserved, and at most a quarter of what is left is for HTTP."""
        reserved = min(reserve, limit // 2)
        left = limit - reserved
        http = max(1, min(max_http, left // _HTTP_PART))
        return cls(limit, reserved, max(1, left - http), http)

    @classmethod
    def of_process(cls, reserve: int, max_http: int) -> Self:
        """With the limit that is in force now."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _HAS_LIMIT else _ENOUGH
        return cls.share_out(min(limit, _ENOUGH), reserve, max_http)


def raise_limit() -> None:
    """Let this process open as many files as its user allows; without effect where that is not possible."""
    if not _HAS_LIMIT:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # such as macOS, which has a lower limit of its own; what is in force counts
