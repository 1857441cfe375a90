"""Slots for new transactions: a limit of their number per coordinator, and of the memory of all transactions.

A request waits while its holder (role or address) has used its fair share. Waiting holders are served round robin. When
too many requests wait, the newest request of the holder with most waiting requests is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import TooManyRequests
from pybroker.transactions.coordinator_state import TRANSACTION_BYTES, CoordinatorState
from pybroker.waiting.admission_queue import AdmissionQueue, Admissions, QueueFull
from pybroker.waiting.fair_shares import FairShares, Holder

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

MAX_WAITING = 10_000
"""Maximum number of waiting requests at one coordinator."""
WAIT_S = 25.0
"""Maximum wait of a request, shorter than the client's timeout, so that the client receives the reason."""
MIB = 1 << 20


class TransactionLimits:
    """Limits of open transactions, per coordinator and for all coordinators."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.sizes = FairShares()
        """Limit in bytes for the transactions that have not ended, over all coordinators."""

    @property
    def limit_bytes(self) -> int:
        return self._config.max_open_transactions_size_in_mb * MIB

    def has_memory(self, holder: Holder) -> bool:
        return self.sizes.may_take(holder, self.limit_bytes)

    def no_memory(self, holder: Holder) -> str:
        return self.sizes.refusal(
            holder, self.limit_bytes, "bytes for open transactions", "maxOpenTransactionsSizeInMB"
        )

    def may_open(self, state: CoordinatorState, holder: Holder) -> bool:
        limit = self._config.max_active_transactions_per_coordinator
        return (limit <= 0 or state.counts.may_take(holder, limit)) and self.has_memory(holder)

    def why_not(self, state: CoordinatorState, holder: Holder) -> str:
        """Return why `holder` may not open a transaction, as the text of an error. Call it only after `may_open` has
        returned False.
        """
        limit = self._config.max_active_transactions_per_coordinator
        if limit > 0 and not state.counts.may_take(holder, limit):
            unit = f"open transactions of transaction coordinator {state.coordinator_id}"
            return state.counts.refusal(holder, limit, unit, "maxActiveTransactionsPerCoordinator")
        return self.no_memory(holder)


class TransactionSlot:
    """Slot for one new transaction, charged to its holder until the transaction itself is counted."""

    def __init__(self, state: CoordinatorState, holder: Holder) -> None:
        self.holder = holder
        self._state: CoordinatorState | None = state
        state.counts.add(holder.name, 1)
        state.sizes.add(holder.name, TRANSACTION_BYTES)

    def release(self) -> None:
        """Release the slot, because it was used or is not needed. Idempotent."""
        state, self._state = self._state, None
        if state is not None:
            state.counts.add(self.holder.name, -1)
            state.sizes.add(self.holder.name, -TRANSACTION_BYTES)


class TransactionSlots(Admissions[Holder, TransactionSlot]):
    """Slots of one coordinator."""

    def __init__(self, coordinator_id: int, limits: TransactionLimits, state: Callable[[], CoordinatorState]) -> None:
        """`state` returns the current state, which is a new object each time the log is read again."""
        self._coordinator_id = coordinator_id
        self._limits = limits
        self._state = state
        self._queue: AdmissionQueue[Holder, TransactionSlot] = AdmissionQueue(self, MAX_WAITING)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def acquire(self, holder: Holder) -> TransactionSlot:
        """Wait for a slot for one more transaction of `holder`. Raises TooManyRequests after `WAIT_S` seconds or if too
        many requests wait, and the exception given to `refuse_all`.
        """
        try:
            return await self._queue.enter(holder, WAIT_S)
        except QueueFull as full:
            why = (
                f"{full.waiting} requests already wait for transaction coordinator {self._coordinator_id}, most of them "
                f"from {holder.name}: retry later"
            )
        except TimeoutError:
            why = self._limits.why_not(self._state(), holder)
        raise TooManyRequests(f"the broker cannot open a transaction: {why}")

    def admit_waiting(self) -> None:
        """Give free slots to waiting requests, round robin over their holders."""
        self._queue.admit_waiting()

    def refuse_all(self, refusal: Exception) -> None:
        """Refuse all waiting requests, because the coordinator cannot open transactions now."""
        self._queue.refuse_all(refusal)

    def may_admit(self, address: Holder) -> bool:
        return self._limits.may_open(self._state(), address)

    def take(self, address: Holder) -> TransactionSlot:
        return TransactionSlot(self._state(), address)

    def give_back(self, address: Holder, unit: TransactionSlot) -> None:
        unit.release()
