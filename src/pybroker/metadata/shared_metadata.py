"""The metadata store that several brokers share: its address in the configuration, its opening, and checks at the
start.

All checks happen before this broker writes anything.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.ledger_store_kind import LedgerStoreKind, ledger_store_kind
from pybroker.errors import AdminError, BadVersionError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore
from pybroker.metadata.routed_metadata_store import RoutedMetadataStore

if TYPE_CHECKING:
    from pybroker.metadata.resources import Resources
    from pybroker.zookeeper.addresses import ServerAddresses
    from pybroker.zookeeper.client import ClientOptions
    from pybroker.zookeeper.digest_md5 import SaslCredentials

PREFIX = "zk:"
BOOTSTRAP_ATTEMPTS = 5
CONFLICT = 409
LAYOUT_PATH = "/pybroker/layout"
"""The version of the documents that only pybroker writes."""
LAYOUT_VERSION = 1
LOCAL_STORE = "/local-store"
"""Paths of the documents that belong to one data directory."""
CONFIGURATION_PATHS = (
    metadata_paths.CLUSTERS,
    metadata_paths.POLICIES,
    metadata_paths.PARTITIONED_TOPICS,
    metadata_paths.RESOURCE_GROUPS,
)
"""Paths of the documents in the configuration store, which several clusters may share, as in Pulsar."""


class SharedAddresses(NamedTuple):
    """Addresses of the shared metadata store and of the configuration store. `configuration` is None if both are the
    same store.
    """

    metadata: ServerAddresses
    configuration: ServerAddresses | None


def shared_addresses(config: BrokerConfig) -> SharedAddresses | None:
    """Return the addresses of the shared stores; None without `metadataStoreUrl`. Raises ConfigError."""
    metadata = parse_url("metadataStoreUrl", config.metadata_store_url)
    configuration = parse_url("configurationMetadataStoreUrl", config.configuration_metadata_store_url)
    if metadata is None:
        if configuration is not None:
            raise ConfigError("configurationMetadataStoreUrl is set, but metadataStoreUrl is not: set both or neither")
        return None
    ledger_store_kind(config)  # refuses a configuration that names no store
    return SharedAddresses(metadata, None if configuration == metadata else configuration)


def parse_url(key: str, url: str) -> ServerAddresses | None:
    """Return the server addresses in `url`, the value of the setting `key`; None for an empty value. Raises ConfigError
    for a store that is not supported.
    """
    url = url.strip()
    if not url:
        return None
    if not url.startswith(PREFIX):
        raise ConfigError(
            f"{key} cannot be {url!r}: supported are {PREFIX}host1:2181,host2:2181/path for ZooKeeper, and an "
            "empty value for the embedded store of metadataStore"
        )
    from pybroker.zookeeper.addresses import ServerAddresses  # noqa: PLC0415

    try:
        return ServerAddresses.parse(url.removeprefix(PREFIX))
    except ValueError as error:
        raise ConfigError(f"{key}={url!r} is invalid: {error}") from error


def client_options(config: BrokerConfig) -> ClientOptions:
    """Return the options of the ZooKeeper client from the configuration. Raises ConfigError for files that cannot be
    used and for credentials in a wrong form.
    """
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
            raise ConfigError(f"the files in the metadataStoreTls* settings cannot be used: {error}") from error
    digest = config.metadata_store_digest_credentials
    if digest and ":" not in digest:
        raise ConfigError("metadataStoreDigestCredentials must be user:password")
    return ClientOptions(
        sasl=_sasl_credentials(config),
        session_timeout_ms=config.metadata_store_session_timeout_millis,
        operation_timeout_ms=config.metadata_store_operation_timeout_seconds * 1000,
        tls=tls,
        credentials=(("digest", digest.encode()),) if digest else (),
        acl=CREATOR_ACL if config.metadata_store_acl_creator_only else OPEN_ACL,
    )


def _sasl_credentials(config: BrokerConfig) -> SaslCredentials | None:
    from pybroker.zookeeper.jaas import sasl_credentials  # noqa: PLC0415

    path = config.metadata_store_sasl_jaas_file_path
    if not path:
        return None
    try:
        return sasl_credentials(Path(path).read_text(encoding="utf-8"), config.metadata_store_sasl_jaas_section)
    except UnicodeDecodeError as error:
        raise ConfigError(f"metadataStoreSaslJaasFilePath: the file {path} is not UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"metadataStoreSaslJaasFilePath: the file {path} cannot be used: {error}") from error


async def open_shared_metadata(
    config: BrokerConfig, addresses: SharedAddresses, random: Random | None = None
) -> MetadataStore:
    """Connect to the shared metadata store, and check that this broker can use its documents. Waits for the servers up
    to `metadataStoreStartTimeoutSeconds`. Raises StoreError and ConfigError.
    """
    from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore  # noqa: PLC0415

    options = client_options(config)
    deadline_s = float(config.metadata_store_start_timeout_seconds)
    store: MetadataStore = await ZooKeeperMetadataStore.open(addresses.metadata, options, deadline_s, random)
    try:
        if addresses.configuration is not None:
            configuration = await ZooKeeperMetadataStore.open(addresses.configuration, options, deadline_s, random)
            store = RoutedMetadataStore(dict.fromkeys(CONFIGURATION_PATHS, configuration), store)
        await require_usable(store, config.cluster_name, str(addresses.metadata))
    except BaseException:
        await store.close()
        raise
    return store


def with_local_documents(config: BrokerConfig, shared: MetadataStore, embedded: MetadataStore) -> MetadataStore:
    """Return a store that keeps the documents of the data directory in `embedded` and all others in `shared`, and owns
    both.
    """
    routes: dict[str, MetadataStore] = {LOCAL_STORE: embedded}
    if ledger_store_kind(config) is not LedgerStoreKind.BOOKKEEPER:
        routes[metadata_paths.MANAGED_LEDGERS] = embedded  # ids of local ledgers mean nothing to other brokers
    return RoutedMetadataStore(routes, shared)


async def open_shared_documents(config: BrokerConfig) -> MetadataStore:
    """Connect to the shared metadata store for a command, which needs no documents of a data directory. Raises
    StoreError and ConfigError.
    """
    addresses = shared_addresses(config.replace(ledger_store="local"))
    if addresses is None:
        raise ConfigError("no metadata store is given: add --metadata-store zk:host:2181/path, or set metadataStoreUrl")
    return await open_shared_metadata(config, addresses)


async def require_usable(store: MetadataStore, cluster_name: str, where: str) -> None:
    """Raise StoreError if the broker cannot use the metadata store at the address `where`: it is not prepared for a
    cluster, belongs to another cluster, or has documents of a newer version.
    """
    clusters = await store.children(metadata_paths.CLUSTERS)
    if not clusters:
        raise StoreError(
            f"the metadata store {where} has no cluster: prepare it with `pybroker metadata init --cluster "
            f"{cluster_name}`"
        )
    if cluster_name not in clusters:
        raise StoreError(
            f"clusterName is {cluster_name}, but the metadata store {where} contains the cluster "
            f"{', '.join(clusters)}: correct clusterName or metadataStoreUrl, or add the cluster with "
            "`pybroker metadata init`"
        )
    await require_layout(store, where)


async def require_layout(store: MetadataStore, where: str) -> None:
    """Raise StoreError if the metadata store at the address `where` has documents of a newer version of pybroker."""
    found = await store.get(LAYOUT_PATH)
    version = LAYOUT_VERSION if found is None else _decoded_layout(found.value, where)
    if version > LAYOUT_VERSION:
        raise StoreError(
            f"the documents of pybroker in {where} have version {version}, but this version of pybroker reads "
            f"only versions up to {LAYOUT_VERSION}: start the newer version that wrote them"
        )


def _decoded_layout(value: bytes, where: str) -> int:
    try:
        return int(json.loads(value)["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"the metadata at {LAYOUT_PATH} in {where} cannot be read: {error}") from error


async def write_layout(store: MetadataStore) -> None:
    """Record the version of pybroker's documents in the store, unless it is recorded already."""
    if await store.get(LAYOUT_PATH) is None:
        try:
            await store.put(LAYOUT_PATH, json.dumps({"version": LAYOUT_VERSION}).encode(), NOT_EXISTING)
        except BadVersionError:
            return  # another broker started at the same time


async def bootstrap_shared(resources: Resources, cluster_name: str, namespaces: Iterable[str] = ()) -> None:
    """Create the objects that every broker needs, like `Resources.bootstrap`. Retry if other brokers create them at the
    same time.
    """
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
