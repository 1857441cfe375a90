"""Entry sources that stay open in a worker process, for use by later tasks.

Later tasks reuse their connections, leases and mapped files. Spark often reuses its Python workers for a whole query.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pybroker.reading.entry_source import EntrySource
from pybroker.reading.idle_sources import IdleSources
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.runtime import logs
from pybroker.spark.reader.reader_options import ReadOptions

CONTACT_PATIENCE_S = 8.0
"""How long the driver retries an `admin.url` that has never answered. With the last attempt, it fails within 10 s."""
MAX_IDLE_SOURCES = 4
"""Limit per process. The source that is idle for longest is closed."""


def source_options(options: ReadOptions) -> SourceOptions:
    return SourceOptions(
        options.access,
        "binary" if options.read_mode == "broker" else options.read_mode,
        None if options.data_directory is None else Path(options.data_directory),
        patience_s=options.access.operation_timeout_s,
        contact_patience_s=CONTACT_PATIENCE_S,
    )


def task_source_options(options: SourceOptions) -> SourceOptions:
    """Return the options with which a task opens an entry source: without the driver's short limit for the first
    contact. The driver has reached the broker, so a broker that does not respond to a task is restarting.
    """
    return replace(options, contact_patience_s=None)


def opened(options: SourceOptions) -> AbstractContextManager[EntrySource]:
    return _idle.opened(options)


def _open(options: SourceOptions) -> EntrySource:
    _log_to_stderr()
    return open_source(options)


def _log_to_stderr() -> None:
    """Log to standard error, which Spark adds to the executor's log, because Spark's Python workers configure no logging."""
    if not logging.getLogger("pybroker").hasHandlers():
        logs.configure("info")


_idle = IdleSources(MAX_IDLE_SOURCES, _open)
