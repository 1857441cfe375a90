"""Notes of an effectively-once sink: its owner, the complete batches, and the entries that each task was about to send.

A task notes the boundaries and checksums of entries before it sends them. Deduplication remembers the last stored row
of each producer name. Together they show which rows an earlier attempt has stored. If a later attempt has the same rows
in the same order, it skips the stored rows and sends the rest. Otherwise (another number of tasks, or another order
after a shuffle) it continues under another producer name, called the next generation: some rows are then stored twice,
and none is lost.

    complete  query batch tasks rows runs      the batch is stored as a whole: later attempts of it are skipped
    claim     query run takes_over             a run of a query begins to write by this sink id
    sent      query batch task topic generation first entries: [[end row, checksum], ...]

Pure logic without IO. Each entry of the topic is one note, a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

VERSION = 1
ROW_BITS = 32
MAX_ROWS = 1 << ROW_BITS
"""Maximum number of rows of one task and partition in one batch."""
MAX_RUNS = 20
"""Maximum number of remembered runs of a query. An older run that continues counts as a new one."""


class SinkFenced(Exception):
    """This run of the query must not write: the sink id belongs to another query, or a later run of this query has
    started.
    """


@dataclass(frozen=True)
class Writer:
    """The identity of a writer: one batch of one run of a query."""

    query: str
    run: str
    batch: int

    @property
    def first_sequence_id(self) -> int:
        return self.batch << ROW_BITS


@dataclass(frozen=True, slots=True)
class NotedEntry:
    """An entry in a `sent` note: the number of the row after its last row, and the checksum of its payload."""

    end_row: int
    checksum: int
    generation: int


@dataclass(frozen=True)
class Share:
    """The rows of one task for one partition in one batch."""

    batch: int
    task: int
    topic: str


@dataclass
class SinkState:
    """The state of a sink: the result of applying its notes up to a position, in order."""

    query: str = ""
    runs: list[str] = field(default_factory=list)
    completed: int = -1
    shares: dict[Share, list[NotedEntry]] = field(default_factory=dict)

    def fold(self, note: bytes) -> None:
        content = json.loads(note)
        if not isinstance(content, dict) or content.get("v") != VERSION:
            raise ValueError(
                f"the state was written by a newer pybroker, or is damaged ({note[:80]!r}): use the newer pybroker, or another "
                "sinkId"
            )
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
                return  # The first claim wins.
            self.runs, self.completed, self.shares = [], -1, {}
        self.query = query
        if run not in self.runs:
            self.runs = [*self.runs, run][-MAX_RUNS:]

    def _sent(self, share: Share, generation: int, first: int, entries: Sequence[Sequence[int]]) -> None:
        kept = [each for each in self.shares.get(share, []) if each.end_row <= first]
        kept += [NotedEntry(end_row, checksum, generation) for end_row, checksum in entries]
        self.shares[share] = kept

    def knows(self, writer: Writer) -> bool:
        """Return whether this run of the query has already written a `claim` note, the note with which a run begins to
        write with the sink id.
        """
        return self.query == writer.query and writer.run in self.runs

    def admit(self, writer: Writer, sink_id: str) -> None:
        """Raise SinkFenced if another query, or a later run of this query, writes with the sink id."""
        if self.query != writer.query:
            raise SinkFenced(
                f"the sink id {sink_id} belongs to the query {self.query}, not to this query {writer.query}: use another sinkId, "
                "or takeOver=true if the other query has ended permanently"
            )
        if not self.runs or self.runs[-1] != writer.run:
            raise SinkFenced(
                f"a later run of this query writes with the sink id {sink_id}: stop this run, which was replaced "
                "by the later run"
            )

    def is_complete(self, writer: Writer) -> bool:
        return self.query == writer.query and writer.batch <= self.completed


def claim_note(writer: Writer, *, takes_over: bool) -> bytes:
    return _note(kind="claim", query=writer.query, run=writer.run, takes_over=takes_over)


def complete_note(writer: Writer, tasks: int, rows: int, runs: Sequence[str]) -> bytes:
    return _note(kind="complete", query=writer.query, batch=writer.batch, tasks=tasks, rows=rows, runs=list(runs))


def sent_note(writer: Writer, share: Share, generation: int, first: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the `sent` note for `entries`, which are the end row and checksum of each entry. The first entry begins at
    row `first`. `generation`: 0 if the entries are sent under the task's first producer name, 1 for the second name, etc.
    """
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
    """Determines which entries of a task and partition earlier attempts have stored. The caller asks for each entry, in
    order.

    `last_row` is the last row of this batch that is stored under the name of the latest generation, -1 for none. Noted
    entries of earlier generations are stored.

    Invariant: an entry counts as stored only if a stored entry with the same end row and checksum was noted at its
    position.
    """

    def __init__(self, noted: Sequence[NotedEntry], last_row: int) -> None:
        latest = noted[-1].generation if noted else 0
        self._stored = [each for each in noted if each.generation < latest or each.end_row - 1 <= last_row]
        self._next = 0
        self.generation = latest
        self._last_row = last_row
        self.doubled_rows = 0
        """Upper bound of rows that the remaining entries store twice."""
        self.is_over = False
        """Whether the known stored entries have ended."""
        self.needs_new_name = False
        """Whether other rows may be stored under the latest name. Deduplication would drop new rows in their place."""

    def is_stored(self, end_row: int, checksum: int) -> bool:
        """Return whether the next entry of this attempt, which ends before `end_row`, is already stored."""
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
        """The number of stored rows that this attempt has not produced again yet."""
        if self.is_over or self._next >= len(self._stored):
            return 0
        return self._stored[-1].end_row - (self._stored[self._next - 1].end_row if self._next else 0)
