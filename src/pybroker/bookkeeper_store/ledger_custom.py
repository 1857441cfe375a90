"""The custom metadata of ledgers, as Pulsar writes them: they tell which object a ledger belongs to. Pure."""

from __future__ import annotations

from urllib.parse import unquote_plus

from pybroker.ledgers.ledger_properties import APPLICATION, COMPONENT, MANAGED_LEDGER, ClusterMark
from pybroker.ledgers.ledger_store import LedgerPurpose

MANAGED_LEDGERS_PREFIX = "/managed-ledgers/"
_PULSAR = {APPLICATION: b"pulsar"}


def custom_metadata(purpose: LedgerPurpose, owner: str, mark: ClusterMark | None = None) -> dict[str, bytes]:
    """Return the custom metadata of a ledger of the managed ledger at the path `owner`.

    A compacted ledger has no mark: its compaction may last longer than a ledger may stay without a name.
    """
    name = owner.removeprefix(MANAGED_LEDGERS_PREFIX)
    custom = {**_PULSAR, COMPONENT: purpose.value.encode()}
    if purpose is LedgerPurpose.COMPACTED:
        tenant, namespace, domain, topic = name.split("/", 3)
        return {**custom, "pulsar/compacted-topic": f"{domain}://{tenant}/{namespace}/{unquote_plus(topic)}".encode()}
    marks = {} if mark is None else mark.properties()
    return {**custom, MANAGED_LEDGER: name.encode(), **marks}


def cursor_metadata(owner: str, cursor_name: str, mark: ClusterMark | None = None) -> dict[str, bytes]:
    """Return the custom metadata of a cursor ledger."""
    return {**custom_metadata(LedgerPurpose.ENTRIES, owner, mark), "pulsar/cursor": cursor_name.encode()}


def record_metadata(record_id: str) -> dict[str, bytes]:
    """Return the custom metadata of a ledger with records that only pybroker writes."""
    return {**_PULSAR, COMPONENT: b"pybroker-record", "pybroker/record": record_id.encode()}


def schema_metadata(schema_id: str) -> dict[str, bytes]:
    """Return the custom metadata of the ledger of a schema version. `schema_id`: TENANT/NAMESPACE/TOPIC."""
    return {**_PULSAR, COMPONENT: b"schema", "pulsar/schemaId": schema_id.encode()}
