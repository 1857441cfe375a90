"""A pool of entry sources that stay open in a process, so that later tasks reuse connections, leases and mapped files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pybroker.reading.sources import open_source

if TYPE_CHECKING:
    from pybroker.reading.entry_source import EntrySource
    from pybroker.reading.read_options import SourceOptions


class IdleSources:
    """A thread-safe pool of at most `limit` unused sources. Above the limit, the source that is unused for longest is
    closed.

    Invariant: a source serves one reader at a time. It leaves the pool while it is used, and returns unless an error
    occurred. A source from before a fork is never used, because the parent process uses its sockets.
    """

    def __init__(self, limit: int, open_one: Callable[[SourceOptions], EntrySource] = open_source) -> None:
        self._limit = limit
        self._open_one = open_one
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[int, int, SourceOptions], EntrySource] = OrderedDict()
        """By process id, a serial number, and options. The longest idle source comes first."""
        self._serial = 0

    @contextmanager
    def opened(self, options: SourceOptions) -> Iterator[EntrySource]:
        """Take a source with these options from the pool, or open one, for the duration of the block. Raises
        ReadingFailed.
        """
        source = self._take(options)
        if source is None:
            source = self._open_one(options)
        try:
            yield source
        except BaseException:
            source.close()
            raise
        with self._lock:
            self._serial += 1
            self._idle[os.getpid(), self._serial, options] = source
            surplus = [self._idle.popitem(last=False)[1] for _ in range(len(self._idle) - self._limit)]
        for old in surplus:
            old.close()

    def close(self) -> None:
        with self._lock:
            self._forget_the_parents()
            sources = list(self._idle.values())
            self._idle.clear()
        for source in sources:
            source.close()

    def _take(self, options: SourceOptions) -> EntrySource | None:
        with self._lock:
            self._forget_the_parents()
            for key in self._idle:
                if key[2] == options:
                    return self._idle.pop(key)
        return None

    def _forget_the_parents(self) -> None:
        for key in [key for key in self._idle if key[0] != os.getpid()]:
            del self._idle[key]
