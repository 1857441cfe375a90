"""The stores of a broker in the test's process: memory, the model of bookies, or real bookies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random

from tests.support.bookkeeper_store_model import ModelCluster
from tests.zookeeper.conftest import make_chroot

from pybroker.bookkeeper_store.bookkeeper_stores import BookKeeperStores
from pybroker.broker_assembly import Stores
from pybroker.embedding.stores import Fullness, MemoryStores
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.runtime.runtime import Runtime
from pybroker.zookeeper import ClientOptions, ServerAddresses

_numbers = count()


class StoreChoice(ABC):
    """Opens the stores of one broker after the other, each without data."""

    @abstractmethod
    async def open(self, runtime: Runtime, fullness: Fullness) -> Stores: ...

    @abstractmethod
    async def close(self) -> None:
        """Close the stores that were opened last."""


class InMemory(StoreChoice):
    """Everything in memory; `fullness` fills the disk."""

    async def open(self, runtime: Runtime, fullness: Fullness) -> Stores:
        return MemoryStores(fullness).stores()

    async def close(self) -> None:
        """Nothing is open."""


class OnBookKeeper(StoreChoice):
    """Ledgers on BookKeeper. No disk becomes full."""

    def __init__(self) -> None:
        self._opened: list[tuple[BookKeeperStores, MetadataStore]] = []

    @abstractmethod
    async def _opened_stores(self, runtime: Runtime) -> tuple[BookKeeperStores, MetadataStore]: ...

    async def open(self, runtime: Runtime, fullness: Fullness) -> Stores:
        opened, metadata = await self._opened_stores(runtime)
        self._opened.append((opened, metadata))
        return Stores(metadata, opened.ledgers, opened.cursors, opened.records, opened.schemas)

    async def close(self) -> None:
        opened, metadata = self._opened.pop()
        await opened.close()
        await metadata.close()


class OnModelBookies(OnBookKeeper):
    """The model of bookies, and metadata in memory."""

    async def _opened_stores(self, runtime: Runtime) -> tuple[BookKeeperStores, MetadataStore]:
        cluster, metadata = ModelCluster(Random(1)), MemoryMetadataStore()
        return BookKeeperStores(cluster.client(runtime.clock), cluster.options, metadata, runtime), metadata


class OnRealBookies(OnBookKeeper):
    """Real bookies, and metadata below a new node of their ZooKeeper for each broker."""

    def __init__(self, zookeeper: str) -> None:
        super().__init__()
        self._zookeeper = ServerAddresses.parse(zookeeper)

    async def _opened_stores(self, runtime: Runtime) -> tuple[BookKeeperStores, MetadataStore]:
        chroot = ServerAddresses(self._zookeeper.servers, f"/broker-{next(_numbers)}")
        await make_chroot(chroot)
        metadata = await ZooKeeperMetadataStore.open(chroot, ClientOptions(session_timeout_ms=10_000), 30.0, None)
        return await BookKeeperStores.open(self._zookeeper, metadata, runtime), metadata


_choices: list[StoreChoice] = [InMemory()]


def chosen_stores() -> StoreChoice:
    """Return the stores of brokers that start now."""
    return _choices[-1]


@contextmanager
def choice_of_stores(choice: StoreChoice) -> Iterator[None]:
    """Brokers that start within the block use these stores."""
    _choices.append(choice)
    try:
        yield
    finally:
        _choices.remove(choice)
