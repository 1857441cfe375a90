"""What each format of tables offers a pipeline: read the state, write files beside it, commit against exactly that state.

Must always hold, in each format: a commit succeeds only if nobody has committed since its state was loaded; otherwise
nothing of it is seen by anybody, and `CommitConflict` is raised. Nobody below repeats a commit by itself.
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
    """A table cannot be used as asked; the text says what to do next."""


class CommitConflict(LakeError):
    """Somebody else has committed since the state was loaded; nothing was changed by this commit."""


class TableUnreachable(OSError):
    """The catalog or the storage did not answer as it should. Whether a commit has landed is unknown: the table will say it."""


class TableMissing(LakeError):
    """There is no such table yet."""


@dataclass(frozen=True)
class WrittenFile:
    """A data file that is complete and in no commit yet. Can be pickled: workers of other processes hand it back."""

    location: str
    """As the table's format names it in its commits: an absolute URL or path."""
    size_bytes: int
    row_count: int
    partition: int | None
    """Hours or days since 1970 where the table is partitioned; None for rows without that time."""
    footer: pq.FileMetaData


@dataclass(frozen=True)
class TableFile:
    """A data file of a committed state, as maintenance sees it."""

    location: str
    size_bytes: int
    row_count: int
    partition: int | None
    reference: Any = None
    """What its own format needs to take it out of the table again."""
    is_of_present_layout: bool = True
    """Partitioned as the table is now."""


@dataclass(frozen=True)
class TableState:
    """One version of a table. `reference` is the format's own object of exactly that version."""

    progress: Progress
    schema: pa.Schema
    """All columns; with field ids in the metadata where the format has them."""
    partitioning: Partitioning | None
    data_location: str
    """Where new data files belong: a URL or path, without a slash at its end."""
    version: str
    reference: Any = None


@dataclass(frozen=True)
class Change:
    """What one commit does to a table, as a whole or not at all."""

    progress: Progress
    added: Sequence[WrittenFile] = ()
    removed: Sequence[TableFile] = ()
    """Files whose rows are in `added` again: a commit with these changes no row."""
    note: dict[str, str] = field(default_factory=dict)
    """For people, shown in the history of the table."""


class LakeTable(ABC):
    """One table and the pipeline that writes into it. Synchronous; for one thread at a time."""

    name: str

    def follow(self, topics: Iterable[str]) -> bool:
        """Have the positions of these topics in states that are loaded from now on; whether one of them was not before.

        Where a format keeps all positions in one place there is nothing to do.
        """
        return False

    @abstractmethod
    def create(self, schema: pa.Schema, partitioning: Partitioning | None) -> None:
        """Make the table; nothing happens if it is there. Raises LakeError."""

    @abstractmethod
    def load(self) -> TableState:
        """The newest state. Raises TableMissing."""

    @abstractmethod
    def commit(self, state: TableState, change: Change) -> TableState:
        """The state after the change. Raises CommitConflict if somebody has committed since `state` was loaded."""

    @abstractmethod
    def check_columns(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> Sequence[Step]:
        """What `evolve` would do. Raises EvolutionRefused."""

    @abstractmethod
    def evolve(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> TableState:
        """With the columns of `wanted` among its own, as `evolution` allows. Raises EvolutionRefused, CommitConflict."""

    @abstractmethod
    def files(self, state: TableState) -> list[TableFile]:
        """The data files of this state."""

    @abstractmethod
    def read_file(self, state: TableState, file: TableFile) -> pa.Table:
        """The rows of one file, in the columns and types that the table has in this state."""

    @abstractmethod
    def expire(self, state: TableState, keep_versions: int, older_than_ms: int) -> int:
        """Forget versions beyond the newest `keep_versions` that are older, with the files that only they need; how many."""

    @abstractmethod
    def orphans(self, state: TableState, older_than_ms: int) -> list[str]:
        """Files under the table that no version knows: last changed before `older_than_ms`, or written by a pipeline of
        this name in an epoch that is over, whose writer cannot commit any more.
        """

    @abstractmethod
    def delete_files(self, locations: Sequence[str]) -> None:
        """Remove these files; one that is gone already is fine."""

    def close(self) -> None:  # noqa: B027  (most formats have nothing to give back)
        """Give back connections."""
