"""What a managed ledger must do, as plain lists and sets: no ledger, no journal, nothing that could be lost.

A topic is a list of entries that were acknowledged to the publisher, and the runs that were not yet. A cursor is the set of
entries it has deleted, now and at every moment since the last one that was promised to survive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pybroker.managed_ledger.retention import KEEP_ALL, RetentionLimits
from pybroker.model import ack_set
from pybroker.model.position import Position

NOWHERE = Position(-1, -1)


@dataclass(frozen=True)
class ModelEntry:
    """An entry that exists."""

    position: Position
    payload: bytes
    message_count: int
    published_ms: int


@dataclass(eq=False)
class ModelRun:
    """Entries that were appended together."""

    payloads: list[bytes]
    message_counts: list[int]
    published_ms: int
    stored_count: int = 0
    """The first entries that are stored, of a run with an unknown outcome."""

    def divided(self, count: int) -> tuple[ModelRun, ModelRun]:
        return (
            ModelRun(self.payloads[:count], self.message_counts[:count], self.published_ms),
            ModelRun(self.payloads[count:], self.message_counts[count:], self.published_ms),
        )

    def entries(self, ledger_id: int, first_entry_id: int) -> list[ModelEntry]:
        return [
            ModelEntry(Position(ledger_id, first_entry_id + number), payload, count, self.published_ms)
            for number, (payload, count) in enumerate(zip(self.payloads, self.message_counts, strict=True))
        ]


@dataclass(frozen=True)
class AckState:
    """What a cursor has acknowledged: whole entries, and the bits that are left of batches."""

    deleted: frozenset[Position]
    bits: dict[Position, int]


class ModelCursor:
    """One subscription. `versions` are the states that a crash may bring back, the newest last, which is what it is now."""

    def __init__(self, topic: ModelTopic, mark_delete: Position, *, is_durable: bool) -> None:
        self.topic = topic
        self.is_durable = is_durable
        self.versions = [AckState(frozenset(e.position for e in topic.entries if e.position <= mark_delete), {})]
        self.properties: list[dict[str, str]] = []  # the last one, and those that a crash may bring back
        self.first_version = 0  # the number of versions[0]
        self.read_next = NOWHERE
        self.last_mark = NOWHERE
        self.rewind()

    @property
    def now(self) -> AckState:
        return self.versions[-1]

    @property
    def version(self) -> int:
        """The number of the present state."""
        return self.first_version + len(self.versions) - 1

    def left(self) -> list[ModelEntry]:
        """The unacknowledged entries."""
        return [entry for entry in self.topic.entries if entry.position not in self.now.deleted]

    def left_of(self, entry: ModelEntry) -> int:
        """The bits of the unacknowledged messages of an entry."""
        if entry.position in self.now.deleted:
            return 0
        return self.now.bits.get(entry.position, ack_set.full(entry.message_count))

    def promised(self, version: int) -> None:
        """The state of that number is durable: nothing older may come back."""
        if version > self.first_version:
            del self.versions[: version - self.first_version]
            self.first_version = version

    def came_back(self, state: AckState) -> None:
        """After a crash this is what the cursor is."""
        self.versions = [state]
        self.first_version = 0

    def _become(self, deleted: Iterable[Position], bits: dict[Position, int]) -> None:
        gone = frozenset(deleted)
        kept = {position: value for position, value in bits.items() if position not in gone}
        state = AckState(gone, kept)
        if state != self.now:
            self.versions.append(state)

    def delete(self, positions: Iterable[Position]) -> int:
        """Acknowledge entries; those that do not exist do not matter. Returns how many went."""
        newly = {position for position in positions if self.topic.has(position)} - self.now.deleted
        if newly:
            self._become(self.now.deleted | newly, self.now.bits)
        return len(newly)

    def delete_up_to(self, position: Position) -> int:
        if not self.topic.entries or position > self.topic.entries[-1].position:
            return 0
        return self.delete(entry.position for entry in self.topic.entries if entry.position <= position)

    def delete_batch(self, entry: ModelEntry, word: int) -> int:
        """Keep the messages whose bits are set in `word`; returns how many are left."""
        before = self.left_of(entry)
        after = before & word
        if not after:
            self.delete([entry.position])
        elif after != before:
            self._become(self.now.deleted, {**self.now.bits, entry.position: after})
        return after.bit_count()

    def reset(self, position: Position) -> int:
        """The next entry is the one at or behind `position`."""
        self._become([entry.position for entry in self.topic.entries if entry.position < position], {})
        self.last_mark = NOWHERE
        self.rewind()
        return 0

    def skip_reading(self) -> None:
        """What was deleted at the front is not read any more."""
        left = self.left()
        self.read_next = max(self.read_next, left[0].position if left else self.topic.end)

    def rewind(self) -> None:
        left = self.left()
        self.read_next = left[0].position if left else self.topic.end

    def existing(self, state: AckState) -> AckState:
        """What a state says about entries that exist."""
        has = self.topic.has
        return AckState(
            frozenset(position for position in state.deleted if has(position)),
            {position: bits for position, bits in state.bits.items() if has(position)},
        )

    def backlog(self) -> tuple[int, int, int]:
        """Entries and messages that are unacknowledged, and the bytes from behind the mark-delete position to the end."""
        left = self.left()
        first = left[0].position if left else self.topic.end
        messages = sum(self.left_of(entry).bit_count() for entry in left)
        size_bytes = sum(len(entry.payload) for entry in self.topic.entries if entry.position >= first)
        return len(left), messages, size_bytes


@dataclass
class ModelTopic:
    """One managed ledger, from its creation to its deletion."""

    name: str
    entries: list[ModelEntry] = field(default_factory=list)
    pending: list[ModelRun] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    cursors: dict[str, ModelCursor] = field(default_factory=dict)
    maybe: dict[str, ModelCursor] = field(default_factory=dict)  # creation or deletion not answered: there or not
    leaving: set[int] = field(default_factory=set)  # ledgers that were allowed to go, and may be there after a crash
    last_position: Position = NOWHERE  # ever
    is_created: bool = False
    is_going: bool = False  # its deletion has begun
    is_terminated: bool = False
    may_be_terminated: bool = False
    retention: RetentionLimits = KEEP_ALL
    ignores_retention: bool = False  # it is being truncated
    closed_ms: dict[int, int] = field(default_factory=dict)  # of ledgers, as far as it was seen
    positions: set[Position] = field(default_factory=set)

    @property
    def end(self) -> Position:
        """Behind the last entry that ever was."""
        return Position(self.last_position.ledger_id, self.last_position.entry_id + 1)

    def has(self, position: Position) -> bool:
        return position in self.positions

    def divide(self, run: ModelRun, count: int) -> tuple[ModelRun, ModelRun]:
        """The first `count` entries of a run under way are stored, and the others are appended again."""
        head, tail = run.divided(count)
        index = next(index for index, each in enumerate(self.pending) if each is run)
        self.pending[index : index + 1] = [head, tail]
        return head, tail

    def confirm(self, run: ModelRun, ledger_id: int, first_entry_id: int) -> None:
        """The oldest run under way is stored at these positions."""
        assert self.pending, "a run is confirmed that nobody appended, or twice"
        assert self.pending[0] is run, "runs are confirmed in the order in which they were appended"
        del self.pending[0]
        for entry in run.entries(ledger_id, first_entry_id):
            assert entry.position > self.last_position, f"{entry.position} after {self.last_position}: positions rise"
            self.last_position = entry.position
            self.entries.append(entry)
            self.positions.add(entry.position)

    def refuse(self, run: ModelRun) -> None:
        """A run under way was answered with an error: it must never be seen."""
        self.pending.remove(run)
        self.refused.update(run.payloads)

    def trim_ledger(self, ledger_id: int) -> None:
        """The ledger is gone for ever."""
        self.entries = [entry for entry in self.entries if entry.position.ledger_id != ledger_id]
        self.positions = {entry.position for entry in self.entries}
        self.leaving.discard(ledger_id)

    def needs(self, ledger_id: int) -> str | None:
        """The name of a durable cursor that needs the ledger."""
        own = {entry.position for entry in self.entries if entry.position.ledger_id == ledger_id}
        needing = (name for name, each in self.cursors.items() if each.is_durable and not own <= each.now.deleted)
        return next(needing, None)

    def retains(self, ledger_id: int, now_ms: int) -> bool:
        """Whether retention keeps the ledger: while it is young and what would be left is less than the size."""
        own = [entry for entry in self.entries if entry.position.ledger_id == ledger_id]
        gone = self.leaving | {ledger_id}
        left_bytes = sum(len(entry.payload) for entry in self.entries if entry.position.ledger_id not in gone)
        closed_ms = self.closed_ms.get(ledger_id, own[-1].published_ms)
        limits = self.retention
        is_young = limits.time_ms < 0 or now_ms - closed_ms < limits.time_ms
        return is_young and (limits.size_bytes < 0 or left_bytes < limits.size_bytes)

    def ledger_ids(self) -> list[int]:
        """The ledgers that hold entries."""
        return sorted({entry.position.ledger_id for entry in self.entries})
