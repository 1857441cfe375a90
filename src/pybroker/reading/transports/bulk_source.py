"""Reading over the broker's bulk endpoint: whole blocks in the format of segment files, verified by the client.

Invariants: exactly the requested entries are returned, in order. An interrupted stream continues at the entry of the
interruption; a stream without progress is an error. Lost entries raise `DataLoss`, other errors do not.
"""

from __future__ import annotations

import http.client
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pybroker.client.failures import ClientError
from pybroker.client.rest import BUSY_STATUSES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Refused, Unreachable
from pybroker.reading.aborted_entries import AbortedEntries
from pybroker.reading.entry_source import DataLoss, EntrySource, ReadingFailed
from pybroker.reading.plans import PlanRequest, Plans
from pybroker.reading.rest_topics import NOT_FOUND, RestTopics, parsed, segments_of
from pybroker.reading.transports.segment_blocks import BlockReader, DamagedBlocks, bytes_needed

if TYPE_CHECKING:
    from pybroker.client.rest import RestClient
    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.values.value_schema import SchemaInfo
    from pybroker.reading.positions import EntryRange, Place, TopicPlan
    from pybroker.reading.read_options import SourceOptions

CHUNK_BYTES = 4 << 20
"""Approximate size of a run. A larger entry makes a larger run."""
GONE = 410
BEYOND_END = 416


class RestSource(EntrySource):
    """The common part of the entry sources that use the broker's REST API. Subclasses implement `read_stored`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.rest = options.rest_client()
        self._idle: list[RestClient] = []
        self._plans = Plans(self.rest)
        self._hidden = AbortedEntries(self._plans)
        self._topics = RestTopics(self.rest)

    def partitions(self, topic: str) -> list[str]:
        name = parsed(topic)
        count = self._topics.partition_count(name)
        if count:
            return [str(name.partition(index)) for index in range(count)]
        self._plans.of([(topic, None, None)], with_points=False)  # raises TopicMissing if it does not exist
        return [str(name)]

    def topics(self, namespace: str) -> list[str]:
        return self._topics.topics(namespace)

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        return self.plans([(topic, start, end)])[0]

    def plans(self, asked: Sequence[PlanRequest]) -> list[TopicPlan]:
        plans = self._plans.of(asked)
        for plan in plans:
            self._hidden.planned(plan)
        return plans

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        """Yield these entries as `EntrySource.read` documents, from `read_stored` of the subclass. Messages of aborted
        transactions and markers are marked as hidden in the runs.
        """
        return self._hidden.marked(entries, self.read_stored(entries))

    @abstractmethod
    def read_stored(self, entries: EntryRange) -> Iterator[EntryRun]: ...

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        return self._plans.place_at_time(topic, publish_time_ms)

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        return self._topics.schema(topic, version)

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        self._topics.show_progress(topic, subscription, place)

    def has_entries(self) -> bool:
        try:
            self.rest.json("POST", "/admin/v3/entries/persistent/public/default/plan", {"topics": []})
        except Refused as error:
            if error.status in {NOT_FOUND, 405}:
                return False
            raise
        return True

    def read_in_bulk(self, entries: EntryRange) -> Iterator[EntryRun]:
        """Read entries with the REST call for bulk reads. Each iterator has a connection of its own, so that the caller can use
        the other methods before the iterator ends.
        """
        rest = self._idle.pop() if self._idle else self.options.rest_client()
        try:
            yield from _BulkRead(rest, self.options, entries).runs()
        except BaseException:
            rest.close()
            raise
        self._idle.append(rest)

    def close(self) -> None:
        for rest in (self.rest, *self._idle):
            rest.close()
        self._idle.clear()


class BulkSource(RestSource):
    """An entry source over the bulk endpoint, which only pybroker has."""

    def read_stored(self, entries: EntryRange) -> Iterator[EntryRun]:
        return self.read_in_bulk(entries)


class _BulkRead:
    def __init__(self, rest: RestClient, options: SourceOptions, entries: EntryRange) -> None:
        self._rest = rest
        self._patience_s = options.patience_s
        self._entries = entries
        self._reader = BlockReader(entries.ledger_id, entries.first_entry_id, entries.end_entry_id)
        self._path = f"/admin/v3/entries/persistent/{segments_of(parsed(entries.topic))}/ledger/{entries.ledger_id}"

    def runs(self) -> Iterator[EntryRun]:
        deadline_s = time.monotonic() + self._patience_s
        pause_s = FIRST_PAUSE_S
        while not self._reader.is_done:
            before = self._reader.next_entry_id
            failure: Exception
            try:
                yield from self._answer()
                failure = ReadingFailed("the response ended before its first entry")
            except Refused as error:
                self._raise_if_final(error)
                failure = error
            except (OSError, http.client.HTTPException) as error:
                self._rest.close()
                failure = error
            if self._reader.next_entry_id > before:
                deadline_s = time.monotonic() + self._patience_s
                pause_s = FIRST_PAUSE_S
                continue
            if time.monotonic() + pause_s > deadline_s:
                raise Unreachable(
                    f"{self._name_of_read()} failed: {self._rest.where} stopped responding: {_shown(failure)}"
                ) from failure
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _answer(self) -> Iterator[EntryRun]:
        reader = self._reader
        response = self._rest.open("GET", f"{self._path}?first={reader.next_entry_id}&end={reader.end_entry_id}")
        try:
            left_bytes = response.length
            if left_bytes is None:
                raise ReadingFailed(
                    f"{self._name_of_read()} failed: the response of {self._rest.where} has no Content-Length. Check for a proxy "
                    "between this program and the broker"
                )
            rest = memoryview(b"")
            while left_bytes and not reader.is_done:
                wanted = max(CHUNK_BYTES, bytes_needed(rest, 0) if rest else 0)
                data = np.empty(min(wanted, len(rest) + left_bytes), dtype=np.uint8).data
                data[: len(rest)] = rest
                _fill(response, data[len(rest) :])
                left_bytes -= len(data) - len(rest)
                try:
                    run, end = reader.read(data)
                except DamagedBlocks as damage:
                    raise self._loss(damage) from damage
                if run is None and len(data) < wanted and not left_bytes and not reader.is_done:
                    break
                rest = data[end:]
                if run is not None:
                    yield run
        finally:
            if response.length:
                self._rest.close()  # unread bytes would precede the next response
            else:
                response.close()

    def _raise_if_final(self, error: Refused) -> None:
        entries = self._entries
        if error.status in {NOT_FOUND, GONE, BEYOND_END}:
            raise DataLoss(
                f"{self._name_of_read()} failed: entries from {entries.ledger_id}:{self._reader.next_entry_id} on are "
                f"lost: {error}"
            ) from error
        if error.status not in BUSY_STATUSES:
            raise error

    def _loss(self, damage: DamagedBlocks) -> DataLoss:
        ledger_id = self._entries.ledger_id
        return DataLoss(
            f"{self._name_of_read()}: entries {ledger_id}:{damage.first_entry_id} to {ledger_id}:{damage.last_entry_id} are"
            f" damaged: {damage}; `pybroker ledger verify` lists the damage"
        )

    def _name_of_read(self) -> str:
        entries = self._entries
        first, end = entries.first_entry_id, entries.end_entry_id
        return f"{entries.topic}: entries {entries.ledger_id}:{first} up to {entries.ledger_id}:{end}"


def _fill(response: http.client.HTTPResponse, data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = response.readinto(data[done:])
        if not count:
            raise ConnectionResetError("the response was truncated")
        done += count


def _shown(failure: Exception) -> str:
    if isinstance(failure, ClientError):
        return str(failure)
    if isinstance(failure, TimeoutError):
        return "the request timed out"
    return getattr(failure, "strerror", None) or type(failure).__name__
