"""Plain counters of the local store, read at scrape time. Written by the loop, but for `journal_sync_s` (the writer)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """Everything since the start, but for the last group, which is now."""

    journal_batches: int = 0
    journal_bytes: int = 0
    journal_entries: int = 0
    journal_sync_s: float = 0.0
    journal_refused_batches: int = 0
    refused_entries: int = 0  # because there is no space
    # From the oldest append of a batch to its completion on the loop.
    submit_to_completion_s: float = 0.0
    submit_to_completion_max_s: float = 0.0

    checkpoints: int = 0
    checkpoint_s: float = 0.0
    checkpoint_retries: int = 0
    checkpoint_bytes: int = 0
    segment_reads: int = 0
    damaged_entries: int = 0  # met by readers, each once
    damaged_segments: int = 0  # files of which a part other than an entry was found damaged
    recovered_entries: int = 0
    recovered_bytes: int = 0
    dropped_entries_of_deleted_ledgers: int = 0
    recovery_s: float = 0.0

    journal_queue_depth: int = 0
    held_runs: int = 0
    journal_live_bytes: int = 0
    live_ledgers: int = 0
    free_bytes: int = 0
    publishing_refused: int = 0  # 1 while there is no space for entries
