"""The appends of one open ledger in order: waiting for memory, in flight to the bookies, and completed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from pybroker.bookkeeper.errors import BookKeeperError, LedgerClosed
from pybroker.bookkeeper.ledger_reader import LedgerReader
from pybroker.bookkeeper.ledger_writer import AppendOutcome, LedgerWriter
from pybroker.bookkeeper_store.naming_limit import Moment
from pybroker.errors import AppendUnknown, LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendRun


class OpenLedger:
    """A ledger that this process has created and not sealed. It is the listener of the ledger's writer.

    Failure: when the writer fails, all runs that have not completed end as unknown, including unsent ones. The first
    runs may be stored, so the owner must not refuse one run and append a later one again.
    """

    def __init__(self, completed: Callable[[list[AppendRun], list[float], bool], None], created: Moment) -> None:
        """`completed(runs, sent_ms, is_stored)` is called when sent runs have ended, with the times of sending.
        `created`: the time before the ledger was created.
        """
        self.created = created
        self.writer: LedgerWriter
        self.reader: LedgerReader
        self.reader_changes = 0
        """The ensemble changes of the writer that the reader knows."""
        self.next_entry_id = 0
        self.unsent: deque[AppendRun] = deque()
        self._sent: deque[AppendRun] = deque()
        self._sent_ms: deque[float] = deque()
        """The time of sending of each run in flight, by the monotonic clock."""
        self._completed = completed
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def ledger_id(self) -> int:
        return self.writer.ledger_id

    def accept(self, run: AppendRun) -> None:
        assert run.first_entry_id == self.next_entry_id, "entry ids of a ledger have no gaps"
        self.next_entry_id += len(run.payloads)

    @property
    def unconfirmed_entries(self) -> int:
        """The number of entries that were sent and not confirmed, or wait to be sent."""
        return sum(len(run.payloads) for run in self._sent) + sum(len(run.payloads) for run in self.unsent)

    @property
    def oldest_sent_ms(self) -> float | None:
        """The time when the oldest unconfirmed append was sent, by the monotonic clock; None if no sent append is
        unconfirmed.
        """
        return self._sent_ms[0] if self._sent_ms else None

    def send(self, run: AppendRun, now_ms: float) -> None:
        """Send an append to the bookies. The writer must accept entries."""
        append = self.writer.append
        for payload in run.payloads:
            append(payload)
        self._sent.append(run)
        self._sent_ms.append(now_ms)

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        runs = self._sent
        if outcome is AppendOutcome.STORED:
            end = first_entry_id + len(contexts)
            ended = []
            while runs and runs[0].first_entry_id + len(runs[0].payloads) <= end:
                ended.append(runs.popleft())
            self._end(ended, ended, None)
            self._wake(end, None)
            if not runs and self.unsent and self.writer.error is not None:
                self.fail_unsent()
        elif runs or self.unsent:
            sent = list(runs)
            ended = [*sent, *self.unsent]
            runs.clear()
            self.unsent.clear()
            unknown = AppendUnknown(
                f"It is unknown whether entries of ledger {self.ledger_id} from {ended[0].first_entry_id} on are stored: {error}"
            )
            self._end(ended, sent, unknown)
            self._wake(self.next_entry_id, unknown)

    def fail_unsent(self) -> None:
        """End all unsent appends with an error, because the writer accepts no more entries: LedgerFenced if the ledger
        was closed, otherwise AppendUnknown. Does nothing while a sent append is unconfirmed.
        """
        if self._sent or not self.unsent:
            return
        ended = list(self.unsent)
        self.unsent.clear()
        error = self.writer.error
        is_closed = isinstance(error, LedgerClosed)
        failure = (
            refused(ended[0])
            if is_closed
            else AppendUnknown(f"ledger {self.ledger_id} accepts no more entries: {error}")
        )
        notify(ended, failure)
        self._wake(self.next_entry_id, failure)

    def _end(self, ended: list[AppendRun], sent: list[AppendRun], error: StoreError | None) -> None:
        if sent:
            self._completed(sent, [self._sent_ms.popleft() for _ in sent], error is None)
        notify(ended, error)

    async def stored_so_far(self) -> None:
        """Wait until all appends before this call are stored. Raises StoreError if one of them is not."""
        if not self._sent and not self.unsent:
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self.next_entry_id, stored))
        await stored

    def _wake(self, end_entry_id: int, error: StoreError | None) -> None:
        while self._waiters and self._waiters[0][0] <= end_entry_id:
            _, waiter = self._waiters.popleft()
            if not waiter.done() and error is None:
                waiter.set_result(None)
            elif not waiter.done():
                waiter.set_exception(StoreError(str(error)))


def notify(runs: Iterable[AppendRun], error: StoreError | None) -> None:
    """Notify the listeners of appends that have ended: stored if `error` is None. Consecutive appends of the same
    listener are reported with one call.
    """
    group: list[AppendRun] = []
    for run in runs:
        if group and group[0].listener is not run.listener:
            group[0].listener.append_completed(group, error)
            group = []
        group.append(run)
    if group:
        group[0].listener.append_completed(group, error)


def refused(run: AppendRun) -> LedgerFenced:
    return LedgerFenced(f"ledger {run.ledger_id} accepts no more entries")
