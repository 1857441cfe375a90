"""Sinks on the coordinator of `coordinator_world.py`: drivers write batch after batch, die, and come again with the same batch.

What must hold is said by `check`: of each batch one group of transactions is committed, all of it or nothing, and never another.
"""

from __future__ import annotations

from tests.fuzz.transactions.coordinator_world import TOPICS, CoordinatorWorld, Known

from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions import log_positions
from pybroker.transactions.coordinator_state import Status
from pybroker.transactions.sinks import Asking, Label

ANYBODY = Asking(None, may_all=True)


class Driver:
    """One sink's: the batch that it is at, and what it has learnt."""

    def __init__(self, sink: str) -> None:
        self.sink = sink
        self.batch = 0
        self.run = 0
        self.opened: dict[int, list[TxnId]] = {}
        self.attempts: dict[int, list[tuple[TxnId, ...]]] = {}
        """Groups that a commit was asked for, by batch."""
        self.answered = -1
        """The last batch of which success was answered."""

    def label(self, batch: int) -> Label:
        return Label(self.sink, batch, "w", str(self.run))


class SinkWorld(CoordinatorWorld):
    """The coordinator with the drivers of two sinks as its clients."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers = [Driver("s"), Driver("t")]

    @property
    def kept_entries(self) -> int:
        # At most so many before they are written again, and what is written then.
        return log_positions.FEW_RECORDS + (log_positions.RECORDS_EACH + 1) * len(self.coordinator.state.marks) + 2

    # --- steps -----------------------------------------------------------------------------------------------------------

    def act(self, name: str, which: int) -> None:
        driver = self.drivers[which % 2]
        if name == "open":
            self.open(driver, TOPICS[: 1 + which % 3])
        elif name == "together":
            self.together(driver, driver.batch, 0)
        elif name == "part":  # a task's transaction was lost, or was another attempt's
            self.together(driver, driver.batch, 1)
        elif name == "unheard":
            self.together(driver, driver.batch, 0, is_heard=False)
        elif name == "again":
            self.together(driver, max(0, driver.batch - which // 2), which // 3)
        elif name == "abort":
            self.abort(driver)
        elif name == "restart":
            self.restart(driver)
        elif name == "time":
            self.pass_time(20_000)

    async def begin_again(self) -> None:
        for driver in self.drivers:  # whatever became of them, they go on
            self.restart(driver)
            self.open(driver, TOPICS)
            await self.settle()
            self.together(driver, driver.batch, 0)

    async def finish(self) -> None:
        await super().finish()
        assert all(driver.answered >= 0 for driver in self.drivers), "a driver that cannot go on"

    def open(self, driver: Driver, topics: list[str]) -> None:
        """A task: a transaction of the driver's batch, and topics that take part."""
        label = driver.label(driver.batch)

        async def work() -> None:
            txn = await self.coordinator.open_of_sink(label, ANYBODY, 60_000, takes_over=False)
            if txn is None:
                assert label.batch <= self._mark(driver), "a batch that is not committed was called so"
                return
            assert txn not in self.known, f"{txn} was given twice"
            known = self.known[txn] = Known()
            await self.coordinator.add(self.coordinator.state.existing(txn), topics, [])
            known.participants |= set(topics)
            driver.opened.setdefault(label.batch, []).append(txn)

        self.ask(work)

    def together(self, driver: Driver, batch: int, leave_out: int, *, is_heard: bool = True) -> None:
        """The driver commits what its tasks have written of that batch; it may die before it is answered."""
        group = tuple(driver.opened.get(batch, [])[leave_out:])
        label = driver.label(batch)
        driver.attempts.setdefault(batch, []).append(group)

        async def work() -> None:
            is_new = await self.coordinator.commit_together(
                label, [txn.least for txn in group], ANYBODY, takes_over=False
            )
            assert is_new or self._mark(driver) >= batch, "a repeat of what was never committed"
            driver.answered = max(driver.answered, batch)
            if is_heard:
                driver.batch = max(driver.batch, batch + 1)
            await self.coordinator.sink_committed(driver.sink)
            if is_new:
                for txn in group:
                    for topic in self.known[txn].participants:
                        assert self.told.get((topic, txn)) is TxnAction.COMMIT, f"{topic} does not know of {txn}"

        self.ask(work)

    def abort(self, driver: Driver) -> None:
        self.ask(lambda: self.coordinator.abort_of_sink(driver.sink, driver.batch, ANYBODY))

    def restart(self, driver: Driver) -> None:
        """The driver died: another run of it comes, at the same batch, and knows of no transactions."""
        driver.run += 1
        driver.opened.clear()

    def _mark(self, driver: Driver) -> int:
        mark = self.coordinator.state.marks.get(driver.sink)
        return -1 if mark is None else mark.batch

    # --- what must hold ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        for driver in self.drivers:
            mark = self._mark(driver)
            assert mark >= driver.answered, f"a batch of {driver.sink} that was committed is forgotten"
            for txn in (txn for txns in driver.opened.values() for txn in txns):
                found = self.coordinator.state.find(txn.least)
                assert found is None or (found.label is not None and found.label.sink == driver.sink), (
                    f"whose is {txn}?"
                )
            for batch, attempts in driver.attempts.items():
                self._check_batch(driver, batch, attempts)
            for each in self.coordinator.state.of_sink(driver.sink):
                assert each.label is not None
                assert each.label.batch > mark or each.status is not Status.OPEN, f"{each.id} is left open"

    def _check_batch(self, driver: Driver, batch: int, attempts: list[tuple[TxnId, ...]]) -> None:
        ends = {txn: self._end_of(txn) for group in attempts for txn in group}
        committed = {txn for txn, end in ends.items() if end is TxnAction.COMMIT}
        if not committed:
            return
        assert batch <= self._mark(driver), f"batch {batch} is committed, and the mark does not say so"
        groups = [group for group in attempts if committed <= set(group)]
        assert groups, f"batch {batch} was committed twice: {committed}"
        assert any(all(ends[txn] is not TxnAction.ABORT for txn in group) for group in groups), (
            f"batch {batch} is committed in part: {ends}"
        )

    def _end_of(self, txn: TxnId) -> TxnAction | None:
        """How it ends or has ended, as far as anybody knows."""
        transaction = self.coordinator.state.find(txn.least)
        if transaction is not None and transaction.action is not None:
            return transaction.action
        told = {self.told[topic, txn] for topic in self.known[txn].participants if (topic, txn) in self.told}
        return next(iter(told), None)
