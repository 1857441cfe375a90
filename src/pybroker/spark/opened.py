"""Sources that are open in this process, so that tasks one after another share connections, leases and mapped files.

Python workers of Spark are reused, often for a whole query; a source is worth keeping there. A source serves one reader at a time:
it is taken out while it is used, and comes back unless something went wrong.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pybroker import logs
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.spark.options import ReadOptions

MAX_IDLE_SOURCES = 4
"""Of one process; the one idle for longest is closed."""

_lock = threading.Lock()
_idle: OrderedDict[tuple[int, int, SourceOptions], EntrySource] = OrderedDict()
_serial = 0


def source_options(options: ReadOptions) -> SourceOptions:
    """How a source is opened for these options."""
    return SourceOptions(
        options.access,
        "binary" if options.read_mode == "broker" else options.read_mode,
        None if options.data_directory is None else Path(options.data_directory),
        patience_s=options.access.operation_timeout_s,
    )


@contextmanager
def opened(options: SourceOptions) -> Iterator[EntrySource]:
    """A source for these options, this caller's own until the block ends. Raises ReadingFailed."""
    global _serial  # noqa: PLW0603
    source = _take(options)
    if source is None:
        _log_to_stderr()
        source = open_source(options)
    try:
        yield source
    except BaseException:
        source.close()
        raise
    with _lock:
        _serial += 1
        _idle[os.getpid(), _serial, options] = source
        surplus = [_idle.popitem(last=False)[1] for _ in range(len(_idle) - MAX_IDLE_SOURCES)]
    for old in surplus:
        old.close()


def close_idle() -> None:
    """Close what nobody uses just now."""
    with _lock:
        sources = list(_idle.values())
        _idle.clear()
    for source in sources:
        source.close()


def _take(options: SourceOptions) -> EntrySource | None:
    with _lock:
        for key in list(_idle):
            process_id, _, its_options = key
            if process_id != os.getpid():
                del _idle[key]  # Made before a fork: its sockets belong to the parent, who goes on using them.
            elif its_options == options:
                return _idle.pop(key)
    return None


def _log_to_stderr() -> None:
    """Spark's Python workers have no logging of their own; their standard error is the executor's log."""
    if not logging.getLogger("pybroker").hasHandlers():
        logs.configure("info")
