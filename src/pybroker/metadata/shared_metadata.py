"""The metadata store that several brokers share: its address in the configuration, its opening, and checks at the start.

All checks happen before this broker writes anything. The modules of ZooKeeper are imported only if they are used: a broker
with an embedded store starts without them.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.ledger_store_kind import LedgerStoreKind, ledger_store_kind
from pybroker.errors import AdminError, BadVersionError, MetadataUnavailable, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore
from pybroker.metadata.routed_metadata_store import RoutedMetadataStore
from pybroker.metadata.session_report import SessionEvent
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from pybroker.metadata.resources import Resources
    from pybroker.zookeeper.addresses import ServerAddresses
    from pybroker.zookeeper.client import ClientOptions

PREFIX = "zk:"
BOOTSTRAP_ATTEMPTS = 5
CONFLICT = 409
LAYOUT_PATH = "/pybroker/layout"
"""The version of the documents that only pybroker writes."""
LAYOUT_VERSION = 1
BROKERS_PATH = "/pybroker/brokers"
"""Parent of one session value for each running broker, by its id: two brokers cannot have the same one."""
DIRECTORY_ID_PATH = "/local-store/directory-id"
"""In the embedded store: identifies this data directory."""
LOCAL_STORE = "/local-store"
"""What belongs to the data directory."""
CONFIGURATION_PATHS = (
    metadata_paths.CLUSTERS,
    metadata_paths.POLICIES,
    metadata_paths.PARTITIONED_TOPICS,
    metadata_paths.RESOURCE_GROUPS,
)
"""What is in the configuration store, which several clusters may share. As in Pulsar."""


class SharedAddresses(NamedTuple):
    """`configuration` is None if the configuration is in the same store."""

    metadata: ServerAddresses
    configuration: ServerAddresses | None


def shared_addresses(config: BrokerConfig) -> SharedAddresses | None:
    """Return the addresses of the shared stores; None without `metadataStoreUrl`. Raises ConfigError."""
    metadata = parse_url("metadataStoreUrl", config.metadata_store_url)
    configuration = parse_url("configurationMetadataStoreUrl", config.configuration_metadata_store_url)
    if metadata is None:
        if configuration is not None:
            raise ConfigError("configurationMetadataStoreUrl is set and metadataStoreUrl is empty: set both or neither")
        return None
    ledger_store_kind(config)  # refuses a configuration that names no store
    return SharedAddresses(metadata, None if configuration == metadata else configuration)


def parse_url(key: str, url: str) -> ServerAddresses | None:
    """Return None for an empty text. Raises ConfigError for a store that is not supported."""
    url = url.strip()
    if not url:
        return None
    if not url.startswith(PREFIX):
        raise ConfigError(
            f"{key} cannot be {url!r}: supported are {PREFIX}host1:2181,host2:2181/path for ZooKeeper, and nothing for the"
            " embedded store of metadataStore"
        )
    from pybroker.zookeeper.addresses import ServerAddresses  # noqa: PLC0415

    try:
        return ServerAddresses.parse(url.removeprefix(PREFIX))
    except ValueError as error:
        raise ConfigError(f"{key} cannot be {url!r}: {error}") from error


def client_options(config: BrokerConfig) -> ClientOptions:
    """Return the client's options. Raises ConfigError for files that cannot be read."""
    from pybroker.zookeeper.client import ClientOptions  # noqa: PLC0415
    from pybroker.zookeeper.operations import CREATOR_ACL, OPEN_ACL  # noqa: PLC0415

    tls: ssl.SSLContext | None = None
    if config.metadata_store_tls_enabled:
        try:
            tls = ssl.create_default_context(cafile=config.metadata_store_tls_trust_certs_file_path or None)
            if config.metadata_store_tls_certificate_file_path:
                tls.load_cert_chain(
                    config.metadata_store_tls_certificate_file_path, config.metadata_store_tls_key_file_path or None
                )
        except OSError as error:
            raise ConfigError(f"metadataStoreTls* files cannot be used: {error}") from error
    digest = config.metadata_store_digest_credentials
    if digest and ":" not in digest:
        raise ConfigError("metadataStoreDigestCredentials must be user:password")
    return ClientOptions(
        session_timeout_ms=config.metadata_store_session_timeout_millis,
        operation_timeout_ms=config.metadata_store_operation_timeout_seconds * 1000,
        tls=tls,
        credentials=(("digest", digest.encode()),) if digest else (),
        acl=CREATOR_ACL if config.metadata_store_acl_creator_only else OPEN_ACL,
    )


async def open_shared_metadata(
    config: BrokerConfig, addresses: SharedAddresses, embedded: MetadataStore, runtime: Runtime
) -> MetadataStore:
    """Connect, and return a store that keeps local documents in `embedded`, which it then owns.

    Waits for the servers up to `metadataStoreStartTimeoutSeconds`. Raises StoreError and ConfigError.
    """
    from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore  # noqa: PLC0415

    options = client_options(config)
    deadline_s = float(config.metadata_store_start_timeout_seconds)
    shared = await ZooKeeperMetadataStore.open(addresses.metadata, options, deadline_s, runtime.random)
    routes: dict[str, MetadataStore] = {LOCAL_STORE: embedded}
    if ledger_store_kind(config) is not LedgerStoreKind.BOOKKEEPER:
        routes[metadata_paths.MANAGED_LEDGERS] = embedded  # ids of local ledgers mean nothing to other brokers
    opened = [shared]
    try:
        if addresses.configuration is not None:
            configuration = await ZooKeeperMetadataStore.open(
                addresses.configuration, options, deadline_s, runtime.random
            )
            opened.append(configuration)
            routes |= dict.fromkeys(CONFIGURATION_PATHS, configuration)
        store = RoutedMetadataStore(routes, shared)
        await require_usable(store, config.cluster_name, str(addresses.metadata))
    except BaseException:
        for each in opened:
            await each.close()
        raise
    return store


async def require_usable(store: MetadataStore, cluster_name: str, where: str) -> None:
    """Raises StoreError for an unprepared tree, another cluster, and documents of a newer version."""
    clusters = await store.children(metadata_paths.CLUSTERS)
    if not clusters:
        raise StoreError(
            f"the metadata store {where} has no cluster: prepare it with `pybroker metadata init --cluster {cluster_name}`"
        )
    if cluster_name not in clusters:
        raise StoreError(
            f"clusterName is {cluster_name}, but the metadata store {where} has {', '.join(clusters)}: correct clusterName"
            " or metadataStoreUrl, or add the cluster with `pybroker metadata init`"
        )
    await require_layout(store, where)


async def require_layout(store: MetadataStore, where: str) -> None:
    """Raises StoreError for documents of a newer version."""
    found = await store.get(LAYOUT_PATH)
    version = LAYOUT_VERSION if found is None else _decoded_layout(found.value, where)
    if version > LAYOUT_VERSION:
        raise StoreError(
            f"the documents of pybroker in {where} have version {version}, this version of pybroker reads up to"
            f" {LAYOUT_VERSION}: start the newer version that wrote them"
        )


def _decoded_layout(value: bytes, where: str) -> int:
    try:
        return int(json.loads(value)["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"the metadata at {LAYOUT_PATH} in {where} cannot be read: {error}") from error


async def write_layout(store: MetadataStore) -> None:
    """Record the version of pybroker's documents, unless it is there."""
    if await store.get(LAYOUT_PATH) is None:
        try:
            await store.put(LAYOUT_PATH, json.dumps({"version": LAYOUT_VERSION}).encode(), NOT_EXISTING)
        except BadVersionError:
            return  # another broker started at the same time


async def bootstrap_shared(resources: Resources, cluster_name: str, namespaces: Iterable[str] = ()) -> None:
    """Like `resources.bootstrap`, beside other brokers that create the same objects at the same time."""
    for _ in range(BOOTSTRAP_ATTEMPTS - 1):
        try:
            await resources.bootstrap(cluster_name, namespaces)
        except AdminError as error:
            if error.status != CONFLICT:
                raise
            await resources.read_again()
        else:
            return
    await resources.bootstrap(cluster_name, namespaces)


class BrokerIdentity:
    """Holds this broker's id in the shared store, so that no second broker uses it at the same time.

    After a lost session the id is claimed again. An earlier process of the same data directory no longer runs, because the
    directory has a lock, so what it left is replaced.
    """

    def __init__(self, store: MetadataStore, broker_id: str, directory_id: str, facts: Mapping[str, object]) -> None:
        self._store = store
        self._path = f"{BROKERS_PATH}/{broker_id}"
        self._broker_id = broker_id
        self._directory_id = directory_id
        self._value = json.dumps({**facts, "directoryId": directory_id}).encode()
        self._tasks = TaskOwner("broker-identity")

    async def claim(self) -> None:
        """Raises StoreError if another broker has the id."""
        for _ in range(10):
            try:
                await self._store.put_for_session(self._path, self._value)
            except BadVersionError:
                found = await self._store.get(self._path)
                if found is None:
                    continue
                holder = _decoded_holder(found.value)
                if holder.get("directoryId") != self._directory_id:
                    raise StoreError(
                        f"another broker has the id {self._broker_id}: {holder or 'its description cannot be read'}. Give each"
                        " broker its own advertisedAddress and webServicePort; if that broker has just been killed, wait"
                        " until its session with the metadata store ends"
                    ) from None
                try:
                    await self._store.delete(self._path, found.version)
                except BadVersionError:
                    continue
            else:
                self._store.listen(self._session_changed)
                return
        raise StoreError(f"the id {self._broker_id} is being claimed by several brokers")

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.RENEWED:
            self._tasks.start(self._claim_again(), "claim")

    async def _claim_again(self) -> None:
        try:
            await self._store.put_for_session(self._path, self._value)
        except BadVersionError:
            logs.error("broker_id.taken", broker_id=self._broker_id, action="stop one of the two brokers")
        except MetadataUnavailable:
            return  # lost again: the next session claims it
        except StoreError as error:
            logs.error("broker_id.claim_failed", broker_id=self._broker_id, error=str(error))

    async def close(self) -> None:
        await self._tasks.close()


def _decoded_holder(value: bytes) -> dict[str, object]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def directory_id(embedded: MetadataStore, runtime: Runtime) -> str:
    """Return the id of the data directory, created at its first use with a shared store."""
    found = await embedded.get(DIRECTORY_ID_PATH)
    if found is not None:
        return found.value.decode(errors="replace")
    created = f"{runtime.random.getrandbits(128):032x}"
    await embedded.put(DIRECTORY_ID_PATH, created.encode())
    return created
