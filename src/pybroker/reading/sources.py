"""Opens the way of reading that was asked for, or with `auto` the best one that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.reading.bulk import BulkSource
from pybroker.reading.entry_source import EntrySource, ReadingFailed
from pybroker.reading.options import MODES

if TYPE_CHECKING:
    from pybroker.reading.options import SourceOptions


def open_source(options: SourceOptions) -> EntrySource:
    """The source for these options. Raises ReadingFailed when there is none."""
    if options.mode not in MODES:
        raise ReadingFailed(f"readMode is {options.mode!r}: use one of {', '.join(MODES)}")
    if options.access.admin_url:
        return BulkSource(options)
    raise ReadingFailed("admin.url is not given: the address of the broker's HTTP port is needed to read in bulk")
