"""What a transaction is called, and how it can end."""

from __future__ import annotations

import enum
from typing import NamedTuple


class TxnId(NamedTuple):
    """The id of a transaction, as it is on the wire: both parts are unsigned 64-bit numbers.

    Ids never repeat. `least` of a coordinator's transactions begins at 1 and rises, so that (0,0) is nobody's and the low-water
    mark, the highest `least` up to which all have ended, begins at 0.
    """

    most: int
    """The coordinator, which is the partition of `transaction_coordinator_assign` that gave the id."""
    least: int
    """Its place in the order of the coordinator's transactions."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


class TxnAction(enum.IntEnum):
    """How a transaction ends; the numbers are those of the wire."""

    COMMIT = 0
    ABORT = 1
