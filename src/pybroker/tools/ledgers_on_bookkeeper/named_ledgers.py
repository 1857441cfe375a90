"""The ledgers that the documents of managed ledgers and cursors name, in Pulsar's and in pybroker's format."""

from __future__ import annotations

from pybroker.errors import ProtocolViolation, StoreError
from pybroker.managed_ledger.orphaned_ledgers import ledger_ids_in
from pybroker.metadata.metadata_paths import MANAGED_LEDGERS
from pybroker.wire import varint
from pybroker.zookeeper import ZooKeeperClient
from pybroker.zookeeper.errors import NoNode

_TOPIC_SEGMENTS = 4  # tenant, namespace, domain, topic
_COMPRESSED = b"\x47\x78"
_LEDGER_INFO_TAG = 1 << 3 | 2
_ID_TAG = 1 << 3


async def named_ledgers(zookeeper: ZooKeeperClient) -> set[int]:
    """Return the ledgers that any document names. Raises ZooKeeperError, and StoreError for a document that cannot be read."""
    named: set[int] = set()
    waiting = [(MANAGED_LEDGERS, 0)]
    while waiting:
        path, depth = waiting.pop()
        try:
            if depth >= _TOPIC_SEGMENTS:
                value, _ = await zookeeper.get(path)
                named.update(ledgers_in(path, value, is_cursor=depth > _TOPIC_SEGMENTS))
            waiting += [(f"{path}/{name}", depth + 1) for name in await zookeeper.children(path)]
        except NoNode:
            continue
    return named


def ledgers_in(path: str, value: bytes, *, is_cursor: bool) -> list[int]:
    """Return the ledgers in one document. Raises StoreError."""
    if value[:1] == b"{":
        return ledger_ids_in(path, value)
    if value[:2] == _COMPRESSED:
        raise StoreError(f"the document at {path} is compressed: this version cannot read which ledgers it names")
    try:
        if not is_cursor:
            return _ids_of_ledgers(value)
        ledger_id = _id(value, 0, len(value))
    except ProtocolViolation as error:
        raise StoreError(f"the document at {path} cannot be read: {error}") from error
    return [ledger_id] if ledger_id >= 0 else []


def _ids_of_ledgers(value: bytes) -> list[int]:
    """Return the ids in the list of a ManagedLedgerInfo."""
    found: list[int] = []
    at, end = 0, len(value)
    while at < end:
        tag, at = varint.decode(value, at, end)
        if tag == _LEDGER_INFO_TAG:
            size, at = varint.decode(value, at, end)
            if size > end - at:
                raise ProtocolViolation("a field is longer than the document")
            found.append(_id(value, at, at + size))
            at += size
        else:
            at = varint.skip_field(value, tag, at, end)
    return found


def _id(value: bytes, at: int, end: int) -> int:
    """Return the number in field 1: the id of a ledger, or the ledger of a cursor, which is -1 without one."""
    found: list[int] = []
    while at < end:
        tag, at = varint.decode(value, at, end)
        if tag == _ID_TAG:
            number, at = varint.decode(value, at, end)
            found.append(number if number < 1 << 63 else number - (1 << 64))
        else:
            at = varint.skip_field(value, tag, at, end)
    if len(found) != 1:
        raise ProtocolViolation(f"a ledger or a cursor has {len(found)} ids")
    return found[0]
