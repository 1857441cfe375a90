"""Options of the local store, and their reduction for a small file system."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MIB = 1 << 20
_SMALL_STEP_BYTES = 64 << 10
_SECTOR_BYTES = 512  # size of the smallest journal batch


@dataclass(frozen=True, slots=True)
class LocalStoreOptions:
    """Options of a store, with the defaults of conf/broker.conf. The fields of the last group have no configuration
    keys.
    """

    sync_data: bool = True
    direct_io: bool = True
    max_batch_bytes: int = 4 << 20
    journal_file_bytes: int = 64 << 20
    checkpoint_max_bytes: int = 32 << 20
    checkpoint_max_entries: int = 100_000
    read_threads: int = 2
    bulk_read_threads: int = 8
    # Appends are refused if less space would be free after all journal entries are in segment files.
    min_free_bytes: int = 64 << 20
    reserve_bytes: int = 16 << 20

    # Above these limits appends wait for a checkpoint, because recovery reads the whole journal.
    journal_max_bytes: int = 256 << 20
    journal_max_records: int = 250_000
    max_open_segments: int = 256
    index_cache_points: int = 262_144  # 10 MiB of indexes of sealed ledgers
    checkpoint_retry_s: float = 0.5
    space_poll_s: float = 0.25
    # Cursor snapshots yield to the event loop after this time.
    snapshot_turn_ms: float = 2


def fit_to_file_system(options: LocalStoreOptions, total_bytes: int) -> LocalStoreOptions:
    # A journal file is smaller than the required free space, so the next file fits whenever appends are accepted.
    step_bytes = _MIB if total_bytes >= 32 * _MIB else _SMALL_STEP_BYTES
    return replace(
        options,
        min_free_bytes=min(options.min_free_bytes, total_bytes // 16),
        reserve_bytes=min(options.reserve_bytes, total_bytes // 32),
        journal_file_bytes=min(options.journal_file_bytes, max(1, total_bytes // 32 // step_bytes) * step_bytes),
        journal_max_bytes=min(options.journal_max_bytes, total_bytes // 8),
        journal_max_records=min(options.journal_max_records, total_bytes // 8 // _SECTOR_BYTES),
        checkpoint_max_bytes=min(options.checkpoint_max_bytes, total_bytes // 16),
        checkpoint_max_entries=min(options.checkpoint_max_entries, total_bytes // 16 // _SECTOR_BYTES),
    )
