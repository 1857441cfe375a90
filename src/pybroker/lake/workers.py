"""Workers that read and write the shares of a commit in threads. `pipelines` has workers that are Spark tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pybroker.lake.storage import Storage
from pybroker.lake.table_format import WrittenFile
from pybroker.lake.writing import FileLayout, write_files
from pybroker.reading.positions import EntryRange


class RowReading(Protocol):
    """The conversion of entries to rows. Can be pickled; opens its resources in the process that uses it."""

    @property
    def schema(self) -> pa.Schema: ...

    def rows(self, entries: Sequence[EntryRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of exactly these entries. Raises ReadingFailed if not all entries can be read."""


@dataclass(frozen=True)
class RenamedRows:
    """The rows of another conversion with other column names."""

    inner: RowReading
    schema: pa.Schema

    def rows(self, entries: Sequence[EntryRange]) -> Iterator[pa.RecordBatch]:
        for batch in self.inner.rows(entries):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


class Workers(ABC):
    """Reads the shares of a commit and writes their files."""

    count: int

    @abstractmethod
    def write(
        self, layout: FileLayout, reading: RowReading, shares: Sequence[Sequence[EntryRange]]
    ) -> list[WrittenFile]:
        """Write and return the files of all shares. If a share fails, raise its error; the files of the other shares
        are deleted, now or by maintenance.
        """

    def close(self) -> None:  # noqa: B027  (a cluster's workers are not ours to end)
        ...


class ThreadWorkers(Workers):
    """Workers in threads of this process: Arrow, zstd and checksums release the interpreter lock."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="lake")

    def write(
        self, layout: FileLayout, reading: RowReading, shares: Sequence[Sequence[EntryRange]]
    ) -> list[WrittenFile]:
        futures = [self._pool.submit(write_share, layout, reading, share) for share in shares]
        failed = next((error for future in futures if (error := future.exception()) is not None), None)
        if failed is None:
            return [file for future in futures for file in future.result()]
        written = [file for future in futures if future.exception() is None for file in future.result()]
        discard(layout, written)
        raise failed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def write_share(layout: FileLayout, reading: RowReading, share: Sequence[EntryRange]) -> list[WrittenFile]:
    return write_files(layout, reading.schema, reading.rows(share))


def discard(layout: FileLayout, files: Sequence[WrittenFile]) -> None:
    """Delete files that no commit contains or will contain."""
    storage = Storage(layout.data_location, layout.storage_options)
    for file in files:
        storage.delete(file.location)
