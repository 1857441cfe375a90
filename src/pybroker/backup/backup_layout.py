"""The files of a backup directory, and which segment files a backup must copy.

    backup.json                           format, and lineage: the id of the data history that all restore points belong to
    ledgers/<ledger id>.ledger            segment files, shared by the restore points
    ledgers.jsonl                         length and checksum of each copied segment file; the last line of a ledger counts
    restore-points/<time>-<id>/
        manifest.json                     the files of the restore point; written last
        checkpoint.db, metadata.db        as a clean stop at that moment would have left them

A restore point needs the first `length` bytes of each of its segment files. A segment file only grows until it is
sealed, so a later backup appends to the file, and earlier restore points stay valid. In another lineage, a ledger with
the same id may have different content, so each lineage needs its own backup directory.

Pure, except for the functions that read and write one small file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from crc32c import crc32c

from pybroker.errors import StoreError
from pybroker.local_store.segments.segment_writer import segment_path

BACKUP_FORMAT = 1
BACKUP_FILE = "backup.json"
LEDGERS = "ledgers"
LEDGER_LINES = "ledgers.jsonl"
RESTORE_POINTS = "restore-points"
MANIFEST = "manifest.json"
DATABASES = ("metadata.db", "checkpoint.db")
PARTIAL_SUFFIX = ".partial"
_POINT_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}")
_Value = TypeVar("_Value")


class BackupError(StoreError):
    """A backup or restore failed. The text contains the file and the remedy."""


class BackupHead(msgspec.Struct, frozen=True):
    """Content of `backup.json`."""

    format: int
    lineage: str


class CopiedLedger(msgspec.Struct, frozen=True):
    """Length and CRC32C of the copied part of a segment file, which starts at byte 0."""

    ledger: int
    length: int
    crc: int


class StoredDatabase(msgspec.Struct, frozen=True):
    """Name, length and CRC32C of a database file."""

    name: str
    length: int
    crc: int


class Manifest(msgspec.Struct, frozen=True):
    """One restore point. It contains all data that was confirmed with a receipt before `createdMs` (by the broker's
    clock).
    """

    format: int
    lineage: str
    createdMs: int  # noqa: N815  (a JSON property)
    brokerVersion: str  # noqa: N815
    databases: list[StoredDatabase]
    ledgers: list[CopiedLedger]

    @property
    def size_bytes(self) -> int:
        return sum(file.length for file in self.databases) + sum(ledger.length for ledger in self.ledgers)


def point_name(created_ms: int, snapshot_id: str) -> str:
    """Return the directory name of a restore point. The names sort by time. `created_ms`: milliseconds since 1970."""
    seconds, milliseconds = divmod(created_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{milliseconds:03d}Z-{snapshot_id[:8]}"


def encode_checked(value: msgspec.Struct) -> bytes:
    """Encode a document as two lines: JSON, and the CRC32C of the first line."""
    data = msgspec.json.encode(value)
    return data + f"\n{crc32c(data):08x}\n".encode()


def decode_checked(data: bytes, kind: type[_Value], path: Path) -> _Value:
    body, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    try:
        if int(checksum, 16) != crc32c(body):
            raise ValueError("wrong checksum")
        found = json.loads(body).get("format")
        if isinstance(found, int) and found > BACKUP_FORMAT:
            raise BackupError(
                f"the file {path} has format {found}, but this pybroker supports only format {BACKUP_FORMAT}: use the "
                "pybroker version that wrote the backup"
            )
        return msgspec.json.decode(body, type=kind)
    except (ValueError, AttributeError, msgspec.DecodeError) as error:
        raise BackupError(
            f"the file {path} is damaged: {error}. Use another restore point or another backup"
        ) from error


def encode_ledger_line(copied: CopiedLedger) -> bytes:
    data = msgspec.json.encode(copied)
    return data + f" {crc32c(data):08x}\n".encode()


def decode_ledger_lines(data: bytes) -> dict[int, CopiedLedger]:
    """Decode `ledgers.jsonl`: return the last line of each ledger. Damaged lines, such as an incomplete last line, are
    ignored, so their files are copied again.
    """
    copied: dict[int, CopiedLedger] = {}
    for line in data.split(b"\n"):
        body, _, checksum = line.rpartition(b" ")
        try:
            if int(checksum, 16) == crc32c(body):
                found = msgspec.json.decode(body, type=CopiedLedger)
                copied[found.ledger] = found
        except (ValueError, msgspec.DecodeError):
            continue
    return copied


class CopyTask(msgspec.Struct, frozen=True):
    """Bytes to copy from a segment file: from `offset` to `length`, both counted from the start of the file. `crc`
    covers the bytes before `offset`, which the backup already contains.
    """

    ledger: int
    offset: int
    length: int
    crc: int


def plan_copies(
    file_sizes: Mapping[int, int], end_offsets: Mapping[int, int], copied: Mapping[int, CopiedLedger]
) -> tuple[list[CopyTask], list[CopiedLedger]]:
    """Return the copies of segment files that a backup needs, and the files that it already contains completely.

    `file_sizes`: sizes of the segment files in the snapshot. `end_offsets`: valid lengths of unsealed ledgers, from the
    snapshot's `checkpoint.db`. `copied`: the files in the backup. All three are by ledger id. Raises BackupError if the
    snapshot is damaged, or the backup contains more bytes of a ledger than the snapshot.
    """
    tasks, unchanged = [], []
    for ledger_id, size in sorted(file_sizes.items()):
        length = end_offsets.get(ledger_id, size)
        if length > size:
            raise BackupError(
                f"The data directory is damaged: file {segment_path(Path(), ledger_id)} has {size} bytes, but "
                f"checkpoint.db records {length} bytes. `pybroker ledger verify` reports the details"
            )
        if not length:
            continue
        before = copied.get(ledger_id, CopiedLedger(ledger_id, 0, 0))
        if before.length > length:
            raise BackupError(
                f"The backup contains {before.length} bytes of ledger {ledger_id}, but the broker has only "
                f"{length} bytes: since the last backup, the broker has lost data, or its data directory was "
                "replaced. Use a new backup directory"
            )
        if before.length == length:
            unchanged.append(before)
        else:
            tasks.append(CopyTask(ledger_id, before.length, length, before.crc))
    return tasks, unchanged


def ledgers_without_file(file_sizes: Mapping[int, int], end_offsets: Mapping[int, int]) -> list[int]:
    """Return the ledgers in `checkpoint.db` of the snapshot that have no segment file, because the broker deleted them
    before it created the snapshot's hard links. The caller removes their rows from `checkpoint.db`.
    """
    return [ledger_id for ledger_id, end in end_offsets.items() if end and ledger_id not in file_sizes]


def restore_points(directory: Path) -> list[str]:
    """Return the names of the complete restore points, oldest first. Raises OSError."""
    points = directory / RESTORE_POINTS
    if not points.is_dir():
        return []
    return sorted(
        entry.name
        for entry in os.scandir(points)
        if _POINT_NAME.fullmatch(entry.name) and (Path(entry) / MANIFEST).exists()
    )


def read_head(directory: Path) -> BackupHead:
    path = directory / BACKUP_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(f"the directory {directory} is not a backup directory: {BACKUP_FILE} is missing") from None
    return decode_checked(data, BackupHead, path)


def read_manifest(directory: Path, point: str) -> Manifest:
    path = directory / RESTORE_POINTS / point / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        known = ", ".join(restore_points(directory)) or "none"
        raise BackupError(f"the backup {directory} has no restore point {point}. Restore points: {known}") from None
    manifest = decode_checked(data, Manifest, path)
    # Names become paths in the data directory, so an untrusted backup must not name other files.
    if sorted(database.name for database in manifest.databases) != sorted(DATABASES):
        raise BackupError(f"{path} is damaged: its list of databases is not {', '.join(DATABASES)}")
    return manifest


def unused_ledgers(manifests: Iterable[Manifest], present: Iterable[int]) -> list[int]:
    used = {ledger.ledger for manifest in manifests for ledger in manifest.ledgers}
    return sorted(set(present) - used)
