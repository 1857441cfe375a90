"""Automatic splits and isolation policies in a cluster, on modelled servers."""

from __future__ import annotations

from tests.protocol.test_cluster import ADMIN, NAMESPACE, TOPIC, look_up, owner, rest
from tests.support.modelled_cluster import ClusterBroker, modelled_cluster, run_on_uvloop
from tests.support.waiting import until
from tests.unit.cluster.membership.members import short_pauses

from pybroker.cluster.bundles import hash_position
from pybroker.cluster.load_balance.stored_averages import bundle_path
from pybroker.cluster.membership.bundle_split_task import BundleSplitTask
from pybroker.cluster.membership.stored_load_data import StoredLoadData
from pybroker.model.names import NamespaceName

TOPICS = 6
ISOLATION = "/admin/v2/clusters/c1/namespaceIsolationPolicies/one"


def _names() -> list[str]:
    """Names of topics in the first quarter of the hashes, on both halves of it."""
    names = (f"orders-{number}" for number in range(10_000))
    found = [name for name in names if hash_position(f"persistent://public/default/{name}") < 1 << 30]
    return found[:TOPICS]


def test_leader_has_overloaded_bundle_split_and_its_parts_unloaded() -> None:
    run_on_uvloop(_split())


async def _split() -> None:
    settings = {
        "load_balancer_namespace_bundle_max_topics": TOPICS - 1,
        "load_balancer_report_update_min_interval_millis": 0,
        "load_balancer_report_update_max_interval_minutes": 0,  # a new topic of a bundle alone is not reported at once
    }
    async with short_pauses(), modelled_cluster(has_membership=True, **settings) as cluster:
        leader, other = cluster.brokers
        names = _names()
        for name in names:
            assert await rest(other, "PUT", f"/admin/v2/persistent/public/default/{name}") == (204, None)
        (bundle,) = {await _bundle_of(leader, name) for name in names}
        membership = leader.membership
        assert membership is not None
        assert leader.service.other_brokers is not None
        stored = StoredLoadData(leader.service.runtime, membership, leader.store)
        splits = BundleSplitTask(
            leader.service.runtime, membership, leader.service.resources, stored, leader.service.other_brokers
        )
        await until(lambda: f"public/default/{bundle}" in membership.averages)
        await until(lambda: any(each.report.totals.topic_count >= TOPICS for each in membership.registrations.values()))
        await stored.write_once()
        assert await leader.store.get(bundle_path(f"public/default/{bundle}")) is not None
        await splits.run_once()
        assert membership.report().split_total == 1
        assert await leader.store.get(bundle_path(f"public/default/{bundle}")) is None
        # The other broker may have split it: its change reaches the cache of the leader a moment later.
        await until(lambda: bundle not in _ranges(leader))
        await splits.run_once()
        assert membership.report().split_total == 1, "the report still lists the bundle that does not exist any more"
        assert not any(each.service.loaded.persistent for each in cluster.brokers), "the parts are unloaded"
        assert len({await _bundle_of(leader, name) for name in names}) == 2
        for name in names:
            assert (await rest(other, "GET", f"/admin/v2/persistent/public/default/{name}/stats"))[0] == 200
        assert sum(len(each.service.loaded.persistent) for each in cluster.brokers) == TOPICS


def _ranges(broker: ClusterBroker) -> list[str]:
    assert broker.service.ownership is not None
    return [str(each.range) for each in broker.service.ownership.bundles_of(NamespaceName("public", "default"))]


async def _bundle_of(broker: ClusterBroker, name: str) -> str:
    return str((await rest(broker, "GET", f"/lookup/v2/topic/persistent/public/default/{name}/bundle"))[1])


def test_isolation_policy_unloads_the_namespaces_of_its_scope() -> None:
    run_on_uvloop(_isolation())


async def _isolation() -> None:
    async with modelled_cluster() as cluster:
        one, two = cluster.brokers
        policy = {
            "namespaces": ["public/.*"],
            "primary": ["127.*"],
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "1", "usage_threshold": "80"},
            },
        }
        for scope, is_unloaded in (("none", False), (None, True), ("changed", False), ("all_matching", True)):
            await look_up(two, TOPIC, authoritative=True)
            assert (await rest(one, "PUT", ADMIN))[0] in (204, 409)
            assert (await rest(one, "GET", f"{ADMIN}/stats"))[0] == 200
            assert owner(cluster) is two
            if is_unloaded and scope is None:
                assert await rest(one, "DELETE", ISOLATION) == (204, None)
            body = policy if scope is None else {**policy, "unload_scope": scope}
            assert await rest(one, "POST", ISOLATION, body) == (204, None)
            assert bool(two.service.loaded.persistent) is not is_unloaded, scope
        assert await rest(one, "GET", f"{NAMESPACE}/topics") == (200, [TOPIC])
