"""Repair of `metadata.db`: reads undamaged values, reports possible losses, and writes the values to a new file.

A damaged database is read row by row from both ends, then page by page without SQLite (`salvaged_metadata.py`). Only
values with a correct checksum are used.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from pybroker.disk.database import SQLITE_FAILURES
from pybroker.errors import StoreError
from pybroker.metadata.commit_mark import decode_mark
from pybroker.metadata.document_layout import converted_documents
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.metadata.sqlite_table import (
    LAYOUT_VERSION,
    SAME_TABLES_SINCE,
    prepare,
    require_whole,
    row_checksum,
    save_totals,
)
from pybroker.tools.data_files import LOG_SUFFIX, METADATA_FILE, METADATA_MARK, DataFiles, NotUsable
from pybroker.tools.salvaged_metadata import Row, SalvagedMetadata
from pybroker.tools.sqlite_log import find_log_damage
from pybroker.tools.stored_state import Finding

LAST_CHANGES = (
    f"{METADATA_FILE}: perhaps the last changes: created objects are lost, and deleted objects may exist again"
)


@dataclass(slots=True)
class MetadataRows:
    """The undamaged values of a `metadata.db`."""

    rows: list[Row] = field(default_factory=list)
    is_damaged: bool = False
    is_mark_damaged: bool = False
    """The marker file is unreadable. It must be removed, and the last changes may be lost."""
    findings: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def read_metadata(files: DataFiles) -> MetadataRows:
    found = MetadataRows()
    if not files.has(METADATA_FILE):
        if files.has(METADATA_MARK):
            found.is_damaged = True
            found.findings.append(f"damage: {METADATA_FILE}: is missing")
            found.lost.append(lost_values(None))
        return found
    for finding in doubts(files):
        found.findings.append(finding.line())
        found.is_mark_damaged |= finding.file == METADATA_MARK
        found.is_damaged |= finding.file != METADATA_MARK  # a damaged log is removed anyway
    try:
        asyncio.run(_open_and_close(files.copy_of(METADATA_FILE)))
    except StoreError as error:
        found.is_damaged = True
        _require_known_layout(files)
        found.findings.append(f"damage: {METADATA_FILE}: {files.told(error)}")
    if found.findings:
        found.lost.append(LAST_CHANGES)
    _read_rows(files, found)
    if _has_earlier_documents(files, found.rows):
        found.rows = _converted(found.rows)
    return found


def doubts(files: DataFiles) -> list[Finding]:
    """Return findings about changes that may be lost although the broker starts: an unreadable marker file
    (`metadata.end`, the number of commits), or a damaged write-ahead log without a readable marker file.
    """
    has_mark = files.has(METADATA_MARK)
    found = []
    if has_mark and decode_mark(files.copy_of(METADATA_MARK).read_bytes()) is None:
        has_mark = False
        reason = f"damaged: it is unknown whether the last changes of {METADATA_FILE} exist"
        found.append(Finding(METADATA_MARK, None, "", reason))
    # With a marker file, damage in the log proves nothing, because a refused commit looks the same.
    offset = None if has_mark else find_log_damage(files.log_of(METADATA_FILE))
    if offset is not None:
        found.append(Finding(f"{METADATA_FILE}{LOG_SUFFIX}", offset, "", "wrong checksum of a committed page"))
    return found


def write_metadata(path: Path, rows: list[Row]) -> None:
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        totals = prepare(connection)
        connection.execute("BEGIN")
        for row in rows:
            checksum = row_checksum(*row)
            connection.execute("INSERT INTO metadata VALUES (?, ?, ?, ?)", (*row, checksum))
            totals.added(checksum)
        save_totals(connection, totals)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _require_known_layout(files: DataFiles) -> None:
    """Raise NotUsable for an unknown layout, because its values would count as lost."""
    connection = files.open_database(METADATA_FILE)
    try:
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
    except SQLITE_FAILURES:
        return
    finally:
        connection.close()
    if layout != 0 and not SAME_TABLES_SINCE <= layout <= LAYOUT_VERSION:
        raise NotUsable(
            f"{METADATA_FILE} has layout {layout}, but this program supports {LAYOUT_VERSION}: use a newer pybroker"
        )


def _has_earlier_documents(files: DataFiles, rows: list[Row]) -> bool:
    try:
        connection = files.open_database(METADATA_FILE)
        try:
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.close()
    except SQLITE_FAILURES:
        return any(path.startswith("/admin/tenants/") for path, _, _ in rows)  # each store of that layout has tenants
    return bool(layout == SAME_TABLES_SINCE)


def _converted(rows: list[Row]) -> list[Row]:
    values = {path: (value, version) for path, value, version in rows}
    conversion = converted_documents(values)
    for path in conversion.removed:
        del values[path]
    values |= conversion.written
    return sorted((path, value, version) for path, (value, version) in values.items())


def _read_rows(files: DataFiles, found: MetadataRows) -> None:
    rows: dict[str, Row] = {}
    damaged: dict[str, str] = {}
    stored_count: int | None = None
    for order in ("ASC", "DESC"):
        try:
            connection = files.open_database(METADATA_FILE)
            try:
                statement = f"SELECT path, value, version, checksum FROM metadata ORDER BY path {order}"
                for path, value, version, checksum in connection.execute(statement):
                    try:
                        require_whole(path, value, version, checksum)
                    except StoreError as error:
                        damaged[repr(path)] = str(error)
                    else:
                        rows[path] = (path, value, version)
                ((stored_count,),) = connection.execute("SELECT row_count FROM totals").fetchall()
            finally:
                connection.close()
        except (*SQLITE_FAILURES, ValueError) as error:  # ValueError: a single unreadable row
            found.findings.append(f"damage: {METADATA_FILE}: {error}")
    if found.is_damaged and _add_from_pages(files, found, rows, damaged):
        found.rows = sorted(rows.values())
        return
    found.rows = sorted(rows.values())
    found.lost += [f"metadata value {path}: {reason}" for path, reason in sorted(damaged.items())]
    if found.is_damaged and (stored_count is None or stored_count > len(rows) + len(damaged)):
        found.lost.append(lost_values(None if stored_count is None else stored_count - len(rows) - len(damaged)))


def _add_from_pages(files: DataFiles, found: MetadataRows, rows: dict[str, Row], damaged: dict[str, str]) -> bool:
    """Add values that SQLite cannot read. Return True if the values are exactly those of the last commit."""
    salvaged = SalvagedMetadata(files.content_of(METADATA_FILE), files.log_of(METADATA_FILE))
    exact = salvaged.all_values({path for path in salvaged.older if repr(path) in damaged})
    mark = decode_mark(files.content_of(METADATA_MARK)) if files.has(METADATA_MARK) else None
    if exact is not None and salvaged.totals is not None and mark is not None and mark <= salvaged.totals.commits:
        rows.clear()
        rows.update(exact)
        found.lost.remove(LAST_CHANGES)
        return True
    rows.update(salvaged.newest)
    for path, row in salvaged.older.items():
        if path not in rows and repr(path) in damaged:
            rows[path] = row
            damaged[repr(path)] += f"; the older version {row[2]} is used instead"
    return False


def lost_values(count: int | None) -> str:
    """Return a line of the report about `count` lost values. `count` None means that their number is unknown."""
    how_many = "perhaps values" if count is None else f"{count} values"
    return f"{METADATA_FILE}: {how_many} with unknown paths, perhaps topics with all of their data"


async def _open_and_close(path: Path) -> None:
    await (await SqliteMetadataStore.open(path, mark=path.with_name(METADATA_MARK))).close()
