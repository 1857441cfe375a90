"""Iceberg tables as targets of a pipeline.

The commit that adds the rows also sets the pipeline's positions and lease, as table properties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import DayTransform, HourTransform
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from pybroker.lake import steps
from pybroker.lake.evolution import AddColumn, RenameColumn, Step, steps_between
from pybroker.lake.iceberg.cleaning import delete_old_metadata, expire_snapshots, find_orphans
from pybroker.lake.iceberg.snapshots import FilesGone, SnapshotWriter
from pybroker.lake.iceberg.statistics import data_files, storable
from pybroker.lake.orphaned_files import file_prefix
from pybroker.lake.partitioning import Partitioning
from pybroker.lake.progress import Lease, Progress, lease_of, lease_text, positions_of, positions_text
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

TABLE_PROPERTIES = {
    "format-version": "2",
    # An engine that appends beside a pipeline must not add its rows twice by a retry (pyiceberg's default is 4).
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
_PREFIX = "pybroker.lake"
# Errors of a catalog that is locked, restarting or unreachable. `requests` raises OSError.
_UNREACHABLE = (SQLAlchemyError, RESTError, CommitStateUnknownException)


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """Open a catalog with pyiceberg's `properties`. An SQL catalog stores its tables under `name`."""
    try:
        return load_catalog(name, **properties)
    except SQLAlchemyError:
        # The first open creates the tables of an SQL catalog, and fails if another process creates them at the same time.
        return load_catalog(name, **properties)


class IcebergTable(LakeTable):
    """An Iceberg table, for one pipeline. Other pipelines may write into the same table."""

    def __init__(
        self, catalog: Catalog, identifier: str, pipeline: str, storage_options: dict[str, Any] | None = None
    ) -> None:
        self.name = identifier
        self._catalog = catalog
        self._identifier = identifier
        self._pipeline = pipeline
        self._storage_options = storage_options
        self._positions_key = f"{_PREFIX}.{pipeline}.positions"
        self._lease_key = f"{_PREFIX}.{pipeline}.lease"

    def create(self, schema: pa.Schema, partitioning: Partitioning | None) -> None:
        namespace = self._identifier.rpartition(".")[0]
        if not namespace:
            raise LakeError(
                f"--table {self._identifier!r} has no namespace: the name of an Iceberg table must have the "
                f"form events.{self._identifier}"
            )
        iceberg_schema = assign_fresh_schema_ids(pyarrow_to_schema(_with_ids(storable(schema))))
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except (NamespaceAlreadyExistsError, IntegrityError):
            pass  # another process has created it; an SQL catalog reports the violated constraint
        spec = UNPARTITIONED_PARTITION_SPEC
        if partitioning is not None:
            source = iceberg_schema.find_field(partitioning.column)
            transform: Any = HourTransform() if partitioning.unit == "hour" else DayTransform()
            name = f"{partitioning.column}_{partitioning.unit}"
            spec = PartitionSpec(PartitionField(source.field_id, 1000, transform, name))
        try:
            self._catalog.create_table(
                self._identifier, iceberg_schema, partition_spec=spec, properties=TABLE_PROPERTIES
            )
        except TableAlreadyExistsError:
            return

    def load(self) -> TableState:
        try:
            with _reachable(self._identifier):
                table = self._catalog.load_table(self._identifier)
        except NoSuchTableError as error:
            raise TableMissing(f"table {self._identifier} does not exist in catalog {self._catalog.name}") from error
        if table.metadata.format_version > 2:
            raise LakeError(
                f"table {self._identifier} has Iceberg format version {table.metadata.format_version}: use a table "
                "of version 2, because this release writes only version 2"
            )
        return self._state(table)

    def _state(self, table: Table) -> TableState:
        properties = table.metadata.properties
        positions = properties.get(self._positions_key)
        lease = properties.get(self._lease_key)
        return TableState(
            progress=Progress(
                positions_of(positions) if positions is not None else {},
                lease_of(lease) if lease is not None else Lease(),
            ),
            schema=_small(schema_to_pyarrow(table.metadata.schema(), include_field_ids=True)),
            partitioning=self._partitioning(table),
            data_location=f"{table.location().removeprefix('file://')}/data",
            version=str(table.metadata.current_snapshot_id),
            reference=table,
        )

    def _partitioning(self, table: Table) -> Partitioning | None:
        fields = table.metadata.spec().fields
        if not fields:
            return None
        if len(fields) == 1:
            for transform, unit in ((HourTransform, "hour"), (DayTransform, "day")):
                if isinstance(fields[0].transform, transform):
                    column = table.metadata.schema().find_column_name(fields[0].source_id)
                    return Partitioning(str(column), "hour" if unit == "hour" else "day")
        raise LakeError(
            f"table {self._identifier} is partitioned by {table.metadata.spec()}, but pipelines can write only to "
            "tables without partitions, or with one hour or day partition of a time: use another table"
        )

    def commit(self, state: TableState, change: Change) -> TableState:
        table: Table = state.reference
        epoch = change.progress.lease.epoch
        writer = SnapshotWriter(table, file_prefix(self._pipeline, epoch))
        properties = {
            self._positions_key: positions_text(change.progress.positions),
            self._lease_key: lease_text(change.progress.lease),
        }
        note = {**change.note, f"{_PREFIX}.pipeline": self._pipeline, f"{_PREFIX}.epoch": str(epoch)}
        try:
            requirements, updates = writer.write(
                data_files(table.metadata, list(change.added)),
                [file.location for file in change.removed],
                properties,
                note,
            )
            steps.reached("before-commit")
            self._catalog.commit_table(table, requirements, updates)
        except (CommitFailedException, FilesGone) as error:
            writer.discard()
            raise CommitConflict(f"{self._identifier}: {error}") from error
        except _UNREACHABLE as error:
            raise TableUnreachable(f"{self._identifier}: {error}") from error
        steps.reached("after-commit")
        with _reachable(self._identifier):
            committed = self._catalog.load_table(self._identifier)
        delete_old_metadata(table, committed)
        return self._state(committed)

    def check_columns(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> list[Step]:
        return steps_between(storable(state.schema), storable(wanted), renames)

    def evolve(self, state: TableState, wanted: pa.Schema, renames: dict[str, str]) -> TableState:
        table: Table = state.reference
        changes = self.check_columns(state, wanted, renames)
        if not changes:
            return state
        union = pa.schema(
            [step.field for step in changes if isinstance(step, AddColumn)]
            + [pa.field(step.name, step.type) for step in changes if not isinstance(step, AddColumn | RenameColumn)]
        )
        try:
            with table.transaction() as transaction:
                renamed = [step for step in changes if isinstance(step, RenameColumn)]
                if renamed:
                    with transaction.update_schema() as update:
                        for step in renamed:
                            update.rename_column(step.old, step.new)
                with transaction.update_schema() as update:
                    update.union_by_name(union)
        except CommitFailedException as error:
            raise CommitConflict(f"{self._identifier}: {error}") from error
        steps.reached("evolved")
        return self.load()

    def files(self, state: TableState) -> list[TableFile]:
        table: Table = state.reference
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        found = []
        default_spec = table.metadata.default_spec_id
        for manifest in snapshot.manifests(table.io):
            if manifest.content != ManifestContent.DATA:
                raise LakeError(
                    f"table {self._identifier} has delete files that another engine wrote: rewrite the table with "
                    "that engine, or disable merging (--merge-small-files no)"
                )
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file: DataFile = entry.data_file
                partition = file.partition[0] if len(file.partition) else None
                found.append(
                    TableFile(
                        file.file_path,
                        file.file_size_in_bytes,
                        file.record_count,
                        partition if partition is None else int(partition),
                        file,
                        manifest.partition_spec_id == default_spec,
                    )
                )
        return found

    def read_file(self, state: TableState, file: TableFile) -> pa.Table:
        table: Table = state.reference
        scan = ArrowScan(table.metadata, table.io, table.metadata.schema(), AlwaysTrue())
        rows = scan.to_table([FileScanTask(file.reference)])
        return rows.select(state.schema.names).cast(state.schema)

    def expire(self, state: TableState, keep_versions: int, older_than_ms: int) -> int:
        return expire_snapshots(self._catalog, state.reference, keep_versions, older_than_ms)

    def orphans(self, state: TableState, older_than_ms: int) -> list[str]:
        epoch = state.progress.lease.epoch
        return find_orphans(state.reference, self._storage_options, older_than_ms, self._pipeline, epoch)

    def delete_files(self, locations: Sequence[str]) -> None:
        io = self._catalog.load_table(self._identifier).io
        for location in locations:
            try:
                io.delete(location)
            except FileNotFoundError:
                continue

    def close(self) -> None:
        self._catalog.close()


@contextmanager
def _reachable(identifier: str) -> Iterator[None]:
    try:
        yield
    except NoSuchTableError:
        raise
    except _UNREACHABLE as error:
        raise TableUnreachable(f"{identifier}: {error}") from error


def _small(schema: pa.Schema) -> pa.Schema:
    def field_of(field: pa.Field) -> pa.Field:
        return pa.field(field.name, inner(field.type), field.nullable, field.metadata)

    def inner(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_large_string(kind):
            return pa.string()
        if pa.types.is_large_binary(kind):
            return pa.binary()
        if pa.types.is_struct(kind):
            return pa.struct([field_of(kind.field(i)) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return pa.map_(field_of(kind.key_field), field_of(kind.item_field))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(field_of(kind.value_field))
        return kind

    return pa.schema([field_of(field) for field in schema])


def _with_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema with numbered fields, because pyiceberg requires ids or a name mapping. The final ids are
    assigned later.
    """
    counter = iter(range(1, 1_000_000))

    def numbered(field: pa.Field) -> pa.Field:
        number = str(next(counter)).encode()
        return pa.field(field.name, inner(field.type), field.nullable, {b"PARQUET:field_id": number})

    def inner(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([numbered(kind.field(i)) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return pa.map_(numbered(kind.key_field), numbered(kind.item_field))
        if pa.types.is_list(kind):
            return pa.list_(numbered(pa.field("element", kind.value_type)))
        return kind

    return pa.schema([numbered(field) for field in schema])
