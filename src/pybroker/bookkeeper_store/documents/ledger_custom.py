"""The custom metadata of ledgers as Pulsar writes it, with the object to which a ledger belongs. Pure."""

from __future__ import annotations

from pybroker.ledgers.ledger_properties import APPLICATION, COMPONENT, MANAGED_LEDGER, ClusterMark
from pybroker.ledgers.ledger_store import LedgerPurpose
from pybroker.metadata.metadata_paths import java_decoded, java_encoded
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

MANAGED_LEDGERS_PREFIX = "/managed-ledgers/"
COMPACTED_TOPIC = "pulsar/compactedTopic"
"""The topic of a compacted ledger. Ledgers of earlier versions have `pulsar/compacted-topic`. For operators only."""
COMPACTED_UP_TO = "pulsar/compactedTo"
"""The last message that a compacted ledger covers."""
_PULSAR = {APPLICATION: b"pulsar"}


def custom_metadata(
    purpose: LedgerPurpose, owner: str, mark: ClusterMark | None = None, compacted_up_to: Position | None = None
) -> dict[str, bytes]:
    """Return the custom metadata of a ledger of the managed ledger at the path `owner`. `mark`: properties that permit
    the deletion of the ledger if it is orphaned; None forbids it. `compacted_up_to`: the last entry that a compacted
    ledger covers.

    A compacted ledger gets no `mark`: its compaction may take longer than the time after which an unlisted ledger is
    deleted.
    """
    parent, _, encoded = owner.removeprefix(MANAGED_LEDGERS_PREFIX).rpartition("/")
    topic = java_decoded(encoded)
    custom = {**_PULSAR, COMPONENT: purpose.value.encode()}
    if purpose is LedgerPurpose.COMPACTED:
        tenant, namespace, domain = parent.split("/")
        custom[COMPACTED_TOPIC] = f"{domain}://{tenant}/{namespace}/{topic}".encode()
        if compacted_up_to is not None:
            ledger_id, entry_id = compacted_up_to
            last = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, batch_size=0)  # as Java brokers write it
            custom[COMPACTED_UP_TO] = last.SerializeToString()
        return custom
    marks = {} if mark is None else mark.properties()
    return {**custom, MANAGED_LEDGER: f"{parent}/{java_encoded(topic)}".encode(), **marks}


def cursor_metadata(owner: str, cursor_name: str, mark: ClusterMark | None = None) -> dict[str, bytes]:
    return {**custom_metadata(LedgerPurpose.ENTRIES, owner, mark), "pulsar/cursor": java_encoded(cursor_name).encode()}


def record_metadata(record_id: str) -> dict[str, bytes]:
    """Return the custom metadata of the ledger with the record `record_id`. Only pybroker uses these records."""
    return {**_PULSAR, COMPONENT: b"pybroker-record", "pybroker/record": record_id.encode()}


def schema_metadata(schema_id: str) -> dict[str, bytes]:
    """Return the custom metadata of the ledger of a schema version. `schema_id`: TENANT/NAMESPACE/TOPIC."""
    return {**_PULSAR, COMPONENT: b"schema", "pulsar/schemaId": schema_id.encode()}
