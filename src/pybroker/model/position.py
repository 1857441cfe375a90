"""The position of an entry: ledger id and entry id. Positions of a topic sort like its entries.

On the hot path, ledger ids and entry ids are plain ints; a `Position` is for values that are stored or compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pybroker.errors import ProtocolViolation

MAX_SIGNED_64 = (1 << 63) - 1
MAX_ENTRY_ID = (1 << 32) - 1
"""The highest entry id in a bitmap. Real ledgers are far smaller, but clients and REST calls may send any 64-bit
number.
"""


class Position(NamedTuple):
    """The position of an entry. `entry_id` -1 is the position in front of the first entry of the ledger."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


position_of: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)
"""Make a `Position` of (ledger id, entry id) without a Python call, for the hot path."""

EARLIEST = Position(-1, -1)
LATEST = Position(MAX_SIGNED_64, MAX_SIGNED_64)


def from_wire(ledger_id: int, entry_id: int) -> Position:
    """Return the position for unsigned 64-bit fields of the protocol, in which clients write -1 as 2^64 - 1. Raises
    ProtocolViolation for other numbers that are out of range.
    """
    if not (0 <= ledger_id < 1 << 64 and 0 <= entry_id < 1 << 64):
        raise ProtocolViolation(f"the message id {ledger_id}:{entry_id} is out of range")
    if ledger_id > MAX_SIGNED_64:
        ledger_id -= 1 << 64
    if entry_id > MAX_SIGNED_64:
        entry_id -= 1 << 64
    return Position(ledger_id, entry_id)
