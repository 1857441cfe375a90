from __future__ import annotations

import pytest

from pybroker.local_store.store_counters import StoreStats


def test_a_write_counts_in_the_sum_and_in_its_bucket() -> None:
    stats = StoreStats()
    stats.synced(0.4)
    stats.synced(3)
    assert stats.journal_sync_s == pytest.approx(0.0034)
    assert stats.journal_sync_ms.count == 2
    assert stats.journal_sync_ms.counts[stats.journal_sync_ms.bounds.index(0.5)] == 1
    assert stats.journal_sync_ms.counts[stats.journal_sync_ms.bounds.index(5)] == 1


def test_plain_figures_and_histograms_are_told_apart() -> None:
    stats = StoreStats(journal_batches=3)
    assert stats.figures()["journal_batches"] == 3
    assert set(stats.histograms()) == {"journal_batch_bytes", "journal_batch_entries", "journal_sync_ms"}
    assert not stats.figures().keys() & stats.histograms().keys()
