"""Ledger metadata and the list of bookies in ZooKeeper, in the nodes that BookKeeper's Java client uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pybroker.bookkeeper.bookkeeper_pb2 import BookieServiceInfo
from pybroker.bookkeeper.errors import LedgerExists, MetadataConflict, MetadataUnknown, NoSuchLedger
from pybroker.bookkeeper.ledger_paths import SHORT_IDS_END, ledger_id_of, ledger_path
from pybroker.bookkeeper.metadata_store import (
    BookieAddress,
    BookieRegistry,
    LedgerMetadataStore,
    StoredMetadata,
    address_in_id,
)
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.zookeeper import (
    CreateMode,
    CreateOp,
    DeleteOp,
    NodeEvent,
    SessionEvent,
    Stat,
    Watch,
    ZooKeeperClient,
    ZooKeeperError,
)
from pybroker.zookeeper.errors import BadVersion, NodeExists, NoNode, NotEmpty

_HIGH_ORDER_DIGITS = 10
_READ_ONLY = "readonly"
MAX_IDS_AT_ONCE = 100
"""Ledger ids that are assigned with one request."""


class _NewIds(NamedTuple):
    """New ledger ids, and the nodes whose numbers they are."""

    ids: list[int]
    paths: list[str]


class ZooKeeperLedgerMetadata(LedgerMetadataStore):
    """Metadata below `root`, in the nodes of the hierarchical ledger manager."""

    def __init__(self, client: ZooKeeperClient, root: str = "/ledgers") -> None:
        self._client = client
        self._root = root
        self._assigning = asyncio.Lock()
        self._ids: list[int] = []
        """Of the last batch, for the calls that waited when it began."""
        self._id_batches = 0
        self._waiting_for_ids = 0

    async def new_ledger_id(self) -> int:
        """Return a new ledger id: the number of a sequential node, which is created and deleted again.

        Calls that wait at the same time share the requests, because a broker that takes over many topics needs many ids
        at once. No ids are assigned in advance: a new ledger of a topic must have a larger id than all its earlier
        ledgers, which other brokers may have created.

        For ids from 2^31 on, the cluster has the node idgen-long. The name of its newest child has the high bits of an
        id, and the numbers below that child are the low bits.
        """
        batches_before = self._id_batches
        created: _NewIds | None = None
        self._waiting_for_ids += 1
        try:
            async with self._assigning:
                if not self._ids or self._id_batches == batches_before:
                    self._id_batches += 1
                    created = await self._new_ids(min(self._waiting_for_ids, MAX_IDS_AT_ONCE))
                    self._ids = created.ids
                ledger_id = self._ids.pop(0)
        except ZooKeeperError as error:
            raise MetadataUnknown(
                f"No ledger can be created: its id could not be assigned in ZooKeeper ({error})"
            ) from error
        finally:
            self._waiting_for_ids -= 1
        if created is not None:
            with suppress(ZooKeeperError):  # The nodes disappear with the session.
                await self._client.multi([DeleteOp(path) for path in created.paths])
        return ledger_id

    async def _new_ids(self, count: int) -> _NewIds:
        if await self._client.exists(f"{self._root}/idgen-long") is None:
            found = await self._next_numbers(f"{self._root}/idgen/ID-", count)
            if all(0 <= number < SHORT_IDS_END for number in found.ids):
                return found
            await self._create_counter(f"{self._root}/idgen-long/HOB-{1:0{_HIGH_ORDER_DIGITS}d}")
        return await self._long_ids(count)

    async def _long_ids(self, count: int) -> _NewIds:
        parent = f"{self._root}/idgen-long"
        try:
            high = max(
                (int(name[4:]) for name in await self._client.children(parent) if name.startswith("HOB-")), default=1
            )
        except ValueError as error:
            raise MetadataUnknown(
                f"No ledger can be created: a node below {parent} in ZooKeeper has an invalid name ({error})"
            ) from error
        while True:
            low = await self._next_numbers(f"{parent}/HOB-{high:0{_HIGH_ORDER_DIGITS}d}/ID-", count)
            if all(0 <= number < SHORT_IDS_END for number in low.ids):
                return _NewIds([high << 32 | number for number in low.ids], low.paths)
            high += 1

    async def _next_numbers(self, prefix: str, count: int) -> _NewIds:
        """Create sequential nodes, and return their numbers and paths."""
        wanted = [CreateOp(prefix, b"", CreateMode.EPHEMERAL_SEQUENTIAL)] * count
        try:
            created = await self._client.multi(wanted)
        except NoNode:
            await self._create_counter(prefix.rpartition("/")[0])
            created = await self._client.multi(wanted)
        paths = [each[0] for each in created if isinstance(each, tuple) and not isinstance(each, Stat)]
        return _NewIds([int(path[len(prefix) :]) for path in paths], paths)

    async def _create_counter(self, path: str) -> None:
        """Create the counter node and its parents as persistent nodes: a deleted container would count from 0 again."""
        names = path.removeprefix("/").split("/")
        for count in range(1, len(names) + 1):
            try:
                await self._client.create("/" + "/".join(names[:count]))
            except NodeExists:
                continue

    def _path(self, ledger_id: int) -> str:
        return f"{self._root}/{ledger_path(ledger_id)}"

    async def create(self, ledger_id: int, value: bytes) -> int:
        try:
            _, stat = await self._client.create(self._path(ledger_id), value, makes_parents=True)
        except NodeExists as error:
            raise LedgerExists(f"Ledger {ledger_id} exists already.") from error
        except ZooKeeperError as error:
            raise MetadataUnknown(f"It is unknown whether ledger {ledger_id} was created: {error}") from error
        return stat.version

    async def read(self, ledger_id: int) -> StoredMetadata:
        """Return the metadata of a ledger. If the node is missing, read it again after a sync, because a server that
        lags behind may not know the newest ledgers yet. Raises MetadataUnknown, and NoSuchLedger, after which the
        recovery of a managed ledger treats the ledger as empty.
        """
        try:
            try:
                value, stat = await self._client.get(self._path(ledger_id))
            except NoNode:
                await self._client.sync(self._root)
                value, stat = await self._client.get(self._path(ledger_id))
        except NoNode as error:
            raise NoSuchLedger(f"Ledger {ledger_id} does not exist.") from error
        except ZooKeeperError as error:
            raise MetadataUnknown(f"The metadata of ledger {ledger_id} cannot be read: {error}") from error
        return StoredMetadata(value, stat.version)

    async def write(self, ledger_id: int, value: bytes, version: int) -> int:
        try:
            stat = await self._client.set(self._path(ledger_id), value, version)
        except BadVersion as error:
            raise MetadataConflict(f"The metadata of ledger {ledger_id} was changed by another client.") from error
        except NoNode as error:
            raise NoSuchLedger(f"Ledger {ledger_id} does not exist.") from error
        except ZooKeeperError as error:
            raise MetadataUnknown(
                f"It is unknown whether the metadata of ledger {ledger_id} was changed: {error}"
            ) from error
        return stat.version

    async def delete(self, ledger_id: int) -> None:
        """Delete the node of the ledger, and its parents if they are empty, as the Java client does."""
        path = self._path(ledger_id)
        try:
            await self._client.delete(path)
        except NoNode:
            return
        except ZooKeeperError as error:
            raise MetadataUnknown(f"It is unknown whether ledger {ledger_id} was deleted: {error}") from error
        parent = path.rpartition("/")[0]
        while parent != self._root:
            try:
                await self._client.delete(parent)
            except (NotEmpty, NoNode):
                return
            except ZooKeeperError:
                return  # Empty parents are harmless.
            parent = parent.rpartition("/")[0]

    async def list_ledgers(self) -> list[int]:
        return [ledger_id async for page in self.ledger_pages() for ledger_id in page]

    async def ledger_pages(self) -> AsyncIterator[list[int]]:
        """Yield the ids in pages. A page has the children of one node: up to 10,000 ids."""
        try:
            async for page in self._pages_below(""):
                yield page
        except ZooKeeperError as error:
            raise MetadataUnknown(f"The ledgers cannot be listed: {error}") from error

    async def _pages_below(self, prefix: str) -> AsyncIterator[list[int]]:
        try:
            names = await self._client.children(f"{self._root}/{prefix}".rstrip("/"))
        except NoNode:
            return
        ledger_ids = [ledger_id_of(prefix + name) for name in names]
        if page := sorted(each for each in ledger_ids if each is not None):
            yield page
        for name in sorted(
            (each for each in names if each.isascii() and each.isdigit()), key=lambda each: (len(each), each)
        ):
            async for page in self._pages_below(f"{prefix}{name}/"):
                yield page


class ZooKeeperBookies(BookieRegistry):
    """The bookies that are registered below `root`. A watch updates the list."""

    def __init__(self, client: ZooKeeperClient, root: str = "/ledgers") -> None:
        self._client = client
        self._parents = (f"{root}/available", f"{root}/available/{_READ_ONLY}")
        self._cookies = f"{root}/cookies"
        self._members: frozenset[str] = frozenset()
        self._addresses: dict[str, BookieAddress] = {}
        self._writable: dict[str, BookieAddress] = {}
        self._read_only: dict[str, BookieAddress] = {}
        self._watches: list[Watch] = []
        self._tasks = TaskOwner("bookies")
        self._is_refreshing = False
        self._is_outdated = False

    async def start(self) -> None:
        self._watches = [self._client.watch(each, self._changed, is_recursive=False) for each in self._parents]
        self._client.listen(self._session_changed)
        await self.refresh()

    async def close(self) -> None:
        for watch in self._watches:
            watch.remove()
        self._watches.clear()
        await self._tasks.close()

    def writable(self) -> Mapping[str, BookieAddress]:
        return self._writable

    def read_only(self) -> Mapping[str, BookieAddress]:
        return self._read_only

    def members(self) -> Collection[str]:
        """Return the bookies with a cookie. A bookie creates its cookie at its first start; decommissioning deletes it."""
        return self._members

    def address_of(self, bookie_id: str) -> BookieAddress | None:
        return self._addresses.get(bookie_id)

    async def refresh(self) -> None:
        try:
            writable = await self._registered(self._parents[0])
            read_only = await self._registered(self._parents[1])
            members = await self._client.children(self._cookies) if await self._client.exists(self._cookies) else ()
        except ZooKeeperError as error:
            raise MetadataUnknown(f"The list of bookies cannot be read: {error}") from error
        self._addresses |= read_only | writable
        self._writable, self._read_only, self._members = writable, read_only, frozenset(members)

    async def _registered(self, parent: str) -> dict[str, BookieAddress]:
        """Return the bookies below `parent`, without bookies that have no address."""
        found: dict[str, BookieAddress] = {}
        try:
            names = await self._client.children(parent)
        except NoNode:
            return found
        for name in names:
            if name == _READ_ONLY:
                continue
            try:
                value, _ = await self._client.get(f"{parent}/{name}")
            except NoNode:
                continue
            address = _address_in(value) or address_in_id(name)
            if address is not None:
                found[name] = address
        return found

    def _changed(self, _event: NodeEvent) -> None:
        self._is_outdated = True
        if not self._is_refreshing and self._watches:
            self._is_refreshing = True
            self._tasks.start(self._refresh(), "refresh")

    def _session_changed(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.RENEWED} and self._watches:
            self._is_outdated = True
            if not self._is_refreshing:
                self._is_refreshing = True
                self._tasks.start(self._refresh(), "refresh")

    async def _refresh(self) -> None:
        try:
            while self._is_outdated:
                self._is_outdated = False
                try:
                    await self.refresh()
                except MetadataUnknown as error:
                    logs.warning("bookies.not_listed", error=error)
                    self._is_outdated = True
                    await asyncio.sleep(1)
        finally:
            self._is_refreshing = False


def _address_in(value: bytes) -> BookieAddress | None:
    """Return the address in the description of a bookie; None if it has none, as with older bookies."""
    info = BookieServiceInfo()
    try:
        info.ParseFromString(value)
        for endpoint in info.endpoints:
            if endpoint.protocol == "bookie-rpc" and endpoint.host and 0 < endpoint.port < 1 << 16:
                return BookieAddress(endpoint.host, endpoint.port)
    except (DecodeError, UnicodeDecodeError):  # texts are decoded when they are read
        pass
    return None
