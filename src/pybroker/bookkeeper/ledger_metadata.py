"""The metadata of a ledger, as a value and as the bytes that BookKeeper's Java client reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise

from google.protobuf.message import DecodeError

from pybroker.bookkeeper.bookkeeper_pb2 import LedgerMetadataFormat
from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.bookkeeper.protocol.entry_format import DigestType
from pybroker.bookkeeper.quorums import Quorums
from pybroker.errors import ProtocolViolation
from pybroker.wire import varint

_HEAD = b"BookieMetadataFormatVersion\t"
_VERSION_3 = _HEAD + b"3\n"


class LedgerState(IntEnum):
    """The state of a ledger. The states follow in this order; IN_RECOVERY may be skipped."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive entries with the same ensemble: from `first_entry_id` up to the next segment."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The decoded metadata of one ledger. `last_entry_id` and `length_bytes` are valid only if the ledger is closed.
    `unknown`: encoded fields that this version does not know.
    """

    quorums: Quorums
    digest_type: DigestType
    password: bytes
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = -1
    length_bytes: int = 0
    created_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=dict)
    token: int = 0
    unknown: bytes = b""

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        for segment in reversed(self.segments):
            if segment.first_entry_id <= entry_id:
                return segment
        raise AssertionError(
            "no segment of the ledger contains the entry, although the first segment begins at entry 0"
        )

    def with_ensemble(self, first_entry_id: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """Return a copy of the metadata with another ensemble for the entries from `first_entry_id` on."""
        kept = self.segments
        if kept[-1].first_entry_id == first_entry_id:
            kept = kept[:-1]
        assert not kept or kept[-1].first_entry_id < first_entry_id, "segments are in order"
        return replace(self, segments=(*kept, Segment(first_entry_id, ensemble)))

    def in_recovery(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length_bytes: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length_bytes=length_bytes)

    def encode(self) -> bytes:
        form = LedgerMetadataFormat()
        if self.unknown:
            form.MergeFromString(self.unknown)
        form.write_quorum = self.quorums.write_quorum
        form.ensemble_size = self.quorums.ensemble_size
        form.ack_quorum = self.quorums.ack_quorum
        form.length = self.length_bytes
        form.state = self.state
        if self.state is LedgerState.CLOSED:
            form.last_entry_id = self.last_entry_id
        for segment in self.segments:
            form.segments.add(members=segment.ensemble, first_entry_id=segment.first_entry_id)
        form.digest_type = self.digest_type
        form.password = self.password
        if self.created_ms is not None:
            form.created_ms = self.created_ms
        for key, value in self.custom.items():
            form.custom_metadata.add(key=key, value=value)
        form.token = self.token
        body = form.SerializeToString()
        return _VERSION_3 + varint.encode(len(body)) + body


def decode_metadata(value: bytes) -> LedgerMetadata:
    if not value.startswith(_VERSION_3):
        version = value[len(_HEAD) :].split(b"\n", 1)[0][:10] if value.startswith(_HEAD) else b"?"
        raise InvalidMetadata(f"The ledger metadata have format version {version!r}, but only version 3 is supported.")
    try:
        size, start = varint.decode(value, len(_VERSION_3), len(value))
    except ProtocolViolation as error:
        raise InvalidMetadata("The ledger metadata are damaged: their length field is not a number.") from error
    if len(value) - start != size:
        raise InvalidMetadata(
            f"The ledger metadata are damaged: they have {len(value) - start} bytes, but their length field says {size}."
        )
    form = LedgerMetadataFormat()
    try:
        form.ParseFromString(value[start:])
        return _checked(form)
    except (DecodeError, UnicodeDecodeError) as error:  # texts are decoded when they are read
        raise InvalidMetadata(f"The ledger metadata are damaged and cannot be decoded: {error}") from error


def _checked(form: LedgerMetadataFormat) -> LedgerMetadata:
    segments = tuple(Segment(each.first_entry_id, tuple(each.members)) for each in form.segments)
    ack_quorum = form.ack_quorum if form.HasField("ack_quorum") else form.write_quorum
    try:
        quorums = Quorums(form.ensemble_size, form.write_quorum, ack_quorum)
        state = LedgerState(form.state)
        digest_type = DigestType(form.digest_type) if form.HasField("digest_type") else DigestType.HMAC
    except ValueError as error:
        raise InvalidMetadata(f"The ledger metadata are damaged: they have an invalid value ({error}).") from error
    texts = [*(member for each in segments for member in each.ensemble), *(each.key for each in form.custom_metadata)]
    if not all(isinstance(text, str) for text in texts):  # protobuf returns invalid UTF-8 as bytes
        raise InvalidMetadata("The ledger metadata are damaged: a name in them is not UTF-8.")
    if not segments or segments[0].first_entry_id != 0:
        raise InvalidMetadata("The ledger metadata are damaged: they name no bookies for entry 0.")
    for segment, later in pairwise(segments):
        if segment.first_entry_id >= later.first_entry_id:
            raise InvalidMetadata(
                "The ledger metadata are damaged: the ensembles are not in the order of their first entries "
                f"({segment.first_entry_id}, then {later.first_entry_id})."
            )
    if any(len(each.ensemble) != quorums.ensemble_size for each in segments):
        raise InvalidMetadata(
            f"The ledger metadata are damaged: an ensemble does not have the ensemble size of {quorums.ensemble_size} bookies."
        )
    if any(len(set(each.ensemble)) != len(each.ensemble) for each in segments):
        raise InvalidMetadata("The ledger metadata are damaged: an ensemble contains the same bookie twice.")
    is_closed = state is LedgerState.CLOSED
    last_entry_id = form.last_entry_id if is_closed else -1
    if is_closed and (not form.HasField("last_entry_id") or last_entry_id < -1 or form.length < 0):
        raise InvalidMetadata("The ledger metadata are damaged: the ledger is closed, but has no valid last entry.")
    custom = {each.key: each.value for each in form.custom_metadata}
    created_ms = form.created_ms if form.HasField("created_ms") else None
    length_bytes, password, token = form.length, form.password, form.token
    for name in _KNOWN:
        form.ClearField(name)
    unknown = form.SerializeToString()
    return LedgerMetadata(
        quorums, digest_type, password, segments, state, last_entry_id, length_bytes, created_ms, custom, token, unknown
    )


_KNOWN = tuple(each.name for each in LedgerMetadataFormat.DESCRIPTOR.fields)
