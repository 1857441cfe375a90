"""A checkpoint: moves entries from the journal to segment files and commits their new state in one transaction.

Order: write and sync segment files and their directory; commit the table's transaction (journal position, extents,
cursors); release the journal files before that position. After a crash before the transaction, recovery writes the same
bytes again from the journal. Invariant: a checkpoint never changes a segment before its committed extent. It runs in
its own thread and receives only objects that do not change before it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.local_store.checkpoint.checkpoint_table import CheckpointTable, TableChange
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_tail import Leftovers
from pybroker.local_store.segments.segment_writer import SegmentWriter, parse_segment_name, segment_path
from pybroker.storage_format.segment_layout import LedgerExtent, SegmentIndex

# Above this number of files, one sync of the file system is cheaper.
MAX_SINGLE_SYNCS = 256


@dataclass(slots=True)
class LedgerWork:
    """Entries of one ledger that a checkpoint must write after the committed `extent`."""

    ledger_id: int
    extent: LedgerExtent
    index: SegmentIndex
    payloads: Sequence[bytes | memoryview]
    message_counts: Sequence[int]
    is_sealed: bool
    is_deleted: bool = False  # set by the event loop while the checkpoint runs


@dataclass(slots=True)
class CheckpointJob:
    """Input of one checkpoint. `run_checkpoint` adds the new extents to `change`."""

    change: TableChange
    works: list[LedgerWork] = field(default_factory=list)
    deleted_ledgers: list[int] = field(default_factory=list)
    leftovers: Leftovers = Leftovers.REFUSE
    syncs_slices: bool = True  # False if no appends run at the same time: then one sync per file is faster
    written_bytes: int = 0
    counts_files: bool = False  # True for the last checkpoint of a clean stop, which stores the number of segment files


def run_checkpoint(
    disk: Disk, directory: Path, table: CheckpointTable, job: CheckpointJob
) -> dict[int, LedgerLocation]:
    """Run a checkpoint. Return the new location of each ledger of `job.works` in its segment file, except of deleted
    ledgers.

    Without disk space the function raises OSError, commits nothing, and can be called again with the same job. Any
    other OSError or StoreError is fatal for the store.
    """
    moved: dict[int, LedgerLocation] = {}
    all_files = disk.open_file_system(directory) if len(job.works) > MAX_SINGLE_SYNCS else None
    job.written_bytes = 0
    must_sync_directory = len(job.deleted_ledgers) > 0
    try:
        for work in job.works:
            if work.is_deleted:
                continue
            must_sync_directory |= work.extent.end_offset == 0
            path = segment_path(directory, work.ledger_id)
            moved[work.ledger_id] = _write_ledger(disk, path, work, job, must_sync=all_files is None)
            job.written_bytes += moved[work.ledger_id].extent.end_offset - work.extent.end_offset
            _forget_if_deleted(disk, path, work)
        for ledger_id in job.deleted_ledgers:
            disk.unlink(segment_path(directory, ledger_id))
        if all_files is not None:
            all_files.sync()
    finally:
        if all_files is not None:
            all_files.close()
    if must_sync_directory:
        disk.sync_directory(directory)
    _describe(job, moved)
    if job.counts_files:
        job.change.facts["segment_files"] = sum(
            parse_segment_name(name) is not None for name in disk.list_names(directory)
        )
    table.commit(job.change)
    return moved


def _forget_if_deleted(disk: Disk, path: Path, work: LedgerWork) -> None:
    # The ledger was deleted during the write. The deletion removes the file before or after this check.
    if work.is_deleted:
        disk.unlink(path)


def _describe(job: CheckpointJob, moved: dict[int, LedgerLocation]) -> None:
    job.change.closed_ledgers = list(job.deleted_ledgers)
    for work in job.works:
        if work.is_sealed:
            job.change.extents.pop(work.ledger_id, None)
            job.change.closed_ledgers.append(work.ledger_id)
        elif work.ledger_id in moved:
            job.change.extents[work.ledger_id] = moved[work.ledger_id].extent
        else:
            # The deletion record, and perhaps more entries, are in the journal after the mark. A replay starts from the
            # state at the mark.
            job.change.extents[work.ledger_id] = _extent_with(work)


def _extent_with(work: LedgerWork) -> LedgerExtent:
    """Return the extent that the ledger's segment file will have after the entries of `work` are written."""
    before = work.extent
    return LedgerExtent(
        before.end_offset,
        before.entry_count + len(work.payloads),
        before.message_count + sum(work.message_counts),
        before.size_bytes + sum(map(len, work.payloads)),
    )


def _write_ledger(disk: Disk, path: Path, work: LedgerWork, job: CheckpointJob, *, must_sync: bool) -> LedgerLocation:
    with disk.open_for_write(path) as file:
        # A copy, so that a retry starts from the same index.
        writer = SegmentWriter(
            file,
            work.ledger_id,
            work.extent,
            work.index.copy(),
            syncs_slices=must_sync and job.syncs_slices,
            leftovers=job.leftovers,
        )
        if work.payloads:
            writer.write(work.payloads, work.message_counts)
        if work.is_sealed:
            writer.seal()
        if must_sync:
            file.sync()
    return LedgerLocation(writer.extent, writer.index)
