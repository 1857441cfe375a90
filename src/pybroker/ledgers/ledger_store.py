"""The interfaces of ledger stores, which managed ledgers use to store entries.

A ledger is an append-only run of entries numbered from 0, written once, sealed, read many times, deleted whole.

`LedgerStore` has the operations that every store has. `LedgerIndex` returns counts and times of entries without reading
the entries; each may be unknown. `LedgerFiles` is for stores with local files, which bulk readers use directly.

Operation: `append` is called on the event loop and never blocks; the store reports the result to the `AppendListener`,
on the event loop, in the order of the appends of a ledger. An append ends in one of four ways:

    stored      the entries are as durable as the configuration promises
    refused     the entries are not stored (`StorageFull` and other errors)
    fenced      the entries are not stored: the ledger accepts no more appends (`LedgerFenced`)
    unknown     the entries may be stored or not (`AppendUnknown`); `seal` decides

Concurrency: every method is called on the event loop. Failure: after an append that was not stored, all later appends
of that ledger fail too, because entry ids have no gaps. The owner seals the ledger and continues in a new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from pyroaring import BitMap

from pybroker.errors import StoreError
from pybroker.ledgers.bookie_report import AppendWait, BookiesReport, ClientStatistics
from pybroker.model.counters import Buckets
from pybroker.model.position import Position

T = TypeVar("T")


_TOLD_IDS = 10


class LedgerFile(Protocol):
    """The open file of a ledger, for bulk reads."""

    def read_at(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer at the end of the file. Raises OSError."""

    def send_to(self, descriptor: int, offset: int, length: int) -> int:
        """Copy up to `length` bytes, beginning at `offset`, to `descriptor` inside the kernel. Return the number of
        copied bytes. Raises OSError.
        """


class AppendListener(ABC):
    """The owner of an append, which is notified of the completion of its runs in order, on the event loop."""

    @abstractmethod
    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        """Handle the result of appends of this listener, in order. Without `error` the entries are durable. After
        AppendUnknown they may be stored; after any other error they are not.
        """


class LedgerPurpose(Enum):
    """The kind of data in a ledger. Remote stores record it in the ledger's metadata, with the values that Pulsar uses."""

    ENTRIES = "managed-ledger"
    COMPACTED = "compacted-ledger"


class LedgerDescription(NamedTuple):
    """The metadata of a ledger: its counts, which are 0 while it is open, and in `text` the whole metadata as Pulsar
    shows it.
    """

    entry_count: int
    size_bytes: int
    text: str


class AppendRun:
    """Entries of one producer that arrived together: consecutive entry ids of one ledger. `context` belongs to the
    owner (producer and sequence ids); the store never uses it.
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

    def divided(self, entry_count: int, contexts: tuple[object, object]) -> tuple[AppendRun, AppendRun]:
        """Return the run in two parts: the first `entry_count` entries, and the others, each with one of the
        `contexts`.
        """
        counts, parts = self.message_counts, (self.payloads[:entry_count], self.payloads[entry_count:])
        first, second = (sum(map(len, part)) for part in parts)
        return (
            AppendRun(
                self.listener, self.ledger_id, self.first_entry_id, parts[0], counts[:entry_count], first, contexts[0]
            ),
            AppendRun(
                self.listener,
                self.ledger_id,
                self.first_entry_id + entry_count,
                parts[1],
                counts[entry_count:],
                second,
                contexts[1],
            ),
        )


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
    """Totals of a ledger: entries, messages (each message of a batch counts), and payload bytes.

    `message_count` is None if the store does not know it.
    """

    ledger_id: int
    entry_count: int
    message_count: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Totals of consecutive entries: messages and payload bytes. `message_count` is None if it is unknown."""

    message_count: int | None
    size_bytes: int


class LedgerPoint(NamedTuple):
    """A position at which a ledger can be split cheaply: in front of entry `entry_id`. The counts are those of all
    earlier entries; bytes are payload bytes.
    """

    entry_id: int
    bytes_before: int
    messages_before: int


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Bytes `offset` to `end_offset` of a ledger's file: whole blocks, which contain the entries from `first_entry_id`
    up to, not including, `end_entry_id`, and perhaps some entries before and after these.
    """

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    offset: int
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.offset


class LedgerIndex(ABC):
    """Counts and times of the entries of a ledger, without reading the entries."""

    @abstractmethod
    async def totals_before(self, ledger_id: int, entry_id: int) -> LedgerTotals | None:
        """Return the numbers of messages and bytes of all entries before `entry_id`; None if they are unknown. Entries
        of damaged blocks count as one message each. Raises NoSuchLedger, StoreError.
        """

    @abstractmethod
    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> int | None:
        """Return the number of messages in the entries `entry_ids`, which must exist; None if it is unknown. Entries of
        damaged blocks count as one message each. Raises NoSuchLedger, StoreError.
        """

    @abstractmethod
    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> tuple[int, int] | None:
        """Return a range of entry ids [low, high) in which to search for the first entry that was published at
        `publish_time_ms` (milliseconds since 1970) or later. If all entries of the range were published earlier, the
        result of the search is `high`. Return None if all entries must be searched.

        Publish times come from clients, whose clocks differ. Where publish times do not increase, the range contains
        the entry that a bisection over the blocks finds.
        """

    @abstractmethod
    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        """Return the positions at which bulk readers can split the ledger, ascending, at least `spacing_bytes` of
        payload apart; an empty list if the store has none. Positions of an open ledger stay valid when it grows. Raises
        NoSuchLedger, StoreError.
        """


class NoIndex(LedgerIndex):
    """The index of a store that has no counts or times of entries: every result is unknown."""

    async def totals_before(self, ledger_id: int, entry_id: int) -> None:
        return None

    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> None:
        return None

    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> None:
        return None

    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        return []


class LedgerFiles(ABC):
    """The local files of ledgers, for bulk reads."""

    @abstractmethod
    async def stored_blocks(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> StoredBlocks | None:
        """Return the location of the entries from `first_entry_id` up to, not including, `end_entry_id` in the ledger's
        file, as far as they are in the file; None if the first one is not. The location is valid until the ledger is
        deleted. Raises NoSuchLedger, StoreError.
        """

    @abstractmethod
    async def with_file(self, ledger_id: int, work: Callable[[LedgerFile], T]) -> T:
        """Call `work` with the ledger's open file, in a thread for bulk reads, and return its result. Raises
        NoSuchLedger, StoreError.
        """


class LedgerStore(ABC):
    """Stores ledgers by id. Raises StoreError and its subclasses only."""

    @property
    def index(self) -> LedgerIndex:
        return _NO_INDEX

    @property
    def files(self) -> LedgerFiles | None:
        """The local files of the ledgers; None if the ledgers are not local files."""
        return None

    @property
    def has_pulsar_layout(self) -> bool:
        """Whether Java brokers read the same ledgers, so that entries must have Pulsar's formats."""
        return False

    @property
    def copy_count(self) -> int:
        """Return the number of copies that the store keeps of each entry."""
        return 1

    def bookies(self) -> BookiesReport | None:
        """Return the condition of the bookies; None if the ledgers are not on BookKeeper. No IO."""
        return None

    def client_statistics(self) -> ClientStatistics | None:
        """Return the counters of the BookKeeper client; None if the ledgers are not on BookKeeper."""
        return None

    def append_wait(self, _ledger_id: int) -> AppendWait | None:
        """Return the entries of an open ledger that wait for bookies; None if there are none. No IO."""
        return None

    @abstractmethod
    async def create_ledger(
        self,
        purpose: LedgerPurpose = LedgerPurpose.ENTRIES,
        owner: str = "",
        compacted_up_to: Position | None = None,
    ) -> int:
        """Create a ledger and return its id, which is larger than every earlier id of the owner.

        `owner` is the path of the managed ledger, `compacted_up_to` the last entry that a compacted view covers.
        BookKeeper records all arguments, so that a lost ledger can be attributed.
        """

    async def described(self, _ledger_ids: Sequence[int]) -> dict[int, LedgerDescription]:
        """Return the metadata of these ledgers by id. Ledgers without metadata are omitted. Raises StoreError."""
        return {}

    def may_be_named(self, ledger_id: int) -> bool:
        """Return whether a new ledger may still be listed in metadata. If not, the owner discards the ledger and
        creates another one.

        A shared store deletes ledgers that stay unlisted. The owner calls this before it stores its list of ledgers,
        and again when the list is stored, before the first append.
        """
        return True

    @abstractmethod
    def append(self, run: AppendRun) -> None:
        """Store `run`, and call `run.listener.append_completed` later, never inside this call. Raises StorageFull while
        `refusal` returns a reason: nothing was stored then, and the ledger can continue afterwards.
        """

    def refusal(self) -> str | None:
        """Return the reason why appends are refused, for example because the disk is full; None if they are accepted.
        Called for every append: no IO.
        """
        return None

    @abstractmethod
    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return entries that are in memory, from `first_entry_id` on; None if that entry is not. They may include
        entries that are not durable yet: the caller must not request entries that have not been reported as durable.
        """

    @abstractmethod
    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        """Return entries from `first_entry_id` on: at least one, at most `max_entries`, and about `max_bytes`. They end
        in front of a damaged entry.

        Raises DamagedEntries if the first entry is damaged (the error contains the range of consecutive unreadable
        entries), NoSuchLedger, and StoreError if the entry does not exist or cannot be read now.
        """

    @abstractmethod
    async def seal(self, ledger_id: int) -> LedgerSummary:
        """Refuse further appends to the ledger permanently, and return its final totals. Idempotent.

        Appends in flight complete first, perhaps with AppendUnknown. Another owner may have closed the ledger: it may
        then contain more entries than were reported as stored. Raises StoreError while the end of the ledger cannot be
        determined.
        """

    @abstractmethod
    async def recover(self, ledger_id: int) -> LedgerSummary:
        """Fence a ledger that an earlier run may have left open, so that its writer cannot append, and seal it. Return
        its final totals. Raises NoSuchLedger, StoreError.
        """

    @abstractmethod
    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete the ledger and free its space. Unknown ids are ignored."""

    @abstractmethod
    async def list_ledgers(self) -> list[int]:
        """Return the ids of all ledgers, ascending."""

    def is_own(self, ledger_id: int) -> bool:
        """Return whether this broker or its cluster has created the ledger, so that it may be recovered or deleted if
        no metadata lists it. Another broker may be writing to any other ledger, and list it later.
        """
        return False

    def is_name_certain(self, ledger_id: int) -> bool:
        """Return True if metadata must list this ledger of an earlier run, provided that the ledger has entries. Return
        False if the ledger may have been deleted: a power failure can undo a deletion that was not durable.
        """
        return True

    def is_id_given(self, ledger_id: int) -> bool:
        """Return whether an earlier run may have assigned this ledger id. If not, metadata with the id is newer than
        the store's files.
        """
        return True

    @abstractmethod
    async def flush(self) -> None:
        """Return when all earlier appends are durable, which proves that the store can write. Raises StoreError."""

    def figures(self) -> dict[str, float]:
        """Return the store's counters by metric name. No IO."""
        return {}

    def histograms(self) -> dict[str, Buckets]:
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Store everything durably, and release files and threads. Idempotent."""


_NO_INDEX = NoIndex()


def told_ids(ledger_ids: Iterable[int]) -> str:
    ids = sorted(ledger_ids)
    more = f" and {len(ids) - _TOLD_IDS} more" if len(ids) > _TOLD_IDS else ""
    return ", ".join(map(str, ids[:_TOLD_IDS])) + more
