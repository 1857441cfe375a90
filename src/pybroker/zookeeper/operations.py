"""Encoding of ZooKeeper's requests and decoding of its responses. Pure.

Paths are as the server sees them, so they include the chroot. Layout of a request: length i32, xid i32, operation i32,
body. Layout of an answer: length i32, xid i32, zxid i64, error i32, body, which is absent after an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from pybroker.zookeeper.errors import DamagedAnswer, ZooKeeperError, error_of
from pybroker.zookeeper.jute import Reader, pack_buffer, pack_int, pack_long, pack_text, pack_texts

ANY_VERSION = -1
CONTAINER_OWNER = -(1 << 63)
"""`ephemeral_owner` of a container."""
_STAT = Struct(">qqqqiiiqiiq")
_MULTI_HEADER = Struct(">ibi")
_MULTI_END = _MULTI_HEADER.pack(-1, 1, -1)


class Operation(IntEnum):
    """The number of each operation in the protocol."""

    DELETE = 2
    EXISTS = 3
    GET = 4
    SET = 5
    CHILDREN = 8
    SYNC = 9
    PING = 11
    CHECK = 13
    MULTI = 14
    CREATE = 15  # "create2", which returns the stat
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    MULTI_READ = 22
    AUTH = 100
    SASL = 102
    SET_WATCHES = 105  # "setWatches2", with persistent watches
    ADD_WATCH = 106
    CLOSE_SESSION = -11


class CreateMode(IntEnum):
    """The kind of a new node. A container is deleted by the server some time after the deletion of its last child."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4


class Stat(NamedTuple):
    """The metadata of a node. `ephemeral_owner` is the id of the session for an ephemeral node, 0 for other nodes.
    `cversion` counts the changes of the children.
    """

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class NodeEventType(IntEnum):
    """The kind of a change. A recursive watch reports only the first three; a watch of a single node reports
    CHILDREN_CHANGED too.
    """

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class NodeEvent(NamedTuple):
    """A change of the node at `path`."""

    type: NodeEventType
    path: str


class Acl(NamedTuple):
    """One entry of an access control list. `permissions` is a sum of read 1, write 2, create 4, delete 8, admin 16."""

    permissions: int
    scheme: str
    id: str


OPEN_ACL = (Acl(31, "world", "anyone"),)
CREATOR_ACL = (Acl(31, "auth", ""),)
"""All permissions for the identities that the client authenticated as."""


class CreateOp(NamedTuple):
    """A creation within a multi. The parent must exist, or be created earlier in the multi."""

    path: str
    value: bytes = b""
    mode: CreateMode = CreateMode.PERSISTENT


class SetOp(NamedTuple):
    """A change of a value within a multi."""

    path: str
    value: bytes
    version: int = ANY_VERSION


class DeleteOp(NamedTuple):
    """A deletion within a multi."""

    path: str
    version: int = ANY_VERSION


class CheckOp(NamedTuple):
    """A condition within a multi: the node must have this version, or the multi fails."""

    path: str
    version: int


class GetOp(NamedTuple):
    """A read of value and stat within a multi-read."""

    path: str


class ChildrenOp(NamedTuple):
    """A read of the names of the children within a multi-read."""

    path: str


ChangeOp: TypeAlias = CreateOp | SetOp | DeleteOp | CheckOp
ReadOp: TypeAlias = GetOp | ChildrenOp
ChangeResult: TypeAlias = tuple[str, Stat] | Stat | None
"""Of a creation: path and stat; of a set: the stat."""
ReadResult: TypeAlias = tuple[bytes, Stat] | list[str] | ZooKeeperError


def read_stat(reader: Reader) -> Stat:
    return Stat._make(reader.unpack(_STAT))


# --- bodies of requests ----------------------------------------------------------------------------------------------


def path_and_no_watch(path: str) -> bytes:
    """Encode the body of an EXISTS, GET or CHILDREN request without a watch."""
    return pack_text(path) + b"\0"


def path_and_version(path: str, version: int) -> bytes:
    return pack_text(path) + pack_int(version)


def set_body(path: str, value: bytes, version: int) -> bytes:
    return pack_text(path) + pack_buffer(value) + pack_int(version)


def create_body(path: str, value: bytes, mode: CreateMode, acl: bytes) -> bytes:
    return b"".join((pack_text(path), pack_buffer(value), acl, pack_int(mode)))


def pack_acl(acl: Sequence[Acl]) -> bytes:
    entries = (pack_int(each.permissions) + pack_text(each.scheme) + pack_text(each.id) for each in acl)
    return pack_int(len(acl)) + b"".join(entries)


def create_operation(mode: CreateMode) -> Operation:
    return Operation.CREATE_CONTAINER if mode is CreateMode.CONTAINER else Operation.CREATE


def multi_body(changes: Sequence[ChangeOp], acl: bytes) -> bytes:
    parts = []
    for change in changes:
        match change:
            case CreateOp(path, value, mode):
                parts += [_multi_header(create_operation(mode)), create_body(path, value, mode, acl)]
            case SetOp(path, value, version):
                parts += [_multi_header(Operation.SET), set_body(path, value, version)]
            case DeleteOp(path, version):
                parts += [_multi_header(Operation.DELETE), path_and_version(path, version)]
            case CheckOp(path, version):
                parts += [_multi_header(Operation.CHECK), path_and_version(path, version)]
    return b"".join((*parts, _MULTI_END))


def multi_read_body(reads: Sequence[ReadOp]) -> bytes:
    parts = []
    for read in reads:
        operation = Operation.GET if isinstance(read, GetOp) else Operation.CHILDREN
        parts += [_multi_header(operation), path_and_no_watch(read.path)]
    return b"".join((*parts, _MULTI_END))


def add_watch_body(path: str, *, is_recursive: bool) -> bytes:
    return pack_text(path) + pack_int(int(is_recursive))


def remove_watches_body(path: str) -> bytes:
    return pack_text(path) + pack_int(3)  # of any type


def set_watches_body(last_zxid: int, persistent: list[str], recursive: list[str]) -> bytes:
    """Encode the body of a request that sets persistent watches again in a new connection. `last_zxid`: the id of the
    newest change that the client knows.
    """
    nothing = pack_texts([])
    return b"".join((pack_long(last_zxid), nothing, nothing, nothing, pack_texts(persistent), pack_texts(recursive)))


def auth_body(scheme: str, credentials: bytes) -> bytes:
    return pack_int(0) + pack_text(scheme) + pack_buffer(credentials)


def _multi_header(operation: Operation) -> bytes:
    return _MULTI_HEADER.pack(operation, 0, -1)


# --- bodies of responses ---------------------------------------------------------------------------------------------


def read_value(reader: Reader) -> tuple[bytes, Stat]:
    return reader.buffer(), read_stat(reader)


def read_created(reader: Reader) -> tuple[str, Stat]:
    return reader.text(), read_stat(reader)


def read_children(reader: Reader) -> list[str]:
    return reader.texts()


def read_nothing(reader: Reader) -> None:
    """Decode the body of a response without a result."""


def read_multi(reader: Reader) -> list[ChangeResult]:
    """Decode the response to a multi. Raises the error of the first failing operation, with its index."""
    results: list[ChangeResult] = []
    failed: ZooKeeperError | None = None
    while True:
        operation, is_end, _ = reader.unpack(_MULTI_HEADER)
        if is_end:
            break
        if operation in (Operation.CREATE, Operation.CREATE_CONTAINER):
            results.append(read_created(reader))
        elif operation == Operation.SET:
            results.append(read_stat(reader))
        elif operation in (Operation.DELETE, Operation.CHECK):
            results.append(None)
        elif operation == -1:
            code = reader.integer()
            # 0 precedes the failing operation, -2 follows it.
            if code not in (0, -2) and failed is None:
                failed = error_of(code, "")
                failed.operation_index = len(results)
            results.append(None)
        else:
            raise DamagedAnswer(
                f"a response of ZooKeeper to several changes contains the unknown operation {operation}"
            )
    if failed is not None:
        raise failed
    return results


def read_multi_read(reader: Reader, paths: Sequence[str]) -> list[ReadResult]:
    """Decode the response to a multi-read. `paths`: the paths in the request, for the texts of errors."""
    results: list[ReadResult] = []
    while True:
        operation, is_end, _ = reader.unpack(_MULTI_HEADER)
        if is_end:
            break
        if operation == Operation.GET:
            results.append(read_value(reader))
        elif operation == Operation.CHILDREN:
            results.append(read_children(reader))
        elif operation == -1:
            results.append(error_of(reader.integer(), paths[len(results)] if len(results) < len(paths) else ""))
        else:
            raise DamagedAnswer(f"a response of ZooKeeper to several reads contains the unknown operation {operation}")
    if len(results) != len(paths):
        raise DamagedAnswer(f"a response of ZooKeeper contains {len(results)} results of {len(paths)} reads")
    return results


def read_event(reader: Reader) -> NodeEvent | None:
    """Decode an event of a watch; None if it is not about a node, or of an unknown type."""
    number, _, path = reader.integer(), reader.integer(), reader.text()
    return NodeEvent(NodeEventType(number), path) if 1 <= number <= 4 else None
