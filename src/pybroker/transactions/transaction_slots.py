"""Slots for new transactions: limited by the count at one coordinator and by the memory of the transactions of all
coordinators.

A request waits while its holder has its share (`waiting/fair_shares.py`). Waiting holders are served round robin, so a
holder that has its share delays no other holder. When too many requests wait, the newest request of the holder with
most of them is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import TooManyRequests
from pybroker.transactions.coordinator_state import TRANSACTION_BYTES, CoordinatorState
from pybroker.waiting.fair_queue import FairQueue
from pybroker.waiting.fair_shares import FairShares, Holder

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

MAX_WAITING = 10_000
"""Maximum number of requests that wait for a new transaction at one coordinator."""
WAIT_S = 25.0
"""Maximum wait of such a request. It is shorter than the client's time-out, so that the client receives the reason."""
MIB = 1 << 20


class TransactionRoom:
    """The limits of open transactions, per coordinator and for all coordinators. Owned by the coordinators' shared
    resources."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.sizes = FairShares()
        """Bytes of the transactions that have not ended, at all coordinators."""

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes of all transactions together."""
        return self._config.max_open_transactions_size_in_mb * MIB

    def has_memory(self, holder: Holder) -> bool:
        """Return whether the transactions of `holder` may take more memory."""
        return self.sizes.may_take(holder, self.limit_bytes)

    def no_memory(self, holder: Holder) -> str:
        """Return the error text for a lack of memory."""
        return self.sizes.refusal(
            holder, self.limit_bytes, "bytes for open transactions", "maxOpenTransactionsSizeInMB"
        )

    def may_open(self, state: CoordinatorState, holder: Holder) -> bool:
        """Return whether `holder` may open another transaction at this coordinator now."""
        limit = self._config.max_active_transactions_per_coordinator
        return (limit <= 0 or state.counts.may_take(holder, limit)) and self.has_memory(holder)

    def why_not(self, state: CoordinatorState, holder: Holder) -> str:
        """Return the error text when `may_open` is False."""
        limit = self._config.max_active_transactions_per_coordinator
        if limit > 0 and not state.counts.may_take(holder, limit):
            unit = f"open transactions of transaction coordinator {state.coordinator_id}"
            return state.counts.refusal(holder, limit, unit, "maxActiveTransactionsPerCoordinator")
        return self.no_memory(holder)


class Place:
    """The slot for one new transaction. It counts for its holder until the transaction itself is counted."""

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


class _Waiter:
    """A request that waits for a slot."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


class TransactionSlots:
    """The queue for slots. Owned by its coordinator. Invariant: a request that waits cannot be served, unless a limit
    was raised."""

    def __init__(self, coordinator_id: int, room: TransactionRoom, state: Callable[[], CoordinatorState]) -> None:
        """`state` returns the coordinator's current state: a new object each time the log is read again."""
        self._coordinator_id = coordinator_id
        self._room = room
        self._state = state
        self._waiting: FairQueue[Holder, _Waiter] = FairQueue(MAX_WAITING, MAX_WAITING)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    async def take(self, holder: Holder) -> Place:
        """Wait for a slot for one more transaction of `holder`. Raises TooManyRequests, or the exception given to
        `refuse_all`."""
        if not self._waiting.waiting_of(holder) and self._room.may_open(self._state(), holder):
            return Place(self._state(), holder)
        waiter = _Waiter(holder)
        crowded_out = self._waiting.add(holder, "", waiter)
        if crowded_out is not None and not crowded_out.place.done():
            crowded_out.place.set_exception(
                TooManyRequests(
                    f"cannot open a transaction: {len(self._waiting)} requests wait for transaction coordinator "
                    f"{self._coordinator_id} already, most of {crowded_out.holder.name}; retry later"
                )
            )
        self.let_in()  # A limit may have been raised.
        try:
            async with asyncio.timeout(WAIT_S):
                return await waiter.place
        except BaseException as failure:
            if waiter.place.done() and not waiter.place.cancelled() and waiter.place.exception() is None:
                waiter.place.result().release()  # The slot was assigned while this wait ended.
                self.let_in()
            self._waiting.remove(holder, "", waiter)
            if isinstance(failure, TimeoutError):
                raise TooManyRequests(
                    f"cannot open a transaction: {self._room.why_not(self._state(), holder)}"
                ) from None
            raise

    def let_in(self) -> None:
        """Give free slots to waiting requests, round robin over their holders."""
        state = self._state()
        while len(self._waiting):
            waiter = self._waiting.next(lambda holder: self._room.may_open(state, holder))
            if waiter is None:
                return
            if not waiter.place.done():
                waiter.place.set_result(Place(state, waiter.holder))

    def refuse_all(self, refusal: Exception) -> None:
        """Refuse all waiting requests with `refusal`, because the coordinator cannot open transactions now."""
        while (waiter := self._waiting.next(lambda _: True)) is not None:
            if not waiter.place.done():
                waiter.place.set_exception(refusal)
