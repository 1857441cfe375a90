"""Random walks of a cluster's members end in the state that the oracle expects, and find planted bugs."""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.membership_model import STEPS, run_walk
from tests.support.planting import Plant, found_by_walk

from pybroker.cluster.load_balance.broker_choice import BundleAssignment
from pybroker.cluster.membership import cluster_membership, leader_rules, registered_brokers, registration
from pybroker.cluster.membership.cluster_membership import ClusterMembership
from pybroker.cluster.membership.registration import Unusable

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
WALKS_OF_A_PLANT = 300
STEPS_OF_A_WALK = 14


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.lists(st.integers(0, len(STEPS) - 1), max_size=STEPS_OF_A_WALK))
def test_members_settle_after_any_walk(seed: int, steps: list[int]) -> None:
    asyncio.run(run_walk(seed, steps))


def walk(seed: int) -> None:
    random = Random(seed)
    asyncio.run(run_walk(seed, [random.randrange(len(STEPS)) for _ in range(STEPS_OF_A_WALK)]))


def test_members_settle_after_the_walks_that_find_planted_bugs() -> None:
    for seed in range(EXAMPLES):
        walk(seed)


def leadership_outlives_the_session(patch: pytest.MonkeyPatch) -> None:
    before = ClusterMembership._session_changed

    def changed(self: ClusterMembership, event: Any) -> None:
        held = self._holds_leadership
        before(self, event)
        self._holds_leadership = held

    patch.setattr(ClusterMembership, "_session_changed", changed)


def deletion_of_the_registration_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    async def notice(self: ClusterMembership) -> None:
        return None

    patch.setattr(ClusterMembership, "_notice_deletion", notice)


def leader_stays_beside_a_java_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_membership, "java_broker_of", lambda registrations: None)


def broker_that_leaves_keeps_the_leadership(patch: pytest.MonkeyPatch) -> None:
    async def resign(self: ClusterMembership) -> None:
        return None

    patch.setattr(ClusterMembership, "_resign", resign)


def broker_that_leaves_registers_again(patch: pytest.MonkeyPatch) -> None:
    before = ClusterMembership.leave

    async def leave(self: ClusterMembership) -> None:
        await before(self)
        self._is_leaving = False
        self._wake_up()

    patch.setattr(ClusterMembership, "leave", leave)


def value_of_an_earlier_session_counts_as_held(patch: pytest.MonkeyPatch) -> None:
    before = leader_rules.election_step

    def step(leader_id: str | None, own: leader_rules.Candidacy) -> leader_rules.ElectionStep:
        found = before(leader_id, own)
        return leader_rules.ElectionStep.NOTHING if found is leader_rules.ElectionStep.CLEAR else found

    patch.setattr(cluster_membership, "election_step", step)


def value_of_the_next_leader_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """A broker whose session was lost takes its cache for the present value."""

    async def delete(self: ClusterMembership) -> None:
        found = await self._store.get(leader_rules.LEADER)
        if found is not None:
            await self._store.delete(leader_rules.LEADER, found.version)

    patch.setattr(ClusterMembership, "_delete_own_leader_value", delete)


def leader_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    async def refresh(self: registered_brokers.LeaderValue, path: str) -> None:
        return None

    patch.setattr(registered_brokers.LeaderValue, "refresh", refresh)


def brokers_that_leave_stay_listed(patch: pytest.MonkeyPatch) -> None:
    before = registered_brokers.RegisteredBrokers._apply

    def apply(self: registered_brokers.RegisteredBrokers, broker_id: str, value: bytes | None) -> None:
        if value is not None:
            before(self, broker_id, value)

    patch.setattr(registered_brokers.RegisteredBrokers, "_apply", apply)


def junk_is_a_broker(patch: pytest.MonkeyPatch) -> None:
    before = registration.parsed

    def parsed(broker_id: str, value: bytes) -> object:
        found = before(broker_id, value)
        if isinstance(found, Unusable):
            return before(broker_id, _REGISTRATION)
        return found

    patch.setattr(registered_brokers, "parsed", parsed)


_REGISTRATION = b'{"webServiceUrl":"http://h:1","pulsarServiceUrl":"pulsar://h:2"}'


def decisions_outlive_their_broker(patch: pytest.MonkeyPatch) -> None:
    before = BundleAssignment.set_candidates

    def set_candidates(self: BundleAssignment, candidates: Any) -> None:
        kept = dict(self._decisions)
        before(self, candidates)
        self._decisions.update(kept)

    patch.setattr(BundleAssignment, "set_candidates", set_candidates)


def acquisition_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleAssignment, "acquired", lambda self, bundle: None)


def decided_bundles_count_as_no_load(patch: pytest.MonkeyPatch) -> None:
    def decide(self: BundleAssignment, bundle: str, broker_id: str, now_ms: float) -> None:
        before(self, bundle, broker_id, now_ms)
        self._views[broker_id].remove(bundle)

    before = BundleAssignment.decide
    patch.setattr(BundleAssignment, "decide", decide)


def release_of_a_bundle_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleAssignment, "released", lambda self, bundle: None)


PLANTS: tuple[Plant, ...] = (
    leadership_outlives_the_session,
    deletion_of_the_registration_is_not_noticed,
    leader_stays_beside_a_java_broker,
    broker_that_leaves_keeps_the_leadership,
    broker_that_leaves_registers_again,
    value_of_an_earlier_session_counts_as_held,
    value_of_the_next_leader_is_deleted,
    leader_is_not_read_again,
    brokers_that_leave_stay_listed,
    junk_is_a_broker,
    decisions_outlive_their_broker,
    acquisition_is_not_noticed,
    decided_bundles_count_as_no_load,
    release_of_a_bundle_is_not_noticed,
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_walks_find_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant, KeyError):
        for seed in range(WALKS_OF_A_PLANT):
            walk(seed)
