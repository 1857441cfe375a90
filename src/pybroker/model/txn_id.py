"""Transaction ids and outcomes."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple


class TxnId(NamedTuple):
    """The id of a transaction: both parts are unsigned 64-bit numbers. Ids never repeat.

    `most` is the coordinator. `least` begins at 1 and increases. The low-water mark of a coordinator is the highest
    `least` up to which all its transactions have ended; it begins at 0.
    """

    most: int
    """The coordinator: the partition of `transaction_coordinator_assign` that issued the id."""
    least: int
    """The number of the transaction at its coordinator."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


ID_BASE_BESIDE_PULSAR = 1 << 62
"""On a store that Java brokers share, `least` begins after this number, so that it differs from the ids of Java
coordinators, which begin at 0.
"""


class TxnAction(enum.IntEnum):
    """The end of a transaction, commit or abort, with the numbers of the protocol."""

    COMMIT = 0
    ABORT = 1


def is_passed(least: int, mark: int) -> bool:
    """Return whether a coordinator's low-water mark `mark` shows that its transaction with the number `least`
    (`TxnId.least`) has ended. Return False if `mark` belongs to a pybroker coordinator and `least` to a Java
    coordinator, or vice versa.
    """
    return _before_first_id(mark) < least <= mark


def _before_first_id(mark: int) -> int:
    """Return the number after which the ids of the coordinator with this low-water mark begin."""
    if mark >= ID_BASE_BESIDE_PULSAR:
        return ID_BASE_BESIDE_PULSAR
    return (
        -1 if mark else 0
    )  # Ids of Java coordinators begin at 0, and 0 is also the mark of a coordinator without an ended one.


def passed_by(known: Collection[TxnId], coordinator: int, before: int, mark: int) -> list[TxnId]:
    """Return the transactions in `known` that have ended because the coordinator's low-water mark rose from `before` to
    `mark`. The cost is linear in `mark` - `before` or in `known`, whichever is smaller.
    """
    before = max(before, _before_first_id(mark))
    if 4 * (mark - before) < len(known):
        return [txn for least in range(before + 1, mark + 1) if (txn := TxnId(coordinator, least)) in known]
    return [txn for txn in known if txn.most == coordinator and before < txn.least <= mark]
