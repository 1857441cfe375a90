"""What is counted of a metadata store's operations."""

import pytest

from pybroker.errors import BadVersionError
from pybroker.metadata.measured import MeasuredMetadataStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations


class SteppingClock(Clock):
    """Each look at it takes two milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        self.now_ms += 2
        return self.now_ms


async def test_operations_are_counted_by_kind_and_by_how_they_end() -> None:
    store = MeasuredMetadataStore(MemoryMetadataStore(), SteppingClock(), SlowOperations(Clock(), 0))
    await store.put("/a", b"12345")
    await store.put("/a/b", b"1")
    with pytest.raises(BadVersionError):
        await store.put("/a", b"123", NOT_EXISTING)
    await store.get("/a")
    await store.children("/")
    await store.delete("/a")
    await store.delete_tree("/a")
    took_ms = store.latencies.took_ms
    assert {key: buckets.count for key, buckets in took_ms.items()} == {
        ("get", "success"): 2,
        ("get", "fail"): 0,
        ("put", "success"): 2,
        ("put", "fail"): 1,
        ("del", "success"): 2,
        ("del", "fail"): 0,
    }
    assert took_ms["put", "success"].total == 4
    assert store.latencies.put_bytes == 6
