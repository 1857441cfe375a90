"""Writes restore points of a backup, from a data snapshot or from the data directory of a stopped broker.

Operation: segment files are copied first. When the bytes of a file are durable and verified, a line is added to
`ledgers.jsonl`. Then the databases are copied, then the manifest is written, in a temporary directory that is renamed
when it is complete. An interrupted backup leaves no restore point; the next backup continues after the last complete
segment file.

Concurrency: blocking. A lock on `backup.json` admits one writer per backup directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from pybroker.backup.backup_layout import (
    BACKUP_FILE,
    BACKUP_FORMAT,
    DATABASES,
    LEDGER_LINES,
    LEDGERS,
    MANIFEST,
    PARTIAL_SUFFIX,
    RESTORE_POINTS,
    BackupError,
    BackupHead,
    CopiedLedger,
    CopyTask,
    Manifest,
    StoredDatabase,
    decode_ledger_lines,
    encode_checked,
    encode_ledger_line,
    ledgers_without_file,
    plan_copies,
    point_name,
    read_head,
    read_manifest,
    restore_points,
    unused_ledgers,
)
from pybroker.backup.file_copies import FileCopier, Progress, RateLimit, private, write_durably
from pybroker.disk.database import SQLITE_FAILURES, DatabaseSnapshot
from pybroker.disk.disk import Disk
from pybroker.local_store.checkpoint.checkpoint_table import CheckpointTable, TableChange
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.local_store.start_up import segment_sizes
from pybroker.metadata.metadata_paths import BACKUP_LINEAGE
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.version import __version__


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The files to back up, all of the same moment. `directory` contains `ledgers/` and both databases."""

    directory: Path
    snapshot_id: str
    lineage: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A new restore point, and the number of bytes that it added to the backup."""

    point: str
    size_bytes: int
    copied_bytes: int
    ledgers: int
    copied_ledgers: int


def write_backup(source: BackupSource, target: Path, rate: RateLimit, progress: Progress) -> BackupResult:
    """Add a restore point to the backup directory `target`, which is created if it does not exist.

    Raises BackupError if `target` is in use, is not a backup directory, or has another `lineage`: it is the backup of
    another data directory, or was begun before a restore of this one. Raises OSError, for example if the disk is full.
    """
    try:
        with _opened(target, source.lineage):
            return _Writer(source, target, FileCopier(rate, progress), progress).write()
    except SQLITE_FAILURES as error:
        raise BackupError(f"checkpoint.db or metadata.db in {source.directory} cannot be copied: {error}") from error


def delete_restore_points(target: Path, keep: int) -> list[str]:
    """Keep the newest `keep` restore points. Delete all others, and the segment files that no kept restore point needs.
    Return the names of the deleted restore points. Raises BackupError if `target` is in use, damaged, or not a backup
    directory, and OSError.
    """
    assert keep > 0, "the last restore point is not deleted"
    head = read_head(target)
    with _opened(target, head.lineage):
        names = restore_points(target)
        deleted, kept = names[:-keep], names[-keep:]
        manifests = [read_manifest(target, name) for name in kept]
        for name in deleted:
            directory = target / RESTORE_POINTS / name
            (directory / MANIFEST).unlink()  # first, so that an interrupted deletion leaves no incomplete restore point
            Disk().sync_directory(directory)
            shutil.rmtree(directory)
        ledgers = target / LEDGERS
        unused = unused_ledgers(manifests, _segment_sizes(ledgers) if ledgers.is_dir() else ())
        if unused:
            lines = _read_ledger_lines(target)
            left = [copied for ledger_id, copied in lines.items() if ledger_id not in set(unused)]
            write_durably(target / LEDGER_LINES, b"".join(map(encode_ledger_line, left)))
            for ledger_id in unused:
                (segment_path(ledgers, ledger_id)).unlink()
        return deleted


class _Writer:
    def __init__(self, source: BackupSource, target: Path, copier: FileCopier, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._copier = copier
        self._progress = progress

    def write(self) -> BackupResult:
        name = point_name(self._source.created_ms, self._source.snapshot_id)
        points = self._target / RESTORE_POINTS
        points.mkdir(mode=0o700, exist_ok=True)
        for left in points.glob(f"*{PARTIAL_SUFFIX}"):
            shutil.rmtree(left)
        partial = points / (name + PARTIAL_SUFFIX)
        partial.mkdir(mode=0o700)
        for database in DATABASES:
            snapshot = DatabaseSnapshot(self._source.directory / database)
            try:
                snapshot.copy_to(partial / database)
            finally:
                snapshot.close()
        copied, copied_bytes, copied_ledgers = self._copy_ledgers(partial / "checkpoint.db")
        databases = [self._described(partial, database) for database in DATABASES]
        manifest = Manifest(
            BACKUP_FORMAT, self._source.lineage, self._source.created_ms, __version__, databases, copied
        )
        write_durably(partial / MANIFEST, encode_checked(manifest))
        partial.rename(points / name)
        Disk().sync_directory(points)
        copied_bytes += sum(database.length for database in databases)
        return BackupResult(name, manifest.size_bytes, copied_bytes, len(copied), copied_ledgers)

    def _copy_ledgers(self, checkpoint_db: Path) -> tuple[list[CopiedLedger], int, int]:
        source, target = self._source.directory / LEDGERS, self._target / LEDGERS
        sizes = _segment_sizes(source)
        end_offsets = _finish_checkpoint_db(checkpoint_db, sizes)
        target.mkdir(mode=0o700, exist_ok=True)
        stored = _segment_sizes(target)
        lines = {
            ledger_id: copied
            for ledger_id, copied in _read_ledger_lines(self._target).items()
            if stored.get(ledger_id, 0) >= copied.length
        }
        tasks, copied = plan_copies(sizes, end_offsets, lines)
        copied_bytes = sum(task.length - task.offset for task in tasks)
        # Each byte is copied and read back.
        self._progress.begin(2 * copied_bytes, f"{len(tasks)} of {len(tasks) + len(copied)} ledgers")
        with open(self._target / LEDGER_LINES, "ab", opener=private) as index:
            if index.tell():
                index.write(b"\n")  # ends a torn last line
            for task in tasks:
                copied.append(self._copy_ledger(source, target, task))
                index.write(encode_ledger_line(copied[-1]))
                index.flush()
            os.fsync(index.fileno())
        Disk().sync_directory(target)
        return sorted(copied, key=lambda each: each.ledger), copied_bytes, len(tasks)

    def _copy_ledger(self, source: Path, target: Path, task: CopyTask) -> CopiedLedger:
        path = segment_path(target, task.ledger)
        crc = self._copier.copy(segment_path(source, task.ledger), path, task.offset, task.length, task.crc)
        if self._copier.checksum(path, task.offset, task.length, task.crc) != crc:
            raise BackupError(
                f"The copied file {path} differs from the data that was written to it: check the disk of the backup"
            )
        return CopiedLedger(task.ledger, task.length, crc)

    @staticmethod
    def _described(directory: Path, name: str) -> StoredDatabase:
        path = directory / name
        data = path.read_bytes()
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return StoredDatabase(name, len(data), crc32c(data))


def _finish_checkpoint_db(path: Path, file_sizes: dict[int, int]) -> dict[int, int]:
    """Change the copied `checkpoint.db` to the state after a clean stop. Return the valid length of each unsealed
    ledger.

    After a clean stop no journal is needed, so the restored directory has no journal.
    """
    table = CheckpointTable(Disk(), path, "")
    try:
        facts = table.load_facts("the backup")
        end_offsets = {ledger_id: extent.end_offset for ledger_id, extent in table.load_extents().items()}
        gone = ledgers_without_file(file_sizes, end_offsets)
        kept = sum(1 for ledger_id in file_sizes if end_offsets.get(ledger_id, 1))
        changed = {
            "is_clean": 1,
            "is_journal_made": 0,
            "journal_end": facts.sequence,  # later batches are not part of the restore point
            "segment_files": kept,
        }
        table.commit(TableChange(changed, closed_ledgers=gone))
    finally:
        table.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return end_offsets


def _segment_sizes(directory: Path) -> dict[int, int]:
    return segment_sizes(Disk().file_sizes(directory))


def _read_ledger_lines(target: Path) -> dict[int, CopiedLedger]:
    try:
        return decode_ledger_lines((target / LEDGER_LINES).read_bytes())
    except FileNotFoundError:
        return {}


@contextmanager
def _opened(target: Path, lineage: str) -> Iterator[None]:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = target / BACKUP_FILE
    if not path.exists():
        if names := {path.name for path in target.iterdir()} - {"lost+found", BACKUP_FILE + ".new"}:
            raise BackupError(
                f"the directory {target} is neither empty nor a backup directory (it contains {min(names)}): use an empty directory"
            )
        write_durably(path, encode_checked(BackupHead(BACKUP_FORMAT, lineage)))
    if read_head(target).lineage != lineage:
        raise BackupError(
            f"the directory {target} is a backup of another data directory, or of this data directory before a restore: use "
            "another backup directory"
        )
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(
                f"the backup directory {target} is in use by another backup: run the backup again when the other backup is complete"
            ) from None
        yield
    finally:
        os.close(descriptor)


def stopped_source(data: Path, created_ms: int, new_lineage: str, snapshot_id: str) -> BackupSource:
    """Return the source of a backup of a stopped broker, whose data directory the caller has locked.

    `created_ms`: milliseconds since 1970. `new_lineage`: the id of the data history, if the directory has none.
    `snapshot_id` becomes part of the restore point's name.
    Raises BackupError if the broker was not stopped cleanly, because its journal would contain data that the backup
    lacks.
    """
    if not (data / "checkpoint.db").exists() or not (data / "metadata.db").exists():
        raise BackupError(
            f"the directory {data} is not the data directory of a broker: checkpoint.db or metadata.db is missing"
        )
    table = CheckpointTable(Disk(), data / "checkpoint.db", "")
    try:
        is_clean = table.load_facts("ledgers").is_clean
    finally:
        table.close()
    if not is_clean:
        raise BackupError(
            f"the broker of {data} did not stop cleanly: start the broker again, and make the backup while it runs"
        )
    return BackupSource(data, snapshot_id, asyncio.run(_stored_lineage(data, new_lineage)), created_ms)


async def _stored_lineage(data: Path, new_lineage: str) -> str:
    store = await SqliteMetadataStore.open(data / "metadata.db", mark=data / "metadata.end")
    try:
        found = await store.get(BACKUP_LINEAGE)
        if found is None:
            await store.put(BACKUP_LINEAGE, new_lineage.encode(), NOT_EXISTING)
            return new_lineage
        return found.value.decode()
    finally:
        await store.close()
