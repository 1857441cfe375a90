"""Reading of sealed ledgers from segment files of a broker on this host. Other ledgers are read over the bulk endpoint.

Invariants: the directory belongs to the broker (both have the same run id); a file is read only if it is sealed and
contains the requested entries; each block is verified. If a file is missing, its entries are requested over the bulk
endpoint: the broker knows whether they were trimmed. Sealed files never change, and an open file can be read to its end
after its deletion.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pybroker.client.rest import Refused
from pybroker.reading.entry_source import DataLoss, ReadingFailed
from pybroker.reading.leases import Leases
from pybroker.reading.plans import PlanRequest
from pybroker.reading.transports.bulk_source import RestSource
from pybroker.reading.transports.segment_blocks import BlockReader, DamagedBlocks, bytes_needed
from pybroker.runtime import logs
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    LedgerExtent,
    SegmentIndex,
    check_segment_header,
    decode_index,
    decode_trailer,
)

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.reading.positions import EntryRange, TopicPlan
    from pybroker.reading.read_options import SourceOptions

CHUNK_BYTES = 4 << 20
"""Approximate size of a run. A larger entry makes a larger run."""
RUN_ID_FILE = "run.id"
LEDGERS = "ledgers"
NOT_FOUND = 404
_MAX_RUN_ID_BYTES = 256


def broker_directory(source: RestSource) -> tuple[Path | None, str]:
    """Return the broker's data directory if this process can read it, else None and the reason. Raises ReadingFailed."""
    try:
        shown = source.rest.json("GET", "/admin/v3/entries/directory")
    except Refused as error:
        if error.status == NOT_FOUND:
            return None, "the broker does not store its ledgers in files of pybroker's format"
        raise
    told = shown.get("path")
    directory = source.options.data_directory or (Path(told) if told else None)
    if directory is None:
        return None, "the broker is on another host: set the local path of its data directory (dataDirectory)"
    try:
        with (directory / RUN_ID_FILE).open("rb") as file:
            run_id = file.read(_MAX_RUN_ID_BYTES).decode(errors="replace")
        with os.scandir(directory / LEDGERS):
            pass
    except OSError as error:
        return None, f"{directory} cannot be read: {error.strerror}"
    if run_id != shown["runId"]:
        return None, f"{directory} is not the data directory of the broker at {source.rest.where}"
    return directory, ""


class SegmentSource(RestSource):
    """An entry source for segment files. It holds a read lease from the start of a plan on, until the next plan of that
    topic or `close`.
    """

    def __init__(self, options: SourceOptions, directory: Path) -> None:
        super().__init__(options)
        self._ledgers = directory / LEDGERS
        self._leases = Leases(options)

    def plans(self, asked: Sequence[PlanRequest]) -> list[TopicPlan]:
        plans = super().plans(asked)
        places = {
            plan.topic: plan.start
            for plan, (topic, start, _) in zip(plans, asked, strict=True)
            if start is not None or not self._leases.holds(topic)  # a plan without a start does not replace a lease
        }
        if places:
            self._leases.hold(places)
        return plans

    def read_stored(self, entries: EntryRange) -> Iterator[EntryRun]:
        path = self._ledgers / f"{entries.ledger_id:020d}.ledger"
        with _opened(path) as descriptor:
            if descriptor is not None:
                file = _SealedFile(path, descriptor, entries)
                if file.holds_entries:
                    yield from file.runs()
                    return
        yield from self.read_in_bulk(entries)

    def close(self) -> None:
        self._leases.close()
        super().close()


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        logs.debug("segment.not_opened", file=path.name, reason=error.strerror)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _SealedFile:
    def __init__(self, path: Path, descriptor: int, entries: EntryRange) -> None:
        self._path = path
        self._descriptor = descriptor
        self._entries = entries
        self._place = self._find_place()

    @property
    def holds_entries(self) -> bool:
        """Return whether the file is sealed and contains all requested entries. False if its index is damaged."""
        return self._place is not None and self._entries.end_entry_id <= self._place[0].entry_count

    def runs(self) -> Iterator[EntryRun]:
        assert self._place is not None
        extent, index = self._place
        entries = self._entries
        reader = BlockReader(entries.ledger_id, entries.first_entry_id, entries.end_entry_id)
        offset, _ = index.place_of(index.point_of(entries.first_entry_id))
        wanted = CHUNK_BYTES
        while not reader.is_done:
            data = self._read(offset, min(wanted, extent.end_offset - offset))
            try:
                run, end = reader.read(data)
            except DamagedBlocks as damage:
                raise self._loss(damage.first_entry_id, damage.last_entry_id, str(damage)) from damage
            if run is not None:
                yield run
            elif offset + len(data) >= extent.end_offset and not reader.is_done:
                raise self._loss(reader.next_entry_id, entries.end_entry_id - 1, "the file ends before these entries")
            wanted = max(CHUNK_BYTES, bytes_needed(data, end))
            offset += end

    def _find_place(self) -> tuple[LedgerExtent, SegmentIndex] | None:
        try:
            size = os.fstat(self._descriptor).st_size
            check_segment_header(os.pread(self._descriptor, SEGMENT_HEADER_BYTES, 0), self._entries.ledger_id)
            trailer = os.pread(self._descriptor, TRAILER_BYTES, max(0, size - TRAILER_BYTES))
            offset, length = decode_trailer(trailer, size)
            return decode_index(
                os.pread(self._descriptor, length + TRAILER_BYTES, offset), self._entries.ledger_id, offset
            )
        except LayoutError:
            return None  # not sealed yet, of another version, or damaged
        except OSError as error:
            raise ReadingFailed(f"the ledger file {self._path.name} cannot be read: {error.strerror}") from error

    def _read(self, offset: int, length: int) -> memoryview:
        """Copy bytes instead of mapping the file, so that a disk error raises an exception instead of killing the process."""
        data = np.empty(length, dtype=np.uint8).data
        done = 0
        try:
            while done < length and (count := os.preadv(self._descriptor, [data[done:]], offset + done)):
                done += count
        except OSError as error:
            raise ReadingFailed(
                f"the ledger file {self._path.name} cannot be read at offset {offset}: {error.strerror}"
            ) from error
        return data[:done]

    def _loss(self, first_entry_id: int, last_entry_id: int, reason: str) -> DataLoss:
        entries, ledger_id = self._entries, self._entries.ledger_id
        return DataLoss(
            f"{entries.topic}: entries {ledger_id}:{entries.first_entry_id} up to {ledger_id}:{entries.end_entry_id}:"
            f" {ledger_id}:{first_entry_id} to {ledger_id}:{last_entry_id} are damaged in {self._path.name}: {reason};"
            " `pybroker ledger verify` lists the damage"
        )
