"""The owner of each bundle of the cluster, for lookups, for the loading of topics, and for REST calls.

A bundle belongs to the broker whose session created its ownership document. The store decides between two brokers that
create it at the same time.

Operation: `HeldBundles` has the bundles of this broker. Documents of other brokers are cached, and a watch removes
changed ones.

A broker that loses its session closes the topics of all its bundles, in the order that prevents two owners: the
metadata client reports the loss before the server can end the session, `holds_session` is asked before anything is
dispatched, and fencing, which needs no store, comes before everything that waits. In the next session the bundles have
no owner until a client looks them up.

A document with this broker's addresses and another session mark was left by an earlier session or process. It is not
deleted, because between the read and the deletion, the session could end and another broker could create a document. It
disappears with its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.broker_registry import BrokerRegistry, RegisteredBroker
from pybroker.cluster.ownership.assignment import NextStep, next_step
from pybroker.cluster.ownership.held_bundles import BundleState, HeldBundles
from pybroker.cluster.ownership.namespace_bundle import (
    OWNERS,
    WHOLE,
    NamespaceBundle,
    bundle_of_path,
    bundle_of_topic,
    is_bundle_of,
)
from pybroker.cluster.ownership.owner_document import (
    OwnerDocument,
    decoded_document,
    own_document,
    urls_of_broker,
    urls_of_document,
)
from pybroker.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailable,
    ServiceNotReady,
    StoreError,
    TopicNotFound,
    UnknownOutcome,
)
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.resources import Resources
from pybroker.metadata.session_report import SessionEvent
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.waiting.keyed_lock import KeyedLock

ATTEMPTS = 5
"""Number of attempts of a lookup whose bundle changes its owner meanwhile."""
RETRY_PAUSE_S = 0.5
"""Pause between two attempts to delete the document of a released bundle."""
_SESSION_MARK_BITS = 64


class BundleTopics(Protocol):
    """The operations on the topics of this broker that the ownership of bundles needs."""

    def acquired(self, bundle: NamespaceBundle) -> None:
        """Called when this broker has acquired `bundle`, to load the topics that must work without a client."""

    async def fence(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close the producers and consumers of all loaded topics of the bundles, without waiting for a store or a
        client.
        """

    async def close(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close all topics of the bundles, including topics that are being loaded."""


class OwnerKind(Enum):
    """The destination of a lookup."""

    HERE = "here"
    OTHER = "other"
    """Another broker has the bundle."""
    REDIRECT = "redirect"
    """The bundle has no owner. The broker in the result decides, or acquires the bundle."""


class Owner(NamedTuple):
    """The result of a lookup. `urls` are empty for HERE, because the caller knows the addresses of this broker."""

    kind: OwnerKind
    urls: LookupResult
    is_authoritative: bool
    internal_url: str = ""
    """The address for other brokers, whatever the listener of the client; empty for HERE."""
    is_pybroker: bool = True
    """False for a Java broker that has the bundle."""


class BundleUnloading(MetadataError):
    """The bundle is being unloaded: it has an owner again soon."""


_HERE = Owner(OwnerKind.HERE, LookupResult("", "", "", ""), True)


class BundleOwnership:
    """Ownership of bundles by one broker. Call `start` first; `close` releases no bundle."""

    def __init__(
        self,
        store: MetadataStore,
        resources: Resources,
        registry: BrokerRegistry,
        topics: BundleTopics,
        random: Random,
    ) -> None:
        self._store = store
        self._resources = resources
        self.registry = registry
        self._topics = topics
        self._random = random
        self.held: HeldBundles[NamespaceBundle] = HeldBundles()
        self._session_mark = self._new_mark()
        self._locks: KeyedLock[NamespaceBundle] = KeyedLock()
        self._tasks = TaskOwner("ownership")
        self._documents: dict[NamespaceBundle, OwnerDocument] = {}  # of other brokers
        self._waiters: dict[NamespaceBundle, asyncio.Event] = {}
        self._changes = 0  # of any document: a value that was read before is not cached after it
        self.is_leaving = False
        """Set before the bundles are handed over: no bundle is acquired any more."""
        self._fencing = 0  # sessions whose topics still have clients
        self._fenced = asyncio.Event()  # set without such a session
        self._fenced.set()
        self._heartbeat = NamespaceBundle(
            system_topics.heartbeat_namespace(registry.own_broker.broker_id),
            WHOLE,
        )

    def _new_mark(self) -> str:
        return f"{self._random.getrandbits(_SESSION_MARK_BITS):016x}"

    async def start(self) -> None:
        """Watch the ownership documents, and acquire the bundle of this broker's health checks. Raises StoreError."""
        self._store.listen(self._session_changed)
        self._store.watch(OWNERS, self._document_changed, self._documents_missed)
        if not await self.acquire(self._heartbeat):
            self._tasks.start(self._acquire_heartbeat(self.held.session), "heartbeat")

    async def close(self) -> None:
        """End all tasks. The ownership documents disappear with the session; call `release_all` first so that other
        brokers get the bundles at once.
        """
        await self._tasks.close()

    # --- queries without IO ------------------------------------------------------------------------------------------

    def bundle_of(self, topic: TopicName) -> NamespaceBundle:
        """Return the bundle of `topic`. Raises TopicNotFound if its namespace does not exist."""
        return bundle_of_topic(topic, self.boundaries(topic.namespace))

    def boundaries(self, namespace: NamespaceName) -> list[str]:
        """Return the bundle boundaries of a namespace. Raises TopicNotFound if the namespace does not exist."""
        if system_topics.is_heartbeat_namespace(namespace):
            return [f"0x{WHOLE.lower:08x}", f"0x{WHOLE.upper:08x}"]
        policies = self._resources.namespace(namespace)
        if policies is None:
            raise TopicNotFound("Namespace not found")
        return policies.bundles.boundaries

    def bundles_of(self, namespace: NamespaceName) -> list[NamespaceBundle]:
        boundaries = [int(each, 16) for each in self.boundaries(namespace)]
        return [
            NamespaceBundle(namespace, WHOLE._replace(lower=lower, upper=upper))
            for lower, upper in pairwise(boundaries)
        ]

    def serves(self, bundle: NamespaceBundle) -> bool:
        """Return whether this broker certainly owns `bundle` now, and is not releasing it."""
        return self.held.serves(bundle) and self._store.holds_session()

    def holds_session(self) -> bool:
        """Return whether this broker may deliver messages: it certainly has its session with the metadata store now.
        The result is correct even immediately after the process was frozen.

        After a lost session, no topic delivers until all topics of that session are fenced, even if a new session
        exists already.
        """
        return not self._fencing and self._store.holds_session()

    async def settled(self, topic: TopicName) -> None:
        """If this broker is acquiring the bundle of `topic`, wait until the attempt has succeeded or failed. Raises
        TopicNotFound if the namespace does not exist.

        Another broker may read the new ownership document and redirect a client here before this broker knows that it
        has created the document.
        """
        bundle = self.bundle_of(topic)
        if self.held.state(bundle) is BundleState.ACQUIRING:
            async with self._locks.held(bundle):
                pass

    def require_served(self, topic: TopicName) -> None:
        """Check that this broker owns the bundle of `topic`. Raises ServiceNotReady, with Pulsar's error text, if it does
        not, and TopicNotFound if the namespace does not exist.
        """
        bundle = self.bundle_of(topic)
        if not self.serves(bundle):
            raise ServiceNotReady(
                f"Namespace bundle ({bundle}) for topic ({topic}) not served by this"
                f" instance:{self.registry.own_broker.broker_id}. Please redo the lookup."
            )

    def owned_bundles(self) -> list[NamespaceBundle]:
        return list(self.held.owned())

    # --- the owner ---------------------------------------------------------------------------------------------------

    async def owner_of(self, topic: TopicName, listener_name: str | None, *, is_authoritative: bool) -> Owner:
        """Return the owner of the bundle of `topic`. If the bundle has no owner, this broker acquires it, or the result
        is the broker that the client must ask next (kind REDIRECT). Raises TopicNotFound, MetadataError,
        ServiceNotReady, StoreError.

        `listener_name`: the listener whose addresses the client needs. `is_authoritative`: another broker has sent the
        client here to let this broker acquire the bundle.
        """
        heartbeat_of = self._broker_of_heartbeat(topic.namespace)
        if heartbeat_of is not None:
            return self._heartbeat_owner(heartbeat_of, listener_name)
        return await self.owner_of_bundle(self.bundle_of(topic), listener_name, is_authoritative=is_authoritative)

    async def owner_of_bundle(
        self, bundle: NamespaceBundle, listener_name: str | None, *, is_authoritative: bool
    ) -> Owner:
        """Return the owner of `bundle`. If the bundle has no owner, this broker acquires it, or the result is the
        broker that the client must ask next, as for `owner_of`. Raises MetadataError, ServiceNotReady, StoreError.
        """
        for _ in range(ATTEMPTS):
            found = await self.present_owner(bundle, listener_name, is_authoritative=is_authoritative)
            if found is not None:
                return found
            registry, leader = self.registry, self._other_leader()
            step = next_step(
                is_authoritative=is_authoritative, is_leader=registry.is_leader(), knows_leader=leader is not None
            )
            if step is NextStep.ASK_LEADER and leader is not None:
                return _redirect(leader, listener_name, is_authoritative=False)
            if step is NextStep.CHOOSE:
                chosen = await registry.choose_broker(str(bundle))
                if chosen.broker_id != registry.own_broker.broker_id:
                    return _redirect(chosen, listener_name, is_authoritative=True)
            if self.is_leaving:
                raise ServiceNotReady(
                    f"this broker is stopping and does not acquire bundle {bundle}; look the topic up again"
                )
            await self.acquire(bundle)
        raise MetadataError(f"Failed to acquire ownership for namespace bundle {bundle}; look the topic up again")

    def _other_leader(self) -> RegisteredBroker | None:
        """Return the leader if it is another broker.

        After a lost session, the value may still name this broker, which is not the leader: a redirect to itself would never end.
        """
        leader = self.registry.leader()
        return None if leader is None or leader.broker_id == self.registry.own_broker.broker_id else leader

    async def present_owner(
        self, bundle: NamespaceBundle, listener_name: str | None = None, *, is_authoritative: bool = False
    ) -> Owner | None:
        """Return the owner of `bundle`; None if it has none. Raises BundleUnloading, other MetadataErrors, StoreError.

        `is_authoritative`: another broker has redirected the client here. The owner is then read from the metadata
        store, not from the cache: an outdated cache may name that other broker, and both would redirect to each other.
        """
        if self.serves(bundle):
            return _HERE
        if self.held.state(bundle) is BundleState.RELEASING:
            raise _being_unloaded(bundle)
        cached = None if is_authoritative else self._documents.get(bundle)
        document = cached or await self._read_document(bundle)
        if document is None:
            return None
        if document.disabled:
            raise _being_unloaded(bundle)
        if self._is_own(document):
            if document.pybroker_session == self._session_mark:
                return None  # the answer to the creation was lost, or has not arrived: the acquisition decides
            raise MetadataError(
                f"Namespace bundle {bundle} belongs to an earlier session of this broker with the metadata store. The "
                "session ends soon: look the topic up again"
            )
        urls = urls_of_document(document, listener_name)
        internal_url = document.native_url or document.native_url_tls or ""
        return Owner(OwnerKind.OTHER, urls, True, internal_url, document.pybroker_session is not None)

    async def conflicting_owner(self, bundle: NamespaceBundle) -> str | None:
        """Check the ownership document of a bundle that this broker serves. Return None if this broker wrote the
        document, or does not serve the bundle any more. Otherwise return the broker address in the document; "" if the
        document does not exist.

        Raises StoreError, and MetadataError if the document cannot be read.
        """
        mark = self._session_mark
        found = await self._store.get(bundle.path)
        if mark != self._session_mark or not self.serves(bundle):
            return None
        if found is None:
            return ""
        document = decoded_document(bundle.path, found.value)
        return None if document.pybroker_session == mark else document.native_url or document.native_url_tls or ""

    def _is_own(self, document: OwnerDocument) -> bool:
        own = self.registry.own_broker
        if own.broker_service_url and document.native_url:
            return document.native_url == own.broker_service_url
        return bool(own.broker_service_url_tls) and document.native_url_tls == own.broker_service_url_tls

    async def document_changed(self, bundle: NamespaceBundle, timeout_s: float) -> None:
        """Return when the ownership document of `bundle` changes or may have changed unnoticed, or after `timeout_s`
        seconds.
        """
        waiter = self._waiters.get(bundle)
        if waiter is None:
            waiter = self._waiters[bundle] = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter.wait()

    def _broker_of_heartbeat(self, namespace: NamespaceName) -> str | None:
        return namespace.local_name if system_topics.is_heartbeat_namespace(namespace) else None

    def _heartbeat_owner(self, broker_id: str, listener_name: str | None) -> Owner:
        if broker_id == self.registry.own_broker.broker_id:
            return _HERE
        broker = self.registry.brokers().get(broker_id)
        if broker is None:
            raise ServiceNotReady(f"broker {broker_id} is not running, so its health check topic has no owner")
        return _redirect(broker, listener_name, is_authoritative=True)._replace(kind=OwnerKind.OTHER)

    async def _read_document(self, bundle: NamespaceBundle) -> OwnerDocument | None:
        changes = self._changes
        found = await self._store.get(bundle.path)
        if found is None or not found.value:
            return None
        document = decoded_document(bundle.path, found.value)
        if changes == self._changes and not self._is_own(document):
            self._documents[bundle] = document
        return document

    # --- acquire and release -----------------------------------------------------------------------------------------

    async def acquire(self, bundle: NamespaceBundle) -> bool:
        """Acquire `bundle` if it has no owner. Return whether this broker owns the bundle now. Raises StoreError,
        MetadataError.
        """
        async with self._locks.held(bundle):
            if self.held.state(bundle) is not None:
                return self.serves(bundle)
            return await self._tasks.run_to_end(self._acquire(bundle), f"acquire {bundle}")

    async def _acquire(self, bundle: NamespaceBundle) -> bool:
        await self._fenced.wait()
        session = self.held.begin_acquire(bundle)
        try:
            version = await self._create_document(bundle)
            if version is None:
                return False
            try:
                await self._require_present_bundle(bundle)
            except BaseException:
                await self._withdraw(bundle, session, version)
                raise
            if not self.held.created(bundle, session, version):
                return False
        finally:
            self.held.gave_up(bundle, session)
        logs.info("bundle.acquired", bundle=str(bundle))
        self._topics.acquired(bundle)
        return self.serves(bundle)

    async def _create_document(self, bundle: NamespaceBundle) -> int | None:
        """Create the ownership document. Return its version; None if another broker owns the bundle."""
        mark = self._session_mark
        try:
            return await self._store.put_for_session(bundle.path, own_document(self.registry.own_broker, mark))
        except BadVersionError:
            found = await self._store.get(bundle.path)
            # An earlier attempt of this session may have ended without an answer.
            is_own = found is not None and decoded_document(bundle.path, found.value).pybroker_session == mark
            return found.version if found is not None and is_own and mark == self._session_mark else None

    async def _require_present_bundle(self, bundle: NamespaceBundle) -> None:
        """Raise MetadataError or TopicNotFound if the namespace does not have `bundle` any more, StoreError if that is unknown.

        Called after the document was created. If the boundaries were read earlier, they could be the ones before a
        split, and the topics would get a second owner.
        """
        if system_topics.is_heartbeat_namespace(bundle.namespace):
            return
        # Many bundles of a namespace are acquired at once after the loss of a broker: they do not wait for each other.
        stored = await self._resources.stored_boundaries(bundle.namespace)
        if stored is not None and is_bundle_of(bundle, stored):
            return
        await self._resources.refresh(metadata_paths.local_policies(bundle.namespace))
        if not is_bundle_of(bundle, self.boundaries(bundle.namespace)):
            raise MetadataError(f"Namespace bundle {bundle} was split or deleted; look the topic up again")

    async def _withdraw(self, bundle: NamespaceBundle, session: int, version: int) -> None:
        """Delete the document of a bundle that this broker acquired but does not serve."""
        while self.held.session == session:
            try:
                await self._store.delete(bundle.path, version)
            except (MetadataUnavailable, UnknownOutcome) as error:
                logs.warning("bundle.release_failed", bundle=str(bundle), error=str(error))
                await asyncio.sleep(RETRY_PAUSE_S)
            except BadVersionError:
                return  # another program deleted or replaced it
            else:
                return

    async def release(self, bundle: NamespaceBundle) -> None:
        """Close the topics of `bundle`, and then delete its ownership document. Returns when another broker can own the
        bundle. Does nothing if this broker does not own it.
        """
        async with self._locks.held(bundle):
            await self._tasks.run_to_end(self._release(bundle), f"release {bundle}")

    async def _release(self, bundle: NamespaceBundle) -> None:
        session, version = self.held.session, self.held.begin_release(bundle)
        if version is None:
            return
        await self._topics.close([bundle])
        await self._withdraw(bundle, session, version)
        self.held.released(bundle, session)
        logs.info("bundle.released", bundle=str(bundle))

    def shared_bundles(self) -> list[NamespaceBundle]:
        """Return the owned bundles that other brokers may acquire: all but the bundle of this broker's health checks."""
        return [bundle for bundle in self.owned_bundles() if bundle != self._heartbeat]

    async def release_all(self) -> None:
        """Release all `shared_bundles`, because the broker stops. This broker keeps the bundle of its health checks
        until its session ends.
        """
        bundles = self.shared_bundles()
        async with asyncio.TaskGroup() as group:
            for bundle in bundles:
                group.create_task(self.release(bundle))

    async def _acquire_heartbeat(self, session: int) -> None:
        """Repeat until the bundle is acquired: an earlier session of this broker may still have it."""
        while session == self.held.session:
            try:
                if await self.acquire(self._heartbeat):
                    return
            except (MetadataError, StoreError) as error:
                logs.warning("bundle.heartbeat_not_acquired", error=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)

    # --- split -------------------------------------------------------------------------------------------------------

    async def split(
        self,
        bundle: NamespaceBundle,
        parts: Collection[NamespaceBundle],
        store_boundaries: Callable[[], Awaitable[None]],
    ) -> None:
        """Split an owned bundle into `parts`, in Pulsar's order: create the ownership documents of the parts, store the
        new boundaries with `store_boundaries`, delete the old document. Clients stay connected.

        Raises ServiceNotReady if this broker does not own the bundle, MetadataError and StoreError if a document of a
        part cannot be created, and the errors of `store_boundaries`. After an error, this broker still owns the whole
        bundle.
        """
        async with self._locks.held(bundle):
            await self._tasks.run_to_end(self._split(bundle, parts, store_boundaries), f"split {bundle}")

    async def _split(
        self,
        bundle: NamespaceBundle,
        parts: Collection[NamespaceBundle],
        store_boundaries: Callable[[], Awaitable[None]],
    ) -> None:
        if not self.serves(bundle):
            raise ServiceNotReady(f"Namespace bundle {bundle} is no longer served by this broker: try again")
        made: list[NamespaceBundle] = []
        try:
            for part in parts:
                await self._own_part(part)
                made.append(part)
            await store_boundaries()
        except BaseException:
            for part in made:
                await self._forget(part)
            raise
        await self._forget(bundle)
        logs.info("bundle.split", bundle=str(bundle), parts=len(parts))

    async def _own_part(self, part: NamespaceBundle) -> None:
        if self.held.state(part) is not None:
            return
        session = self.held.begin_acquire(part)
        try:
            version = await self._create_document(part)
            if version is None or not self.held.created(part, session, version):
                raise MetadataError(f"Namespace bundle {part} has another owner: the bundle was not split")
        finally:
            self.held.gave_up(part, session)

    async def _forget(self, bundle: NamespaceBundle) -> None:
        """Delete the document of a bundle that no longer exists after a split. Its topics belong to other bundles."""
        session, version = self.held.session, self.held.begin_release(bundle)
        if version is None:
            return
        try:
            await self._store.delete(bundle.path, version)
        except StoreError as error:
            # No lookup leads to this bundle any more, so the document does no harm until the session ends.
            logs.warning("bundle.release_failed", bundle=str(bundle), error=str(error))
        self.held.released(bundle, session)

    # --- events ------------------------------------------------------------------------------------------------------

    def _document_changed(self, path: str) -> None:
        self._changes += 1
        bundle = bundle_of_path(path)
        if bundle is None:
            return
        self._documents.pop(bundle, None)
        if (waiter := self._waiters.pop(bundle, None)) is not None:
            waiter.set()
        if self.held.serves(bundle):
            self._tasks.start(self._verify([bundle]), f"verify {bundle}")

    def _documents_missed(self) -> None:
        self._changes += 1
        self._documents.clear()
        for waiter in self._waiters.values():
            waiter.set()
        self._waiters.clear()
        if owned := self.owned_bundles():
            self._tasks.start(self._verify(owned), "verify")

    async def _verify(self, bundles: Collection[NamespaceBundle]) -> None:
        """Release the bundles whose document another program deleted or replaced."""
        mark = self._session_mark
        try:
            found = await self._store.values_of([bundle.path for bundle in bundles])
        except StoreError:
            return  # with the next connection or session, the documents count as missed again
        lost = []
        for bundle, value in zip(bundles, found, strict=True):
            if mark != self._session_mark:
                return
            if value is not None and _mark_of(value.value) == mark:
                continue
            if self.held.lost(bundle):
                logs.error("bundle.lost", bundle=str(bundle), reason="another program deleted or replaced its document")
                lost.append(bundle)
        await self._topics.fence(lost)
        await self._topics.close(lost)

    def _session_changed(self, event: SessionEvent) -> None:
        match event:
            case SessionEvent.LOST:
                lost = self.held.session_lost()
                self._session_mark = self._new_mark()
                self._changes += 1
                self._documents.clear()
                self._fencing += 1
                self._fenced.clear()
                self._tasks.start(self._session_lost(lost), "session lost")
            case SessionEvent.RENEWED:
                self._tasks.start(self._acquire_heartbeat(self.held.session), "heartbeat")

    async def _session_lost(self, lost: Collection[NamespaceBundle]) -> None:
        if lost:
            logs.error(
                "bundles.lost",
                bundles=len(lost),
                reason="the session with the metadata store is lost; topics are closed",
            )
        try:
            await self._topics.fence(lost)
        finally:
            self._fencing -= 1
            if not self._fencing:
                self._fenced.set()
        await self._topics.close(lost)


def _redirect(broker: RegisteredBroker, listener_name: str | None, *, is_authoritative: bool) -> Owner:
    internal_url = broker.broker_service_url or broker.broker_service_url_tls
    return Owner(OwnerKind.REDIRECT, urls_of_broker(broker, listener_name), is_authoritative, internal_url)


def _mark_of(value: bytes) -> str | None:
    try:
        return decoded_document("", value).pybroker_session
    except MetadataError:
        return None


def _being_unloaded(bundle: NamespaceBundle) -> BundleUnloading:
    return BundleUnloading(f"Namespace bundle {bundle} is being unloaded")
