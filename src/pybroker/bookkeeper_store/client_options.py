"""The options of the BookKeeper client that the ledger store sets itself. Pure."""

from __future__ import annotations

from typing import Final, TypedDict

from pybroker.bookkeeper import BookKeeperOptions
from pybroker.bookkeeper import options as limits

_FRAME_HEAD_BYTES = 128
"""Upper bound of the bytes of a frame in front of its payload."""


class _Limits(TypedDict):
    max_pending_entries: int
    max_pending_bytes: int
    max_bookie_bytes: int


NO_LIMIT: Final[_Limits] = {
    "max_pending_entries": limits.NO_LIMIT,
    "max_pending_bytes": limits.NO_LIMIT,
    "max_bookie_bytes": limits.NO_LIMIT,
}
"""Unlimited, because the ledger store itself limits the entries in flight, over all ledgers."""


def max_entry_bytes(options: BookKeeperOptions) -> int:
    return options.max_frame_bytes - _FRAME_HEAD_BYTES
