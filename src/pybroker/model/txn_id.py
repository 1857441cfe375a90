"""What a transaction is called, and how it can end."""

from __future__ import annotations

import enum
from collections.abc import Collection
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


def passed_by(known: Collection[TxnId], coordinator: int, before: int, mark: int) -> list[TxnId]:
    """Those of `known` that a low-water mark passes which rises from `before` to `mark`.

    While a mark rises in small steps, as it does with thousands of transactions that are open, a step costs what it passes and
    not a look at all.
    """
    if 4 * (mark - before) < len(known):
        return [txn for least in range(before + 1, mark + 1) if (txn := TxnId(coordinator, least)) in known]
    return [txn for txn in known if txn.most == coordinator and before < txn.least <= mark]
