"""The words in which REST refuses what is missing and what cannot be meant: Pulsar's, for those who look for them."""

from __future__ import annotations

import pytest
from tests.support.memory_broker import MemoryBroker

CLUSTERS = {"allowedClusters": ["standalone"]}
BAD_CREATION = "Invalid configuration for autoTopicCreationOverride. the detail is "
MISSING: list[tuple[str, str, object, str]] = [
    ("GET", "/namespaces/public/none", None, "Namespace does not exist"),
    ("GET", "/namespaces/none/none/retention", None, "Namespace does not exist"),
    ("POST", "/namespaces/public/none/messageTTL", 5, "Namespace does not exist"),
    ("POST", "/namespaces/public/none/permissions/role", ["consume"], "Topic's namespace does not exist"),
    (
        "POST",
        "/namespaces/public/none/retention",
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
        "Namespace policies does not exist",
    ),
    ("POST", "/namespaces/public/none/clearBacklog", None, "Namespace not found"),
    ("PUT", "/namespaces/public/none/unload", None, "Namespace not found"),
    ("DELETE", "/namespaces/public/none", None, "Namespace public/none does not exist."),
    ("GET", "/namespaces/none/none/properties", None, "Tenant does not exist"),
    ("PUT", "/namespaces/none/none/property/a/b", None, "Tenant does not exist"),
    ("GET", "/persistent/public/none", None, "Namespace does not exist"),
    ("GET", "/persistent/public/none/t/stats", None, "Namespace not found"),
    ("GET", "/persistent/public/none/t/partitions", None, "Namespace not found"),
    ("PUT", "/persistent/public/none/t/subscription/s", None, "Namespace not found"),
    ("GET", "/persistent/none/none/t/permissions", None, "Tenant does not exist"),
    ("GET", "/tenants/none", None, "Tenant does not exist"),
    ("POST", "/tenants/none", CLUSTERS, "Tenant none not found"),
    ("DELETE", "/tenants/none", None, "Tenant doesn't exist"),
    ("GET", "/namespaces/none", None, "Tenant not found"),
    ("PUT", "/namespaces/none/ns", None, "Tenant does not exist"),
    ("GET", "/clusters/none", None, "Cluster does not exist"),
    ("DELETE", "/clusters/none", None, "Cluster does not exist"),
]
WRONG: list[tuple[str, str, object, str]] = [
    ("POST", "/namespaces/public/default/messageTTL", -1, "Invalid value for message TTL, message TTL must >= 0"),
    (
        "POST",
        "/namespaces/public/default/subscriptionExpirationTime",
        -1,
        "Invalid value for subscription expiration time",
    ),
    (
        "POST",
        "/namespaces/public/default/maxUnackedMessagesPerConsumer",
        -1,
        "maxUnackedMessagesPerConsumer must be 0 or more",
    ),
    ("POST", "/persistent/public/default/t/messageTTL?messageTTL=-1", None, "Invalid value for message TTL"),
    ("POST", "/persistent/public/default/t/compactionThreshold", -1, "Invalid value for compactionThreshold"),
    ("POST", "/persistent/public/default/t/maxUnackedMessagesOnConsumer", -1, "maxUnackedNum must be 0 or more"),
    ("PUT", "/tenants/new", {"allowedClusters": []}, "Clusters cannot be empty or blank"),
    ("PUT", "/tenants/new", {"allowedClusters": ["none"]}, "Clusters do not exist"),
    ("PUT", "/tenants/new%20x", CLUSTERS, "Tenant name is not valid"),
    ("PUT", "/namespaces/public/a%20b", None, "Namespace name is not valid"),
]
CREATION: list[tuple[dict[str, object], str]] = [
    ({"topicType": "partitioned"}, "[defaultNumPartitions] cannot be null when the type is partitioned."),
    (
        {"topicType": "partitioned", "defaultNumPartitions": 0},
        "[defaultNumPartitions] cannot be less than 1 for partition type.",
    ),
    (
        {"topicType": "non-partitioned", "defaultNumPartitions": 1},
        "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
    ),
    ({"topicType": "other"}, "Unknown topic type [other]"),
    ({}, "Unknown topic type [null]"),
]


async def test_what_is_missing_is_named_as_in_pulsar(broker: MemoryBroker) -> None:
    for method, path, body, reason in MISSING:
        answer = await broker.rest(method, path, body)
        assert (method, path, answer.status, answer.json) == (method, path, 404, {"reason": reason})


@pytest.mark.parametrize(("method", "path", "body", "reason"), WRONG)
async def test_values_that_cannot_be_meant_are_refused_as_in_pulsar(
    broker: MemoryBroker, method: str, path: str, body: object, reason: str
) -> None:
    await broker.topic("persistent://public/default/t")
    answer = await broker.rest(method, path, body)
    assert (answer.status, answer.json) == (412, {"reason": reason})


async def test_how_topics_cannot_be_made_automatically_is_said_as_in_pulsar(broker: MemoryBroker) -> None:
    for body, detail in CREATION:
        answer = await broker.rest(
            "POST", "/namespaces/public/default/autoTopicCreation", {"allowAutoTopicCreation": True, **body}
        )
        assert (answer.status, answer.json) == (412, {"reason": BAD_CREATION + detail})
