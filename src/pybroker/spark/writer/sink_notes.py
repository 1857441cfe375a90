"""What an effectively-once sink keeps in its notes: whose it is, which batches are complete, what each task was about to send.

A task notes the borders and checksums of entries before it sends them; deduplication keeps of each producer name the last row
that is stored. Together they say exactly which rows of an earlier attempt are stored, so that a later attempt skips those and
sends the others, if its rows are the same in the same order. Where they are not (another number of tasks, another order after a
shuffle), it goes on under another producer name: then some rows are stored twice, and none is lost.

    complete  query batch tasks rows runs      the batch is stored as a whole: later attempts of it are skipped
    claim     query run takes_over             a run of a query begins to write by this sink id
    sent      query batch task topic generation first entries: [[end row, checksum], ...]

Decides only. Notes are JSON objects, one an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

VERSION = 1
ROW_BITS = 32
MAX_ROWS = 1 << ROW_BITS
"""Of one task and partition in one batch."""
MAX_RUNS = 20
"""Of the runs of a query, the latest that are remembered; an older one that wakes up is taken for a new one."""


class SinkFenced(Exception):
    """This run may not write: the sink id is another query's, or a later run of this one has begun. The text says what to do."""


@dataclass(frozen=True)
class Writer:
    """Who writes: a run of a query, in one batch."""

    query: str
    run: str
    batch: int

    @property
    def first_sequence_id(self) -> int:
        return self.batch << ROW_BITS


@dataclass(frozen=True, slots=True)
class NotedEntry:
    """An entry that was about to be sent: the row behind its last one, and the checksum of its payload."""

    end_row: int
    checksum: int
    generation: int


@dataclass(frozen=True)
class Share:
    """What one task sends to one partition in one batch."""

    batch: int
    task: int
    topic: str


@dataclass
class SinkState:
    """All notes up to some point, folded in their order."""

    query: str = ""
    runs: list[str] = field(default_factory=list)
    completed: int = -1
    shares: dict[Share, list[NotedEntry]] = field(default_factory=dict)

    def fold(self, note: bytes) -> None:
        """Take one more note. Raises ValueError for one that this version does not understand."""
        content = json.loads(note)
        if not isinstance(content, dict) or content.get("v") != VERSION:
            raise ValueError(f"a note of another version: {note[:80]!r}")
        kind, query = content["kind"], content["query"]
        if kind == "claim":
            self._claim(query, content["run"], takes_over=content["takes_over"])
        elif kind == "complete":
            if not self.query:
                self.query, self.runs = query, list(content["runs"])
            if query == self.query:
                self.completed = max(self.completed, content["batch"])
                self.shares = {share: noted for share, noted in self.shares.items() if share.batch > self.completed}
        elif kind == "sent" and query == self.query:
            share = Share(content["batch"], content["task"], content["topic"])
            self._sent(share, content["generation"], content["first"], content["entries"])

    def _claim(self, query: str, run: str, *, takes_over: bool) -> None:
        if self.query and query != self.query:
            if not takes_over:
                return  # Whoever was first has it.
            self.runs, self.completed, self.shares = [], -1, {}
        self.query = query
        if run not in self.runs:
            self.runs = [*self.runs, run][-MAX_RUNS:]

    def _sent(self, share: Share, generation: int, first: int, entries: Sequence[Sequence[int]]) -> None:
        kept = [each for each in self.shares.get(share, []) if each.end_row <= first]
        kept += [NotedEntry(end_row, checksum, generation) for end_row, checksum in entries]
        self.shares[share] = kept

    def knows(self, writer: Writer) -> bool:
        """Whether this run need not claim the sink id first."""
        return self.query == writer.query and writer.run in self.runs

    def admit(self, writer: Writer, sink_id: str) -> None:
        """Raises SinkFenced unless this run may write."""
        if self.query != writer.query:
            raise SinkFenced(
                f"the sink id {sink_id} belongs to the query {self.query}, this one is {writer.query}: give this query another "
                "sinkId, or option takeOver=true when the other one has ended for good"
            )
        if not self.runs or self.runs[-1] != writer.run:
            raise SinkFenced(
                f"a later run of this query writes by the sink id {sink_id}: this run has been replaced, end it"
            )

    def is_complete(self, writer: Writer) -> bool:
        """Whether the whole batch is stored."""
        return self.query == writer.query and writer.batch <= self.completed


def claim_note(writer: Writer, *, takes_over: bool) -> bytes:
    return _note(kind="claim", query=writer.query, run=writer.run, takes_over=takes_over)


def complete_note(writer: Writer, tasks: int, rows: int, runs: Sequence[str]) -> bytes:
    return _note(kind="complete", query=writer.query, batch=writer.batch, tasks=tasks, rows=rows, runs=list(runs))


def sent_note(writer: Writer, share: Share, generation: int, first: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """`entries`: the end row and checksum of each; the first of them begins at row `first`."""
    return _note(
        kind="sent",
        query=writer.query,
        batch=share.batch,
        task=share.task,
        topic=share.topic,
        generation=generation,
        first=first,
        entries=[list(each) for each in entries],
    )


def _note(**content: object) -> bytes:
    return json.dumps({"v": VERSION, **content}, separators=(",", ":")).encode()


class Resumption:
    """Which entries of a share are stored by earlier attempts, asked entry by entry in their order.

    `last_row`: the last row of this batch that is stored under the name of the latest generation, -1 for none. Entries of
    earlier generations that are still noted were stored before the later one began.
    Invariant: an entry is only taken for stored if one with the same end and checksum was noted in its place, and is stored.
    """

    def __init__(self, noted: Sequence[NotedEntry], last_row: int) -> None:
        latest = noted[-1].generation if noted else 0
        self._stored = [each for each in noted if each.generation < latest or each.end_row - 1 <= last_row]
        self._next = 0
        self.generation = latest
        self._last_row = last_row
        self.doubled_rows = 0
        """So many rows at most are stored twice by what comes."""
        self.is_over = False
        """Nothing more is known to be stored."""
        self.needs_new_name = False
        """Rows that may not be those that come are stored under the latest name: what comes would be taken for them."""

    def is_stored(self, end_row: int, checksum: int) -> bool:
        """Whether the next entry of this attempt is stored already."""
        if self.is_over:
            return False
        if self._next < len(self._stored):
            known = self._stored[self._next]
            if (known.end_row, known.checksum) == (end_row, checksum):
                self._next += 1
                return True
        reached = self._stored[self._next - 1].end_row if self._next else 0
        stored_end = max(self._last_row + 1, self._stored[-1].end_row if self._stored else 0)
        self.doubled_rows = max(0, stored_end - reached)
        self.needs_new_name = self._last_row + 1 > reached
        self.is_over = True
        return False

    @property
    def unmatched_rows(self) -> int:
        """Rows that are stored and did not come again, so far."""
        if self.is_over or self._next >= len(self._stored):
            return 0
        return self._stored[-1].end_row - (self._stored[self._next - 1].end_row if self._next else 0)
