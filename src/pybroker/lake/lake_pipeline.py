"""The main loop of a pipeline, which writes the messages of topics to a table.

It loads the table, reads from the positions in it, writes files, and commits against the loaded version. Only the table
stores positions, so they always agree with its rows. Files of a process that was killed before the commit are deleted
by maintenance. A conflict discards the work, unless the table still has the positions and the owner with which the work
began: then the same files are committed after the other writer's changes.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pybroker.lake import steps
from pybroker.lake.batches import Batch, choose, shares
from pybroker.lake.evolution import EvolutionRefused, apart
from pybroker.lake.orphaned_files import file_prefix
from pybroker.lake.partitioning import Partitioning
from pybroker.lake.progress import Progress
from pybroker.lake.table_format import (
    Change,
    CommitConflict,
    LakeError,
    LakeTable,
    TableMissing,
    TableState,
    WrittenFile,
)
from pybroker.lake.workers import RenamedRows, RowReading, Workers, discard
from pybroker.lake.writing import DEFAULT_TARGET_BYTES, FileLayout
from pybroker.reading.positions import Place, TopicPlan

MAX_CONFLICTS = 20
"""Number of conflicts after which an operation gives up, without lost or doubled rows."""
# Limit of the pause after the first conflict. It doubles with each further one, so twenty conflicts take about ten seconds.
FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 1.0
"""Limit of the pause between two attempts of a commit."""


class LeaseHeld(LakeError):
    """Another process has the lease of this pipeline name."""


class LeaseLost(LakeError):
    """Another process has taken over the lease. This process must stop."""


class Planner(ABC):
    """Determines the topics and entries to read."""

    @abstractmethod
    def topics(self) -> list[str]:
        """Return the full names of all partitions to read, sorted."""

    @abstractmethod
    def first_places(self, topics: Sequence[str]) -> dict[str, Place]:
        """Return the start positions of topics that have no position in the table."""

    @abstractmethod
    def plan(self, positions: Mapping[str, Place]) -> list[TopicPlan]:
        """Return the entries of each topic from its position to its current end. Raises ReadingFailed; its subclass
        DataLoss if entries after the position no longer exist, unless the options allow to skip them.
        """

    @abstractmethod
    def reading(self, topics: Sequence[str]) -> RowReading:
        """Return the conversion of entries of these topics to rows, by the newest schemas. Called after `plan`, so no
        planned entry has a newer schema.
        """

    def renames(self) -> dict[str, str]:
        """The old names of renamed columns, by new name, according to the last call of `reading`."""
        return {}


@dataclass(frozen=True)
class LakeOptions:
    """The options of a pipeline. Sizes in bytes, times in milliseconds."""

    pipeline: str
    owner: str
    commit_bytes: int = 512 * 1024 * 1024
    """Approximate limit of stored entries in one commit."""
    target_file_bytes: int = DEFAULT_TARGET_BYTES
    least_share_bytes: int = 32 * 1024 * 1024
    lease_ms: int = 300_000
    takes_over: bool = False
    partitioning: Partitioning | None = None
    compression: str = "zstd"
    splits_columns: bool = False
    """Whether a column with an incompatible new type gets a separate column. Otherwise the pipeline stops."""
    storage_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Figures:
    """Counters since the start, for metrics and `--json`."""

    commits: int = 0
    rows: int = 0
    files: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    conflicts: int = 0
    lag_bytes: int = 0
    last_commit_ms: int = 0
    """Unix time in milliseconds."""
    commit_seconds: float = 0.0
    """Duration of the last commit, without reading and writing files."""


class LakePipeline:
    """The writer of one table: call `begin`, then `step` repeatedly, then `end`. Not thread-safe.

    Invariant: rows that `step` has not committed are in no version of the table, even after an error.
    """

    def __init__(
        self,
        table: LakeTable,
        planner: Planner,
        workers: Workers,
        options: LakeOptions,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._table = table
        self._planner = planner
        self._workers = workers
        self._options = options
        self._now_ms = now_ms
        self._state: TableState | None = None
        self._epoch = 0
        self.figures = Figures()

    @property
    def state(self) -> TableState:
        assert self._state is not None, "begin first"
        return self._state

    def begin(self) -> None:
        """Create the table if needed, and take the lease. Raises LeaseHeld."""
        for attempt in range(MAX_CONFLICTS):
            state = self._load_or_create()
            lease = state.progress.lease
            now_ms = self._now_ms()
            if lease.is_held(now_ms) and not self._options.takes_over:
                raise LeaseHeld(
                    f"the pipeline {self._options.pipeline!r} cannot start, because {lease.owner or 'another process'} holds "
                    f"its lease on table {self._table.name} until "
                    f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(lease.until_ms / 1000))}. Stop that process, wait, or "
                    "use --take-over, which ends that process at its next commit"
                )
            taken = lease.taken_by(self._options.owner, now_ms + self._options.lease_ms)
            steps.reached("before-lease")
            try:
                self._state = self._table.commit(state, Change(state.progress.moved({}, taken)))
            except CommitConflict:
                self._conflicted(attempt)
                continue
            self._epoch = taken.epoch
            return
        raise LakeError(
            f"the pipeline could not store its lease in table {self._table.name}: {MAX_CONFLICTS} consecutive commits "
            "conflicted with commits of other processes. No data was lost; try again later"
        )

    def _conflicted(self, attempt: int) -> None:
        self.figures.conflicts += 1
        time.sleep(random.uniform(0, min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**attempt)))

    def _load_or_create(self) -> TableState:
        try:
            return self._table.load()
        except TableMissing:
            self._table.create(self._planner.reading(self._planner.topics()).schema, self._options.partitioning)
            steps.reached("created")
            return self._table.load()

    def look(self) -> None:
        """Load the table without taking the lease, to show the plan. Raises TableMissing."""
        self._state = self._table.load()

    def plan(self) -> Batch:
        topics = self._planner.topics()
        if self._table.follow(topics) and self._state is not None:
            self._state = self._table.load()  # reload: the state lacks the positions of new topics
            if self._epoch:
                self._check_owner()
        positions = self._state.progress.positions if self._state else {}
        new = [topic for topic in topics if topic not in positions]
        first = self._planner.first_places(new) if new else {}
        places = {topic: positions.get(topic) or first[topic] for topic in topics}
        return choose(self._planner.plan(places), self._options.commit_bytes)

    def step(self) -> bool:
        """Read new entries and commit their rows. Return False if there are no new entries. Raises ReadingFailed if
        entries cannot be read, LeaseLost if another process has taken over the lease, and other LakeErrors if the table
        cannot be changed.
        """
        self._check_owner()
        batch = self.plan()
        self.figures.lag_bytes = batch.size_bytes + batch.remaining_bytes
        is_same = all(self.state.progress.positions.get(topic) == place for topic, place in batch.positions.items())
        if batch.is_empty and is_same:
            self._renew_if_needed()
            return False
        reading = self._planner.reading(sorted({piece.entries.topic for piece in batch.pieces} or batch.positions))
        reading = self._evolve(reading)
        layout = self._layout()
        files: list[WrittenFile] = []
        if not batch.is_empty:
            parts = shares(batch, self._workers.count, self._options.least_share_bytes)
            files = self._workers.write(layout, reading, parts)
        steps.reached("files-written")
        if not self._commit(layout, files, batch):
            return True  # discarded: the next step begins at the current state of the table
        self.figures.lag_bytes = batch.remaining_bytes
        self.figures.bytes_read += batch.size_bytes
        return True

    def _layout(self) -> FileLayout:
        state = self.state
        return FileLayout(
            data_location=state.data_location,
            schema=state.schema,
            partitioning=state.partitioning,
            prefix=file_prefix(self._options.pipeline, self._epoch),
            target_bytes=self._options.target_file_bytes,
            compression=self._options.compression,
            storage_options=self._options.storage_options,
        )

    def _evolve(self, reading: RowReading) -> RowReading:
        for attempt in range(MAX_CONFLICTS):
            fitting = self._fitting(reading)
            try:
                self._state = self._table.evolve(self.state, fitting.schema, self._planner.renames())
            except CommitConflict:
                self._conflicted(attempt)
                self._reload()
                continue
            return fitting
        raise LakeError(
            f"the columns of table {self._table.name} could not be changed, because another process keeps changing them: "
            "try again later"
        )

    def _fitting(self, reading: RowReading) -> RowReading:
        if not self._options.splits_columns:
            return reading
        fields = []
        for column in reading.schema:
            try:
                self._table.check_columns(self.state, pa.schema([column]), self._planner.renames())
            except EvolutionRefused:
                fields.append(column.with_name(apart(column.name, column.type)))
            else:
                fields.append(column)
        return reading if fields == list(reading.schema) else RenamedRows(reading, pa.schema(fields))

    def _commit(self, layout: FileLayout, files: Sequence[WrittenFile], batch: Batch) -> bool:
        began = self.state
        for attempt in range(MAX_CONFLICTS):
            state = self.state
            lease = state.progress.lease.renewed(self._now_ms() + self._options.lease_ms)
            lease = type(lease)(self._options.owner, self._epoch, lease.until_ms)
            change = Change(state.progress.moved(batch.positions, lease), files)
            started = time.perf_counter()
            try:
                self._state = self._table.commit(state, change)
            except CommitConflict:
                self._conflicted(attempt)
                try:
                    self._reload()
                except LeaseLost:
                    discard(layout, files)
                    raise
                if not self._is_as_begun(began):
                    discard(layout, files)
                    return False
                continue
            self.figures.commit_seconds = time.perf_counter() - started
            self.figures.commits += 1
            self.figures.files += len(files)
            self.figures.rows += sum(file.row_count for file in files)
            self.figures.bytes_written += sum(file.size_bytes for file in files)
            self.figures.last_commit_ms = self._now_ms()
            return True
        discard(layout, files)
        raise LakeError(
            f"the pipeline could not commit to table {self._table.name}: {MAX_CONFLICTS} consecutive commits "
            "conflicted with commits of another process. No data was lost; try again later"
        )

    def _is_as_begun(self, began: TableState) -> bool:
        """Return whether the files that were written for the state `began` contain exactly the rows that the current
        state lacks, and fit its layout.
        """
        state = self.state
        return (
            state.progress.positions == began.progress.positions
            and state.schema.equals(began.schema, check_metadata=True)
            and state.partitioning == began.partitioning
            and state.data_location == began.data_location
        )

    def _reload(self) -> None:
        self._state = self._table.load()
        self._check_owner()

    def _check_owner(self) -> None:
        lease = self.state.progress.lease
        if lease.epoch != self._epoch:
            raise LeaseLost(
                f"{lease.owner or 'another process'} has taken over the pipeline {self._options.pipeline!r} on table "
                f"{self._table.name} (epoch {lease.epoch}, this process had {self._epoch}). That process continues from the same "
                "positions, and this process ends"
            )

    def refresh(self) -> None:
        """Load the newest version of the table. Raises LeaseLost if another process has taken over."""
        self._reload()

    def _renew_if_needed(self) -> None:
        lease = self.state.progress.lease
        now_ms = self._now_ms()
        if lease.until_ms - now_ms < self._options.lease_ms // 2:
            self._put_lease(now_ms + self._options.lease_ms)

    def end(self) -> None:
        if self._state is not None and self.state.progress.lease.epoch == self._epoch:
            self._put_lease(0)

    def _put_lease(self, until_ms: int) -> None:
        for attempt in range(MAX_CONFLICTS):
            lease = type(self.state.progress.lease)(self._options.owner, self._epoch, until_ms)
            try:
                self._state = self._table.commit(self.state, Change(Progress(self.state.progress.positions, lease)))
            except CommitConflict:
                self._conflicted(attempt)
                self._reload()
                continue
            return
