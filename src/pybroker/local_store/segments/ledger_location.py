"""The location of a ledger in its segment file."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.storage_format.segment_layout import LedgerExtent, SegmentIndex


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """The part of a segment file that belongs to a ledger, with the index.

    `is_end_known` is False if damage hides the ledger's entry count; then `extent` is the minimum.
    """

    extent: LedgerExtent
    index: SegmentIndex
    is_end_known: bool = True
