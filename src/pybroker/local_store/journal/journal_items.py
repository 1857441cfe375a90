"""Items that the journal writes, and batches, by which it reports the results."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pybroker.errors import StorageFull, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun

RecordDone = Callable[[StoreError | None], None]


class JournalRecord:
    """An encoded record other than a run of entries. `done` is called on the event loop."""

    __slots__ = ("data", "done")

    def __init__(self, data: bytes, done: RecordDone | None) -> None:
        self.data = data
        self.done = done


class JournalMark:
    """An item that writes nothing: all items before it are in batches below `sequence`."""

    __slots__ = ("done", "sequence")

    def __init__(self, done: Callable[[int], None]) -> None:
        self.done = done
        self.sequence = -1


class ListenersTold:
    """An item that writes nothing: the listeners were notified of refused appends. These refusals do not affect items
    that the listeners append after this one.
    """

    __slots__ = ("listeners",)

    def __init__(self, listeners: set[AppendListener]) -> None:
        self.listeners = listeners


JournalItem = AppendRun | JournalRecord | JournalMark | ListenersTold


class JournalBatch:
    """The items of one durable write, with their results."""

    __slots__ = (
        "error",
        "fenced_runs",
        "mark",
        "parts",
        "records",
        "refused_records",
        "refused_runs",
        "runs",
        "size_bytes",
        "submitted_ms",
    )

    def __init__(self) -> None:
        self.parts: list[bytes | array[int]] = []
        self.runs: list[AppendRun] = []
        self.records: list[JournalRecord] = []
        # refused because an earlier append of their ledger or listener was refused
        self.fenced_runs: list[AppendRun] = []
        self.refused_runs: list[AppendRun] = []
        self.refused_records: list[JournalRecord] = []
        self.error: StorageFull | None = None  # the reason of refusals
        self.mark: JournalMark | None = None
        self.size_bytes = 0
        self.submitted_ms = 0.0  # time of the `put` of its oldest item
