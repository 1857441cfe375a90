"""The metadata store of a configuration, for a command: ZooKeeper, or the data directory of a stopped broker."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StoreError
from pybroker.local_store.data_directory import DataDirectoryInUse, DataDirectoryLock
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.routed_metadata_store import RoutedMetadataStore
from pybroker.metadata.shared_metadata import (
    CONFIGURATION_PATHS,
    SharedAddresses,
    client_options,
    require_layout,
    require_usable,
    shared_addresses,
)
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.tools.data_files import LOG_SUFFIX, METADATA_FILE, METADATA_MARK, NotUsable

if TYPE_CHECKING:
    from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore


def store_name(config: BrokerConfig) -> str:
    """Return the store's name for messages."""
    if config.metadata_store_url:
        return config.metadata_store_url
    return str(Path(config.data_directory) / METADATA_FILE)


@asynccontextmanager
async def configured_store(
    config: BrokerConfig, *, is_changed: bool, requires_cluster: bool = True
) -> AsyncIterator[MetadataStore]:
    """Open the store. Unless `is_changed`, a data directory is only read, from a copy.

    Raises ConfigError, StoreError and NotUsable for a store that the command must not use.
    """
    # Where ledgers are stored does not matter here.
    addresses = shared_addresses(config.replace(ledger_store="local"))
    async with AsyncExitStack() as opened:
        if addresses is not None:
            store = await _shared_store(config, addresses, opened)
            await store.sync()
            if requires_cluster:
                await require_usable(store, config.cluster_name, store_name(config))
            else:
                await require_layout(store, store_name(config))
        else:
            store = await _embedded_store(config, opened, is_changed=is_changed)
            if requires_cluster:
                await _require_cluster(store, config)
        yield store


async def _shared_store(config: BrokerConfig, addresses: SharedAddresses, opened: AsyncExitStack) -> MetadataStore:
    from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore  # noqa: PLC0415

    async def connected(address: object) -> ZooKeeperMetadataStore:
        store = await ZooKeeperMetadataStore.open(address, options, deadline_s)  # type: ignore[arg-type]
        opened.push_async_callback(store.close)
        return store

    options, deadline_s = client_options(config), float(config.metadata_store_start_timeout_seconds)
    shared = await connected(addresses.metadata)
    if addresses.configuration is None:
        return shared
    return RoutedMetadataStore(dict.fromkeys(CONFIGURATION_PATHS, await connected(addresses.configuration)), shared)


async def _embedded_store(config: BrokerConfig, opened: AsyncExitStack, *, is_changed: bool) -> MetadataStore:
    if config.metadata_store == "memory":
        raise ConfigError("metadataStore=memory keeps nothing: set metadataStoreUrl, or metadataStore=sqlite")
    directory = Path(config.data_directory)
    _lock(directory, opened)
    if not (directory / METADATA_FILE).exists():
        raise NotUsable(f"{directory} contains no {METADATA_FILE}: start a broker with this data directory once")
    if not is_changed:
        directory = opened.enter_context(_copied(directory))
    store = await SqliteMetadataStore.open(directory / METADATA_FILE, mark=directory / METADATA_MARK)
    opened.push_async_callback(store.close)
    return store


def _lock(directory: Path, opened: AsyncExitStack | ExitStack) -> None:
    try:
        lock = DataDirectoryLock(directory, is_only_looked_at=True)
    except DataDirectoryInUse as error:
        raise NotUsable(f"{error}. Stop the broker first.") from None
    except OSError as error:
        raise NotUsable(f"{directory} is not a data directory: {error.strerror or error}") from error
    opened.callback(lock.release)


@contextmanager
def _copied(directory: Path) -> Iterator[Path]:
    """SQLite changes a database when it opens it after a crash, so a copy is read."""
    with tempfile.TemporaryDirectory(prefix="pybroker-") as copies:
        try:
            for name in (METADATA_FILE, METADATA_FILE + LOG_SUFFIX, METADATA_MARK):
                if (directory / name).exists():
                    shutil.copyfile(directory / name, Path(copies) / name)
        except OSError as error:
            raise NotUsable(f"the metadata cannot be copied: {error}") from error
        yield Path(copies)


async def _require_cluster(store: MetadataStore, config: BrokerConfig) -> None:
    clusters = await store.children(metadata_paths.CLUSTERS)
    if config.cluster_name not in clusters:
        raise StoreError(
            f"clusterName is {config.cluster_name}, but {store_name(config)} has {', '.join(clusters) or 'no cluster'}:"
            " give the name of its cluster with --cluster"
        )
