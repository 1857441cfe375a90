"""A new snapshot of an Iceberg table: manifests, manifest list, and the updates for the catalog.

pyiceberg's transaction is not used: it commits a rejected append again on the new snapshot, which duplicates rows if
another process has written them; it cannot replace files; and it copies the whole metadata about twenty times.

Each commit creates a snapshot, even a commit that only renews the lease: the catalog detects conflicts by the snapshot
of the branch `main`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

MERGE_MANIFESTS_AT = 32
"""Number of manifests of a size class and spec that are merged. After n commits the list has about 32 log32(n) entries."""
_CLASS_FILES = 32  # size classes: up to 32 files, up to 1,024, ...


class SnapshotWriter:
    """Writes the files of one snapshot that follows the current snapshot of `table`. Readers see it when the catalog
    commits it. `written` lists the files to delete if the catalog rejects the commit.
    """

    def __init__(self, table: Table, file_tag: str) -> None:
        self._table = table
        self._metadata = table.metadata
        self._tag = file_tag
        self._id = self._metadata.new_snapshot_id()
        self._uuid = uuid.uuid4()
        self._parent = table.current_snapshot()
        self._next_manifest = 0
        self.written: list[str] = []

    def write(
        self,
        added: Sequence[DataFile],
        removed: Sequence[str],
        properties: dict[str, str],
        note: dict[str, str],
        merges_manifests: bool = True,
    ) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
        """Write a snapshot that adds and removes data files. Return the requirements and updates for the catalog.
        `properties`: new values of table properties. `note`: values for the summary of the snapshot. Raises FilesGone
        if a file of `removed` is not in the table.
        """
        manifests = self._kept_manifests(set(removed))
        if added:
            manifests.insert(0, self._manifest(self._metadata.default_spec_id, [self._added(file) for file in added]))
        if merges_manifests:
            manifests = self._merged(manifests)
            self._drop_unused(manifests)
        list_location = self._new_location(f"snap-{self._id}-0-{self._tag}.{self._uuid}.avro")
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._table.io.new_output(list_location),
            snapshot_id=self._id,
            parent_snapshot_id=self._parent.snapshot_id if self._parent else None,
            sequence_number=self._sequence_number,
            avro_compression="deflate",
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=self._parent.snapshot_id if self._parent else None,
            manifest_list=list_location,
            sequence_number=self._sequence_number,
            summary=self._summary(added, self._removed_files, note),
            schema_id=self._metadata.current_schema_id,
        )
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=self._metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=self._parent.snapshot_id if self._parent else None),
        )
        updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=self._id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        )
        if properties:
            updates = (*updates, SetPropertiesUpdate(updates=properties))
        return requirements, updates

    def discard(self) -> None:
        for location in self.written:
            try:
                self._table.io.delete(location)
            except OSError:
                continue  # cleaning deletes it later
        self.written.clear()

    @property
    def _sequence_number(self) -> int:
        return int(self._metadata.last_sequence_number) + 1

    def _new_location(self, name: str) -> str:
        location = str(self._table.location_provider().new_metadata_location(name))
        self.written.append(location)
        return location

    def _added(self, file: DataFile) -> Callable[[Any], None]:
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self._id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
        return lambda writer: writer.add(entry)

    def _manifest(self, spec_id: int, writes: Sequence[Callable[[Any], None]]) -> ManifestFile:
        location = self._new_location(f"{self._tag}.{self._uuid}-m{self._next_manifest}.avro")
        self._next_manifest += 1
        with write_manifest(
            format_version=self._metadata.format_version,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._table.io.new_output(location),
            snapshot_id=self._id,
            avro_compression="deflate",
        ) as writer:
            for write in writes:
                write(writer)
        return writer.to_manifest_file()

    def _kept_manifests(self, removed: set[str]) -> list[ManifestFile]:
        self._removed_files: list[DataFile] = []
        if self._parent is None:
            if removed:
                raise FilesGone(
                    f"small files of table {'.'.join(self._table.name())} were not merged: another process has removed all "
                    "files of the table"
                )
            return []
        kept: list[ManifestFile] = []
        present = [
            manifest
            for manifest in self._parent.manifests(self._table.io)
            if manifest.content != ManifestContent.DATA or manifest.has_added_files() or manifest.has_existing_files()
        ]
        if not removed:
            return present
        for manifest in present:
            if manifest.content != ManifestContent.DATA or len(self._removed_files) == len(removed):
                kept.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            gone = [entry for entry in entries if entry.data_file.file_path in removed]
            if not gone:
                kept.append(manifest)
                continue
            self._removed_files += [entry.data_file for entry in gone]
            writes: list[Callable[[Any], None]] = []
            for entry in entries:
                if entry.data_file.file_path in removed:
                    writes.append(lambda writer, entry=entry: writer.delete(entry))  # type: ignore[misc]
                else:
                    writes.append(lambda writer, entry=entry: writer.existing(entry))  # type: ignore[misc]
            kept.append(self._manifest(manifest.partition_spec_id, writes))
        if len(self._removed_files) != len(removed):
            raise FilesGone(
                f"small files of table {'.'.join(self._table.name())} were not merged: another process has removed some of "
                "these files from the table"
            )
        return kept

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        classes: dict[tuple[int, int], list[ManifestFile]] = {}
        rest: list[ManifestFile] = []
        for manifest in manifests:
            # A manifest with deleted entries of this snapshot records the removed files, so it is kept.
            says_removed = manifest.added_snapshot_id == self._id and manifest.deleted_files_count
            if manifest.content != ManifestContent.DATA or says_removed:
                rest.append(manifest)
                continue
            files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            size_class = 0
            while files > _CLASS_FILES ** (size_class + 1):
                size_class += 1
            classes.setdefault((manifest.partition_spec_id, size_class), []).append(manifest)
        result = []
        for (spec_id, _), group in classes.items():
            if len(group) < MERGE_MANIFESTS_AT:
                result += group
                continue
            writes: list[Callable[[Any], None]] = []
            for manifest in group:
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    if entry.snapshot_id == self._id:
                        writes.append(lambda writer, entry=entry: writer.add(entry))  # type: ignore[misc]
                    else:
                        writes.append(lambda writer, entry=entry: writer.existing(entry))  # type: ignore[misc]
            result.append(self._manifest(spec_id, writes))
        return result + rest

    def _drop_unused(self, manifests: Sequence[ManifestFile]) -> None:
        used = {manifest.manifest_path for manifest in manifests}
        for location in [location for location in self.written if location not in used]:
            self._table.io.delete(location)
            self.written.remove(location)

    def _summary(self, added: Sequence[DataFile], removed: Sequence[DataFile], note: dict[str, str]) -> Summary:
        """Return the summary in the form of other engines. Totals continue from the previous snapshot."""
        figures = {
            "added-data-files": len(added),
            "added-records": sum(file.record_count for file in added),
            "added-files-size": sum(file.file_size_in_bytes for file in added),
            "deleted-data-files": len(removed),
            "deleted-records": sum(file.record_count for file in removed),
            "removed-files-size": sum(file.file_size_in_bytes for file in removed),
        }
        before = self._parent.summary.additional_properties if self._parent and self._parent.summary else {}
        totals = {}
        for total, plus, minus in (
            ("total-data-files", "added-data-files", "deleted-data-files"),
            ("total-records", "added-records", "deleted-records"),
            ("total-files-size", "added-files-size", "removed-files-size"),
        ):
            if self._parent is None or total in before:
                totals[total] = str(int(before.get(total, 0)) + figures[plus] - figures[minus])
        for kept in ("total-delete-files", "total-position-deletes", "total-equality-deletes"):
            totals[kept] = before.get(kept, "0")
        return Summary(
            operation=Operation.REPLACE if removed else Operation.APPEND,
            **{name: str(value) for name, value in figures.items() if value},
            **totals,
            **note,
        )


class FilesGone(Exception):
    """A file to replace is no longer in the table: another writer has replaced or deleted it."""
