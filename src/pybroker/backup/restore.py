"""Restores a restore point into an empty data directory, and verifies backups.

Operation: the file `restore.incomplete` is written first and removed last; a broker does not start while it exists.
Every file is copied, synced, read back, and compared with the checksum in the manifest. After an interruption, a
repeated call skips complete files.

The restored directory equals the state after a clean stop at the moment of the restore point. It starts a new lineage,
so its backups need another backup directory. Blocking.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from pybroker.backup.backup_layout import (
    LEDGERS,
    RESTORE_POINTS,
    BackupError,
    Manifest,
    read_head,
    read_manifest,
    restore_points,
)
from pybroker.backup.file_copies import FileCopier, Progress, RateLimit, write_durably
from pybroker.disk.disk import Disk
from pybroker.local_store.data_directory import (
    INCOMPLETE_RESTORE_NAME,
    LOCK_FILE_NAME,
    DataDirectoryLock,
)
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.metadata.metadata_paths import BACKUP_LINEAGE
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore."""

    point: str
    created_ms: int
    size_bytes: int
    ledgers: int


def restore(backup: Path, point: str, data: Path, rate: RateLimit, progress: Progress) -> RestoreResult:
    """Restore the restore point named `point` (empty: the newest one) into the data directory `data`. After an error,
    the call can be repeated.

    Raises BackupError if the backup is damaged or incomplete, or if `data` is not empty (except after an interrupted
    restore of the same restore point); StoreError; OSError; and the errors of `DataDirectoryLock`. The backup is never
    changed.
    """
    point = point or newest_point(backup)
    manifest = read_manifest(backup, point)
    marker = data / INCOMPLETE_RESTORE_NAME
    _require_empty(data, marker, point)
    lock = DataDirectoryLock(data, is_restored=True)
    try:
        write_durably(marker, f"{point}\n".encode())
        copier = FileCopier(rate, progress)
        progress.begin(2 * manifest.size_bytes, f"{len(manifest.ledgers)} ledgers")
        # The databases first: this version of pybroker may not know their format.
        for database in manifest.databases:
            source = backup / RESTORE_POINTS / point / database.name
            _copy(copier, source, data / database.name, database.length, database.crc, progress)
        asyncio.run(_begin_lineage(data))
        ledgers = data / LEDGERS
        ledgers.mkdir(mode=0o700, exist_ok=True)
        for ledger in manifest.ledgers:
            source, target = (segment_path(each, ledger.ledger) for each in (backup / LEDGERS, ledgers))
            _copy(copier, source, target, ledger.length, ledger.crc, progress)
        Disk().sync_directory(ledgers)
        marker.unlink()
        Disk().sync_directory(data)
    finally:
        lock.release()
    return RestoreResult(point, manifest.createdMs, manifest.size_bytes, len(manifest.ledgers))


def newest_point(backup: Path) -> str:
    read_head(backup)
    names = restore_points(backup)
    if not names:
        raise BackupError(f"the backup {backup} contains no complete restore point: run the backup again")
    return names[-1]


def verify_backup(backup: Path, rate: RateLimit, progress: Progress) -> tuple[int, list[str]]:
    """Read every file of every restore point. Return the number of restore points, and one sentence per damaged file.

    Raises BackupError if `backup.json` is damaged, and OSError.
    """
    read_head(backup)
    names = restore_points(backup)
    problems: list[str] = []
    manifests: dict[str, Manifest] = {}
    for name in names:
        try:
            manifests[name] = read_manifest(backup, name)
        except BackupError as error:
            problems.append(str(error))
    lengths: dict[int, dict[int, int]] = {}  # by ledger: the checksum at each length that a restore point needs
    for manifest in manifests.values():
        for ledger in manifest.ledgers:
            lengths.setdefault(ledger.ledger, {})[ledger.length] = ledger.crc
    databases = [(name, database) for name, manifest in manifests.items() for database in manifest.databases]
    total_bytes = sum(map(max, lengths.values())) + sum(database.length for _, database in databases)
    progress.begin(total_bytes, f"{len(names)} restore points")
    copier = FileCopier(rate, progress)
    for name, database in databases:
        path = backup / RESTORE_POINTS / name / database.name
        problems += _problems(copier, path, {database.length: database.crc})
    for ledger_id, checksums in sorted(lengths.items()):
        problems += _problems(copier, segment_path(backup / LEDGERS, ledger_id), checksums)
    return len(names), problems


def _problems(copier: FileCopier, path: Path, checksums: dict[int, int]) -> list[str]:
    offset = crc = 0
    try:
        for length, expected in sorted(checksums.items()):
            crc = copier.checksum(path, offset, length, crc)
            if crc != expected:
                return [f"{path} is damaged before byte {length}"]
            offset = length
    except (OSError, BackupError) as error:
        return [str(error)]
    return []


def _copy(copier: FileCopier, source: Path, target: Path, length: int, crc: int, progress: Progress) -> None:
    if target.exists() and target.stat().st_size == length and copier.checksum(target, 0, length, 0) == crc:
        progress.copied(length)  # complete from an interrupted call
        return
    try:
        written = copier.copy(source, target, 0, length, 0)
    except FileNotFoundError as error:
        raise BackupError(f"the backup is incomplete: {error.filename} is missing. Use another backup") from error
    if written != crc:
        raise BackupError(
            f"the file {source} is damaged: its checksum is wrong. Use another restore point or another backup"
        )
    if copier.checksum(target, 0, length, 0) != crc:
        raise BackupError(
            f"The restored file {target} differs from the data that was written to it: check the disk of the data "
            "directory"
        )


def _require_empty(data: Path, marker: Path, point: str) -> None:
    if not data.exists():
        return
    if not data.is_dir():
        raise BackupError(f"{data} is not a directory")
    if marker.exists():
        started = marker.read_text(errors="replace").strip()
        if started and started != point:
            raise BackupError(
                f"the directory {data} contains an interrupted restore of the point {started}: complete it with --point "
                f"{started}, or use an empty directory"
            )
        return
    names = {path.name for path in data.iterdir()} - {LOCK_FILE_NAME, "lost+found", marker.name + ".new"}
    if names:
        raise BackupError(
            f"the directory {data} is not empty (it contains {min(names)}): restore into an empty or new directory"
        )


async def _begin_lineage(data: Path) -> None:
    store = await SqliteMetadataStore.open(data / "metadata.db")
    try:
        await store.delete(BACKUP_LINEAGE)
    finally:
        await store.close()
