"""Transaction fields in an entry's metadata: of a message, or of a commit or abort marker."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.errors import ProtocolViolation
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed, framed_header
from pybroker.wire.entry_metadata import entry_head, message_start, metadata_head, metadata_span
from pybroker.wire.varint import encode

_LEAST_BYTES = b"\xb0\x01"  # the tag as a varint
_MOST_BYTES = b"\xb8\x01"
_COMMIT_MARKER = 21
_ABORT_MARKER = 22
_MARKER_PRODUCER = "pulsar.marker"


class OfTransaction(NamedTuple):
    """The transaction to which an entry belongs, or whose commit or abort a marker records."""

    txn: TxnId
    ends: TxnAction | None
    """For a marker, how the transaction has ended."""
    producer_name: str
    publish_time_ms: int


def of_transaction(entry: bytes) -> OfTransaction | None:
    """Return the transaction of an entry; None if it has none or its metadata is invalid. Never raises."""
    try:
        start, end = metadata_span(entry)
        if entry.find(_LEAST_BYTES, start, end) < 0:
            return None
        metadata = metadata_head(entry, start, end)
    except ProtocolViolation:
        return None
    if not (metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits")):
        return None
    ends = None
    if metadata.HasField("marker_type"):
        ends = {_COMMIT_MARKER: TxnAction.COMMIT, _ABORT_MARKER: TxnAction.ABORT}.get(metadata.marker_type)
        if ends is None:
            return None
    txn = TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)
    return OfTransaction(txn, ends, metadata.producer_name.decode(errors="replace"), metadata.publish_time)


def put_into(entry: bytes, txn: TxnId) -> bytes | None:
    """Return the entry with `txn` added to its metadata; None if it already has a transaction or is invalid.

    Some clients send a message's transaction in the command only, but the broker recovers it from the stored entry.
    """
    try:
        start, end = metadata_span(entry)
        metadata = metadata_head(entry, start, end)
    except ProtocolViolation:
        return None
    if message_start(entry) or any(map(metadata.HasField, ("txnid_least_bits", "txnid_most_bits", "marker_type"))):
        return None
    header = entry[start:end] + _LEAST_BYTES + encode(txn.least) + _MOST_BYTES + encode(txn.most)
    return framed_header(header, entry[end:])


def is_end_marker(entry: bytes) -> bool:
    """Return whether the entry is the commit or abort marker of a transaction, which only the broker may write. Never
    raises.
    """
    try:
        metadata = entry_head(entry)
    except ProtocolViolation:
        return False
    return metadata.HasField("marker_type") and metadata.marker_type in (_COMMIT_MARKER, _ABORT_MARKER)


def end_marker(txn: TxnId, action: TxnAction, publish_time_ms: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=_MARKER_PRODUCER,
        sequence_id=0,
        publish_time=publish_time_ms,
        marker_type=_COMMIT_MARKER if action is TxnAction.COMMIT else _ABORT_MARKER,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    return framed(metadata, b"")
