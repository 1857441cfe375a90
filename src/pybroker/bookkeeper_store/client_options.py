"""The options of the client that the ledger store uses. Pure."""

from __future__ import annotations

from typing import Final, TypedDict

from pybroker.bookkeeper import BookKeeperOptions
from pybroker.bookkeeper import options as limits

_FRAME_HEAD_BYTES = 128
"""At least what precedes the payload in a frame."""


class _Limits(TypedDict):
    max_pending_entries: int
    max_pending_bytes: int
    max_bookie_bytes: int


NO_LIMIT: Final[_Limits] = {
    "max_pending_entries": limits.NO_LIMIT,
    "max_pending_bytes": limits.NO_LIMIT,
    "max_bookie_bytes": limits.NO_LIMIT,
}
"""The ledger store limits the entries in flight itself, over all ledgers."""


def max_entry_bytes(options: BookKeeperOptions) -> int:
    """Return the size of the largest entry that bookies accept."""
    return options.max_frame_bytes - _FRAME_HEAD_BYTES
