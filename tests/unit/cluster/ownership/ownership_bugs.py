"""Bugs in the ownership of bundles that the model must find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
from pybroker.cluster.ownership.held_bundles import HeldBundles
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.cluster.ownership.owner_document import decoded_document, own_document
from pybroker.errors import BadVersionError
from pybroker.metadata.session_report import SessionEvent

B = NamespaceBundle


class _LateCreation(HeldBundles[B]):
    def created(self, bundle: B, session: int, version: int) -> bool:
        if bundle not in self._held:
            self.begin_acquire(bundle)
        return super().created(bundle, self.session, version)


class CreationOfAnEarlierSession(BundleOwnership):
    """A document that was created in a lost session counts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.held = _LateCreation()


class ReleasedBeforeClosed(BundleOwnership):
    """The document is deleted before the topics are closed."""

    async def _release(self, bundle: B) -> None:
        session, version = self.held.session, self.held.begin_release(bundle)
        if version is not None:
            await self._withdraw(bundle, session, version)
            await self._topics.close([bundle])
            self.held.released(bundle, session)


class LossIgnored(BundleOwnership):
    """A lost session ends nothing."""

    def _session_changed(self, event: SessionEvent) -> None:
        if event is not SessionEvent.LOST:
            super()._session_changed(event)


class ClockIgnored(BundleOwnership):
    """The broker waits for the event, which comes late after a freeze."""

    def holds_session(self) -> bool:
        return True


class FencingNotAwaited(BundleOwnership):
    """Topics of the earlier session may deliver in the next one."""

    def holds_session(self) -> bool:
        return self._store.holds_session()


class BoundariesNotRead(BundleOwnership):
    """A bundle that another broker has split is acquired by its old boundaries."""

    async def _require_present_bundle(self, bundle: B) -> None:
        return


class OwnDocumentDeleted(BundleOwnership):
    """What an earlier session left is deleted, though the version may be that of another broker's document by then."""

    async def _create_document(self, bundle: B) -> int | None:
        found = await self._store.get(bundle.path)
        if found is not None and self._is_own(decoded_document(bundle.path, found.value)):
            try:
                await self._store.delete(bundle.path, found.version)
            except BadVersionError:
                return None
        return await super()._create_document(bundle)


class OwnDocumentAdopted(BundleOwnership):
    """What an earlier session left counts as this session's."""

    async def _create_document(self, bundle: B) -> int | None:
        found = await self._store.get(bundle.path)
        if found is not None and self._is_own(decoded_document(bundle.path, found.value)):
            return found.version
        return await super()._create_document(bundle)


class DocumentReplaced(BundleOwnership):
    """Another broker's document is overwritten."""

    async def _create_document(self, bundle: B) -> int | None:
        version = await super()._create_document(bundle)
        if version is None:
            return await self._store.put(bundle.path, own_document(self.registry.own_broker, self._session_mark))
        return version


class SplitBoundariesFirst(BundleOwnership):
    """The boundaries are stored before this broker has the documents of the parts."""

    async def _split(self, bundle: B, parts: Collection[B], store_boundaries: Callable[[], Awaitable[None]]) -> None:
        if self.serves(bundle):
            await store_boundaries()
            for part in parts:
                await self._own_part(part)
            await self._forget(bundle)


BUGS = (
    CreationOfAnEarlierSession,
    ReleasedBeforeClosed,
    LossIgnored,
    ClockIgnored,
    FencingNotAwaited,
    BoundariesNotRead,
    OwnDocumentDeleted,
    OwnDocumentAdopted,
    DocumentReplaced,
    SplitBoundariesFirst,
)
