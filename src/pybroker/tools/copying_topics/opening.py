"""Opens the stores of a copy: the files of a data directory that no broker uses, and BookKeeper with ZooKeeper."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from pybroker.bookkeeper_store.bookkeeper_stores import BookKeeperStores
from pybroker.config import BrokerConfig, ConfigError
from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.ledgers.cursor_store import CursorStore
from pybroker.ledgers.known_data import KnownData, decode_mark, encode_mark
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.local_store.data_directory import DataDirectoryLock, is_copied_directory, write_directory_mark
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.info.info_records import InfoRecords
from pybroker.managed_ledger.info.json_records import JsonRecords
from pybroker.managed_ledger.orphaned_ledgers import named_entry_counts
from pybroker.metadata import metadata_paths
from pybroker.metadata.broker_identity import BROKERS_PATH
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.shared_metadata import open_shared_metadata, shared_addresses
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.runtime.runtime import Runtime
from pybroker.schema.schema_storage import MetadataSchemaStorage, SchemaStorage
from pybroker.wire.broker_entry_metadata import entry_time_ms

JAVA_BROKERS_PATH = "/loadbalance/brokers"
METADATA_FILE, METADATA_MARK = "metadata.db", "metadata.end"


@dataclass(frozen=True, slots=True)
class Side:
    """The stores of the source or the target. `kind` is `local` or `bookkeeper`; `name` is the text for messages."""

    kind: str
    name: str
    ledgers: LedgerStore
    cursors: CursorStore
    records: InfoRecords
    metadata: MetadataStore
    schemas: SchemaStorage


async def open_local(config: BrokerConfig, *, must_exist: bool, opened: AsyncExitStack) -> Side:
    """Lock and open the data directory; `opened` closes it. Raises DataDirectoryInUse, OSError, ForeignDirectory if the
    directory has files but is not a broker's, and StoreError, also if `must_exist` is set and `metadata.db` is missing.
    """
    directory = Path(config.data_directory)
    if must_exist and not (directory / METADATA_FILE).exists():
        raise StoreError(
            f"the directory {directory} contains no {METADATA_FILE}, so it is not a data directory: set --data to the data "
            "directory of a broker"
        )
    opened.callback(DataDirectoryLock(directory, is_copied_into=True).release)
    metadata = await SqliteMetadataStore.open(directory / METADATA_FILE, Disk(), directory / METADATA_MARK)
    opened.push_async_callback(metadata.close)
    found = await metadata.get(metadata_paths.JOURNAL_MARK)
    mark = decode_mark(None if found is None else found.value)
    known = KnownData(mark, await named_entry_counts(metadata), is_copied_directory(directory))

    def lost(error: BaseException) -> None:
        raise StoreError(f"a write to {directory} failed: {error}") from error

    store = await LocalStore.open(directory, LocalStoreOptions(), lost, StoreEnvironment(), entry_time_ms, known=known)
    opened.push_async_callback(store.close)
    write_directory_mark(directory)
    await metadata.keep_beside(metadata_paths.JOURNAL_MARK, lambda: encode_mark(store.mark()))
    return Side("local", str(directory), store, store, JsonRecords(metadata), metadata, MetadataSchemaStorage(metadata))


async def open_bookkeeper(config: BrokerConfig, opened: AsyncExitStack) -> Side:
    """Connect to ZooKeeper and BookKeeper. Raises ConfigError, and StoreError, for example while a broker of the
    cluster runs.
    """
    addresses = shared_addresses(config.replace(ledger_store="bookkeeper"))
    if addresses is None:
        raise ConfigError("no metadata store is given: add --metadata-store zk:host:2181/path, or set metadataStoreUrl")
    runtime = Runtime(config)
    metadata = await open_shared_metadata(config, addresses, runtime.random)
    opened.push_async_callback(metadata.close)
    await _require_no_broker(metadata, str(addresses.metadata))
    stores = await BookKeeperStores.open(addresses.metadata, metadata, runtime)
    opened.push_async_callback(stores.close)
    return Side(
        "bookkeeper", str(addresses.metadata), stores.ledgers, stores.cursors, stores.records, metadata, stores.schemas
    )


async def _require_no_broker(metadata: MetadataStore, name: str) -> None:
    running = [*await metadata.children(BROKERS_PATH), *await metadata.children(JAVA_BROKERS_PATH)]
    if running:
        raise StoreError(
            f"brokers of the cluster in {name} are running and may serve the topic: "
            f"{', '.join(sorted(set(running)))}. Stop these brokers. A killed broker is listed until its "
            "session with the metadata store ends"
        )
