"""Mutants of a cluster: ownership, lookups, sessions, fencing, release, cursors, and take-over of ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from pybroker.bookkeeper.ledger_recovery import LedgerRecovery
from pybroker.bookkeeper_store.bookkeeper_cursor_store import BookKeeperCursorStore
from pybroker.bookkeeper_store.pulsar_records import PulsarRecord
from pybroker.broker.cluster import java_transaction_snapshots
from pybroker.broker.cluster.remote_participants import OwnersParticipants
from pybroker.broker.cluster.unattended_coordinators import UnattendedCoordinators
from pybroker.broker.lifecycle.bundle_closing import BundleClosing
from pybroker.broker.publishing.topic_deduplication import TopicDeduplication
from pybroker.broker.transactions import transaction_recovery
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.client import client_connection
from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.registered_brokers import RegisteredBrokers
from pybroker.cluster.ownership import bundle_ownership
from pybroker.cluster.ownership.assignment import NextStep
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership, Owner, OwnerKind
from pybroker.cluster.ownership.held_bundles import BundleState, HeldBundles
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.cluster.ownership.owner_document import decoded_document, own_document
from pybroker.errors import BadVersionError, MetadataError
from pybroker.metadata.metadata_store import ANY_VERSION, Put
from pybroker.metadata.session_report import SessionEvent
from pybroker.model.names import TopicName
from pybroker.transactions.transaction_log import TransactionLog
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.zookeeper import session

# --- sessions ------------------------------------------------------------------------------------------------------------


def a_lost_session_is_handled_two_seconds_late(patch: pytest.MonkeyPatch) -> None:
    changed = BundleOwnership._session_changed

    def late(self: BundleOwnership, event: SessionEvent) -> None:
        asyncio.get_running_loop().call_later(2.0, changed, self, event)

    patch.setattr(BundleOwnership, "_session_changed", late)


def a_lost_session_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The broker keeps its bundles, and serves them again in its next session."""

    def ignore(self: BundleOwnership, event: SessionEvent) -> None:
        """Nothing is lost."""

    patch.setattr(BundleOwnership, "_session_changed", ignore)


def a_session_counts_as_held_after_its_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "LOST_SHARE", 1.6)


def deliveries_do_not_ask_for_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleOwnership, "holds_session", lambda self: True)


def ownership_does_not_ask_for_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleOwnership, "serves", lambda self, bundle: self.held.serves(bundle))


def topics_of_a_lost_session_stay_open(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: BundleOwnership, lost: Collection[NamespaceBundle]) -> None:
        self._fencing -= 1
        if not self._fencing:
            self._fenced.set()

    patch.setattr(BundleOwnership, "_session_lost", nothing)


def a_new_session_does_not_wait_for_fencing(patch: pytest.MonkeyPatch) -> None:
    """Topics of a lost session are fenced late, and the next session does not wait."""
    fence = BundleClosing.fence

    async def late(self: BundleClosing, bundles: Collection[NamespaceBundle]) -> None:
        await asyncio.sleep(5)
        await fence(self, bundles)

    async def acquire(self: BundleOwnership, bundle: NamespaceBundle) -> bool:
        self._fenced.set()
        return await acquired(self, bundle)

    acquired = BundleOwnership._acquire
    patch.setattr(BundleClosing, "fence", late)
    patch.setattr(BundleOwnership, "_acquire", acquire)
    patch.setattr(BundleOwnership, "holds_session", lambda self: self._store.holds_session())


def a_document_of_an_earlier_session_counts_as_own(patch: pytest.MonkeyPatch) -> None:
    """After a restart, or in the next session, the broker takes what it left for what it owns."""

    async def create(self: BundleOwnership, bundle: NamespaceBundle) -> int | None:
        try:
            value = own_document(self.registry.own_broker, self._session_mark)
            return await self._store.put_for_session(bundle.path, value)
        except BadVersionError:
            found = await self._store.get(bundle.path)
            is_own = found is not None and self._is_own(decoded_document(bundle.path, found.value))
            return found.version if found is not None and is_own else None

    async def present(self: BundleOwnership, bundle: NamespaceBundle, listener_name: str | None = None) -> Owner | None:
        try:
            return await present_owner(self, bundle, listener_name)
        except MetadataError as error:
            if "earlier session" not in str(error):
                raise
            return None

    present_owner = BundleOwnership.present_owner
    patch.setattr(BundleOwnership, "present_owner", present)
    patch.setattr(BundleOwnership, "_create_document", create)


# --- acquisition and release ---------------------------------------------------------------------------------------------


def the_loser_of_a_race_serves_the_bundle(patch: pytest.MonkeyPatch) -> None:
    create = BundleOwnership._create_document

    async def always(self: BundleOwnership, bundle: NamespaceBundle) -> int | None:
        version = await create(self, bundle)
        return 0 if version is None else version

    patch.setattr(BundleOwnership, "_create_document", always)


def a_lookup_takes_a_bundle_without_its_document(patch: pytest.MonkeyPatch) -> None:
    """The answer names this broker although no document was created."""

    async def owner(
        self: BundleOwnership, bundle: NamespaceBundle, listener_name: str | None, *, is_authoritative: bool
    ) -> Owner:
        found = await self.present_owner(bundle, listener_name)
        if found is None and is_authoritative:
            return Owner(OwnerKind.HERE, LookupResult("", "", "", ""), is_authoritative=True)
        return await owner_of_bundle(self, bundle, listener_name, is_authoritative=is_authoritative)

    owner_of_bundle = BundleOwnership.owner_of_bundle
    patch.setattr(BundleOwnership, "owner_of_bundle", owner)


def a_split_bundle_is_acquired_as_a_whole(patch: pytest.MonkeyPatch) -> None:
    """An acquisition that began before a split makes a second owner of the topics."""

    async def unchecked(self: BundleOwnership, bundle: NamespaceBundle) -> None:
        """The bundle is taken for one of the namespace."""

    patch.setattr(BundleOwnership, "_require_present_bundle", unchecked)


def a_released_bundle_keeps_its_document(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: BundleOwnership, bundle: NamespaceBundle, session: int, version: int) -> None:
        """The document stays."""

    patch.setattr(BundleOwnership, "_withdraw", nothing)


def the_document_is_deleted_before_the_topics_are_closed(patch: pytest.MonkeyPatch) -> None:
    async def release(self: BundleOwnership, bundle: NamespaceBundle) -> None:
        session, version = self.held.session, self.held.begin_release(bundle)
        if version is None:
            return
        await self._withdraw(bundle, session, version)
        await self._topics.close([bundle])
        self.held.released(bundle, session)

    patch.setattr(BundleOwnership, "_release", release)


def topics_of_a_released_bundle_stay_loaded(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: BundleClosing, bundles: Collection[NamespaceBundle]) -> None:
        """The topics stay."""

    patch.setattr(BundleClosing, "close", nothing)


def topics_in_loading_survive_the_release(patch: pytest.MonkeyPatch) -> None:
    """Topics that are being loaded are not awaited, and the load does not ask again for the owner."""

    async def close(self: BundleClosing, bundles: Collection[NamespaceBundle]) -> None:
        loaded = [each for each in self._topics.loaded.all() if any(bundle.contains(each.name) for bundle in bundles)]
        await self._closing.close_topics(loaded)

    patch.setattr(BundleClosing, "close", close)
    patch.setattr(BundleOwnership, "require_served", _required_once(BundleOwnership.require_served))


def _required_once(require_served: Callable[..., None]) -> Callable[..., None]:
    def required(self: BundleOwnership, topic: TopicName) -> None:
        if self.held.state(self.bundle_of(topic)) is not BundleState.RELEASING:
            try:
                require_served(self, topic)
            except Exception:
                task = asyncio.current_task()
                if task is None or ":load " not in task.get_name():
                    raise

    return required


def a_bundle_is_served_while_it_is_released(patch: pytest.MonkeyPatch) -> None:
    def serves(self: HeldBundles[Any], bundle: Any) -> bool:
        held = self._held.get(bundle)
        return held is not None and held.state is not BundleState.ACQUIRING

    patch.setattr(HeldBundles, "serves", serves)


def topics_are_loaded_by_any_broker(patch: pytest.MonkeyPatch) -> None:
    def unchecked(self: BundleOwnership, topic: TopicName) -> None:
        """Every broker serves every topic."""

    patch.setattr(BundleOwnership, "require_served", unchecked)


def a_split_gives_the_parts_no_owner(patch: pytest.MonkeyPatch) -> None:
    """Clients stay connected to topics whose bundle has no owner."""

    async def nothing(self: BundleOwnership, part: NamespaceBundle) -> None:
        """The part is not acquired."""

    patch.setattr(BundleOwnership, "_own_part", nothing)


# --- lookups and redirects -----------------------------------------------------------------------------------------------


def cached_owners_are_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A lookup at another broker leads to the former owner."""

    def keep(self: BundleOwnership, path: str) -> None:
        self._changes += 1

    patch.setattr(BundleOwnership, "_document_changed", keep)


def owners_cached_before_a_lost_connection_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleOwnership, "_documents_missed", lambda self: None)


def a_document_that_changes_while_it_is_read_is_cached(patch: pytest.MonkeyPatch) -> None:
    async def read(self: BundleOwnership, bundle: NamespaceBundle) -> Any:
        found = await self._store.get(bundle.path)
        if found is None or not found.value:
            return None
        document = decoded_document(bundle.path, found.value)
        await asyncio.sleep(0.01)
        if not self._is_own(document):
            self._documents[bundle] = document
        return document

    patch.setattr(BundleOwnership, "_read_document", read)


def redirects_are_never_authoritative(patch: pytest.MonkeyPatch) -> None:
    def step(*, is_authoritative: bool, is_leader: bool, knows_leader: bool) -> NextStep:
        return NextStep.CHOOSE if is_leader or not knows_leader else NextStep.ASK_LEADER

    patch.setattr(bundle_ownership, "next_step", step)


def brokers_that_left_stay_candidates(patch: pytest.MonkeyPatch) -> None:
    """The leader sends clients to a broker that does not run."""
    apply = RegisteredBrokers._apply

    def keep(self: RegisteredBrokers, broker_id: str, value: bytes | None) -> None:
        if value is not None:
            apply(self, broker_id, value)

    patch.setattr(RegisteredBrokers, "_apply", keep)


def a_broker_does_not_register_in_its_next_session(patch: pytest.MonkeyPatch) -> None:
    register = ClusterMembership._register

    async def once(self: ClusterMembership) -> str | None:
        return None if self._sessions else await register(self)

    patch.setattr(ClusterMembership, "_register", once)


# --- take-over of ledgers and cursors --------------------------------------------------------------------------------------


def a_take_over_ends_at_the_last_confirmed_entry(patch: pytest.MonkeyPatch) -> None:
    """Entries with a receipt that no bookie knows to be confirmed are lost."""

    async def nothing(self: LedgerRecovery, *_: Any) -> None:
        """The ledger ends here."""

    patch.setattr(LedgerRecovery, "_search", nothing)


def any_owner_overwrites_the_managed_ledger(patch: pytest.MonkeyPatch) -> None:
    """The list of ledgers is stored whatever another owner has stored meanwhile."""

    def change(self: PulsarRecord, path: str, value: bytes | None) -> Any:
        wanted = changed(self, path, value)
        if isinstance(wanted, Put) and wanted.expected_version >= 0:
            return Put(path, wanted.value, ANY_VERSION)
        return wanted

    changed = PulsarRecord._change
    patch.setattr(PulsarRecord, "_change", change)


def the_next_owner_does_not_read_cursor_ledgers(patch: pytest.MonkeyPatch) -> None:
    async def load(self: BookKeeperCursorStore, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        node = self._nodes.get(cursor_id)
        if node is None:
            return await loaded(self, cursor_id)
        return node.state(), []

    loaded = BookKeeperCursorStore.load
    patch.setattr(BookKeeperCursorStore, "load", load)


def acknowledgements_are_answered_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    def append(self: BookKeeperCursorStore, cursor_id: str, delta: bytes, done: Any) -> None:
        if done is not None:
            asyncio.get_running_loop().call_soon(done, None)
        append_delta(self, cursor_id, delta, None)

    append_delta = BookKeeperCursorStore.append_delta
    patch.setattr(BookKeeperCursorStore, "append_delta", append)


def the_next_owner_forgets_sequence_ids(patch: pytest.MonkeyPatch) -> None:
    """Deduplication does not read the entries since the last snapshot."""

    async def nothing(self: TopicDeduplication, *_: Any) -> int:
        return 0

    patch.setattr(TopicDeduplication, "_replay", nothing)


# --- transactions across brokers -------------------------------------------------------------------------------------------


def refused_ends_of_transactions_count_as_done(patch: pytest.MonkeyPatch) -> None:
    """The coordinator forgets a transaction although the owner of a topic has refused its end."""
    ends = {pb.BaseCommand.END_TXN_ON_PARTITION_RESPONSE, pb.BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE}
    for number in ends:
        patch.delitem(client_connection._ERROR_FIELDS, number)


def other_brokers_are_not_told_of_ends(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: OwnersParticipants, *_: Any) -> None:
        """Only participants of this broker are notified."""

    patch.setattr(OwnersParticipants, "end", nothing)


def topics_of_other_brokers_count_as_missing(patch: pytest.MonkeyPatch) -> None:
    """The coordinator ends transactions only on topics that its own broker has."""
    patch.setattr(OwnersParticipants, "serves", lambda self, topic: True)


def coordinators_without_a_broker_wait_for_a_client(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: UnattendedCoordinators) -> None:
        """Open transactions of a broker that is gone do not time out."""

    def acquired(self: BundleClosing, bundle: NamespaceBundle) -> None:
        """A coordinator starts when a client connects."""

    patch.setattr(UnattendedCoordinators, "check", nothing)
    patch.setattr(BundleClosing, "acquired", acquired)


def the_next_broker_does_not_read_the_log_of_a_coordinator(patch: pytest.MonkeyPatch) -> None:
    async def opened(ledgers: Any, path: str, apply: Any, whole: Any) -> TransactionLog:
        return await open_log(ledgers, path, lambda record: None, whole)

    open_log = TransactionLog.open
    patch.setattr(TransactionLog, "open", opened)


def the_next_owner_does_not_read_open_transactions(patch: pytest.MonkeyPatch) -> None:
    async def nothing(buffer: TransactionBuffer, *_: object) -> int:
        return 0

    patch.setattr(transaction_recovery, "_replay", nothing)


def a_topic_waits_for_snapshots_while_its_bundle_is_released(patch: pytest.MonkeyPatch) -> None:
    async def wait(ownership: Any, topic: TopicName, work: Any) -> Any:
        return await work

    patch.setattr(java_transaction_snapshots, "while_served", wait)


CLUSTER_BUGS = (
    a_lost_session_is_handled_two_seconds_late,
    a_lost_session_is_ignored,
    a_session_counts_as_held_after_its_timeout,
    deliveries_do_not_ask_for_the_session,
    ownership_does_not_ask_for_the_session,
    topics_of_a_lost_session_stay_open,
    a_new_session_does_not_wait_for_fencing,
    a_document_of_an_earlier_session_counts_as_own,
    the_loser_of_a_race_serves_the_bundle,
    a_lookup_takes_a_bundle_without_its_document,
    a_split_bundle_is_acquired_as_a_whole,
    a_released_bundle_keeps_its_document,
    the_document_is_deleted_before_the_topics_are_closed,
    topics_of_a_released_bundle_stay_loaded,
    topics_in_loading_survive_the_release,
    a_bundle_is_served_while_it_is_released,
    topics_are_loaded_by_any_broker,
    a_split_gives_the_parts_no_owner,
    cached_owners_are_never_forgotten,
    owners_cached_before_a_lost_connection_stay,
    a_document_that_changes_while_it_is_read_is_cached,
    redirects_are_never_authoritative,
    brokers_that_left_stay_candidates,
    a_broker_does_not_register_in_its_next_session,
    a_take_over_ends_at_the_last_confirmed_entry,
    any_owner_overwrites_the_managed_ledger,
    the_next_owner_does_not_read_cursor_ledgers,
    acknowledgements_are_answered_before_they_are_stored,
    the_next_owner_forgets_sequence_ids,
    refused_ends_of_transactions_count_as_done,
    other_brokers_are_not_told_of_ends,
    topics_of_other_brokers_count_as_missing,
    coordinators_without_a_broker_wait_for_a_client,
    the_next_broker_does_not_read_the_log_of_a_coordinator,
    the_next_owner_does_not_read_open_transactions,
    a_topic_waits_for_snapshots_while_its_bundle_is_released,
)
