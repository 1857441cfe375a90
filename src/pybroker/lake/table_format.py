"""The interface of table formats: load the state of a table, write files, and commit against exactly that state.

Invariant of each format: a commit succeeds only if the table has not changed since its state was loaded. Otherwise the
commit changes nothing and raises `CommitConflict`. No format retries a commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pybroker.lake.evolution import Step
from pybroker.lake.partitioning import Partitioning
from pybroker.lake.progress import Progress


class LakeError(Exception):
    """A table cannot be used as requested. The text contains the next step."""


class CommitConflict(LakeError):
    """Another writer has committed since the state was loaded. This commit has changed nothing."""


class TableUnreachable(OSError):
    """Catalog or storage failed. The commit may or may not have succeeded; load the table to find out."""


class TableMissing(LakeError):
    """The table does not exist yet."""


@dataclass(frozen=True)
class WrittenFile:
    """A complete data file that no commit contains yet. Can be pickled."""

    location: str
    """The location in the form that the table format commits: an absolute URL or path."""
    size_bytes: int
    row_count: int
    partition: int | None
    """Hours or days since 1970 in a partitioned table; None for rows without that time."""
    footer: pq.FileMetaData


@dataclass(frozen=True)
class TableFile:
    """A data file of a committed state, for maintenance."""

    location: str
    size_bytes: int
    row_count: int
    partition: int | None
    reference: Any = None
    """The format's own object, needed to remove the file from the table."""
    is_of_present_layout: bool = True
    """Whether the file has the current partitioning of the table."""


@dataclass(frozen=True)
class TableState:
    """One version of a table. `reference` is the object of the table format for exactly this version, such as a
    DeltaTable.
    """

    progress: Progress
    schema: pa.Schema
    """All columns, with field ids in the metadata if the format has them."""
    partitioning: Partitioning | None
    data_location: str
    """Directory of new data files: a URL or path without a trailing slash."""
    version: str
    reference: Any = None


@dataclass(frozen=True)
class Change:
    """The content of one commit, which is applied atomically."""

    progress: Progress
    added: Sequence[WrittenFile] = ()
    removed: Sequence[TableFile] = ()
    """Files that `added` replaces. A commit with these changes no row."""
    note: dict[str, str] = field(default_factory=dict)


class LakeTable(ABC):
    """The interface of one table, for the pipeline that writes into it. Synchronous, not thread-safe."""

    name: str

    def follow(self, topics: Iterable[str]) -> bool:
        """Make later calls of `load` include the positions of these topics. Return whether any topic is new. Formats
        that always load all positions do nothing, and return False.
        """
        return False

    @abstractmethod
    def create(self, schema: pa.Schema, partitioning: Partitioning | None) -> None: ...

    @abstractmethod
    def load(self) -> TableState:
        """Return the newest state. Raises TableMissing."""

    @abstractmethod
    def commit(self, state: TableState, change: Change) -> TableState:
        """Commit the change, and return the new state. Raises CommitConflict if the table has changed since `state` was loaded."""

    @abstractmethod
    def check_columns(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> Sequence[Step]:
        """Return the changes that `evolve` would make for rows with the columns `wanted`. Raises EvolutionRefused."""

    @abstractmethod
    def evolve(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> TableState:
        """Add or change columns of the table for rows with the columns `wanted`, by the rules of `evolution`. Return
        the new state. Raises EvolutionRefused, CommitConflict.
        """

    @abstractmethod
    def files(self, state: TableState) -> list[TableFile]: ...

    @abstractmethod
    def read_file(self, state: TableState, file: TableFile) -> pa.Table: ...

    @abstractmethod
    def expire(self, state: TableState, keep_versions: int, older_than_ms: int) -> int:
        """Expire versions that are older than `older_than_ms` (Unix time) and not among the newest `keep_versions`, and
        delete the files that only they need. Return the number of expired versions. Formats that expire single files
        instead (Delta, Parquet) return the number of deleted data files.
        """

    @abstractmethod
    def orphans(self, state: TableState, older_than_ms: int) -> list[str]:
        """Return the locations of orphaned files. An orphaned file belongs to no version of the table, and its writer will
        not commit it: the file was changed before `older_than_ms` (Unix time), or this pipeline wrote it under an
        earlier lease.
        """

    @abstractmethod
    def delete_files(self, locations: Sequence[str]) -> None:
        """Delete files. Missing files are ignored."""

    def close(self) -> None:  # noqa: B027  (most formats have nothing to give back)
        ...
