"""What each way of reading offers: find topics, plan ranges, read entries, look up schemas, show progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from pybroker.client.failures import ClientError
from pybroker.reading.positions import EntryRange, Place, TopicPlan

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.values.value_schema import SchemaInfo


class ReadingFailed(ClientError):
    """The broker or a file could not be read. Errors of REST calls are other ClientErrors."""


class DataLoss(ReadingFailed):
    """Entries that were asked for are gone (trimmed, deleted, damaged): topic, asked range, found range."""


class TopicMissing(DataLoss):
    """The topic does not exist, or was deleted. `topic` is its full name; it is empty if the namespace does not
    exist."""

    def __init__(self, text: str, topic: str = "") -> None:
        super().__init__(text)
        self.topic = topic


class EntrySource(ABC):
    """Reads the entries of topics of one cluster. Synchronous; for one thread at a time; made anew in each process."""

    leaves_out_entries: ClassVar[bool] = False
    """Whether there may be gaps between the runs of a read and behind the last one; else a gap is a fault of the source."""

    @abstractmethod
    def partitions(self, topic: str) -> list[str]:
        """The full names of the partitions of `topic`, or its own full name if it has none. Raises TopicMissing if it
        does not exist.
        """

    @abstractmethod
    def topics(self, namespace: str) -> list[str]:
        """Return the full names of all persistent topics and partitions of `tenant/namespace` except system topics.
        Raises TopicMissing if the broker reports that the namespace does not exist.
        """

    @abstractmethod
    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        """What there is of one partition from `start` (None: its first entry) to `end` (None: its last durable one)."""

    def plans(self, asked: Sequence[tuple[str, Place | None, Place | None]]) -> list[TopicPlan]:
        """Return the plans of many partitions in the order of `asked`, with one request if the broker supports it.
        Raises TopicMissing for the first partition that does not exist.
        """
        return [self.plan(topic, start, end) for topic, start, end in asked]

    @abstractmethod
    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        """The place of the first entry published at that time or later; the end if there is none."""

    @abstractmethod
    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        """Exactly these entries in order, in runs of some MiB. Raises DataLoss when one of them is gone, ReadingFailed for
        anything else, a slow broker among it: a short read is never taken for the end.

        What readers never get (messages of aborted transactions, markers) is marked in the runs, or left out.
        """

    @abstractmethod
    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        """The topic's latest schema, or the one of that version; None if there is none."""

    @abstractmethod
    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        """Make the durable subscription if it is not there, and move it to `place`: forwards only."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections, files and leases."""
