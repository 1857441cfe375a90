"""Policies with calls of their own, and permissions on topics, over real HTTP on a real broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.model.names import NamespaceName, TopicName

NAMESPACE = "/namespaces/public/default"
TOPIC = "/persistent/public/default/t"
PARTITIONED = "/persistent/public/default/p"
NAME = "persistent://public/default/t"
RATE = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 6,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 7,
}


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker() as running:
        await running.topic(NAME)
        await running.service.partitioned_operations.create(TopicName.parse("p"), 2, {})
        yield running


async def status(broker: MemoryBroker, method: str, path: str, body: object = None) -> int:
    return (await broker.rest(method, path, body)).status


async def shown(broker: MemoryBroker, path: str) -> object:
    found = await broker.rest("GET", path)
    assert found.status == 200
    return found.json if found.text else None


# --- topics --------------------------------------------------------------------------------------------------------------


async def test_a_policy_of_a_topic_holds_at_once_on_the_loaded_topic(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    assert (topic.policies.max_producers, topic.policies.max_consumers) == (0, 0)
    assert topic.policies is topic.policies, "it is kept while nothing changes"
    await broker.rest("POST", f"{TOPIC}/maxProducers", 3)
    assert topic.policies.max_producers == 3
    await broker.rest("POST", f"{NAMESPACE}/maxProducersPerTopic", 4)
    await broker.rest("POST", f"{NAMESPACE}/maxConsumersPerTopic", 5)
    assert (topic.policies.max_producers, topic.policies.max_consumers) == (3, 5)
    await broker.rest("DELETE", f"{TOPIC}/policies")
    assert topic.policies.max_producers == 4


async def test_partitions_have_the_policies_of_their_topic_and_none_of_their_own(broker: MemoryBroker) -> None:
    loaded = await broker.topic("persistent://public/default/p-partition-0")
    assert await status(broker, "POST", f"{PARTITIONED}/maxProducers", 3) == 204
    later = await broker.topic("persistent://public/default/p-partition-1")
    assert (loaded.policies.max_producers, later.policies.max_producers) == (3, 3)
    for method, body in (("GET", None), ("POST", 4), ("DELETE", None)):
        assert await status(broker, method, f"{PARTITIONED}-partition-0/maxProducers", body) == 412
    await broker.service.topics.delete(loaded.name)
    assert await shown(broker, f"{PARTITIONED}/maxProducers") == 3
    await broker.rest("DELETE", f"{PARTITIONED}/policies")
    assert later.policies.max_producers == 0


async def test_one_subscription_has_a_dispatch_rate_of_its_own(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    path, other = f"{TOPIC}/a%2Fb/dispatchRate", f"{TOPIC}/other/dispatchRate"
    assert await shown(broker, path) is None
    assert await status(broker, "POST", path, RATE) == 204
    assert await status(broker, "POST", path) == 204
    assert await shown(broker, path) == await shown(broker, f"{path}?applied=true") == RATE
    assert topic.policies.subscription_dispatch_rate_of("a/b").dispatchThrottlingRateInMsg == 5
    assert await shown(broker, other) is None
    await broker.rest("POST", f"{TOPIC}/subscriptionDispatchRate", {**RATE, "dispatchThrottlingRateInMsg": 9})
    assert await shown(broker, f"{other}?applied=true") == {**RATE, "dispatchThrottlingRateInMsg": 9}
    assert await status(broker, "DELETE", path) == 204
    assert await shown(broker, path) is None


async def test_the_clusters_of_a_topic_exist_and_this_one_is_among_them(broker: MemoryBroker) -> None:
    path = f"{TOPIC}/replication"
    for clusters, refusal in ((["nowhere"], 412), (["standalone", "nowhere"], 403), ([], 412), (None, 412), ({}, 400)):
        assert await status(broker, "POST", path, clusters) == refusal, clusters
    assert await shown(broker, path) is None
    assert await shown(broker, f"{path}?applied=true") == ["standalone"]
    assert await status(broker, "POST", path, ["standalone"]) == 204
    assert await shown(broker, path) == ["standalone"]
    assert await status(broker, "DELETE", path) == 204
    assert await shown(broker, path) is None


async def test_shadow_topics_exist_and_are_persistent(broker: MemoryBroker) -> None:
    path = f"{TOPIC}/shadowTopics"
    for shadows in ([], None, [f"{NAME}no"], [f"non-{NAME}"], ["a/b"]):
        assert await status(broker, "PUT", path, shadows) == 412, shadows
    assert await status(broker, "PUT", path, ["persistent://public/default/p"]) == 204
    assert await shown(broker, path) == ["persistent://public/default/p"]
    assert await status(broker, "DELETE", path) == 204
    assert await shown(broker, path) is None


async def test_what_the_query_of_a_number_does_not_say_unsets_it(broker: MemoryBroker) -> None:
    await broker.rest("POST", f"{TOPIC}/messageTTL?messageTTL=5")
    for text, answer in (("x", 404), ("2147483648", 404), ("-1", 412)):
        assert await status(broker, "POST", f"{TOPIC}/messageTTL?messageTTL={text}") == answer
    assert await shown(broker, f"{TOPIC}/messageTTL") == 5
    assert await status(broker, "POST", f"{TOPIC}/messageTTL?messageTTL=") == 204
    assert await shown(broker, f"{TOPIC}/messageTTL") is None


# --- namespaces ----------------------------------------------------------------------------------------------------------


async def test_properties_are_added_read_and_removed_one_by_one_and_together(broker: MemoryBroker) -> None:
    path, one = f"{NAMESPACE}/properties", f"{NAMESPACE}/property/a%2Fx"
    assert await shown(broker, path) == {}
    assert await status(broker, "PUT", path, {"b": "2"}) == 204
    assert await status(broker, "PUT", f"{one}/c%2Fd") == 204
    assert await shown(broker, path) == {"b": "2", "a/x": "c/d"}
    assert (await broker.rest("GET", one)).text == "c/d"
    assert (await broker.rest("DELETE", one)).text == "c/d"
    assert (await broker.rest("DELETE", one)).text == ""
    assert await status(broker, "PUT", path) == 400
    assert await status(broker, "DELETE", path) == 204
    assert await shown(broker, path) == {}


async def test_the_clusters_of_a_namespace_are_known_and_allowed(broker: MemoryBroker) -> None:
    for name, empty in (("replication", 412), ("allowedClusters", 400)):
        path = f"{NAMESPACE}/{name}"
        for clusters, refusal in ((["nowhere"], 403), ([], empty), (None, empty)):
            assert await status(broker, "POST", path, clusters) == refusal, (name, clusters)
        assert await status(broker, "POST", path, ["standalone"]) == 200
        assert await shown(broker, path) == ["standalone"]


async def test_thresholds_of_offload_are_members_of_its_policy(broker: MemoryBroker) -> None:
    assert await shown(broker, f"{NAMESPACE}/offloadThreshold") == -1
    assert await shown(broker, f"{NAMESPACE}/offloadDeletionLagMs") is None
    for name, answer in (("offloadThreshold", 204), ("offloadThresholdInSeconds", 200), ("offloadDeletionLagMs", 204)):
        assert await status(broker, "PUT", f"{NAMESPACE}/{name}", 1 << 40) == answer
        assert await shown(broker, f"{NAMESPACE}/{name}") == 1 << 40
        assert await status(broker, "PUT", f"{NAMESPACE}/{name}") == 400
    policy = (await broker.rest("GET", f"{NAMESPACE}/offloadPolicies")).json
    assert policy["managedLedgerOffloadThresholdInBytes"] == policy["managedLedgerOffloadThresholdInSeconds"] == 1 << 40
    for body in (None, {}, {"managedLedgerOffloadDriver": "aws-s3"}, {"managedLedgerOffloadDriver": "magic"}):
        assert await status(broker, "POST", f"{NAMESPACE}/offloadPolicies", body) == 412
    driver = {"managedLedgerOffloadDriver": "google-cloud-storage", "gcsManagedLedgerOffloadBucket": "b"}
    assert await status(broker, "POST", f"{NAMESPACE}/offloadPolicies", driver) == 204
    assert (await broker.rest("GET", NAMESPACE)).json["offload_policies"]["gcsDriver"] is True
    assert await shown(broker, f"{TOPIC}/offloadPolicies?applied=true") == await shown(
        broker, f"{NAMESPACE}/offloadPolicies"
    )
    assert await shown(broker, f"{NAMESPACE}/offloadThreshold") == -1
    assert await status(broker, "DELETE", f"{NAMESPACE}/offloadDeletionLagMs") == 204
    assert await status(broker, "DELETE", f"{NAMESPACE}/removeOffloadPolicies") == 204
    assert await shown(broker, f"{NAMESPACE}/offloadPolicies") is None


async def test_placement_is_kept_beside_the_policies_and_goes_with_the_namespace(broker: MemoryBroker) -> None:
    path = "/namespaces/public/placed"
    affinity, group = {"bookkeeperAffinityGroupPrimary": "p"}, "apart"
    for name, value in (("persistence/bookieAffinity", affinity), ("antiAffinity", group)):
        assert await status(broker, "POST", f"{path}/{name}", value) == 404
    assert await status(broker, "PUT", path) == 204
    assert await status(broker, "POST", f"{path}/antiAffinity") == 412
    assert await shown(broker, f"{path}/persistence/bookieAffinity") is None
    assert await status(broker, "POST", f"{path}/persistence/bookieAffinity", affinity) == 204
    assert await shown(broker, f"{path}/persistence/bookieAffinity") == affinity
    assert await shown(broker, f"{path}/antiAffinity") is None
    # The Java admin client sends the bare text, and takes what is shown for one.
    for sent, kept in (("quoted", "quoted"), (b"bare", "bare"), (group.encode(), group)):
        assert await status(broker, "POST", f"{path}/antiAffinity", sent) == 204
        assert (await broker.rest("GET", f"{path}/antiAffinity")).text == kept
    assert await status(broker, "POST", f"{path}/antiAffinity", b'"open') == 400
    listed = "/namespaces/standalone/antiAffinity/apart"
    assert await status(broker, "GET", listed) == 400
    assert await shown(broker, f"{listed}?tenant=public") == ["public/placed"]
    assert "antiAffinity" not in (await broker.rest("GET", path)).text
    assert await status(broker, "DELETE", f"{path}/persistence/bookieAffinity") == 204
    assert await shown(broker, f"{path}/persistence/bookieAffinity") is None
    await broker.rest("DELETE", path)
    await broker.rest("PUT", path)
    assert await shown(broker, f"{path}/antiAffinity") is None
    assert await status(broker, "DELETE", f"{path}/antiAffinity") == 204


async def test_a_resource_group_exists_before_a_namespace_has_it(broker: MemoryBroker) -> None:
    path = f"{NAMESPACE}/resourcegroup"
    assert await status(broker, "POST", f"{path}/group") == 412
    assert await status(broker, "PUT", "/resourcegroups/group", {"publishRateInMsgs": 5}) == 204
    assert await status(broker, "POST", f"{path}/group") == 204
    assert (await broker.rest("GET", path)).text == "group"
    assert (await broker.topic(NAME)).policies.resource_group == "group"
    assert await status(broker, "DELETE", path) == 204
    assert (await broker.rest("GET", path)).text == ""


async def test_that_a_namespace_moved_to_another_cluster_is_shown(broker: MemoryBroker) -> None:
    assert await status(broker, "POST", f"{NAMESPACE}/migration") == 400
    assert await status(broker, "POST", f"{NAMESPACE}/migration", True) == 204
    assert (await broker.rest("GET", NAMESPACE)).json["migrated"] is True


async def test_a_dispatch_rate_of_a_namespace_is_shown_under_both_its_names(broker: MemoryBroker) -> None:
    await broker.rest("POST", f"{NAMESPACE}/dispatchRate", RATE)
    document = (await broker.rest("GET", NAMESPACE)).json
    assert document["topicDispatchRate"] == document["clusterDispatchRate"] == {"standalone": RATE}
    await broker.rest("DELETE", f"{NAMESPACE}/dispatchRate")
    document = (await broker.rest("GET", NAMESPACE)).json
    assert document["topicDispatchRate"] == document["clusterDispatchRate"] == {}


# --- permissions ---------------------------------------------------------------------------------------------------------


async def test_permissions_on_a_topic_join_those_on_its_namespace_and_go_with_the_topic(broker: MemoryBroker) -> None:
    path = f"{TOPIC}/permissions"
    await broker.rest("POST", f"{NAMESPACE}/permissions/all", ["produce"])
    assert await status(broker, "POST", f"{path}/one", ["consume", "produce"]) == 204
    assert await status(broker, "POST", f"{path}/all", ["consume"]) == 204
    assert await status(broker, "POST", f"{path}/nobody") == 204
    assert await shown(broker, path) == {"all": ["produce", "consume"], "one": ["produce", "consume"]}
    assert await status(broker, "POST", f"{path}/one", ["fly"]) == 400
    for method, missing in (("GET", ""), ("POST", "/one"), ("DELETE", "/one")):
        assert await status(broker, method, f"{TOPIC}no/permissions{missing}", ["produce"]) == 404
        assert await status(broker, method, f"/persistent/public/no/t/permissions{missing}", ["produce"]) == 404
    assert await status(broker, "DELETE", f"{path}/one") == 204
    assert await status(broker, "DELETE", f"{path}/one") == 204
    assert await shown(broker, path) == {"all": ["produce", "consume"]}
    await broker.service.topics.delete(TopicName.parse(NAME))
    assert _by_topic(broker) == {}


async def test_permissions_on_several_topics_are_granted_together_or_not_at_all(broker: MemoryBroker) -> None:
    grants = [{"topic": name, "role": "r", "actions": ["produce"]} for name in (NAME, "persistent://public/default/p")]
    path = "/namespaces/grantPermissionsOnTopics"
    assert await status(broker, "POST", path, [grants[0], {**grants[1], "topic": f"{NAME}no"}]) == 404
    assert await status(broker, "POST", path, [grants[0], {**grants[1], "topic": "a/b"}]) == 412
    assert await status(broker, "POST", path, [{"role": "r"}]) == 400
    assert await status(broker, "POST", path, []) == 400
    assert await status(broker, "POST", path) == 400
    assert _by_topic(broker) == {}
    assert await status(broker, "POST", path, grants) == 204
    assert {topic: list(roles) for topic, roles in _by_topic(broker).items()} == {
        grant["topic"]: ["r"] for grant in grants
    }
    assert await status(broker, "POST", "/namespaces/revokePermissionsOnTopics", grants) == 204
    assert _by_topic(broker) == {}


async def test_permissions_may_be_granted_in_advance_where_the_configuration_says_so() -> None:
    async with memory_broker(allow_acl_changes_on_non_existent_topics=True) as broker:
        assert await status(broker, "POST", f"{TOPIC}/permissions/r", ["produce"]) == 204
        assert await shown(broker, f"{TOPIC}/permissions") == {"r": ["produce"]}


def _by_topic(broker: MemoryBroker) -> dict[str, dict[str, list[object]]]:
    policies = broker.service.resources.namespace(NamespaceName("public", "default"))
    assert policies is not None
    found: dict[str, dict[str, list[object]]] = policies.auth_policies.destination_auth  # type: ignore[assignment]
    return found
