"""Delta tables as targets of a pipeline.

The commit that adds the files also sets the pipeline's positions and lease, as Delta's app transactions.

    <prefix>/epoch, <prefix>/until-ms            the lease; the commit information names its owner
    <prefix>/<topic>/ledger, .../entry           the position of each topic or partition

App transactions are preserved by checkpoints, log cleanup, and merges of any engine. Commits are not retried
(`max_commit_retries=0`): delta-rs compares app ids only with commits after the table object was opened, so a retry
could commit on a version that this process has not read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction, Transaction

from pybroker.lake import steps
from pybroker.lake.delta.delta_values import partition_column, partition_of, partition_text, statistics, storable
from pybroker.lake.evolution import AddColumn, EvolutionRefused, Step, steps_between
from pybroker.lake.orphaned_files import Leftovers
from pybroker.lake.partitioning import Partitioning
from pybroker.lake.progress import Lease, Progress
from pybroker.lake.storage import Storage
from pybroker.lake.table_format import (
    Change,
    CommitConflict,
    LakeError,
    LakeTable,
    TableFile,
    TableMissing,
    TableState,
    TableUnreachable,
)
from pybroker.reading.positions import Place

_CHECKPOINT_EVERY = 50


class DeltaLakeTable(LakeTable):
    """A directory or URL with a Delta table, for one pipeline."""

    def __init__(
        self, location: str, pipeline: str, topics: Sequence[str], options: dict[str, Any] | None = None
    ) -> None:
        self.name = location
        self._location = location
        self._pipeline = pipeline
        self._topics = list(topics)
        self._prefix = f"pybroker.lake/{pipeline}"
        self._options = {key: str(value) for key, value in (options or {}).items()} or None
        self._storage = Storage(location, options)

    def follow(self, topics: Iterable[str]) -> bool:
        """Make later calls of `load` include the positions of these topics. Return whether any topic is new. Needed
        because Delta cannot list the app transactions that store the positions; they are found only by their ids.
        """
        new = set(topics) - set(self._topics)
        self._topics += sorted(new)
        return bool(new)

    def create(self, schema: pa.Schema, partitioning: Partitioning | None) -> None:
        fields = storable(schema)
        configuration: dict[str, str | None] = {"delta.checkpointInterval": str(_CHECKPOINT_EVERY)}
        if partitioning is not None:
            fields = fields.append(partition_column(partitioning))
        DeltaTable.create(
            self._location,
            DeltaSchema.from_arrow(fields),
            mode="ignore",
            partition_by=None if partitioning is None else [partition_column(partitioning).name],
            configuration=configuration,
            storage_options=self._options,
        )

    def load(self) -> TableState:
        try:
            with _reachable(self._location):
                return self._state(DeltaTable(self._location, storage_options=self._options))
        except TableNotFoundError as error:
            raise TableMissing(f"no Delta table exists at {self._location}") from error

    def _state(self, table: DeltaTable) -> TableState:
        schema = pa.schema(table.schema().to_arrow())
        partitions = table.metadata().partition_columns
        partitioning = None
        if partitions:
            partitioning = partition_of(partitions)
            if partitioning is None:
                raise LakeError(
                    f"table {self._location} is partitioned by {', '.join(partitions)}, but pipelines can write only "
                    "to tables without partitions, and to tables that pipelines created (--partition-by): use "
                    "another table"
                )
            schema = pa.schema([field for field in schema if field.name not in partitions])
        return TableState(
            progress=self._progress(table),
            schema=_small(schema),
            partitioning=partitioning,
            data_location=self._storage.location("data"),
            version=str(table.version()),
            reference=table,
        )

    def _progress(self, table: DeltaTable) -> Progress:
        epoch = table.transaction_version(f"{self._prefix}/epoch") or 0
        until_ms = table.transaction_version(f"{self._prefix}/until-ms") or 0
        positions = {}
        for topic in self._topics:
            ledger_id = table.transaction_version(f"{self._prefix}/{topic}/ledger")
            entry_id = table.transaction_version(f"{self._prefix}/{topic}/entry")
            if ledger_id is not None and entry_id is not None:
                positions[topic] = Place(ledger_id, entry_id)
        return Progress(positions, Lease("", epoch, until_ms))

    def owner(self, state: TableState) -> str:
        for commit in state.reference.history(20):
            if commit.get("pybrokerPipeline") == self._pipeline:
                return str(commit.get("pybrokerOwner", ""))
        return ""

    def commit(self, state: TableState, change: Change) -> TableState:
        self.follow(change.progress.positions)
        table: DeltaTable = state.reference
        assert str(table.version()) == state.version, "the loaded table has moved to another version"
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = []
        changes_rows = not change.removed
        for file in change.added:
            values = self._partition_values(state, file.partition)
            path = self._storage.relative(file.location)
            actions.append(
                AddAction(
                    path, file.size_bytes, values, now_ms, changes_rows, json.dumps(statistics(file, state.schema))
                )
            )
        for removed in change.removed:
            values = self._partition_values(state, removed.partition)
            actions.append(
                RemoveAction(
                    removed.location,
                    data_change=False,
                    deletion_timestamp=now_ms,
                    size=removed.size_bytes,
                    partition_values=values,
                )
            )
        steps.reached("before-commit")
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={
                        "pybrokerPipeline": self._pipeline,
                        "pybrokerOwner": change.progress.lease.owner,
                        **{f"pybroker{key.capitalize()}": value for key, value in change.note.items()},
                    },
                    max_commit_retries=0,
                    app_transactions=self._transactions(state.progress, change.progress),
                ),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None),
            )
        except CommitFailedError as error:
            raise CommitConflict(
                f"table {self._location} was not changed, because another process committed after version "
                f"{state.version}: {error}"
            ) from error
        except DeltaError as error:
            raise TableUnreachable(f"{self._location}: {error}") from error
        steps.reached("after-commit")
        # Load a new object: the committed one may lack its own app transactions, and keeps the version that was read.
        return self.load()

    def _partition_values(self, state: TableState, partition: int | None) -> dict[str, str | None]:
        if state.partitioning is None:
            return {}
        return {partition_column(state.partitioning).name: partition_text(state.partitioning, partition)}

    def _transactions(self, before: Progress, after: Progress) -> list[Transaction]:
        """Return app transactions for the changed positions, and always for the lease, so that commits of two writers
        conflict.
        """
        transactions = [
            Transaction(f"{self._prefix}/epoch", after.lease.epoch),
            Transaction(f"{self._prefix}/until-ms", after.lease.until_ms),
        ]
        for topic, place in after.positions.items():
            if before.positions.get(topic) != place:
                transactions.append(Transaction(f"{self._prefix}/{topic}/ledger", place.ledger_id))
                transactions.append(Transaction(f"{self._prefix}/{topic}/entry", place.entry_id))
        return transactions

    def check_columns(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> list[Step]:
        changes = steps_between(state.schema, storable(wanted), renames)
        refused = [step for step in changes if not isinstance(step, AddColumn)]
        if refused:
            raise EvolutionRefused(
                f"a Delta table can get new columns, but it does not support {refused}: use --format iceberg, "
                "another table (--table), omit the column (--columns), or --on-incompatible new-column"
            )
        return changes

    def evolve(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> TableState:
        table: DeltaTable = state.reference
        changes = self.check_columns(state, wanted, renames)
        if not changes:
            return state
        added = pa.schema([step.field for step in changes if isinstance(step, AddColumn)])
        try:
            table.alter.add_columns(
                DeltaSchema.from_arrow(added).fields, commit_properties=CommitProperties(max_commit_retries=0)
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        steps.reached("evolved")
        return self.load()

    def files(self, state: TableState) -> list[TableFile]:
        table: DeltaTable = state.reference
        actions = pa.table(table.get_add_actions(flatten=True)).to_pydict()
        column = None if state.partitioning is None else f"partition.{partition_column(state.partitioning).name}"
        found = []
        for index, path in enumerate(actions["path"]):
            value = None if column is None else _partition_number(state.partitioning, actions[column][index])
            rows = actions["num_records"][index]
            found.append(TableFile(path, actions["size_bytes"][index], rows if rows is not None else -1, value))
        return found

    def read_file(self, state: TableState, file: TableFile) -> pa.Table:
        return self._storage.read_rows(file.location, state.schema)

    def expire(self, state: TableState, keep_versions: int, older_than_ms: int) -> int:
        """Delete data files that were removed from the table before `older_than_ms` (Unix time, with a precision of one
        hour). Return their number. `keep_versions` has no effect: Delta deletes removed files by age only. Older
        versions that contain these files become unreadable.
        """
        table: DeltaTable = state.reference
        hours = max(0, int((time.time() * 1000 - older_than_ms) // 3_600_000))
        removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        return len(removed)

    def orphans(self, state: TableState, older_than_ms: int) -> list[str]:
        table: DeltaTable = state.reference
        leftovers = Leftovers(self._pipeline, state.progress.lease.epoch, older_than_ms)
        # Removed files stay for readers of older versions until `expire` deletes them.
        known = {*pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist(), *self._tombstones(table)}
        return [
            file.location
            for file in self._storage.walk()
            if not self._storage.relative(file.location).startswith("_delta_log/")
            and self._storage.relative(file.location) not in known
            and leftovers.may_go(file.location, file.changed_ms)
        ]

    def _tombstones(self, table: DeltaTable) -> set[str]:
        """Return removed files that older versions of the table still contain."""
        listed = table.vacuum(0, dry_run=True, enforce_retention_duration=False)
        return set(listed)

    def delete_files(self, locations: Sequence[str]) -> None:
        for location in locations:
            self._storage.delete(location)


@contextmanager
def _reachable(location: str) -> Iterator[None]:
    try:
        yield
    except (TableNotFoundError, CommitFailedError):
        raise
    except DeltaError as error:
        raise TableUnreachable(f"{location}: {error}") from error


def _partition_number(partitioning: Partitioning | None, value: Any) -> int | None:
    if value is None or partitioning is None:
        return None
    if partitioning.unit == "day":
        return int((value - datetime(1970, 1, 1).date()).days)  # noqa: DTZ001  (a date)
    moment: datetime = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(moment.timestamp() // 3600)


def _small(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, storable(pa.schema([field])).field(0).type, True) for field in schema])
