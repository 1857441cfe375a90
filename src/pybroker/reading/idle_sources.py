"""Sources that stay open in a process, so that tasks one after another share connections, leases and mapped files."""

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
    """At most `limit` open sources that nobody uses; the one idle for longest makes room. May be used by several threads.

    Invariant: a source serves one reader at a time. It is taken out while it is used, and comes back unless something went
    wrong. One that was made before a fork is never used after it: its sockets belong to the parent, who goes on using them.
    """

    def __init__(self, limit: int, open_one: Callable[[SourceOptions], EntrySource] = open_source) -> None:
        self._limit = limit
        self._open_one = open_one
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[int, int, SourceOptions], EntrySource] = OrderedDict()
        """By process, a number of its own, and what it was opened with; the one idle for longest first."""
        self._serial = 0

    @contextmanager
    def opened(self, options: SourceOptions) -> Iterator[EntrySource]:
        """A source for these options, this caller's own until the block ends. Raises ReadingFailed."""
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
        """Close what nobody uses just now; more may be opened afterwards."""
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
