"""What the local store can be told, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalStoreOptions:
    """Defaults are those of conf/broker.conf; the last group has no key there."""

    sync_data: bool = True
    direct_io: bool = True
    max_batch_bytes: int = 4 << 20
    journal_file_bytes: int = 64 << 20
    checkpoint_max_bytes: int = 48 << 20
    checkpoint_max_entries: int = 100_000

    # Beyond these, appends wait for the checkpoint: recovery has to read all of it.
    journal_max_bytes: int = 256 << 20
    journal_max_records: int = 250_000
    read_threads: int = 2
    index_cache_points: int = 262_144  # 8 MiB of indexes of sealed ledgers
    checkpoint_retry_s: float = 1.0
