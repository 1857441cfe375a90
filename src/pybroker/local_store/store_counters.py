"""Counters of the local store, read at scrape time. The event loop writes them; the journal writer calls `synced`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from pybroker.model.counters import Buckets

BATCH_BYTES_BOUNDS: tuple[float, ...] = (1024, 4096, 16384, 65536, 262_144, 1_048_576, 4_194_304)
BATCH_ENTRIES_BOUNDS: tuple[float, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
SYNC_BOUNDS_MS: tuple[float, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 500, 1000)


@dataclass(slots=True)
class StoreStats:
    """Counters since the start of the broker. The fields from `journal_queue_depth` to `publishing_refused` are current
    values.
    """

    journal_batches: int = 0
    journal_bytes: int = 0
    journal_entries: int = 0
    journal_sync_s: float = 0.0
    journal_refused_batches: int = 0
    refused_entries: int = 0  # for lack of disk space
    # From the oldest append of a batch to its completion on the event loop, in seconds.
    submit_to_completion_s: float = 0.0
    submit_to_completion_max_s: float = 0.0

    checkpoints: int = 0
    checkpoint_s: float = 0.0
    checkpoint_retries: int = 0
    checkpoint_bytes: int = 0
    segment_reads: int = 0
    damaged_entries: int = 0  # found by readers; each entry counts once
    damaged_segments: int = 0  # files with damage that affects no entry
    damaged_cursors: int = 0  # their topics cannot be loaded
    recovered_entries: int = 0
    recovered_bytes: int = 0
    journal_cut_bytes: int = 0  # size of a torn journal tail, found at the start
    dropped_entries_of_deleted_ledgers: int = 0
    recovery_s: float = 0.0

    journal_queue_depth: int = 0
    held_runs: int = 0  # wait for a checkpoint, or for capacity in the journal's queue
    journal_live_bytes: int = 0
    live_ledgers: int = 0
    free_bytes: int = 0
    file_system_bytes: int = 0
    publishing_refused: int = 0  # 1 while appends are refused for lack of disk space

    journal_batch_bytes: Buckets = field(default_factory=lambda: Buckets(BATCH_BYTES_BOUNDS))
    journal_batch_entries: Buckets = field(default_factory=lambda: Buckets(BATCH_ENTRIES_BOUNDS))
    journal_sync_ms: Buckets = field(default_factory=lambda: Buckets(SYNC_BOUNDS_MS))

    def synced(self, took_ms: float) -> None:
        self.journal_sync_s += took_ms / 1000
        self.journal_sync_ms.add(took_ms)

    def figures(self) -> dict[str, float]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if not isinstance(value, Buckets)}

    def histograms(self) -> dict[str, Buckets]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Buckets)}
