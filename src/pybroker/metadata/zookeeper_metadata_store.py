"""The metadata store in ZooKeeper, shared by several brokers, in Pulsar's layout: one node for each value.

Inner nodes. ZooKeeper has no value without its parents, and no parent without a value. Missing parents are created as
containers, as Pulsar does; ZooKeeper deletes a container some time after its last child. An empty node that has or had
children is an inner node here: `get` finds no value. The value of a node with children is deleted by emptying it.

Lost responses. A change whose response was lost is not simply repeated. The store reads the value, and decides by its
version whether the change happened, did not happen (it is sent again), or is uncertain (UnknownOutcome). Two writers
that put equal bytes at the same version may both get a success, so a value that must have one writer contains the
writer's name.

Reads are repeated until `operation_timeout_ms`. Session values are ephemeral nodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final, TypeVar

from pybroker.errors import BadVersionError, MetadataUnavailable, StoreError, UnknownOutcome
from pybroker.metadata.metadata_store import (
    ANY_VERSION,
    NOT_EXISTING,
    PAGE_VALUES,
    Change,
    Check,
    Delete,
    MetadataStore,
    Missed,
    NodeTimes,
    Put,
    SessionListener,
    Versioned,
    Watch,
    prefix_below,
)
from pybroker.metadata.session_report import SessionEvent, SessionReport, SessionState
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.zookeeper import errors
from pybroker.zookeeper import session as zookeeper_session
from pybroker.zookeeper.addresses import ServerAddresses
from pybroker.zookeeper.client import ClientOptions, ZooKeeperClient
from pybroker.zookeeper.errors import ConnectionLoss, NoNode, NotSent, TooLarge, ZooKeeperError
from pybroker.zookeeper.operations import (
    CONTAINER_OWNER,
    ChangeOp,
    CheckOp,
    ChildrenOp,
    CreateMode,
    CreateOp,
    DeleteOp,
    GetOp,
    NodeEvent,
    SetOp,
    Stat,
)

BATCH_READS: Final = 100
"""Maximum number of reads in one request. A batch with a response that is too large is read one by one."""
WAITING_LOG_S: Final = 5.0
"""Interval of log lines while a start waits for the servers."""
_RETRY_PAUSE_S = 0.05
_RACE_ATTEMPTS = 20  # against other writers, for changes that accept any version

_Result = TypeVar("_Result")
_EVENTS = {
    zookeeper_session.SessionEvent.SUSPENDED: SessionEvent.SUSPENDED,
    zookeeper_session.SessionEvent.RECONNECTED: SessionEvent.RECONNECTED,
    zookeeper_session.SessionEvent.LOST: SessionEvent.LOST,
    zookeeper_session.SessionEvent.RENEWED: SessionEvent.RENEWED,
}
_STATES = {
    SessionEvent.SUSPENDED: SessionState.SUSPENDED,
    SessionEvent.RECONNECTED: SessionState.CONNECTED,
    SessionEvent.LOST: SessionState.LOST,
    SessionEvent.RENEWED: SessionState.CONNECTED,
}


class ZooKeeperMetadataStore(MetadataStore):
    """A metadata store in ZooKeeper. Created by `open`; owns the client until `close`."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._timeout_ms = client.options.operation_timeout_ms
        self._clock_ms = client.options.clock_ms
        self._listeners: list[SessionListener] = []
        self._missed: list[tuple[str, Missed]] = []
        self._is_closed = False
        self._state = SessionState.CONNECTED
        self._state_since_ms = self._clock_ms()
        self._suspensions = 0
        self._losses = 0
        self._outcomes_read_back = 0
        client.listen(self._session_changed)

    @staticmethod
    async def open(
        addresses: ServerAddresses, options: ClientOptions, start_deadline_s: float, random: Random | None = None
    ) -> ZooKeeperMetadataStore:
        """Connect to ZooKeeper. Raises StoreError if there is no session within `start_deadline_s` seconds, or if the
        node in the path of `addresses` does not exist.
        """
        client = ZooKeeperClient(addresses, options, random)
        tasks = TaskOwner("metadata-store-start")
        tasks.start(_log_waiting(client, start_deadline_s), "log")
        try:
            try:
                await client.start(start_deadline_s)
            finally:
                await tasks.close()
            if await _root(client) is None:
                await client.close()
                raise StoreError(
                    f"ZooKeeper has no node {addresses.chroot}: prepare it for a cluster with `pybroker metadata init`,"
                    f" or correct the path of {addresses}"
                )
        except ZooKeeperError as error:
            await client.close()
            raise MetadataUnavailable(str(error)) from error
        return ZooKeeperMetadataStore(client)

    # --- session -----------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def session_state(self) -> SessionState:
        if self._state is not SessionState.LOST and not self._client.holds_session():
            return SessionState.LOST  # the event follows
        return self._state

    def holds_session(self) -> bool:
        return self._client.holds_session()

    @property
    def session_report(self) -> SessionReport:
        return SessionReport(
            f"zk:{self._client.addresses}",
            self.session_state,
            self._clock_ms() - self._state_since_ms,
            self._client.session_id,
            self._client.negotiated_timeout_ms,
            self._suspensions,
            self._losses,
            self._outcomes_read_back,
            self._client.last_failure,
        )

    @property
    def session_ticket(self) -> zookeeper_session.SessionTicket:
        return self._client.session_ticket

    def listen(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def _session_changed(self, happened: zookeeper_session.SessionEvent) -> None:
        event = _EVENTS[happened]
        self._state = _STATES[event]
        self._state_since_ms = self._clock_ms()
        self._suspensions += event is SessionEvent.SUSPENDED
        self._losses += event is SessionEvent.LOST
        store, session = str(self._client.addresses), f"{self._client.session_id:#x}"
        match event:
            case SessionEvent.SUSPENDED:
                logs.warning("metadata_session.suspended", store=store, session=session)
            case SessionEvent.RECONNECTED:
                logs.info("metadata_session.reconnected", store=store, session=session)
            case SessionEvent.LOST:
                logs.error("metadata_session.lost", store=store, timeout_ms=self._client.negotiated_timeout_ms)
            case SessionEvent.RENEWED:
                logs.info("metadata_session.renewed", store=store, session=session)
        for listener in tuple(self._listeners):
            _call(listener, event, str(event))
        if self._state is SessionState.CONNECTED:
            for prefix, missed in tuple(self._missed):
                _call_missed(missed, prefix)

    # --- read --------------------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned | None:
        node = await self._node(path)
        return None if node is None or _is_inner(*node) else Versioned(node[0], node[1].version)

    async def times_of(self, path: str) -> NodeTimes | None:
        node = await self._node(path)
        return None if node is None else NodeTimes(node[1].ctime_ms, node[1].mtime_ms)

    async def _node(self, path: str) -> tuple[bytes, Stat] | None:
        """Return value and stat of the node, also of an inner node; None if it does not exist."""
        try:
            return await self._read(lambda: self._client.get(path), path)
        except NoNode:
            return None

    async def children(self, path: str) -> list[str]:
        """Return the names of the nodes directly below `path`. They may include a node without a value below which all
        nodes were deleted, until ZooKeeper deletes this node too.
        """
        try:
            names = await self._read(lambda: self._client.children(path), path)
        except NoNode:
            return []
        return sorted(name for name in names if path != "/" or name != "zookeeper" or self._client.addresses.chroot)

    async def values_of(self, paths: Sequence[str]) -> list[Versioned | None]:
        found: list[Versioned | None] = []
        async for node in self._nodes(paths):
            if isinstance(node, StoreError):
                raise node
            found.append(None if node is None or _is_inner(*node) else Versioned(node[0], node[1].version))
        return found

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        """Return up to `limit` values below `path`. Each call lists the whole tree below `path`; `values_at` costs less
        if the depth is known.
        """
        paths = sorted(
            (each for each in await self._paths_below(path) if each.encode() > after.encode()), key=str.encode
        )
        found: list[tuple[str, Versioned]] = []
        for start in range(0, len(paths), limit):
            part = paths[start : start + limit]
            for each, value in zip(part, await self.values_of(part), strict=True):
                if value is not None:
                    found.append((each, value))
            if len(found) >= limit:
                break
        return found[:limit]

    async def values_at(
        self, path: str, depth: int, page_values: int = PAGE_VALUES
    ) -> AsyncIterator[tuple[list[str], Versioned]]:
        """Yield the values `depth` segments below `path`. A value that is too large for one response is logged and
        skipped.
        """
        parents = [path]
        for _ in range(depth):
            parents = [below for found in await self._children_of(parents) for below in found]
        start = len(prefix_below(path))
        paths = sorted(parents, key=str.encode)
        position = 0
        async for node in self._nodes(paths):
            each, position = paths[position], position + 1
            if isinstance(node, StoreError):
                logs.error("metadata.value_unreadable", path=each, reason=str(node))
            elif node is not None and not _is_inner(*node):
                yield each[start:].split("/"), Versioned(node[0], node[1].version)

    async def _paths_below(self, path: str) -> list[str]:
        found: list[str] = []
        level = [path]
        while level:
            level = [below for each in await self._children_of(level) for below in each]
            found += level
        return found

    async def _children_of(self, paths: Sequence[str]) -> list[list[str]]:
        results: list[list[str]] = []
        for start in range(0, len(paths), BATCH_READS):
            part = paths[start : start + BATCH_READS]
            reads = [ChildrenOp(path) for path in part]
            answers = await self._read(partial(self._client.multi_read, reads), part[0])
            for path, names in zip(part, answers, strict=True):
                if isinstance(names, list):
                    below = prefix_below(path)
                    results.append([below + name for name in sorted(names) if below != "/" or name != "zookeeper"])
                elif isinstance(names, NoNode):
                    results.append([])
                else:
                    raise StoreError(f"the nodes below {path} in the metadata store cannot be listed: {names}")
        return results

    async def _nodes(self, paths: Sequence[str]) -> AsyncIterator[tuple[bytes, Stat] | StoreError | None]:
        """Yield value and stat of each node in order; an error if only this value cannot be read."""
        for start in range(0, len(paths), BATCH_READS):
            for node in await self._batch(paths[start : start + BATCH_READS]):
                yield node

    async def _batch(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | StoreError | None]:
        nodes: list[tuple[bytes, Stat] | StoreError | None] = []
        try:
            reads = [GetOp(path) for path in paths]
            answers = await self._read(lambda: self._client.multi_read(reads), paths[0])
        except StoreError as error:
            if not isinstance(error.__cause__, TooLarge):
                raise
            return [await self._node_or_error(path) for path in paths]
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, tuple):
                nodes.append(answer)
            elif isinstance(answer, NoNode):
                nodes.append(None)
            else:
                nodes.append(StoreError(f"the metadata at {path} cannot be read: {answer}"))
        return nodes

    async def _node_or_error(self, path: str) -> tuple[bytes, Stat] | StoreError | None:
        try:
            return await self._node(path)
        except MetadataUnavailable:
            raise
        except StoreError as error:
            return error

    async def sync(self) -> None:
        await self._read(lambda: self._client.sync("/"), "/")

    async def _read(self, attempt: Callable[[], Awaitable[_Result]], path: str) -> _Result:
        """Repeat the read `attempt` while there is no connection. Raises NoNode unchanged, StoreError for all other
        errors.
        """
        deadline_ms = self._clock_ms() + self._timeout_ms
        while True:
            try:
                return await attempt()
            except NoNode:
                raise
            except (ConnectionLoss, NotSent) as error:
                await self._pause_or_raise(deadline_ms, path, error)
            except ZooKeeperError as error:
                raise StoreError(f"the metadata at {path} cannot be read: {error}") from error

    async def _pause_or_raise(self, deadline_ms: float, path: str, error: ZooKeeperError) -> None:
        if self._is_closed:
            raise StoreError("the metadata store is closed") from error
        if self._clock_ms() >= deadline_ms:
            raise MetadataUnavailable(
                f"the node {path} cannot be read or written, because the metadata store cannot be reached: {error}"
            ) from error
        await asyncio.sleep(_RETRY_PAUSE_S)

    # --- change ------------------------------------------------------------------------------------------------------

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        assert path.startswith("/"), path
        assert not path.endswith("/"), path
        put = Put(path, bytes(value), expected_version)
        return await self._changed(path, lambda: self._put(put), lambda: self._outcome_of_put(put))

    async def _put(self, put: Put) -> int:
        path, value, expected_version = put
        for _ in range(_RACE_ATTEMPTS):
            try:
                if expected_version == NOT_EXISTING:
                    return (await self._client.create(path, value, makes_parents=True))[1].version
                return (await self._client.set(path, value, expected_version)).version
            except errors.NodeExists as error:
                node = await self._client_node(path)
                if node is not None and not _is_inner(*node):
                    raise BadVersionError(f"the node {path} already exists with version {node[1].version}") from error
                if node is not None:
                    expected_version = node[1].version
            except errors.BadVersion as error:
                raise BadVersionError(
                    f"the node {path} does not have the expected version {expected_version}"
                ) from error
            except NoNode as error:
                if expected_version != ANY_VERSION and put.expected_version != NOT_EXISTING:
                    raise BadVersionError(
                        f"the node {path} does not exist, but version {expected_version} was expected"
                    ) from error
                if expected_version == ANY_VERSION:
                    created = await self._created(path, value)
                    if created is not None:
                        return created
                else:
                    expected_version = NOT_EXISTING
        raise StoreError(
            f"the node {path} could not be changed, because other brokers changed the value during each attempt: try again"
        )

    async def _created(self, path: str, value: bytes) -> int | None:
        """Create the node with its parents. Return its version; None if the node exists now."""
        try:
            return (await self._client.create(path, value, makes_parents=True))[1].version
        except errors.NodeExists:
            return None

    async def _client_node(self, path: str) -> tuple[bytes, Stat] | None:
        """Return value and state of the node at `path`; None if it does not exist. Used within a change, whose caller
        handles a lost connection.
        """
        try:
            return await self._client.get(path)
        except NoNode:
            return None

    async def _outcome_of_put(self, put: Put) -> int | None:
        """Return the version if the put happened, None if not. Raises BadVersionError and UnknownOutcome."""
        path, value, expected_version = put
        node = await self._node(path)
        is_equal = node is not None and node[0] == value
        if expected_version == ANY_VERSION:
            # An empty value may have been there before; to put it again is the same.
            return node[1].version if node is not None and is_equal and value else None
        if expected_version == NOT_EXISTING:
            if node is None or (_is_inner(*node) and value):
                return None
            if is_equal:
                return node[1].version
            if node[1].version == 0:
                raise BadVersionError(f"the node {path} already exists with version 0")
        elif node is not None and node[1].version == expected_version:
            return None
        elif node is not None and node[1].version == expected_version + 1:
            if is_equal:
                return node[1].version
            raise BadVersionError(
                f"the node {path} has version {node[1].version}, but version {expected_version} was expected"
            )
        raise UnknownOutcome(
            f"it is unknown whether the node {path} was changed: the response was lost, and the value was changed again "
            "later. Read the value before you repeat the change"
        )

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        session_id = self._client.session_id
        deleted: list[Stat] = []  # the node that the last request was to delete

        async def act() -> bool:
            for _ in range(_RACE_ATTEMPTS):
                node = await self._client_node(path)
                if node is None or _is_inner(*node):
                    if expected_version != ANY_VERSION:
                        raise BadVersionError(
                            f"the node {path} does not exist, but version {expected_version} was expected"
                        )
                    return False
                version = node[1].version
                if expected_version not in (ANY_VERSION, version):
                    raise BadVersionError(
                        f"the node {path} has version {version}, but version {expected_version} was expected"
                    )
                if node[1].ephemeral_owner not in (0, CONTAINER_OWNER) and session_id:
                    self._require_session(session_id, path)  # in another one the value may be another broker's
                deleted[:] = [node[1]]
                try:
                    await self._delete_node(path, version)
                except (errors.BadVersion, NoNode):
                    continue  # changed meanwhile: look again
                return True
            raise StoreError(
                f"the node {path} could not be deleted, because other brokers changed it during each attempt: try again"
            )

        async def outcome() -> bool | None:
            node = await self._node(path)
            if not deleted:
                return None  # the answer to the read was lost
            if node is None or _is_inner(*node) or node[1].czxid != deleted[0].czxid:
                return True  # also if another writer has created it again, which may have the same version
            if node[1].version == deleted[0].version or expected_version == ANY_VERSION:
                return None
            raise UnknownOutcome(
                f"it is unknown whether the node {path} was deleted: the response was lost, and the node has another value now"
            )

        return await self._changed(path, act, outcome)

    async def _delete_node(self, path: str, version: int) -> None:
        """Delete the node, or empty it if it has children."""
        try:
            await self._client.delete(path, version)
        except errors.NotEmpty:
            await self._client.set(path, b"", version)

    async def delete_tree(self, path: str) -> int:
        """Delete the nodes at and below `path`, children first. If other brokers add children meanwhile, this method
        tries again; after several attempts it raises StoreError.
        """
        count = 0
        for _ in range(_RACE_ATTEMPTS):
            paths = [*reversed(await self._paths_below(path)), path]
            count += sum(value is not None for value in await self.values_of(paths))
            for start in range(0, len(paths), BATCH_READS):
                await self._drop_nodes(paths[start : start + BATCH_READS])
            if await self._node(path) is None:
                return count
        raise StoreError(
            f"the node {path} could not be deleted, because other brokers changed it during each attempt: try again"
        )

    async def _drop_nodes(self, paths: Sequence[str]) -> None:
        """Raises the first StoreError instead of a group."""
        try:
            # ZooKeeper performs the requests of one connection in their order.
            async with asyncio.TaskGroup() as group:
                for each in paths:
                    group.create_task(self._drop_node(each))
        except* StoreError as failures:
            raise failures.exceptions[0] from failures

    async def _drop_node(self, path: str) -> None:
        """Delete the node in any version, unless it has children again."""

        async def act() -> bool:
            with suppress(NoNode, errors.NotEmpty):
                await self._client.delete(path)
            return True

        async def outcome() -> bool | None:
            return None  # to delete it again is the same

        await self._changed(path, act, outcome)

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        assert len({change.path for change in changes}) == len(changes), "a path occurs once"
        kept = [each._replace(value=bytes(each.value)) if isinstance(each, Put) else each for each in changes]
        path = kept[0].path if kept else "/"
        if not kept:
            return []
        return await self._changed(path, lambda: self._change_together(kept), lambda: self._outcome_of_all(kept))

    async def _change_together(self, changes: Sequence[Change]) -> list[int | None]:
        # At first without reading the nodes: mostly the caller knows their versions, and no node is an inner one.
        wanted = [_operation_by_version(change) for change in changes]
        for attempt in range(_RACE_ATTEMPTS):
            if attempt or None in wanted:
                wanted = [*_operations(changes, [await self._client_node(change.path) for change in changes])]
            try:
                results = await self._client.multi([each for each in wanted if each is not None])
            except NoNode as error:
                index = error.operation_index or 0
                if isinstance(wanted[index], CreateOp):
                    await self._make_parent(changes[index].path)
            except (errors.BadVersion, errors.NodeExists, errors.NotEmpty):
                pass  # changed meanwhile: look again, and refuse if a version does not fit
            else:
                return [_version_of(change, result) for change, result in zip(changes, results, strict=True)]
        raise StoreError(
            f"the node {changes[0].path} could not be changed, because other brokers changed the value during each attempt: "
            "try again"
        )

    async def _make_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent:
            with suppress(errors.NodeExists):
                await self._client.create(parent, b"", CreateMode.CONTAINER, makes_parents=True)

    async def _outcome_of_all(self, changes: Sequence[Change]) -> list[int | None] | None:
        """Return the results if the changes happened, None if not.

        The outcome of one change decides for all, because they are atomic.
        """
        versions: list[int | None] = []
        has_happened: bool | None = None
        for change in changes:
            node = await self._node(change.path)
            version = None if node is None else node[1].version
            is_missing = node is None or _is_inner(*node)
            versions.append(version if isinstance(change, Put) else None)
            if isinstance(change, Put) and change.expected_version == NOT_EXISTING and is_missing:
                has_happened = False
            elif isinstance(change, Put) and change.expected_version == ANY_VERSION:
                if node is not None and node[0] == change.value:
                    has_happened = True
            elif isinstance(change, Put) and node is not None and node[0] == change.value:
                if change.expected_version == NOT_EXISTING or version == change.expected_version + 1:
                    has_happened = True
            elif isinstance(change, Delete) and is_missing:
                has_happened = True
            elif not isinstance(change, Check) and version is not None and version == change.expected_version:
                has_happened = False
            if has_happened is False:
                return None
        if has_happened:
            return versions
        raise UnknownOutcome(
            f"it is unknown whether the node {changes[0].path} was changed: the response was lost, and the values were "
            "changed again later. Read the values before you repeat the change"
        )

    async def put_for_session(self, path: str, value: bytes) -> int:
        session_id, last_zxid = self._client.session_id, self._client.last_zxid

        async def act() -> int:
            self._require_session(session_id, path)
            try:
                _, stat = await self._client.create(path, bytes(value), CreateMode.EPHEMERAL, makes_parents=True)
            except errors.NodeExists as error:
                raise BadVersionError(f"the node {path} already exists") from error
            if stat.ephemeral_owner != session_id:
                raise MetadataUnavailable(
                    f"the node {path} was not stored, because the session with the metadata store changed during the request"
                )
            return stat.version

        async def outcome() -> int | None:
            self._require_session(session_id, path)
            node = await self._node(path)
            self._require_session(session_id, path)  # the read may have waited for another session
            if node is None:
                return None
            if node[1].ephemeral_owner == session_id and node[1].czxid > last_zxid:
                return node[1].version
            raise BadVersionError(f"the node {path} already exists")

        return await self._changed(path, act, outcome)

    def _require_session(self, session_id: int, path: str) -> None:
        if not self._client.holds_session() or self._client.session_id != session_id:
            raise MetadataUnavailable(
                f"the node {path} was not stored, because the session with the metadata store is lost"
            )

    async def create_sequential(self, path: str, value: bytes, *, for_session: bool) -> str:
        """Store a value at a new path with a rising number. The parent becomes a persistent node: ZooKeeper deletes an
        empty container, and the numbers in a new one would begin again.
        """
        mode = CreateMode.EPHEMERAL_SEQUENTIAL if for_session else CreateMode.PERSISTENT_SEQUENTIAL
        session_id = self._client.session_id

        async def act() -> str:
            if for_session:
                self._require_session(session_id, path)
            try:
                return (await self._client.create(path, bytes(value), mode))[0]
            except NoNode:
                await self._created(path.rpartition("/")[0], b"")
                return (await self._client.create(path, bytes(value), mode))[0]

        async def outcome() -> str | None:
            if for_session:
                return None  # what was created without an answer disappears with the session
            raise UnknownOutcome(
                f"it is unknown whether a node below {path} was created: the response was lost. An unused node may remain"
            )

        return await self._changed(path, act, outcome)

    async def _changed(
        self, path: str, act: Callable[[], Awaitable[_Result]], outcome: Callable[[], Awaitable[_Result | None]]
    ) -> _Result:
        """Perform the change `act`. If the response is lost, call `outcome` for the result; if that returns None,
        perform the change again.
        """
        deadline_ms = self._clock_ms() + self._timeout_ms
        while True:
            try:
                return await act()
            except NotSent as error:
                await self._pause_or_raise(deadline_ms, path, error)
            except ConnectionLoss as error:
                try:
                    result = await outcome()
                except MetadataUnavailable as unavailable:
                    raise UnknownOutcome(
                        f"it is unknown whether the node {path} was changed: the response was lost ({unavailable}). "
                        "Read the value before you repeat the change"
                    ) from error
                self._outcomes_read_back += 1
                if result is not None:
                    return result
            except ZooKeeperError as error:
                raise StoreError(f"the metadata at {path} cannot be changed: {error}") from error

    # --- watches -----------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, watch: Watch, missed: Missed | None = None) -> None:
        """Call `watch` after changes at or below `prefix`. If `missed` is None, call `watch(prefix)` whenever `missed`
        would be called.
        """

        def node_changed(event: NodeEvent) -> None:
            _call(watch, event.path, event.path)

        self._client.watch(prefix, node_changed, is_recursive=True)
        self._missed.append((prefix, missed or (lambda: watch(prefix))))

    async def close(self) -> None:
        self._is_closed = True
        await self._client.close()


async def _root(client: ZooKeeperClient) -> Stat | None:
    """Return the stat of the chroot node; None if it does not exist. Raises the error of the last attempt."""
    for _ in range(_RACE_ATTEMPTS - 1):
        with suppress(ConnectionLoss, NotSent):
            return await client.exists("/")
        await asyncio.sleep(_RETRY_PAUSE_S)
    return await client.exists("/")


async def _log_waiting(client: ZooKeeperClient, deadline_s: float) -> None:
    while True:
        await asyncio.sleep(WAITING_LOG_S)
        logs.warning(
            "metadata_store.waiting",
            store=str(client.addresses),
            reason=client.last_failure,
            gives_up_after_s=deadline_s,
        )


def _is_inner(value: bytes, stat: Stat) -> bool:
    return not value and stat.cversion > 0


def _operations(changes: Sequence[Change], nodes: Sequence[tuple[bytes, Stat] | None]) -> list[ChangeOp]:
    """Return the operations for `changes`, given the present nodes. Raises BadVersionError if a version does not fit."""
    added: Counter[str] = Counter()  # children of each path, by the operations before
    operations = []
    for change, node in zip(changes, nodes, strict=True):
        operation = _operation(change, node, added[change.path])
        parent = change.path.rpartition("/")[0]
        added[parent] += isinstance(operation, CreateOp) - isinstance(operation, DeleteOp)
        operations.append(operation)
    return operations


def _operation_by_version(change: Change) -> ChangeOp | None:
    """Return the operation for a change with an expected version, if the node is no inner one. None without such a version."""
    path, expected = change.path, change.expected_version
    if expected == ANY_VERSION:
        return None
    match change:
        case Put(_, value, _):
            return CreateOp(path, value) if expected == NOT_EXISTING else SetOp(path, value, expected)
        case Delete():
            return DeleteOp(path, expected)
        case Check():
            return CheckOp(path, expected)


def _operation(change: Change, node: tuple[bytes, Stat] | None, added_children: int) -> ChangeOp:
    path, expected = change.path, change.expected_version
    present = None if node is None or _is_inner(*node) else node[1].version
    if expected == NOT_EXISTING and present is not None:
        raise BadVersionError(f"the node {path} already exists with version {present}")
    if (expected not in (ANY_VERSION, NOT_EXISTING) or not isinstance(change, Put)) and present is None:
        raise BadVersionError(f"the node {path} does not exist")
    if expected not in (ANY_VERSION, NOT_EXISTING, present):
        raise BadVersionError(f"the node {path} has version {present}, but version {expected} was expected")
    version = ANY_VERSION if node is None else node[1].version
    match change:
        case Put(_, value, _):
            return CreateOp(path, value) if node is None else SetOp(path, value, version)
        case Delete():
            has_children = node is not None and node[1].num_children + added_children > 0
            return SetOp(path, b"", version) if has_children else DeleteOp(path, version)
        case Check():
            return CheckOp(path, version)


def _version_of(change: Change, result: object) -> int | None:
    if not isinstance(change, Put):
        return None
    stat = result if isinstance(result, Stat) else result[1] if isinstance(result, tuple) else None
    assert isinstance(stat, Stat)
    return stat.version


def _call_missed(missed: Missed, prefix: str) -> None:
    _call(lambda _: missed(), prefix, prefix)


_Argument = TypeVar("_Argument")


def _call(listener: Callable[[_Argument], None], argument: _Argument, about: str) -> None:
    """Call a listener. An error of the listener is logged, and affects neither other listeners nor the store."""
    try:
        listener(argument)
    except Exception as error:  # noqa: BLE001  (the boundary between the store and its listeners)
        logs.error("metadata_watch.failed", path=about, exc_info=error)
