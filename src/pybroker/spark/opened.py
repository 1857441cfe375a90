"""Sources that are open in this process, so that tasks one after another share connections, leases and mapped files.

Python workers of Spark are reused, often for a whole query; a source is worth keeping there.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from pybroker import logs
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.idle_sources import IdleSources
from pybroker.reading.options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.spark.options import ReadOptions

MAX_IDLE_SOURCES = 4
"""Of one process; the one idle for longest is closed."""


def source_options(options: ReadOptions) -> SourceOptions:
    """How a source is opened for these options."""
    return SourceOptions(
        options.access,
        "binary" if options.read_mode == "broker" else options.read_mode,
        None if options.data_directory is None else Path(options.data_directory),
        patience_s=options.access.operation_timeout_s,
    )


def opened(options: SourceOptions) -> AbstractContextManager[EntrySource]:
    """A source for these options, this caller's own until the block ends. Raises ReadingFailed."""
    return _idle.opened(options)


def _open(options: SourceOptions) -> EntrySource:
    _log_to_stderr()
    return open_source(options)


def _log_to_stderr() -> None:
    """Spark's Python workers have no logging of their own; their standard error is the executor's log."""
    if not logging.getLogger("pybroker").hasHandlers():
        logs.configure("info")


_idle = IdleSources(MAX_IDLE_SOURCES, _open)
