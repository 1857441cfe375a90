"""The state of a ZooKeeper server as the simulation needs it: nodes, sessions, and the operations of the wire. No IO, no time.

What must hold, as on a real server: a transaction happens whole or not at all; an ephemeral node belongs to one session and goes
with it; numbers of sequential nodes rise over all sessions. The contract of metadata stores runs against it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pybroker.zookeeper import errors
from pybroker.zookeeper.jute import Reader, pack_buffer, pack_int, pack_text, pack_texts
from pybroker.zookeeper.operations import (
    _MULTI_END,
    _MULTI_HEADER,
    _STAT,
    ANY_VERSION,
    CONTAINER_OWNER,
    CreateMode,
    NodeEvent,
    NodeEventType,
    Operation,
)

_EPHEMERAL = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_SEQUENTIAL = (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_CREATIONS = (Operation.CREATE, Operation.CREATE_CONTAINER)
_READS = (Operation.GET, Operation.CHILDREN, Operation.EXISTS, Operation.MULTI_READ)


class Refused(Exception):
    """The operation fails with this code of ZooKeeper; in a multi, the operation at `index`."""

    def __init__(self, error: type[errors.ZooKeeperError], index: int | None = None) -> None:
        super().__init__(error.__name__)
        self.error = error
        self.index = index


class _Node:
    __slots__ = ("children", "created", "creations", "czxid", "mzxid", "owner", "pzxid", "value", "version")

    def __init__(self, value: bytes, owner: int, zxid: int) -> None:
        self.value = value
        self.owner = owner
        self.version = 0
        self.czxid = self.mzxid = self.pzxid = zxid
        self.creations = 0
        self.children: dict[str, None] = {}

    def stat(self) -> bytes:
        cversion = 2 * self.creations - len(self.children)
        numbers = (self.czxid, self.mzxid, 0, 0, self.version, cversion, 0, self.owner, len(self.value))
        return _STAT.pack(*numbers, len(self.children), self.pzxid)


class Done(NamedTuple):
    """The body of an answer, and what watches report of it."""

    body: bytes
    events: list[NodeEvent]


class ZooKeeperTree:
    def __init__(self) -> None:
        self.nodes = {"/": _Node(b"", 0, 0)}
        self.zxid = 0

    def perform(self, operation: int, body: bytes, session: int) -> Done:
        """Raises Refused, and then nothing has changed."""
        reader = Reader(body)
        if operation in _READS:
            return Done(self._read(operation, reader), [])
        self.zxid += 1
        events: list[NodeEvent] = []
        undo: list[Callable[[], None]] = []
        try:
            if operation == Operation.MULTI:
                answer = self._multi(reader, session, events, undo)
            else:
                answer = self._change(operation, reader, session, events, undo)
        except Refused:
            for each in reversed(undo):
                each()
            raise
        return Done(answer, events)

    def end_session(self, session: int) -> list[NodeEvent]:
        """Delete what belongs to the session."""
        self.zxid += 1
        events: list[NodeEvent] = []
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self._delete(path, ANY_VERSION, events, [])
        return events

    def drop_containers(self) -> list[NodeEvent]:
        """Delete the containers that lost their last child, as a server does now and then."""
        self.zxid += 1
        events: list[NodeEvent] = []
        for path, node in list(self.nodes.items()):
            if node.owner == CONTAINER_OWNER and node.creations and not node.children:
                self._delete(path, ANY_VERSION, events, [])
        return events

    # --- reads -------------------------------------------------------------------------------------------------------

    def _read(self, operation: int, reader: Reader) -> bytes:
        if operation == Operation.MULTI_READ:
            return self._multi_read(reader)
        path = reader.text()
        node = self._node(path)
        match operation:
            case Operation.EXISTS:
                return node.stat()
            case Operation.CHILDREN:
                return pack_texts(list(node.children))
            case _:
                return pack_buffer(node.value) + node.stat()

    def _multi_read(self, reader: Reader) -> bytes:
        parts: list[bytes] = []
        while True:
            operation, is_end, _ = reader.unpack(_MULTI_HEADER)
            if is_end:
                return b"".join((*parts, _MULTI_END))
            start = reader.position
            try:
                found = self._read(operation, reader)
                parts += [_MULTI_HEADER.pack(operation, 0, 0), found]
            except Refused as refused:
                code = refused.error.code
                parts += [_MULTI_HEADER.pack(-1, 0, code), pack_int(code)]
            reader.position = start
            reader.text(), reader.boolean()

    def _node(self, path: str) -> _Node:
        node = self.nodes.get(path)
        if node is None:
            raise Refused(errors.NoNode)
        return node

    # --- changes -----------------------------------------------------------------------------------------------------

    def _multi(self, reader: Reader, session: int, events: list[NodeEvent], undo: list[Callable[[], None]]) -> bytes:
        parts: list[bytes] = []
        index = 0
        while True:
            operation, is_end, _ = reader.unpack(_MULTI_HEADER)
            if is_end:
                return b"".join((*parts, _MULTI_END))
            try:
                parts += [_MULTI_HEADER.pack(operation, 0, 0), self._change(operation, reader, session, events, undo)]
            except Refused as refused:
                raise Refused(refused.error, index) from refused
            index += 1

    def _change(
        self, operation: int, reader: Reader, session: int, events: list[NodeEvent], undo: list[Callable[[], None]]
    ) -> bytes:
        path = reader.text()
        if operation in _CREATIONS:
            value, acls = reader.buffer(), reader.integer()
            for _ in range(acls):
                reader.integer(), reader.text(), reader.text()
            return self._create(path, value, CreateMode(reader.integer()), session, events, undo)
        if operation == Operation.SET:
            value, version = reader.buffer(), reader.integer()
            return self._set(path, value, version, events, undo)
        version = reader.integer()
        if operation == Operation.CHECK:
            self._require_version(self._node(path), version)
        else:
            assert operation == Operation.DELETE, operation
            self._delete(path, version, events, undo)
        return b""

    def _create(
        self,
        path: str,
        value: bytes,
        mode: CreateMode,
        session: int,
        events: list[NodeEvent],
        undo: list[Callable[[], None]],
    ) -> bytes:
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._node(parent_path)
        if parent.owner not in (0, CONTAINER_OWNER):
            raise Refused(errors.NoChildrenForEphemerals)
        if mode in _SEQUENTIAL:
            path = f"{path}{parent.creations:010d}"
        if path in self.nodes:
            raise Refused(errors.NodeExists)
        owner = session if mode in _EPHEMERAL else CONTAINER_OWNER if mode is CreateMode.CONTAINER else 0
        node = self.nodes[path] = _Node(value, owner, self.zxid)
        name, before = path.rpartition("/")[2], (parent.creations, parent.pzxid)
        parent.children[name] = None
        parent.creations += 1
        parent.pzxid = self.zxid

        def take_back() -> None:
            del self.nodes[path], parent.children[name]
            parent.creations, parent.pzxid = before

        undo.append(take_back)
        events.append(NodeEvent(NodeEventType.CREATED, path))
        events.append(NodeEvent(NodeEventType.CHILDREN_CHANGED, parent_path))
        return pack_text(path) + node.stat()

    def _set(
        self, path: str, value: bytes, version: int, events: list[NodeEvent], undo: list[Callable[[], None]]
    ) -> bytes:
        node = self._node(path)
        self._require_version(node, version)
        before = node.value, node.version, node.mzxid
        node.value, node.version, node.mzxid = value, node.version + 1, self.zxid

        def take_back() -> None:
            node.value, node.version, node.mzxid = before

        undo.append(take_back)
        events.append(NodeEvent(NodeEventType.DATA_CHANGED, path))
        return node.stat()

    def _delete(self, path: str, version: int, events: list[NodeEvent], undo: list[Callable[[], None]]) -> None:
        node = self._node(path)
        self._require_version(node, version)
        if node.children:
            raise Refused(errors.NotEmpty)
        parent_path, _, name = path.rpartition("/")
        parent = self.nodes[parent_path or "/"]
        before = parent.pzxid
        del self.nodes[path], parent.children[name]
        parent.pzxid = self.zxid

        def take_back() -> None:
            self.nodes[path] = node
            parent.children[name] = None
            parent.pzxid = before

        undo.append(take_back)
        events.append(NodeEvent(NodeEventType.DELETED, path))
        events.append(NodeEvent(NodeEventType.CHILDREN_CHANGED, parent_path or "/"))

    @staticmethod
    def _require_version(node: _Node, version: int) -> None:
        if version not in (ANY_VERSION, node.version):
            raise Refused(errors.BadVersion)


def failed_multi(refused: Refused) -> bytes:
    """The body of an answer to a multi whose operation `refused.index` failed."""
    assert refused.index is not None
    parts = []
    for index in range(refused.index + 1):
        code = refused.error.code if index == refused.index else 0
        parts += [_MULTI_HEADER.pack(-1, 0, code), pack_int(code)]
    return b"".join((*parts, _MULTI_END))
