"""The interface of all transports: find topics, plan ranges, read entries, look up schemas, report progress."""

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
    """The broker or a file could not be read. A failed REST call raises another subclass of ClientError instead."""


class DataLoss(ReadingFailed):
    """Requested entries are lost (trimmed, deleted, damaged). The text contains the topic, the requested range, and the
    available range.
    """


class TopicMissing(DataLoss):
    """The topic does not exist, or was deleted. `topic` is its full name; it is empty if the namespace does not exist."""

    def __init__(self, text: str, topic: str = "") -> None:
        super().__init__(text)
        self.topic = topic


class EntrySource(ABC):
    """Reads the entries of one cluster over some transport. Synchronous and not thread-safe; each process needs its
    own.
    """

    leaves_out_entries: ClassVar[bool] = False
    """Whether a read may have gaps between and after its runs. Otherwise a gap is an error."""

    @abstractmethod
    def partitions(self, topic: str) -> list[str]:
        """Return the full names of the partitions of a topic; the full name of the topic if it is not partitioned.
        Raises TopicMissing.
        """

    @abstractmethod
    def topics(self, namespace: str) -> list[str]:
        """Return the full names of all persistent topics and partitions of `tenant/namespace`, except system topics.
        Raises TopicMissing if the broker reports that the namespace does not exist.
        """

    @abstractmethod
    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        """Return the available entries of one partition from `start` (None: its first entry) to `end` (None: its last
        durable entry).
        """

    def plans(self, asked: Sequence[tuple[str, Place | None, Place | None]]) -> list[TopicPlan]:
        """Return the plan of each partition in `asked`, in the same order. An item of `asked` contains the arguments of
        `plan`: topic, start and end. Raises TopicMissing for the first partition that does not exist.
        """
        return [self.plan(topic, start, end) for topic, start, end in asked]

    @abstractmethod
    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        """Return the position of the first entry that was published at `publish_time_ms` (milliseconds since 1970) or
        later; the end of the topic if there is none.
        """

    @abstractmethod
    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        """Yield exactly these entries, in order, in runs of a few MiB. Raises DataLoss if an entry is lost,
        ReadingFailed for other errors.

        A timeout is an error and never counts as the end. Messages of aborted transactions and markers are flagged in
        the runs, or omitted.
        """

    @abstractmethod
    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None: ...

    @abstractmethod
    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        """Move the cursor of a durable subscription forward to the position `place`, never back. Create the
        subscription if needed.
        """

    @abstractmethod
    def close(self) -> None: ...
