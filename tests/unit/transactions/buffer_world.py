"""A topic's ledger as a list beside the buffer of its transactions: what follows from the list is looked up each time.

What is handed to the ledger is on its way until the walk says that it is stored or has failed. A crash forgets that, and everything
in memory; what is left is the ledger and the last snapshot. Ledgers go only when the snapshot is behind them, as the cursor of
transactions sees to it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from tests.support.world import SyncWorld

from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.errors import NotAllowedError, TooManyRequests
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TXNS = [TxnId(most, least) for most in (0, 1) for least in range(1, 7)]
MAX_OPEN = 5

Step = tuple[str, TxnId, int]
STEPS = (
    *["send"] * 4,
    *["plain"] * 2,
    *["commit", "abort"] * 2,
    *["stored"] * 8,
    "failed",
    "snapshot",
    "crash",
    "ledger",
    "trim",
    "noted",
    "mark",
)


def random_steps(seed: int, count: int) -> list[Step]:
    chance = random.Random(seed)
    return [(chance.choice(STEPS), chance.choice(TXNS), chance.randint(1, 3)) for _ in range(count)]


@dataclass
class Stored:
    """One entry of the ledger, and what it is."""

    position: Position
    txn: TxnId | None
    ends: TxnAction | None = None


@dataclass
class OnItsWay:
    txn: TxnId | None
    entries: int
    ends: TxnAction | None = None


class TransactionBufferWorld(SyncWorld):
    """A buffer, the ledger of its topic as a list, and appends in flight."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.queue: deque[OnItsWay] = deque()
        self.buffer = TransactionBuffer(MAX_OPEN)
        self.ended: dict[TxnId, TxnAction] = {}
        """By a marker, by a note, or because the low-water mark has passed it."""
        self.marks = {0: 0, 1: 0}
        self.gone: set[int] = set()
        self.saved = self.buffer.snapshot(), self.buffer.up_to, dict(self.ended), dict(self.marks)
        self._is_new_ledger = False

    # --- what follows from the list ----------------------------------------------------------------------------------

    def open(self) -> dict[TxnId, Position]:
        """The first entry of each, oldest first."""
        found: dict[TxnId, Position] = {}
        for each in self.log:
            if each.txn is not None and each.txn not in self.ended:
                found.setdefault(each.txn, each.position)
        return found

    def known(self) -> list[TxnId]:
        on_their_way = {each.txn for each in self.queue if each.txn is not None and each.ends is None}
        return sorted({*self.open(), *on_their_way})

    def is_ending(self, txn: TxnId) -> bool:
        return any(each.txn == txn and each.ends is not None for each in self.queue)

    def has_ended(self, txn: TxnId) -> bool:
        return txn in self.ended or self.is_ending(txn) or txn.least <= self.marks[txn.most]

    def hidden(self) -> set[Position]:
        return {
            each.position
            for each in self.log
            if each.ends is not None or (each.txn is not None and self.ended.get(each.txn) is ABORT)
        }

    def visible(self) -> set[Position]:
        limit = min(self.open().values(), default=None)
        return {each.position for each in self.log if limit is None or each.position < limit} - self.hidden()

    # --- steps -------------------------------------------------------------------------------------------------------

    def send(self, txn: TxnId, count: int) -> None:
        known = self.known()
        is_full = len(known) >= MAX_OPEN and txn not in known
        try:
            self.buffer.require_open(txn)
        except NotAllowedError:
            assert self.has_ended(txn), f"{txn} is open and refused"
            return
        except TooManyRequests:
            assert is_full, "refused, and there are few"
            return
        assert not self.has_ended(txn), f"{txn} has ended and is open again"
        assert not is_full, "one too many"
        self.buffer.offered(txn, count)
        self.queue.append(OnItsWay(txn, count))

    def plain(self, _txn: TxnId, count: int) -> None:
        self.queue.append(OnItsWay(None, count))

    def commit(self, txn: TxnId, _count: int) -> None:
        self._end(txn, COMMIT)

    def abort(self, txn: TxnId, _count: int) -> None:
        self._end(txn, ABORT)

    def _end(self, txn: TxnId, action: TxnAction) -> None:
        assert self.buffer.is_known(txn) == (txn in self.known())
        if txn in self.known() and not self.is_ending(txn):
            self.buffer.offered_end(txn)
            self.queue.append(OnItsWay(txn, 1, action))

    def noted(self, txn: TxnId, _count: int) -> None:
        """It ends without any message here, and that is stored before it is answered."""
        if txn not in self.known() and not self.has_ended(txn):
            self.buffer.offered_end(txn)
            self.buffer.ended(txn, COMMIT, None)
            self.ended[txn] = COMMIT
            self.snapshot(txn, 0)

    def stored(self, _txn: TxnId, _count: int) -> None:
        if not self.queue:
            return
        entry = self.queue.popleft()
        first = self._next()
        if entry.txn is None:
            self.buffer.passed(first, entry.entries)
        elif entry.ends is None:
            self.buffer.stored(entry.txn, first, entry.entries, 0, "p")
        else:
            self.buffer.ended(entry.txn, entry.ends, first)
            self.ended[entry.txn] = entry.ends
        for index in range(entry.entries):
            self.log.append(Stored(Position(first.ledger_id, first.entry_id + index), entry.txn, entry.ends))

    def failed(self, _txn: TxnId, _count: int) -> None:
        if not self.queue:
            return
        entry = self.queue.popleft()
        if entry.ends is not None:
            assert entry.txn is not None
            self.buffer.end_failed(entry.txn)
        elif entry.txn is not None:
            self.buffer.failed(entry.txn, entry.entries)

    def mark(self, txn: TxnId, _count: int) -> None:
        """All of that coordinator up to there have ended; what is left of them is to be aborted, each time until it is."""
        if txn.least > self.marks[txn.most]:
            self.marks[txn.most] = txn.least
        late = self.buffer.raise_low_water_mark(txn.most, txn.least)
        mark = self.marks[txn.most]
        expected = {
            each for each in self.known() if each.most == txn.most and each.least <= mark and not self.is_ending(each)
        }
        assert set(late) == expected, "late ones are left, or others are ended"
        stood = [each for each in late if each in self.open()]
        assert stood == [each for each in self.open() if each in expected], "not the oldest first"
        for each in late:
            self._end(each, ABORT)

    def snapshot(self, _txn: TxnId, _count: int) -> None:
        self.buffer.forget_ledgers(lambda ledger_id: ledger_id not in self.gone)
        self.saved = self.buffer.snapshot(), self.buffer.up_to, dict(self.ended), dict(self.marks)

    def ledger(self, _txn: TxnId, _count: int) -> None:
        self._is_new_ledger = bool(self.log)

    def trim(self, _txn: TxnId, _count: int) -> None:
        """The first ledger goes, when all of it is in the snapshot and it is not the last."""
        present = sorted({each.position.ledger_id for each in self.log} - self.gone)
        if len(present) > 1 and present[0] < self.saved[1].ledger_id:
            self.gone.add(present[0])

    def crash(self, _txn: TxnId, _count: int) -> None:
        self.queue.clear()
        snapshot, up_to, ended, marks = self.saved
        self.buffer = TransactionBuffer.restore(snapshot, MAX_OPEN)
        assert self.buffer.up_to == up_to
        self.marks = dict(marks)
        self.ended = ended | {each.txn: each.ends for each in self.log if each.txn and each.ends is not None}
        for each in self.log:
            if each.position <= up_to:
                continue
            if each.txn is None:
                self.buffer.passed(each.position, 1)
            elif each.ends is not None:
                self.buffer.ended(each.txn, each.ends, each.position)
            else:
                self.buffer.found(each.txn, each.position, 1, 0, "p")
        self.buffer.recovered()
        for txn in self.open():
            if txn.least <= self.marks[txn.most]:
                self.ended[txn] = ABORT
        self.buffer.forget_ledgers(lambda ledger_id: ledger_id not in self.gone)

    def _next(self) -> Position:
        if not self.log:
            return Position(0, 0)
        last, is_new, self._is_new_ledger = self.log[-1].position, self._is_new_ledger, False
        return Position(last.ledger_id + 1, 0) if is_new else Position(last.ledger_id, last.entry_id + 1)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        buffer, opened = self.buffer, self.open()
        buffer.check_invariants()
        assert list(buffer.open) == list(opened)
        assert buffer.limit == min(opened.values(), default=None)
        hidden = {Position(ledger_id, entry_id) for ledger_id, bits in buffer.hidden.items() for entry_id in bits}
        assert self._there(hidden) == self._there(self.hidden())
        limit = buffer.limit
        seen = {each.position for each in self.log if limit is None or each.position < limit} - hidden
        assert self._there(seen) == self._there(self.visible())
        for txn in TXNS:
            assert buffer.has_ended(txn) == self.has_ended(txn), f"{txn}"
        if self.log:
            assert buffer.up_to == self.log[-1].position

    def finish(self) -> None:
        """End all transactions. Only the positions that readers must not see are kept."""
        while self.queue:
            self.take("stored", TXNS[0], 1)
        for txn in TXNS:
            self.take("mark", txn, 1)
            while self.queue:
                self.take("stored", TXNS[0], 1)
        assert not self.buffer.open, "a transaction that never ends"
        assert not self.buffer._in_flight
        assert not self.buffer._ended, "ids below the low-water mark are kept"
        self.take("snapshot", TXNS[0], 1)
        self.take("crash", TXNS[0], 1)
        assert not self.buffer.open, "it came back"

    def _there(self, positions: set[Position]) -> set[Position]:
        return {each for each in positions if each.ledger_id not in self.gone}


def walk(steps: list[Step]) -> None:
    TransactionBufferWorld().play(steps)
