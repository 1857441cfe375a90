"""Items of the journal and their results: items on their way to the disk, batches on their way back."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pybroker.errors import StorageFull, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun

RecordDone = Callable[[StoreError | None], None]


class JournalRecord:
    """An encoded record that is no run of entries; `done` is called on the loop."""

    __slots__ = ("data", "done")

    def __init__(self, data: bytes, done: RecordDone | None) -> None:
        self.data = data
        self.done = done


class JournalMark:
    """A position in the journal: all earlier items are in batches with a sequence number below `sequence`."""

    __slots__ = ("done", "sequence")

    def __init__(self, done: Callable[[int], None]) -> None:
        self.done = done
        self.sequence = -1


class ListenersTold:
    """A position in the journal: all items that `listeners` append behind it take the refusal of earlier runs into
    account.
    """

    __slots__ = ("listeners",)

    def __init__(self, listeners: set[AppendListener]) -> None:
        self.listeners = listeners


JournalItem = AppendRun | JournalRecord | JournalMark | ListenersTold


class JournalBatch:
    """The contents of one durable write."""

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
        self.fenced_runs: list[AppendRun] = []  # refused, because an earlier append of their ledger or listener was
        self.refused_runs: list[AppendRun] = []
        self.refused_records: list[JournalRecord] = []
        self.error: StorageFull | None = None  # the reason of refusals
        self.mark: JournalMark | None = None
        self.size_bytes = 0
        self.submitted_ms = 0.0  # when its oldest item was put
