"""Opens the requested transport, or with `auto` the best available one.

The order of `auto`: segment files, if this process can read the data directory and the directory is proved to be the
broker's; the bulk endpoint, if the broker has one; the binary protocol, which all Pulsar brokers support.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pybroker.reading.entry_source import EntrySource, ReadingFailed
from pybroker.reading.read_options import MODES
from pybroker.reading.transports.bulk_source import BulkSource
from pybroker.reading.transports.segment_source import SegmentSource, broker_directory
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.reading.read_options import SourceOptions


def open_source(options: SourceOptions) -> EntrySource:
    mode = options.mode
    if mode not in MODES:
        raise ReadingFailed(f"readMode is {mode!r}: use one of {', '.join(MODES)}")
    if mode == "binary" or (mode == "auto" and not options.access.admin_url):
        return _binary(options)
    if not options.access.admin_url:
        raise ReadingFailed(
            f"readMode {mode} sends HTTP requests to the broker, but admin.url is missing: set it, such as "
            "http://host:8080"
        )
    source = BulkSource(options)
    if mode == "bulk":
        return source
    try:
        directory, reason = broker_directory(source)
        if directory is not None:
            source.close()
            return SegmentSource(replace(options, contact_patience_s=None), directory)  # The broker has answered.
        if mode == "segment":
            raise ReadingFailed(f"the segment files of the broker cannot be read: {reason}")
        if source.has_entries():
            return source
    except BaseException:
        source.close()
        raise
    logs.info("source.binary", reason="the broker has no endpoint for bulk reads")
    source.close()
    return _binary(options)


def _binary(options: SourceOptions) -> EntrySource:
    # The client is imported only if needed, because Spark starts a Python process for each step of a query.
    from pybroker.reading.transports.binary_source import BinarySource  # noqa: PLC0415

    return BinarySource(options.access, options.patience_s)
