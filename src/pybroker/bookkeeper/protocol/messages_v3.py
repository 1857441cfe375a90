"""Messages of BookKeeper's protocol version 3 (protobuf), for operations that version 2 lacks: explicit last confirmed
entries, forced writes, and the disk space of a bookie.

A connection speaks the version of its first frame. Requests have numbers, so that responses can come in any order.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pybroker.bookkeeper.bookkeeper_pb2 import InfoResponse, LedgerResponse, ReadLacResponse, Request, Response
from pybroker.bookkeeper.errors import BookKeeperError, InvalidAnswer, WrongKey, error_of

_VERSION = 3
_SIZE = struct.Struct(">I")
_SASL = "sasl"
_TOTAL_SPACE, _FREE_SPACE = 1, 2
_SAME_CODES = {402: 1, 403: 2, 404: 100, 501: 101, 502: 102, 503: 103, 504: 104, 505: 105, 506: 106, 507: 107}
"""The codes of version 2 with the same meaning."""


class Operation(IntEnum):
    """Operations of version 3 that this client uses, with their numbers."""

    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    INFO = 8
    START_TLS = 9
    FORCE = 10


class BookieSpace(NamedTuple):
    """Free and total bytes of the disks of a bookie."""

    total_bytes: int
    free_bytes: int


class ExplicitLac(NamedTuple):
    """The last confirmed entry of a ledger as a bookie knows it. `record`: the record of the last WRITE_LAC, empty
    without one. `last_entry`: the stored bytes of the last entry that the bookie has.
    """

    record: bytes
    last_entry: bytes


def write_lac_request(number: int, ledger_id: int, last_confirmed: int, master_key: bytes, record: bytes) -> bytes:
    request = _request(number, Operation.WRITE_LAC)
    request.write_lac.ledger_id = ledger_id
    request.write_lac.lac = last_confirmed
    request.write_lac.master_key = master_key
    request.write_lac.body = record
    return _framed(request)


def read_lac_request(number: int, ledger_id: int) -> bytes:
    request = _request(number, Operation.READ_LAC)
    request.read_lac.ledger_id = ledger_id
    return _framed(request)


def info_request(number: int) -> bytes:
    request = _request(number, Operation.INFO)
    request.info.requested = _TOTAL_SPACE | _FREE_SPACE
    return _framed(request)


def force_request(number: int, ledger_id: int) -> bytes:
    """Encode the request to make all acknowledged entries of a ledger durable. `number`: the number of the request,
    which its response repeats.
    """
    request = _request(number, Operation.FORCE)
    request.force.ledger_id = ledger_id
    return _framed(request)


def start_tls_request(number: int) -> bytes:
    request = _request(number, Operation.START_TLS)
    request.start_tls.SetInParent()
    return _framed(request)


def auth_request(number: int, payload: bytes) -> bytes:
    """Encode an authentication request with the SASL token `payload`. `number`: the number of the request, which its
    response repeats.
    """
    request = _request(number, Operation.AUTH)
    request.auth.plugin_name = _SASL
    request.auth.payload = payload
    return _framed(request)


def _request(number: int, operation: Operation) -> Request:
    request = Request()
    request.header.version = _VERSION
    request.header.operation = operation
    request.header.txn_id = number
    return request


def _framed(request: Request) -> bytes:
    body: bytes = request.SerializeToString()
    return _SIZE.pack(len(body)) + body


class FrameReader:
    """Splits the bytes of a connection into bodies of frames. After InvalidAnswer the connection must be closed."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the bodies of the frames that are complete now. Raises InvalidAnswer."""
        self._rest += data
        bodies = []
        while len(self._rest) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._rest)
            if size > self._max_frame_bytes:
                raise InvalidAnswer(
                    f"A frame of {size} bytes arrived from a bookie; the maximum is {self._max_frame_bytes} bytes. Check that "
                    "the address belongs to a bookie."
                )
            if len(self._rest) < 4 + size:
                break
            bodies.append(bytes(self._rest[4 : 4 + size]))
            del self._rest[: 4 + size]
        return bodies


def decode_response(body: bytes) -> Response:
    response = Response()
    try:
        response.ParseFromString(body)
    except DecodeError as error:
        raise InvalidAnswer(f"A response of a bookie in protocol version 3 cannot be decoded: {error}") from error
    if response.header.version != _VERSION or not response.header.HasField("txn_id"):
        raise InvalidAnswer("A response of a bookie in protocol version 3 has no valid header.")
    return response


def require_tls_started(response: Response) -> None:
    """Check that the bookie accepts the request START_TLS. Raises the error that the bookie returned, or InvalidAnswer
    for the response to another request.
    """
    _require(response, Operation.START_TLS, "The bookie has no TLS")


def auth_payload(response: Response) -> bytes:
    """Return the bookie's SASL token in an authentication response. Raises the error that the bookie returned, or
    InvalidAnswer for the response to another request.
    """
    _require(response, Operation.AUTH, "The bookie refused the user or the password")
    return response.auth.payload


def require_accepted(response: Response) -> None:
    """Check the response to the first request on a connection. Raises WrongKey if the bookie accepts no requests on this
    connection because the client is not authenticated. Ignores other errors.
    """
    if WrongKey.code in {_SAME_CODES.get(response.status), _SAME_CODES.get(response.read_lac.status)}:
        raise WrongKey("The bookie requires that its clients authenticate with a user or a certificate")


def _require(response: Response, operation: Operation, failure: str) -> None:
    if response.header.operation != operation:
        raise InvalidAnswer(
            f"A bookie responded to operation {response.header.operation}, but the request was {operation.name}."
        )
    if response.status:
        raise error_of(_SAME_CODES.get(response.status, response.status), failure)


def result_of(
    response: Response, operation: Operation, ledger_id: int | None
) -> BookieSpace | ExplicitLac | BookKeeperError | None:
    """Return the result of a request (None for WRITE_LAC and FORCE), or the error that the bookie returned. Raises
    InvalidAnswer if the response does not belong to a request of this operation and ledger.
    """
    if response.header.operation != operation:
        raise InvalidAnswer(
            f"A bookie responded to operation {response.header.operation}, but the request was {operation.name}."
        )
    parts: dict[Operation, LedgerResponse | ReadLacResponse | InfoResponse] = {
        Operation.WRITE_LAC: response.write_lac,
        Operation.READ_LAC: response.read_lac,
        Operation.INFO: response.info,
        Operation.FORCE: response.force,
    }
    part = parts[operation]
    status = response.status or part.status
    if status:
        return error_of(_SAME_CODES.get(status, status), f"The bookie refused {operation.name}")
    if ledger_id is not None and getattr(part, "ledger_id", ledger_id) != ledger_id:
        raise InvalidAnswer(f"A bookie sent a response for another ledger than {ledger_id}.")
    if operation is Operation.INFO:
        return BookieSpace(response.info.total_disk_capacity, response.info.free_disk_space)
    if operation is Operation.READ_LAC:
        return ExplicitLac(response.read_lac.lac_body, response.read_lac.last_entry_body)
    return None
