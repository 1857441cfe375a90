"""A cursor's state beside a model of messages, each with its holder, and what was stored of it: through records that are lost,
checkpoints and crashes."""

from __future__ import annotations

import random
from copy import deepcopy

from tests.support.findings import at_once
from tests.support.world import SyncWorld

from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model import ack_set
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId

BATCH = 3
"""Messages of each entry."""
LEDGERS = {0: 4, 2: 3}
ENTRIES = [Position(ledger_id, entry_id) for ledger_id, count in LEDGERS.items() for entry_id in range(count)]
TXNS = [TxnId(most, least) for most in (0, 1) for least in range(1, 6)]
ALL = (1 << BATCH) - 1

Step = tuple[str, TxnId, Position, int]
STEPS = (
    *["whole", "part"] * 4,
    "up_to",
    *["commit", "abort"] * 2,
    "plain",
    "mark",
    "seek",
    *["write"] * 3,
    "lost",
    "checkpoint",
    "crash",
)


def random_steps(seed: int, count: int) -> list[Step]:
    chance = random.Random(seed)
    return [
        (chance.choice(STEPS), chance.choice(TXNS), chance.choice(ENTRIES), chance.randint(1, ALL - 1))
        for _ in range(count)
    ]


def ledger_list() -> LedgerList:
    ledgers = LedgerList()
    for ledger_id, count in LEDGERS.items():
        ledgers.add_ledger(ledger_id)
        ledgers.added(ledger_id, count, count * BATCH, count)
    return ledgers


class Model:
    """Who holds each message, which are acknowledged, and which transactions have ended."""

    def __init__(self) -> None:
        self.holder: dict[tuple[Position, int], TxnId] = {}
        self.acked: set[tuple[Position, int]] = set()
        self.ended: set[TxnId] = set()
        self.marks = {0: 0, 1: 0}
        self.cumulative: TxnId | None = None

    def wanted(self, position: Position, bits: int) -> set[tuple[Position, int]]:
        return {(position, index) for index in range(BATCH) if bits >> index & 1}

    def up_to(self, position: Position) -> set[tuple[Position, int]]:
        return {(each, index) for each in ENTRIES if each <= position for index in range(BATCH)}

    def has_ended(self, txn: TxnId) -> bool:
        return txn in self.ended or txn.least <= self.marks[txn.most]

    def end(self, txn: TxnId, *, is_commit: bool) -> None:
        held = {message for message, holder in self.holder.items() if holder == txn}
        for message in held:
            del self.holder[message]
        if is_commit:
            self.acked |= held
        self.ended.add(txn)
        if self.cumulative == txn:
            self.cumulative = None

    def raise_mark(self, txn: TxnId) -> set[TxnId]:
        """Those that hold something all the same."""
        self.marks[txn.most] = max(self.marks[txn.most], txn.least)
        return {each for each in self.holder.values() if each.least <= self.marks[each.most]}

    def acked_bits(self, position: Position) -> int:
        return sum(1 << index for index in range(BATCH) if (position, index) in self.acked)

    def held_bits(self, position: Position) -> int:
        return sum(1 << index for index in range(BATCH) if (position, index) in self.holder)


class HeldAcksWorld(SyncWorld):
    """The state of a cursor, the model, and what a crash leaves of both."""

    def __init__(self) -> None:
        self.state = CursorState(ledger_list(), Position(0, -1))
        self.model = Model()
        self.snapshot: bytes | None = None
        self.deltas: list[bytes] = []
        self.stored = Model()
        """What a crash leaves."""
        self.is_lost = False

    def perform(self, name: str, txn: TxnId, position: Position, bits: int) -> None:
        if name in ("whole", "part", "up_to"):
            self.acknowledge(name, txn, position, bits)
        elif name in ("commit", "abort"):
            self.end(txn, is_commit=name == "commit")
        elif name == "plain":
            self.state.acknowledge(position.ledger_id, [position.entry_id])
            self.model.acked |= self.model.wanted(position, ALL)
        elif name == "mark":
            self.raise_mark(txn, stops_after=bits - 1)
        elif name == "seek":
            self.seek(position)
        elif name == "checkpoint":
            self.snapshot, self.deltas = self.state.snapshot(), []
            self.stored = deepcopy(self.model)
        elif name == "lost":
            if self.state.take_delta() is not None:
                self.state.forget_deltas()
        elif name == "crash":
            self.crash()
        else:
            self.write()

    def write(self) -> None:
        delta = self.state.take_delta()
        if delta is not None:
            self.deltas.append(delta)
        self.stored = deepcopy(self.model)

    def crash(self) -> None:
        self.state = CursorState.restore(ledger_list(), Position(0, -1), self.snapshot, self.deltas)
        self.model = deepcopy(self.stored)
        for late in {each for each in self.model.holder.values() if each.least <= self.model.marks[each.most]}:
            self.model.end(late, is_commit=False)

    def acknowledge(self, step: str, txn: TxnId, position: Position, bits: int) -> None:
        held, model = self.state.held, self.model
        assert held.has_ended(txn) == model.has_ended(txn), f"{txn}: {model.ended} {model.marks}"
        if held.has_ended(txn):
            return
        up_to = position if step == "up_to" else None
        groups = [(position.ledger_id, [position.entry_id])] if step == "whole" else []
        parts = [(position, ack_set.to_words(ALL & ~bits), BATCH)] if step == "part" else []
        messages = model.wanted(position, bits if step == "part" else ALL)
        if up_to is not None:
            messages = model.up_to(position)
        others = {model.holder.get(message) for message in messages} - {None, txn}
        if up_to is None and txn in {model.holder.get(message) for message in messages}:
            others.add(txn)  # nothing is acknowledged twice
        if up_to is not None and held.cumulative == txn and held.up_to is not None and up_to <= held.up_to:
            others.add(txn)
        if up_to is not None and model.cumulative not in (None, txn):
            others.add(model.cumulative)  # a second cumulative one is refused wherever it stands
        conflict = held.conflict(txn, up_to, groups, parts)
        assert (conflict is not None) == bool(others)
        if conflict is None:
            held.hold(txn, up_to, groups, parts)
            self.state.held_changed()
            model.holder.update(dict.fromkeys(messages, txn))
            if up_to is not None:
                model.cumulative = txn

    def end(self, txn: TxnId, *, is_commit: bool) -> None:
        state = self.state
        hold = state.held.end(txn)
        if state.held.has_changes:
            state.held_changed()
        self.model.end(txn, is_commit=is_commit)
        if hold is not None and is_commit:
            if hold.up_to is not None:
                state.mark_delete_to(hold.up_to)
            for ledger_id, ids in hold.groups:
                state.acknowledge(ledger_id, ids)
            for at, words, count in hold.left_parts:
                state.acknowledge_batch(at, words, count)
        self.write()

    def raise_mark(self, txn: TxnId, stops_after: int) -> None:
        """All of that coordinator up to there have ended. Late ones are ended one by one; a crash may come between."""
        is_higher = txn.least > self.model.marks[txn.most]
        late = self.state.held.raise_low_water_mark(txn.most, txn.least)
        expected = self.model.raise_mark(txn)
        assert set(late) == (expected if is_higher else set())
        self.state.held_changed()
        self.write()
        for index, each in enumerate(late):
            if index == stops_after:
                self.crash()
                return
            self.end(each, is_commit=False)

    def seek(self, position: Position) -> None:
        model = self.model
        for txn in set(model.holder.values()):
            model.end(txn, is_commit=False)
            model.ended.discard(txn)
        model.acked = model.up_to(position)
        self.state.reset(position)
        self.write()

    def check(self) -> None:
        state, model = self.state, self.model
        state.held.check_invariants()
        state.check_invariants()
        assert set(state.held.open) == set(model.holder.values())
        messages = [(each, index) for each in ENTRIES for index in range(BATCH)]
        assert at_once(state.held.holders_of(messages)) == [model.holder.get(message) for message in messages]
        for txn in TXNS:
            assert state.held.has_ended(txn) == model.has_ended(txn), f"{txn}"
        for each in ENTRIES:
            is_whole = bool(state.held.among(each.ledger_id, [each.entry_id]))
            held = ALL if is_whole else state.held.parts_of(each.ledger_id).get(each.entry_id, 0)
            left = state.ack_set_of(*each)
            acked = ALL if state.is_deleted(*each) else 0 if left is None else ALL & ~ack_set.from_words(left)
            assert acked == model.acked_bits(each)
            assert held == model.held_bits(each)
            for index in range(BATCH):
                assert state.held.holder_of(each, 1 << index) == model.holder.get((each, index))

    def finish(self) -> None:
        """End all transactions; a crash does not bring their acknowledgements back."""
        for txn in TXNS:
            self.take("commit", txn, ENTRIES[0], 1)
        assert not self.state.held
        self.take("crash", TXNS[0], ENTRIES[0], 1)
        assert not self.state.held, "it came back"


def walk(steps: list[Step]) -> None:
    HeldAcksWorld().play(steps)
