"""The plug: what a managed ledger asks of the place where entries rest.

A ledger is an append-only run of entries numbered from 0, written once, sealed, read many times, deleted whole.

Operation: `append` is called on the event loop and never blocks; the store answers through `AppendListener` on the loop, in the
order of the appends of a ledger, only after the entries are as durable as the configuration promises.
Concurrency: every method is called from the loop's thread.
Failure: when an append fails, every later append of that ledger fails too (`LedgerFenced`): entry ids have no gaps. The owner
seals the ledger and goes on in a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from pyroaring import BitMap

from pybroker.errors import NoSuchLedger, StoreError
from pybroker.model.counters import Buckets

T = TypeVar("T")


_TOLD_IDS = 10


class LedgerFile(Protocol):
    """The open file of a ledger, for bulk reads."""

    def read_at(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer at the end of the file. Raises OSError."""

    def send_to(self, descriptor: int, offset: int, length: int) -> int:
        """Copy up to `length` bytes from `offset` on to `descriptor` in the kernel. Return their number. Raises OSError."""


class AppendListener(ABC):
    """The owner of an append, which is notified of the completion of its runs in order, on the event loop."""

    @abstractmethod
    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        """`runs` (of this listener, in append order) are durable, or, with `error`, not stored at all."""


class AppendRun:
    """Entries of one producer that arrived together: consecutive entry ids of one ledger.

    The unit of the publish path: its cost is shared by the messages of one read of a socket.
    `context` is the owner's own (producer and sequence ids); the store never looks at it.
    """

    __slots__ = (
        "context",
        "first_entry_id",
        "ledger_id",
        "listener",
        "message_count",
        "message_counts",
        "payloads",
        "size_bytes",
    )

    def __init__(
        self,
        listener: AppendListener,
        ledger_id: int,
        first_entry_id: int,
        payloads: list[bytes],
        message_counts: list[int],
        size_bytes: int,
        context: object,
    ) -> None:
        self.listener = listener
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.payloads = payloads
        self.message_counts = message_counts
        self.message_count = sum(message_counts)
        self.size_bytes = size_bytes
        self.context = context


class EntryRun:
    """Consecutive entries of one ledger, as read: `payloads[i]` is entry `first_entry_id + i`.

    `message_counts[i]` is the number of messages in that entry (1 for a single message, n for a batch).
    """

    __slots__ = ("first_entry_id", "ledger_id", "message_counts", "payloads")

    def __init__(self, ledger_id: int, first_entry_id: int, payloads: list[bytes], message_counts: list[int]) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.payloads = payloads
        self.message_counts = message_counts


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a ledger holds: entries, messages (a batch counts its messages) and payload bytes."""

    ledger_id: int
    entry_count: int
    message_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Messages and payload bytes of a run of entries."""

    message_count: int
    size_bytes: int


class LedgerPoint(NamedTuple):
    """A place where a ledger can be cut cheaply: in front of that entry, with so many payload bytes and messages before it."""

    entry_id: int
    bytes_before: int
    messages_before: int


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Bytes `offset` to `end_offset` of a ledger's file: whole blocks, which hold the entries `first_entry_id` up to but not
    including `end_entry_id`, and perhaps some before and behind."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    offset: int
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.offset


class LedgerStore(ABC):
    """Ledgers by id. Raises StoreError and its subclasses only."""

    @abstractmethod
    async def create_ledger(self) -> int:
        """Open a new ledger for appends and return its id: larger than every id given before, for ever."""

    @abstractmethod
    def append(self, run: AppendRun) -> None:
        """Store `run`; answers `run.listener.append_completed` later, never inside this call.

        Raises StorageFull while `refusal` gives a reason: then nothing has happened, and the ledger goes on afterwards.
        """

    def refusal(self) -> str | None:
        """Why no append is taken now, such as a full disk; None when they are taken. For every append: no IO."""
        return None

    @abstractmethod
    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Entries that need no IO, from `first_entry_id` on; None when that entry is not at hand. May hold appended
        entries that are not durable yet: the caller never asks beyond what it was told is durable."""

    @abstractmethod
    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        """Up to `max_entries` entries and about `max_bytes` bytes, at least one entry, from `first_entry_id` on.

        Stops in front of a damaged entry. Raises DamagedEntries when `first_entry_id` is one, with all that cannot be read
        there; NoSuchLedger; and StoreError when the entry does not exist or cannot be read now.
        """

    @abstractmethod
    async def totals_before(self, ledger_id: int, entry_id: int) -> LedgerTotals:
        """Of the entries 0 to `entry_id` - 1: exact, and read from the index and the columns of a few blocks.

        Entries whose columns are damaged count as one message each. Raises NoSuchLedger, StoreError.
        """

    @abstractmethod
    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> int:
        """Messages in these entries, which exist; from the columns alone, damaged ones as above."""

    @abstractmethod
    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> tuple[int, int]:
        """Ids [low, high): the first entry published at or after that time is among them, or is `high`.

        From memory and the index alone. Publish times come from clients, whose clocks differ: where they do not rise, what is
        meant is the first entry of a block that is so late, as a search by bisection would find it.
        """

    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        """Where the ledger can be cut, rising, so many payload bytes apart or a little more; none where nobody keeps any.

        Those of a sealed ledger never change, those of an open one are only added to. Raises NoSuchLedger, StoreError.
        """
        return []

    async def stored_blocks(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> StoredBlocks | None:
        """Where these entries are in the ledger's file, or the first of them as far as the file goes; None when the first
        one is not in a file. Never changes but by the ledger's deletion. Raises NoSuchLedger, StoreError."""
        return None

    async def with_file(self, ledger_id: int, work: Callable[[LedgerFile], T]) -> T:
        """Have `work` done with the ledger's file, in a thread of those for bulk reads. Raises NoSuchLedger, StoreError."""
        raise NoSuchLedger(f"ledger {ledger_id} has no file")

    @abstractmethod
    async def seal(self, ledger_id: int) -> LedgerSummary:
        """Close the ledger for appends for ever (idempotent); appends under way complete first."""

    @abstractmethod
    async def recover(self, ledger_id: int) -> LedgerSummary:
        """Fence and seal a ledger left open by an earlier run; what it holds now is what it will always hold.
        Also answers for a sealed ledger."""

    @abstractmethod
    async def delete_ledger(self, ledger_id: int) -> None:
        """Drop the ledger and give its space back; unknown ids are ignored."""

    @abstractmethod
    async def list_ledgers(self) -> list[int]:
        """The ids of all ledgers that exist, rising."""

    def is_own(self, ledger_id: int) -> bool:
        """Whether the ledger carries this broker's mark, who made it. Only such a one may be recovered or deleted although nothing
        names it: any other is somebody else's, who may write it now and name it next."""
        return False

    def is_name_certain(self, ledger_id: int) -> bool:
        """Whether what metadata says of a ledger is never older than what is here; asked for one of an earlier run.

        Not so where deletions are not synced: a power cut may bring a ledger back that metadata does not name any more.
        """
        return True

    def is_id_given(self, ledger_id: int) -> bool:
        """Whether an earlier run may have given this id; if not, whoever has it knows more than the store."""
        return True

    @abstractmethod
    async def flush(self) -> None:
        """Return once everything appended before this call is durable, proving that the store can write. Raises StoreError."""

    def figures(self) -> dict[str, float]:
        """What the store counts, by name, for the metrics page; plain reads, no IO."""
        return {}

    def histograms(self) -> dict[str, Buckets]:
        """The same for what it measures one by one."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Make everything durable and release files and threads. Idempotent."""


def told_ids(ledger_ids: Iterable[int]) -> str:
    """Some ids in words, the first ones if there are very many."""
    ids = sorted(ledger_ids)
    more = f" and {len(ids) - _TOLD_IDS} more" if len(ids) > _TOLD_IDS else ""
    return ", ".join(map(str, ids[:_TOLD_IDS])) + more
