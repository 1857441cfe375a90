"""Planted bugs in what brokers share: sessions, lost answers, watches, caches, claims. `shared_metadata_story` has to find them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pybroker.metadata import cache_refresh, zookeeper_metadata_store
from pybroker.metadata.broker_identity import BrokerIdentity
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ConnectionLoss, CreateMode, NotSent, session
from pybroker.zookeeper.client import ZooKeeperClient
from pybroker.zookeeper.session import Session


def a_session_is_believed_in_for_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "LOST_SHARE", 1.6)


def an_old_answer_prolongs_the_session(patch: pytest.MonkeyPatch) -> None:
    """The time at which an answer arrives counts, as if nothing could delay it."""
    received = Session.received

    def received_now(self: Session, data: bytes, now_ms: float) -> list[Any]:
        had, before_ms = self.has_session, self.confirmed_ms
        results = received(self, data, now_ms)
        if had and self.has_session and self.confirmed_ms != before_ms:
            self.confirmed_ms = now_ms
        return results

    patch.setattr(Session, "received", received_now)


def a_lost_answer_is_repeated_blindly(patch: pytest.MonkeyPatch) -> None:
    async def changed(
        self: ZooKeeperMetadataStore,
        path: str,
        act: Callable[[], Awaitable[Any]],
        outcome: Callable[[], Awaitable[Any]],
    ) -> Any:
        deadline_ms = self._clock_ms() + self._timeout_ms
        while True:
            try:
                return await act()
            except (NotSent, ConnectionLoss) as error:
                await self._pause_or_raise(deadline_ms, path, error)

    patch.setattr(ZooKeeperMetadataStore, "_changed", changed)


def a_lost_answer_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    async def outcome(self: ZooKeeperMetadataStore, put: Any) -> int:
        return int(put.expected_version) + 1

    patch.setattr(ZooKeeperMetadataStore, "_outcome_of_put", outcome)


def caches_are_not_read_again_after_a_lost_connection(patch: pytest.MonkeyPatch) -> None:
    def nothing(missed: Any, prefix: str) -> None:
        """Nothing is read again."""

    patch.setattr(zookeeper_metadata_store, "_call_missed", nothing)


def watches_are_not_set_again(patch: pytest.MonkeyPatch) -> None:
    def only_new_ones(self: ZooKeeperClient, now_ms: float) -> None:
        for watch in self._watches:
            if not watch.added.done():
                self._add_watch(watch)

    patch.setattr(ZooKeeperClient, "_set_watches", only_new_ones)


def changes_during_a_refresh_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    step = cache_refresh._Refreshed._step

    async def forgetful(self: Any) -> None:
        await step(self)
        self._paths.clear()

    patch.setattr(cache_refresh._Refreshed, "_step", forgetful)


def a_failed_refresh_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    step = cache_refresh._Refreshed._step

    async def once(self: Any) -> None:
        had_more = self._must_reload
        await step(self)
        if had_more:
            self._must_reload = False

    patch.setattr(cache_refresh._Refreshed, "_step", once)


def the_claim_of_the_former_session_counts_as_that_of_another_broker(patch: pytest.MonkeyPatch) -> None:
    claim_again = BrokerIdentity._claim_again

    async def once(self: BrokerIdentity) -> None:
        patch.setattr(self, "_take", lambda holder: None, raising=False)
        own, self.directory_id = self.directory_id, "of another broker"
        try:
            await claim_again(self)
        finally:
            self.directory_id = own

    patch.setattr(BrokerIdentity, "_claim_again", once)


def numbers_begin_again_with_their_parent(patch: pytest.MonkeyPatch) -> None:
    async def created(self: ZooKeeperMetadataStore, path: str, value: bytes) -> None:
        await self._client.create(path, value, CreateMode.CONTAINER, makes_parents=True)

    patch.setattr(ZooKeeperMetadataStore, "_created", created)


def a_deletion_takes_effect_in_a_later_session(patch: pytest.MonkeyPatch) -> None:
    """The value that was to be deleted belongs to another broker by then."""

    def nothing(self: ZooKeeperMetadataStore, session_id: int, path: str) -> None:
        """The session may be another one."""

    patch.setattr(ZooKeeperMetadataStore, "_require_session", nothing)


SHARED_METADATA_BUGS = (
    a_session_is_believed_in_for_too_long,
    an_old_answer_prolongs_the_session,
    a_lost_answer_is_repeated_blindly,
    a_lost_answer_counts_as_done,
    caches_are_not_read_again_after_a_lost_connection,
    watches_are_not_set_again,
    changes_during_a_refresh_are_forgotten,
    a_failed_refresh_is_not_repeated,
    the_claim_of_the_former_session_counts_as_that_of_another_broker,
    numbers_begin_again_with_their_parent,
    a_deletion_takes_effect_in_a_later_session,
)
