"""Where an entry rests: ledger id and entry id, in that order.

Positions order like the entries of a topic: ledgers of one managed ledger have rising ids and entry ids rise within a ledger.
On the hot path ledger and entry ids travel as plain ints; a `Position` is for everything that is kept or compared.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.errors import ProtocolViolation

MAX_SIGNED_64 = (1 << 63) - 1
MAX_ENTRY_ID = (1 << 32) - 1
"""The highest entry id in a bitmap. Real ledgers are far smaller, but clients and REST calls may send any 64-bit
number."""


class Position(NamedTuple):
    """One entry of a topic; comparable. `entry_id` -1 means "before the first entry of this ledger"."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
LATEST = Position(MAX_SIGNED_64, MAX_SIGNED_64)


def from_wire(ledger_id: int, entry_id: int) -> Position:
    """A Position from the protocol's unsigned 64-bit fields, where clients write -1 as 2^64 - 1."""
    if not (0 <= ledger_id < 1 << 64 and 0 <= entry_id < 1 << 64):
        raise ProtocolViolation(f"message id out of range: {ledger_id}:{entry_id}")
    if ledger_id > MAX_SIGNED_64:
        ledger_id -= 1 << 64
    if entry_id > MAX_SIGNED_64:
        entry_id -= 1 << 64
    return Position(ledger_id, entry_id)
