"""Generated producer names in Pulsar's format `<cluster>-<broker start number>-<producer number>`.

A name is never reused, also after a crash, because deduplication stores sequence ids by producer name.
"""

from __future__ import annotations

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock


class ProducerNames:
    """Generator of unique producer names."""

    def __init__(self, cluster_name: str, store: MetadataStore, clock: Clock) -> None:
        self._cluster_name = cluster_name
        self._store = store
        self._clock = clock
        self._start: int | None = None
        self._given = 0

    async def load(self) -> None:
        """Increment the stored number of broker starts, durably. Call this before the first name is generated. Raises
        StoreError.
        """
        try:
            self._start = await self._next_start()
        except StoreError as error:
            # The count cannot be stored, for example on a full disk. The start time replaces it: a longer name, but
            # also unique.
            self._start = self._clock.wall_ms()
            logs.warning("producer_names.count_failed", error=str(error))

    async def _next_start(self) -> int:
        if self._store.is_shared:
            # As Java brokers do: the numbers of a parent rise over all sessions, and the value disappears with this one.
            path = await self._store.create_sequential(metadata_paths.PRODUCER_NAME_START, b"", for_session=True)
            return int(path.removeprefix(metadata_paths.PRODUCER_NAME_START))
        # The version of a value rises with each put.
        return await self._store.put(metadata_paths.PRODUCER_NAMES, b"")

    def new(self) -> str:
        assert self._start is not None, "names before the start was counted"
        self._given += 1
        return f"{self._cluster_name}-{self._start}-{self._given - 1}"
