"""Membership of this broker in a cluster: its registration, its part in the leader election, and the registry for
lookups.

Operation: one task compares the stored values of this session with the wanted ones, and performs the next step:
register, become a candidate or resign, update the load report. The rules are in `joining_rules`, `leader_rules` and
`load_balance`.

A broker that leaves deletes its registration first, so that no new bundle comes, then its leadership.

Lost session: `is_leader` is False immediately, by the store's clock. In the next session the broker registers again and
joins the election like a new broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.broker_choice import BundleAssignment, Candidate, ChoiceSettings, namespace_of
from pybroker.cluster.load_balance.bundle_averages import BundleAverages
from pybroker.cluster.load_balance.load_report import LoadReport, changed_percent
from pybroker.cluster.membership.joining_rules import (
    address_refusal,
    configured_class_refusal,
    java_broker_of,
    load_manager_refusal,
)
from pybroker.cluster.membership.leader_rules import (
    LEADER,
    Candidacy,
    ElectionStep,
    election_step,
    encoded_leader,
    leader_of,
)
from pybroker.cluster.membership.membership_report import MembershipReport
from pybroker.cluster.membership.registered_brokers import (
    OWNERSHIP,
    LeaderValue,
    PlacementDocuments,
    RegisteredBrokers,
)
from pybroker.cluster.membership.registration import (
    BROKERS,
    Registration,
    encoded,
    instance_of,
    registration_path,
)
from pybroker.config import BrokerConfig
from pybroker.errors import BadVersionError, MetadataUnavailable, ServiceNotReady, StoreError, UnknownOutcome
from pybroker.metadata import metadata_paths
from pybroker.metadata.cache_refresh import CacheRefresher
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.resources import Resources
from pybroker.metadata.session_report import SessionEvent
from pybroker.model.names import NamespaceName
from pybroker.model.system_topics import is_heartbeat_namespace
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner

RETRY_PAUSE_S = 1.0
"""Pause after a step that failed."""
CHECK_PAUSE_S = 5.0
"""Longest pause between two measurements of the load."""


class LoadSource(Protocol):
    """Measures the load of this broker for its registration."""

    def revision(self) -> object:
        """Return a value that changes when `measure` may return other figures."""

    async def measure(self) -> LoadReport: ...


class ClusterMembership:
    """The membership of this broker. Call `start` and `leave` once each, and `close` at the end, also after a failed
    start.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: MetadataStore,
        resources: Resources,
        own_broker: RegisteredBroker,
        instance: str,
        load: LoadSource,
    ) -> None:
        """`instance` identifies the data directory: registrations of its earlier sessions are replaced."""
        self._runtime = runtime
        self._config = config = runtime.config
        self._store = store
        self._own = own_broker
        self._instance = instance
        self._load = load
        self._path = registration_path(own_broker.broker_id)
        self._registered = RegisteredBrokers(store, self._registrations_changed, runtime.clock)
        self._leader = LeaderValue(store, self._wake_up)
        self._placement = PlacementDocuments(store, resources, config)
        self.averages = BundleAverages()
        self.assignment = BundleAssignment(self.averages, runtime.random)
        self._refresher = CacheRefresher(store)
        self._tasks = TaskOwner("cluster-membership")
        self._acting = asyncio.Lock()
        self._wake = asyncio.Event()
        self._version: int | None = None  # of this session's registration; None without one
        self._holds_leadership = False
        self._sessions = 0
        self._is_leaving = False
        self._report = LoadReport()  # as registered
        self._report_revision: object = None
        self._written_ms = 0.0
        self.moved_total = 0
        """Number of bundles that this broker has moved as the leader, because of load."""
        self.split_total = 0
        """Bundles that owners have split because this broker, as the leader, asked for it."""
        self.elected = asyncio.Event()
        """Set while this broker is the leader; the loss of its session is noticed later than by `is_leader`."""
        self.conflict = ""
        """Why this broker is not registered. Empty if it is, or has left."""

    # --- the registry ------------------------------------------------------------------------------------------------

    @property
    def own_broker(self) -> RegisteredBroker:
        return self._own

    def brokers(self) -> Mapping[str, RegisteredBroker]:
        return {broker_id: each.broker for broker_id, each in self._registered.registrations.items()}

    @property
    def registrations(self) -> Mapping[str, Registration]:
        return self._registered.registrations

    @property
    def unusable(self) -> Mapping[str, str]:
        """The registrations that lookups cannot use: the reason by broker id."""
        return self._registered.unusable

    @property
    def leader_id(self) -> str | None:
        """The id of the elected leader, even if the leader is not registered; None without a leader, "" if the stored
        value cannot be read.
        """
        return self._leader.leader_id

    def leader(self) -> RegisteredBroker | None:
        leader_id = self._leader.leader_id
        found = self._registered.registrations.get(leader_id) if leader_id else None
        return None if found is None else found.broker

    def is_leader(self) -> bool:
        return self._holds_leadership and not self._is_leaving and self._store.holds_session()

    @property
    def is_registered(self) -> bool:
        return self._version is not None and self._store.holds_session()

    def load_manager_problem(self) -> str | None:
        """Return an error text if the load manager of a registered broker cannot work beside pybroker; None if all can."""
        return load_manager_refusal(self.brokers().values())

    def report(self) -> MembershipReport:
        return MembershipReport(
            self._own.broker_id,
            self.is_registered,
            self.is_leader(),
            self.leader_id,
            len(self.registrations),
            self.conflict,
            self.load_manager_problem() or "",
            self.unusable,
            self.assignment.open_count,
            self.moved_total,
            self.split_total,
            dict(self._registered.clock_differences.found_ms),
        )

    async def choose_broker(self, bundle: str) -> RegisteredBroker:
        tenant, _, local_name = namespace_of(bundle).partition("/")
        namespace = NamespaceName(tenant, local_name)
        registrations = self._registered.registrations
        if is_heartbeat_namespace(namespace):
            if local_name not in registrations:
                raise ServiceNotReady(
                    f"bundle {bundle} cannot be assigned: only broker {local_name} may serve it, and "
                    f"{local_name} is not registered"
                )
            return registrations[local_name].broker
        chosen = self.assignment.choose(
            bundle, self._placement.placement(), choice_settings(self._config), self._runtime.clock.monotonic_ms()
        )
        if chosen is None and not registrations:
            raise ServiceNotReady(
                f"bundle {bundle} cannot be assigned: no registered broker may serve the bundle. This broker "
                "is registering again: try again"
            )
        if chosen is None:
            raise ServiceNotReady(
                f"bundle {bundle} cannot be assigned: the isolation policies of cluster "
                f"{self._config.cluster_name} exclude all registered brokers ({', '.join(sorted(registrations))})"
            )
        return registrations[chosen].broker

    def best_destination(self, bundle: str, source_id: str) -> str | None:
        """Return the id of the broker to which `bundle` should move from the broker `source_id`; None if no other
        broker may have the bundle. Record no decision.
        """
        return self.assignment.best(
            bundle, self._placement.placement(), choice_settings(self._config), without=source_id
        )

    def has_anti_affinity(self, namespace: str) -> bool:
        return self._placement.placement().group_of(namespace) is not None

    def assign(self, bundle: str, broker_id: str) -> None:
        """Direct lookups of `bundle` to the registered broker `broker_id` from now on, because the present owner is
        about to unload the bundle.
        """
        self.assignment.decide(bundle, broker_id, self._runtime.clock.monotonic_ms())

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                broker_id,
                each.host,
                each.report,
                each.broker.load_manager_class in ("", self._own.load_manager_class),
            )
            for broker_id, each in self._registered.registrations.items()
        ]

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def start(self, deadline_s: float) -> None:
        """Register this broker, and join the leader election. Clients must be able to connect before this call.

        If the registration fails, for example because an earlier session at this address has not ended, it is
        repeated for up to `deadline_s` seconds. Raises StoreError if the broker cannot join.
        """
        self._store.listen(self._session_changed)
        keep = self._refresher.keep
        keep(self._registered, BROKERS)
        keep(self._leader, LEADER)
        keep(self._placement, metadata_paths.cluster(self._config.cluster_name))
        keep(_AssignedBundles(self._store, self.assignment), OWNERSHIP)
        await self._registered.read_again()
        await self._leader.read_again()
        await self._placement.read_again()
        await self._first_registration(deadline_s)
        self._tasks.start(self._run(), "run")

    async def _first_registration(self, deadline_s: float) -> None:
        ends_ms = self._runtime.clock.monotonic_ms() + deadline_s * 1000
        while True:
            try:
                reason = await self._register()
            except (MetadataUnavailable, UnknownOutcome) as error:
                reason = str(error)
            if reason is None:
                return
            may_end = self.load_manager_problem() is None and not configured_class_refusal(
                self._config.load_manager_class_name
            )
            if not may_end or self._runtime.clock.monotonic_ms() >= ends_ms:
                raise StoreError(f"cannot join cluster {self._config.cluster_name}: {reason}")
            if not self.conflict:
                logs.warning("broker.registration_waits", reason=reason)
            self.conflict = reason
            await asyncio.sleep(RETRY_PAUSE_S)

    async def leave(self) -> None:
        """Delete the registration, so that this broker gets no new bundles, and resign as the leader. The broker
        continues to serve its bundles. Raises StoreError; the end of the session then has the same effect.
        """
        self._is_leaving = True
        async with self._acting:
            if self._version is not None:
                self._version = None
                await self._store.delete(self._path)
                logs.info("broker.deregistered", broker=self._own.broker_id)
            await self._resign()

    async def close(self) -> None:
        await self._refresher.close()
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with self._acting:
                    await self._step()
            except (StoreError, ServiceNotReady) as error:
                logs.warning("cluster_membership.step_failed", reason=str(error))
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            pause_s = RETRY_PAUSE_S if self.conflict else CHECK_PAUSE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _step(self) -> None:
        if self._is_leaving:
            return
        await self._notice_deletion()
        if self._version is None:
            self._take_conflict(await self._register())
        await self._elect()
        if self._version is not None:
            await self._update_report()

    async def _notice_deletion(self) -> None:
        """Register again if another program deleted or replaced the registration of this session."""
        if self._version is None or self._own.broker_id in self._registered.registrations:
            return
        found = await self._store.get(self._path)
        if found is None or instance_of(found.value) != self._instance:
            logs.warning("broker.registration_lost", broker=self._own.broker_id)
            self._version = None
        else:
            await self._registered.refresh(self._path)

    async def _put_for_session(self, path: str, value: bytes) -> int:
        """Store a session value and return its version. Raises MetadataUnavailable if the session ended meanwhile; the
        value then disappears with it.
        """
        session = self._sessions
        version = await self._store.put_for_session(path, value)
        if session != self._sessions:
            raise MetadataUnavailable(
                f"the node {path} could not be created, because the session with the metadata store ended during the request"
            )
        return version

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.LOST, SessionEvent.RENEWED):
            self._sessions += 1
            if self._holds_leadership:
                logs.warning("cluster_leader.lost", broker=self._own.broker_id)
            self._version = None
            self._set_leadership(False)
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()

    def _registrations_changed(self) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        reports = {broker_id: each.report for broker_id, each in self._registered.registrations.items()}
        for broker_id, report in reports.items():
            self.averages.add(broker_id, report, now_ms)
        self.averages.expire(reports, now_ms)
        self.assignment.set_candidates(self.candidates())
        self._wake_up()

    # --- registration ------------------------------------------------------------------------------------------------

    async def _register(self) -> str | None:
        """Create this session's registration. Return None on success, otherwise why it is not possible now."""
        others = [each for broker_id, each in self.brokers().items() if broker_id != self._own.broker_id]
        reason = (
            configured_class_refusal(self._config.load_manager_class_name)
            or load_manager_refusal(others)
            or address_refusal(self._own, others)
        )
        if reason is not None:
            return reason
        self._report_revision = self._load.revision()
        report = await self._load.measure()
        value = self._encoded(report)
        try:
            self._version = await self._put_for_session(self._path, value)
        except BadVersionError:
            found = await self._store.get(self._path)
            if found is not None and instance_of(found.value) != self._instance:
                return (
                    f"another broker is registered as {self._own.broker_id}. Give each broker its own advertisedAddress and"
                    " webServicePort; if that broker has just been stopped or killed, its registration ends with its session"
                )
            if found is not None:
                await self._store.delete(self._path, found.version)
            self._version = await self._put_for_session(self._path, value)
        self._written(report)
        self.conflict = ""
        await self._registered.refresh(self._path)
        logs.info("broker.registered", broker=self._own.broker_id, load_manager=self._own.load_manager_class)
        return None

    def _take_conflict(self, reason: str | None) -> None:
        if reason is not None and reason != self.conflict:
            logs.error("broker.registration_refused", broker=self._own.broker_id, reason=reason)
        self.conflict = reason or ""

    def _encoded(self, report: LoadReport) -> bytes:
        config = self._config
        return encoded(
            Registration(
                self._own,
                report,
                config.enable_persistent_topics,
                config.enable_non_persistent_topics,
                is_pybroker=True,
                stored_ms=round(self._runtime.clock.wall_ms()),
            ),
            self._instance,
        )

    def _written(self, report: LoadReport) -> None:
        self._report = report
        self._written_ms = self._runtime.clock.monotonic_ms()

    async def _update_report(self) -> None:
        """Store the load report again if the load has changed by `loadBalancerReportUpdateThresholdPercentage`, and at
        intervals.
        """
        config = self._config
        age_ms = self._runtime.clock.monotonic_ms() - self._written_ms
        is_old = age_ms >= config.load_balancer_report_update_max_interval_minutes * 60_000
        if age_ms < config.load_balancer_report_update_min_interval_millis:
            return
        revision = self._load.revision()
        if revision == self._report_revision and not is_old:
            return
        self._report_revision = revision
        report = await self._load.measure()
        is_changed = changed_percent(self._report, report) > config.load_balancer_report_update_threshold_percentage
        if not is_old and not is_changed:
            return
        if self._version is None:
            return  # the session was lost meanwhile
        try:
            self._version = await self._store.put(self._path, self._encoded(report), self._version)
        except BadVersionError:
            self._version = None
            self._wake_up()
            return
        self._written(report)

    # --- election ----------------------------------------------------------------------------------------------------

    def _set_leadership(self, holds: bool) -> None:
        self._holds_leadership = holds
        if holds:
            self.elected.set()
        else:
            self.elected.clear()

    def _may_stand(self) -> bool:
        if self._version is None or self._is_leaving:
            return False
        if self._config.load_balancer_leader_beside_java_brokers:
            return True
        return java_broker_of(self._registered.registrations) is None

    async def _elect(self) -> None:
        if self._holds_leadership and self._leader.leader_id != self._own.broker_id:
            await self._leader.read_again()
            if self._leader.leader_id != self._own.broker_id:
                self._set_leadership(False)  # another program replaced or deleted the value
                logs.warning("cluster_leader.lost", broker=self._own.broker_id)
        candidacy = Candidacy(self._own.broker_id, self._holds_leadership, self._may_stand())
        step = election_step(self._leader.leader_id, candidacy)
        if step is ElectionStep.STAND:
            await self._stand()
        elif step is ElectionStep.RESIGN:
            await self._resign()
        elif step is ElectionStep.CLEAR:
            await self._delete_own_leader_value()
            await self._leader.read_again()

    async def _stand(self) -> None:
        try:
            await self._put_for_session(LEADER, self._leader_value())
        except BadVersionError:
            await self._leader.read_again()
            return
        self.assignment.forget()
        self._set_leadership(True)
        self._leader.set(self._own.broker_id)
        logs.info("cluster_leader.elected", broker=self._own.broker_id)

    def _leader_value(self) -> bytes:
        addresses = self._own.addresses
        return encoded_leader(self._own.broker_id, addresses.http_url or addresses.http_url_tls)

    async def _delete_own_leader_value(self) -> None:
        """Delete the leader value if it is still this broker's: the cached value may be outdated."""
        found = await self._store.get(LEADER)
        if found is not None and leader_of(found.value) == self._own.broker_id:
            with suppress(BadVersionError):
                await self._store.delete(LEADER, found.version)

    async def _resign(self) -> None:
        if not self._holds_leadership:
            return
        self._set_leadership(False)
        await self._delete_own_leader_value()
        logs.info("cluster_leader.resigned", broker=self._own.broker_id)
        await self._leader.read_again()


class _AssignedBundles:
    """Watches ownership documents, and reads the documents of bundles for which a decision exists."""

    def __init__(self, store: MetadataStore, assignment: BundleAssignment) -> None:
        self._store = store
        self._assignment = assignment

    async def read_again(self) -> None:
        self._assignment.forget()

    async def refresh(self, path: str) -> None:
        bundle = path.removeprefix(f"{OWNERSHIP}/")
        if not self._assignment.has_decision(bundle):
            return
        if await self._store.get(path) is None:
            self._assignment.released(bundle)
        else:
            self._assignment.acquired(bundle)


def choice_settings(config: BrokerConfig) -> ChoiceSettings:
    return ChoiceSettings(
        config.load_balancer_broker_overloaded_threshold_percentage / 100,
        config.load_balancer_broker_max_topics,
        config.load_balancer_distribute_bundles_evenly_enabled,
    )
