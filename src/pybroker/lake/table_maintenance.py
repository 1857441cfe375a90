"""Table maintenance: merges small files, expires old versions, and deletes orphaned files.

It may run in the pipeline or in a separate process. If another writer commits during a merge, the merge is committed
after it, provided that the merged files are still in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pybroker.lake import steps
from pybroker.lake.orphaned_files import MERGED_PREFIX
from pybroker.lake.table_format import Change, CommitConflict, LakeTable, TableFile, TableState
from pybroker.lake.writing import DEFAULT_TARGET_BYTES, FileLayout, FileWriter

MAX_TRIES = 20


@dataclass(frozen=True)
class MaintenanceOptions:
    """Options of maintenance. Times in milliseconds, sizes in bytes."""

    merge_at_count: int = 16
    """Number of files of one partition and size class that are merged into one."""
    target_file_bytes: int = DEFAULT_TARGET_BYTES
    keep_versions: int = 50
    keep_ms: int = 0
    """Minimum age of expired versions, in addition to `keep_versions`."""
    orphan_age_ms: int = 24 * 3600 * 1000
    """Minimum age of deleted orphaned files.

    Longer than any commit takes, because a younger file may belong to a pending commit.
    """
    compression: str = "zstd"
    storage_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Done:
    """Numbers of files and versions that maintenance has changed."""

    merged_files: int = 0
    merged_into: int = 0
    expired_versions: int = 0
    removed_orphans: int = 0


def groups_to_merge(files: Sequence[TableFile], options: MaintenanceOptions) -> list[list[TableFile]]:
    """Return groups of files of one partition and similar size. Each group becomes about one file.

    The files of a group belong to one size class; each class is `merge_at_count` times as large as the previous one. A
    row is therefore rewritten about once in each class, instead of at each merge.
    """
    classes: dict[tuple[int | None, int], list[TableFile]] = {}
    for file in files:
        if not file.is_of_present_layout or file.size_bytes * 2 > options.target_file_bytes:
            continue
        size_class, limit = 0, 64 * 1024
        while file.size_bytes > limit:
            size_class, limit = size_class + 1, limit * options.merge_at_count
        classes.setdefault((file.partition, size_class), []).append(file)
    groups: list[list[TableFile]] = []
    for members in classes.values():
        group: list[TableFile] = []
        for file in members:
            group.append(file)
            if (
                len(group) >= options.merge_at_count
                and sum(f.size_bytes for f in group) * 2 > options.target_file_bytes
            ):
                groups.append(group)
                group = []
        if len(group) >= options.merge_at_count:
            groups.append(group)
    return groups


class Maintenance:
    """The maintenance operations of one table."""

    def __init__(self, table: LakeTable, options: MaintenanceOptions) -> None:
        self._table = table
        self._options = options

    def merge(self) -> Done:
        """Merge small files, with one commit for each group. Skip groups with files that another writer has removed."""
        done = Done()
        state = self._table.load()
        for group in groups_to_merge(self._table.files(state), self._options):
            written = self._merge(state, group)
            if written:
                done.merged_files += len(group)
                done.merged_into += written
            state = self._table.load()
        return done

    def _merge(self, state: TableState, group: list[TableFile]) -> int:
        layout = FileLayout(
            data_location=state.data_location,
            schema=state.schema,
            partitioning=state.partitioning,
            prefix=MERGED_PREFIX,
            target_bytes=self._options.target_file_bytes,
            compression=self._options.compression,
            storage_options=self._options.storage_options,
        )
        writer = FileWriter(layout, state.schema)
        try:
            for batch in self._rows(state, group):
                writer.write(batch)
            files = writer.finish()
        except FileNotFoundError:
            writer.abandon()  # merged and expired by another writer during the read
            return 0
        steps.reached("merged-written")
        expected = sum(file.row_count for file in group)
        found = sum(file.row_count for file in files)
        if min(file.row_count for file in group) >= 0:
            assert expected == found, f"a merge of {expected} rows would write {found}"
        began = state
        for _ in range(MAX_TRIES):
            try:
                self._table.commit(state, Change(state.progress, files, group))
            except CommitConflict:
                state = self._table.load()
                present = {file.location for file in self._table.files(state)}
                is_same = (
                    state.schema.equals(began.schema, check_metadata=True) and state.partitioning == began.partitioning
                )
                if not is_same or any(file.location not in present for file in group):
                    writer.abandon()
                    return 0
                continue
            return len(files)
        writer.abandon()
        return 0

    def _rows(self, state: TableState, group: list[TableFile]) -> Iterator[pa.RecordBatch]:
        for file in group:
            yield from self._table.read_file(state, file).to_batches()

    def expire(self, now_ms: int) -> int:
        for _ in range(MAX_TRIES):
            try:
                return self._table.expire(
                    self._table.load(), self._options.keep_versions, now_ms - self._options.keep_ms
                )
            except CommitConflict:
                continue
        return 0

    def clean(self, now_ms: int, is_dry: bool = False) -> list[str]:
        orphans = self._table.orphans(self._table.load(), now_ms - self._options.orphan_age_ms)
        if not is_dry:
            self._table.delete_files(orphans)
        return orphans
