"""Notification of all participants that a transaction has ended, with retries until each has confirmed.

`ENDINGS_AT_ONCE` transactions of a coordinator are ended concurrently. A failed notification is retried with increasing
backoff, so an unreachable topic delays only its own transactions. A topic that does not respond in time gets requests
for one transaction at a time. A topic or subscription that does not exist counts as notified.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pybroker.errors import BrokerError, StoreError
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime
    from pybroker.runtime.tasks import TaskOwner

ENDINGS_AT_ONCE = 32
TOLD_AT_ONCE = 16
"""Maximum number of participants of one transaction that are notified at the same time."""
LOGGED_ATTEMPTS = 5
"""After this number of failures a topic is logged as unreachable, once until it responds again."""
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 10.0


class Participant(NamedTuple):
    """A topic or partition, or a subscription of it."""

    topic: str
    subscription: str | None = None


EndParticipant = Callable[[Participant, TxnId, TxnAction, int], Awaitable[None]]
"""Notifies one participant, with the low-water mark of the coordinator. Returns when the end is durable there or needless. Raises
BrokerError and StoreError for failures that must be retried."""


class Ending:
    """A transaction that is being ended."""

    def __init__(self, txn_id: TxnId, action: TxnAction, remaining: list[Participant]) -> None:
        self.txn_id = txn_id
        self.action = action
        self.remaining = remaining
        """The participants that have not confirmed."""
        self.attempts = 0
        self.last_error = ""


class Endings:
    """Transactions of one coordinator that are being ended. `slots` limits the concurrent notifications of all
    coordinators.
    """

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskOwner,
        slots: asyncio.Semaphore,
        end_participant: EndParticipant,
        low_water_mark: Callable[[], int],
        done: Callable[[Ending], None],
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._slots = slots
        self._end_participant = end_participant
        self._low_water_mark = low_water_mark
        self._done = done
        self._by_id: dict[TxnId, Ending] = {}
        self._waiting: deque[Ending] = deque()
        self._running = 0
        # Topics that did not answer in time, and whether a request to one is in progress.
        self._silent: dict[str, bool] = {}
        self._delayed: set[str] = set()  # topics that were logged as unreachable
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, txn_id: TxnId) -> Ending | None:
        return self._by_id.get(txn_id)

    def begin(self, txn_id: TxnId, action: TxnAction, participants: list[Participant]) -> None:
        """Notify all participants in the background, unless that has begun."""
        if txn_id not in self._by_id and not self._is_closed:
            ending = self._by_id[txn_id] = Ending(txn_id, action, participants)
            self._queue(ending)

    def close(self) -> None:
        """Begin no more notifications."""
        self._is_closed = True
        self._waiting.clear()
        self._by_id.clear()

    def _queue(self, ending: Ending) -> None:
        if self._is_closed:
            return
        self._waiting.append(ending)
        if self._running < ENDINGS_AT_ONCE:
            self._running += 1
            self._tasks.start(self._work(), "end transactions")

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._attempt(self._waiting.popleft())
        finally:
            self._running -= 1

    async def _attempt(self, ending: Ending) -> None:
        ending.attempts += 1
        failed: list[Participant] = []
        if len(ending.remaining) <= 1:
            await self._tell_each(ending, iter(ending.remaining), failed)
        else:
            each = iter(ending.remaining)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(TOLD_AT_ONCE, len(ending.remaining))):
                    group.create_task(self._tell_each(ending, each, failed))
        if self._is_closed:
            return
        ending.remaining = failed
        if not failed:
            del self._by_id[ending.txn_id]
            self._done(ending)
            return
        delay_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(ending.attempts - 1, 16))
        if ending.attempts >= LOGGED_ATTEMPTS and failed[0].topic not in self._delayed:
            self._delayed.add(failed[0].topic)
            logs.warning(
                "transaction.end_delayed",
                transaction=str(ending.txn_id),
                action=ending.action.name,
                attempts=ending.attempts,
                topic=failed[0].topic,
                participants=len(failed),
                error=ending.last_error,
            )
        self._runtime.call_later(delay_s, lambda: self._queue(ending))

    async def _tell_each(self, ending: Ending, participants: Iterator[Participant], failed: list[Participant]) -> None:
        for participant in participants:
            timeout_ms = self._runtime.config.transaction_buffer_client_operation_timeout_in_mills
            topic = participant.topic
            if self._silent.get(topic):
                failed.append(participant)
                ending.last_error = (
                    f"topic {topic} has not responded to earlier requests in time; the request is sent again"
                )
                continue
            asks_again = topic in self._silent
            if asks_again:
                self._silent[topic] = True
            try:
                async with self._slots, asyncio.timeout(timeout_ms / 1000):
                    await self._end_participant(participant, ending.txn_id, ending.action, self._low_water_mark())
            except TimeoutError:
                if asks_again or topic not in self._silent:
                    self._silent[topic] = False  # otherwise the request of another transaction is in progress
                failed.append(participant)
                key = "transactionBufferClientOperationTimeoutInMills"
                ending.last_error = f"{topic}: no answer within {timeout_ms} ms ({key})"
            except (BrokerError, StoreError) as error:
                self._silent.pop(topic, None)
                failed.append(participant)
                ending.last_error = f"{topic}: {error}"
            except Exception as failure:  # noqa: BLE001  (a fault boundary)
                # A bug in one topic must not stop other transactions; this one stays, with the error.
                self._runtime.stats.bugs += 1
                if ending.attempts == 1:
                    logs.error("transaction.end_failed", transaction=str(ending.txn_id), exc_info=failure)
                failed.append(participant)
                ending.last_error = f"{topic}: internal error"
                self._silent.pop(topic, None)
            else:
                self._silent.pop(topic, None)
                self._delayed.discard(topic)
