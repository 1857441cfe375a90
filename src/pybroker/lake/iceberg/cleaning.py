"""Deletion of unused files of Iceberg tables: files of expired snapshots, and orphaned files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from pybroker.lake import steps
from pybroker.lake.orphaned_files import Leftovers
from pybroker.lake.storage import Storage
from pybroker.lake.table_format import CommitConflict


def expire_snapshots(catalog: Catalog, table: Table, keep_versions: int, older_than_ms: int) -> int:
    """Expire snapshots without branch or tag that are older than `older_than_ms` (Unix time) and not among the newest
    `keep_versions`. Then delete the files that only they need. Return the number of expired snapshots.

    Raises CommitConflict. If the process is killed between the two steps, orphaned files remain.
    """
    ordered = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    expired = [
        snapshot
        for snapshot in ordered[: -max(1, keep_versions)]
        if snapshot.timestamp_ms < older_than_ms and snapshot.snapshot_id not in named
    ]
    if not expired:
        return 0
    # Determine the files of the expired snapshots while the metadata still contains them.
    ids = {snapshot.snapshot_id for snapshot in expired}
    kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in ids]
    doomed = _only_of(table, expired, kept)
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=table.metadata.current_snapshot_id),
    )
    try:
        catalog.commit_table(table, requirements, (RemoveSnapshotsUpdate(snapshot_ids=sorted(ids)),))
    except CommitFailedException as error:
        raise CommitConflict(str(error)) from error
    steps.reached("expired")
    delete_old_metadata(table, catalog.load_table(table.name()))
    for location in doomed:
        try:
            table.io.delete(location)
        except OSError:
            continue  # cleaning deletes it later
    return len(expired)


def delete_old_metadata(before: Table, after: Table) -> None:
    """Delete metadata files that the metadata log of `after` no longer contains."""
    logged = {log.metadata_file for log in after.metadata.metadata_log}
    for log in before.metadata.metadata_log:
        if log.metadata_file not in logged:
            try:
                after.io.delete(log.metadata_file)
            except OSError:
                continue  # cleaning deletes it later


def _only_of(table: Table, expired: list[Snapshot], kept: list[Snapshot]) -> list[str]:
    kept_manifests = {manifest.manifest_path for snapshot in kept for manifest in snapshot.manifests(table.io)}
    doomed_manifests: dict[str, ManifestFile] = {}
    doomed = [snapshot.manifest_list for snapshot in expired]
    for snapshot in expired:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in kept_manifests:
                doomed_manifests[manifest.manifest_path] = manifest
    # A data file is kept if any kept manifest lists it as live; most are listed in a merged one.
    candidates = {
        entry.data_file.file_path
        for manifest in doomed_manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    if candidates:
        candidates -= _data_files(table, kept)
    return [*candidates, *doomed_manifests, *doomed]


def _data_files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    manifests = {
        manifest.manifest_path: manifest for snapshot in snapshots for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def find_orphans(
    table: Table, storage_options: dict[str, Any] | None, older_than_ms: int, pipeline: str, epoch: int
) -> list[str]:
    """Return the locations of files of the table that no snapshot and no metadata file needs, and that may be deleted
    by the rules of `Leftovers` for `pipeline`, `epoch` and `older_than_ms` (Unix time).
    """
    snapshots = table.metadata.snapshots
    known = {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)}
    known |= {file.statistics_path for file in table.metadata.statistics}
    known |= {file.statistics_path for file in table.metadata.partition_statistics}
    for snapshot in snapshots:
        known.add(snapshot.manifest_list)
        known |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    known |= _data_files(table, snapshots)
    plain = {_plain(location) for location in known}
    leftovers = Leftovers(pipeline, epoch, older_than_ms)
    storage = Storage(table.location(), storage_options)
    return [
        file.location
        for file in storage.walk()
        if _plain(file.location) not in plain and leftovers.may_go(file.location, file.changed_ms)
    ]


def _plain(location: str) -> str:
    return re.sub(r"^file:/+", "/", location)
