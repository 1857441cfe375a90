"""One coordinator on a disk that forgets, topics that remember what they were told, and a clock and timers that a test moves.

`CoordinatorWorld.check` and the assertions of each step state the contract of `transactions/coordinator.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tests.support.world import AsyncWorld
from tests.unit.managed_ledger.stack import SMALL, FakeClock, LocalStack

from pybroker.config import BrokerConfig
from pybroker.errors import BrokerError, PersistenceError, StoreError
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime.runtime import Runtime
from pybroker.transactions.coordinator import Coordinator, CoordinatorContext
from pybroker.transactions.coordinator_state import Phase
from pybroker.transactions.participant_notification import Participant

PATH = "/managed-ledgers/pulsar/system/persistent/__transaction_log_7"
ID = 7
TOPICS = ["a", "b", "c"]
Step = tuple[str, int, int]
"""What is done, to which, and how many turns of the loop it is given."""


class ManualRuntime(Runtime):
    """Timers ring when the test says so."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(BrokerConfig(), clock)
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:  # type: ignore[override]
        self.timers.append(callback)

    def ring(self) -> None:
        due, self.timers = self.timers, []
        for callback in due:
            callback()


class Known:
    """What the test was answered about a transaction."""

    def __init__(self) -> None:
        self.participants: set[str] = set()
        self.asked: set[TxnAction] = set()
        self.answered: TxnAction | None = None


class CoordinatorWorld(AsyncWorld):
    """One coordinator on a local stack, its clients, and the topics that it notifies."""

    def __init__(self) -> None:
        self.stack = LocalStack(SMALL)
        self.known: dict[TxnId, Known] = {}
        self.told: dict[tuple[str, TxnId], TxnAction] = {}
        """What topics know, durably."""
        self.refusing: set[str] = set()
        self.highest_mark = 0
        self.wrong: list[str] = []
        """What must never happen, seen where an exception would be lost."""
        self.asking: set[asyncio.Task[None]] = set()
        self.coordinator: Coordinator

    @property
    def kept_entries(self) -> int:
        """So many entries at most stay in the log when all has ended."""
        return 1

    async def start(self) -> None:
        await self.stack.start()
        self._begin()
        await self.settle()

    def _begin(self) -> None:
        self.runtime = ManualRuntime(self.stack.clock)
        broker_context = CoordinatorContext(self.runtime, cast(ManagedLedgerFactory, self.stack.factory), self._end)  # type: ignore[redundant-cast]
        self.coordinator = Coordinator(broker_context, ID, PATH)
        broker_context.coordinators[ID] = self.coordinator

    async def _end(self, participant: Participant, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        coordinator = self.coordinator
        await asyncio.sleep(0)
        if self.coordinator is not coordinator:
            raise PersistenceError("of an earlier run")
        if participant.topic in self.refusing:
            raise PersistenceError("refused")
        before = self.told.setdefault((participant.topic, txn), action)
        if before is not action:
            self.wrong.append(f"{participant.topic} was told two ends of {txn}")
        self.highest_mark = max(self.highest_mark, low_water_mark)
        if any(other.id.least <= low_water_mark for other in self.coordinator.state.transactions()):
            self.wrong.append("a low-water mark above what has not ended")

    # --- steps -----------------------------------------------------------------------------------------------------------

    async def perform(self, name: str, which: int, turns: int) -> None:
        if name in ("refuse", "allow"):
            (self.refusing.add if name == "refuse" else self.refusing.discard)(TOPICS[which % 3])
        elif name == "ring":
            self.runtime.ring()
        else:
            self.act(name, which)
        await self.turn(turns)
        if name == "crash":
            await self.crash()
        elif turns > 10:
            await self.settle()

    def act(self, name: str, which: int) -> None:
        """What a client does."""
        txns = list(self.known)
        if name == "new":
            self.new(1000 * (1 + which))
        elif name == "time":
            self.pass_time(700)
        elif txns and name in ("add", "commit", "abort"):
            txn = txns[-1 - which // 3 % len(txns)]
            if name == "add":
                self.add(txn, TOPICS[which % 3])
            else:
                self.end(txn, TxnAction.COMMIT if name == "commit" else TxnAction.ABORT)

    async def finish(self) -> None:
        """Crash, end all transactions and crash once more; new transactions end as well."""
        await self.settle()
        self.check()
        await self.crash()
        await self.end_all()
        await self.crash()
        await self.begin_again()
        await self.settle()
        await self.end_all()

    async def begin_again(self) -> None:
        """Begin new work when everything before it has ended."""
        assert not len(self.coordinator.state), "it came back after a restart"
        assert self.highest_mark <= self.coordinator.state.last_least
        self.new(1000)

    def pass_time(self, passed_ms: int) -> None:
        self.stack.clock.now_ms += passed_ms
        self.runtime.ring()

    def ask(self, work: Callable[[], object]) -> None:
        """Begin a request; what it is answered becomes known whenever that is, unless the broker dies before."""

        async def run() -> None:
            try:
                await work()  # type: ignore[misc]
            except (BrokerError, StoreError):
                pass
            except AssertionError as failure:
                self.wrong.append(str(failure))

        task = asyncio.ensure_future(run())
        self.asking.add(task)
        task.add_done_callback(self.asking.discard)

    def new(self, timeout_ms: int) -> None:
        async def work() -> None:
            txn = await self.coordinator.new(timeout_ms, None)
            assert txn not in self.known, f"{txn} was given twice"
            self.known[txn] = Known()

        self.ask(work)

    def add(self, txn: TxnId, topic: str) -> None:
        async def work() -> None:
            transaction = self.coordinator.state.existing(txn)
            await self.coordinator.add(transaction, [topic], [])
            self.known[txn].participants.add(topic)

        self.ask(work)

    def end(self, txn: TxnId, action: TxnAction) -> None:
        async def work() -> None:
            known = self.known[txn]
            transaction = self.coordinator.state.existing(txn)
            known.asked.add(action)
            await self.coordinator.end(transaction, action)
            assert known.answered in (None, action), f"{txn} ended in both ways"
            known.answered = action
            for topic in known.participants:
                assert self.told.get((topic, txn)) is action, f"{topic} does not know that {txn} has ended"

        self.ask(work)

    async def turn(self, turns: int) -> None:
        """Let so many turns of the loop pass, so that a crash finds things half done."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Nothing goes on any more, but what waits for a timer or a topic."""
        await asyncio.wait_for(self.coordinator._ready.wait(), 10)
        quiet = 0
        while quiet < 20:
            await asyncio.sleep(0.0002)
            log = self.coordinator.log
            is_busy = log is None or log.managed.pending_entries or self.coordinator.endings._running
            quiet = 0 if is_busy else quiet + 1

    async def crash(self) -> None:
        """The process is gone; another one finds what was written."""
        before = self.coordinator
        before.phase = Phase.CLOSED
        before.endings.close()
        for task in list(self.asking):
            task.cancel()
        if self.asking:
            await asyncio.wait(self.asking)
        await before._tasks.close()
        await self.stack.crash()
        self._begin()
        await self.settle()
        self.check()

    def check(self) -> None:
        state = self.coordinator.state
        state.check_invariants()
        assert not self.wrong, self.wrong
        for txn, known in self.known.items():
            transaction = state.find(txn.least)
            if known.answered is not None:
                assert transaction is None or transaction.action is known.answered, f"{txn} came back"
            elif transaction is None:
                ends = {self.told.get((topic, txn)) for topic in known.participants}
                assert len(ends) <= 1, f"{txn} has ended in part"
                assert None not in ends, f"{txn} was forgotten, and not all know of its end"
            else:
                assert known.participants <= set(transaction.partitions), f"{txn} forgot who takes part"
        assert all(txn.least <= state.last_least for txn in self.known), "an id may be given again"

    async def end_all(self) -> None:
        """Everything ends, in bounded steps, and nothing of it is kept."""
        self.refusing.clear()
        self.stack.clock.now_ms += 10_000_000
        for _ in range(60):
            self.runtime.ring()
            await self.settle()
            if not len(self.coordinator.state):
                break
        assert not len(self.coordinator.state), "a transaction that never ends"
        assert not self.asking, "a request that was never answered"
        self.check()
        log = self.coordinator.log
        assert log is not None
        assert log.cursor.backlog_entries <= self.kept_entries, "the log keeps what has ended"

    async def discard(self) -> None:
        async with asyncio.timeout(5):
            await self.coordinator.close()
            await self.stack.stop()
