"""Admin calls have the same answer at each broker of a cluster of one Java broker and two pybrokers.

Redirects are followed. Answers are normalised and compared as in tests/differential, whose scenarios run here at each broker.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pulsar
import pytest
from benchmarks.brokers import Broker
from tests.bookkeeper.mixed_cluster import BROKERS, CLUSTER, Place, bundles_of, mixed_places, send, transfer, until
from tests.bookkeeper.mixed_load import new_client
from tests.differential import intended
from tests.differential.compare import differences
from tests.differential.harness import SCENARIOS, Run
from tests.differential.normalise import Json, Normaliser
from tests.differential.run import SECRET
from tests.differential.scenarios_brokers import OWN_DYNAMIC_KEYS

pytestmark = [pytest.mark.long, pytest.mark.cluster]
TENANT = "admin-calls"
NAMESPACE = f"{TENANT}/ns"
N = f"/admin/v2/namespaces/{NAMESPACE}"
P = f"/admin/v2/persistent/{NAMESPACE}"
C = f"/admin/v2/clusters/{CLUSTER}"
TOPICS = [f"t{number}" for number in range(6)]
MESSAGES = 20
OF_NAMESPACE = (
    "antiAffinity autoSubscriptionCreation autoTopicCreation backlogQuotaMap bundles compactionThreshold deduplication"
    " deduplicationSnapshotInterval delayedDelivery dispatchRate entryFilters inactiveTopicPolicies isAllowAutoUpdateSchema"
    " maxConsumersPerSubscription maxConsumersPerTopic maxProducersPerTopic maxSubscriptionsPerTopic maxTopicsPerNamespace"
    " maxUnackedMessagesPerConsumer maxUnackedMessagesPerSubscription messageTTL offloadDeletionLagMs offloadPolicies"
    " offloadThreshold permissions permissions/subscription persistence persistence/bookieAffinity properties"
    " property/owner publishRate replication replicatorDispatchRate resourcegroup retention"
    " schemaAutoUpdateCompatibilityStrategy schemaCompatibilityStrategy schemaValidationEnforced subscribeRate"
    " subscriptionAuthMode subscriptionDispatchRate subscriptionExpirationTime subscriptionTypesEnabled topics"
    " encryptionRequired dispatcherPauseOnAckStatePersistent allowedClusters"
)
OF_TOPIC = (
    "backlogSize compaction internal-info internalStats lastMessageId offload partitions permissions properties stats"
    " subscriptions subscription/one/position/1 subscription/two/position/1 subscription/one/properties"
    " subscription/one/analyzeBacklog subscription/missing/position/1 examinemessage?initialPosition=earliest&messagePosition=2"
    " message/publishTime schemaCompatibilityStrategy maxConsumers retention?applied=true retention messageTTL?applied=true"
    " maxProducers?applied=true dispatchRate?applied=true persistence inactiveTopicPolicies"
    " delayedDelivery deduplicationEnabled maxUnackedMessagesOnConsumer subscriptionTypesEnabled partitioned-stats"
    " replication compactionThreshold publishRate subscribeRate maxMessageSize"
)
OF_PARTED = (
    "partitions partitioned-stats partitioned-internalStats?metadata=false subscriptions lastMessageId stats internalStats"
    " permissions properties compaction subscription/one/position/1 retention?applied=true"
)
OF_CLUSTER = "peers failureDomains failureDomains/d1 namespaceIsolationPolicies migrate"
EXTRAS = {"standstill", "oldestUnackedMessageAgeSeconds"}
"""Fields that only pybroker has. The owner of a topic decides whether they are there."""
OF_ONE_BROKER = ("broker_stats", "quota_")
"""Scenarios about the answering broker alone, or with frames to the broker."""
ON_ZOOKEEPER = "A Java broker cannot delete a cluster that has failure domains or a migration from ZooKeeper."
ALLOWED_STEPS: dict[tuple[str, str], str] = {
    ("metadata_clusters", "delete*"): ON_ZOOKEEPER,
    ("metadata_clusters", "create again*"): ON_ZOOKEEPER,
    ("metadata_clusters", "domains again*"): ON_ZOOKEEPER,
    ("metadata_clusters", "migration again*"): ON_ZOOKEEPER,
    ("stats_*", "*averageMsgSize"): "The owner knows it after its next update of the rates.",
}
"""Differences between the traces, by patterns of scenario and place, beside those of tests/differential."""
THEMES = (
    "brokers",
    "rest",
    "retention",
    "compaction",
    "metadata",
    "operations",
    "stats",
    "partitioned_stats",
    "policies",
    "topics",
    "refusals",
    "rest_produce",
    "schemas",
    "pulsar_admin",
)
"""Scenarios of tests/differential that are run at each broker, without those that send frames to a broker of their choice."""


def schema(*fields: str) -> dict[str, object]:
    """Return the body of a request for a JSON schema whose fields are strings with a default value."""
    definition = {
        "type": "record",
        "name": "Placed",
        "fields": [{"name": each, "type": "string", "default": ""} for each in fields],
    }
    return {"type": "JSON", "schema": json.dumps(definition), "properties": {}}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with mixed_places(tmp_path_factory.mktemp("admin")) as places:
        yield places


@pytest.fixture(scope="module")
def filled(places: list[Place]) -> list[Place]:
    """The cluster with topics of all kinds in a namespace whose bundles belong to all three brokers."""
    java, first, second = places

    def done(place: Place, method: str, path: str, body: object = None) -> None:
        status, text = place.call(method, path, body)
        assert status < 300, f"{method} {path} at {place}: {status} {text}"

    done(first, "PUT", f"/admin/v2/tenants/{TENANT}", {"allowedClusters": [CLUSTER], "adminRoles": ["r"]})
    done(java, "PUT", N, {"bundles": {"numBundles": 6}})
    until(lambda: all(each.call("GET", N)[0] == 200 for each in places))
    done(java, "POST", f"{N}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10})
    done(first, "POST", f"{N}/messageTTL", 3600)
    done(second, "POST", f"{N}/maxProducersPerTopic", 11)
    done(first, "POST", f"{N}/permissions/reader", ["consume"])
    done(java, "POST", f"{N}/dispatchRate", {"dispatchThrottlingRateInMsg": 10_000, "ratePeriodInSecond": 1})
    done(second, "PUT", f"{N}/property/owner/ops")
    done(first, "PUT", "/admin/v2/resourcegroups/rg", {"publishRateInMsgs": 1000})
    done(java, "POST", f"{C}/failureDomains/d1", {"brokers": [first.broker_id]})
    done(first, "POST", f"/admin/v2/resource-quotas/{NAMESPACE}/{bundles_of(java, NAMESPACE)[0]}", {"msgRateIn": 7.0})
    for number, bundle in enumerate(bundles_of(java, NAMESPACE)):
        transfer(places[number % 3], NAMESPACE, bundle, places[number % 3])
    done(first, "PUT", f"{P}/parted/partitions", 6)
    client = new_client(second.url)
    for name in [*TOPICS, "parted"]:
        _fill(client, f"persistent://{NAMESPACE}/{name}")
    client.close()
    done(java, "POST", f"/admin/v2/schemas/{NAMESPACE}/typed/schema", schema("item"))
    done(first, "POST", f"/admin/v2/schemas/{NAMESPACE}/typed/schema", schema("item", "count"))
    done(second, "POST", f"{P}/t0/maxConsumers", 4)
    done(java, "POST", f"{P}/t0/retention", {"retentionTimeInMinutes": 6, "retentionSizeInMB": 1})
    done(first, "PUT", f"{P}/t1/properties", {"a": "b"})
    done(java, "PUT", f"{P}/t2/compaction")
    done(first, "POST", f"{P}/t3/terminate")
    until(lambda: all(each.get(f"{P}/t0/maxConsumers") == 4 for each in places))
    return places


def _fill(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name, pulsar.ConsumerType.Shared) for name in ("one", "two")]
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(MESSAGES):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    for _ in range(MESSAGES // 2):
        consumers[0].acknowledge(consumers[0].receive(20_000))
    for each in (*consumers, producer):
        each.close()


def asked_paths(bundles: Sequence[str], broker_ids: Sequence[str]) -> list[str]:
    """Return the GETs that have one answer in a cluster."""
    return [
        "/admin/v2/clusters",
        C,
        *(f"{C}/{each}" for each in OF_CLUSTER.split()),
        f"{C}/namespaceIsolationPolicies/brokers",
        "/admin/v2/clusters/missing",
        "/admin/v2/tenants",
        f"/admin/v2/tenants/{TENANT}",
        "/admin/v2/tenants/missing",
        f"/admin/v2/namespaces/{TENANT}",
        N,
        *(f"{N}/{each}" for each in OF_NAMESPACE.split()),
        f"/admin/v2/namespaces/{TENANT}/missing",
        f"/admin/v2/namespaces/{TENANT}/missing/topics",
        f"/admin/v2/namespaces/{CLUSTER}/antiAffinity/group?property={TENANT}",
        *(f"{N}/{bundle}/topicHashPositions" for bundle in bundles),
        P,
        f"{P}/partitioned",
        f"/admin/v2/non-persistent/{NAMESPACE}",
        *(f"{P}/{topic}/{each}" for topic in TOPICS for each in OF_TOPIC.split()),
        *(f"{P}/parted/{each}" for each in OF_PARTED.split()),
        *(f"{P}/parted-partition-{index}/{each}" for index in range(6) for each in ("stats", "internalStats")),
        *(f"{P}/missing/{each}" for each in ("stats", "partitions", "subscriptions", "internalStats", "lastMessageId")),
        *(f"/lookup/v2/topic/persistent/{NAMESPACE}/{topic}{each}" for topic in TOPICS for each in ("", "/bundle")),
        *(
            f"/admin/v2/schemas/{NAMESPACE}/{topic}/{each}"
            for topic in ("typed", "t0")
            for each in ("schema", "schema/0", "schemas", "metadata")
        ),
        BROKERS,
        *(
            f"{BROKERS}/{each}"
            for each in (CLUSTER, "leaderBroker", "health", "ready", "configuration/values", "configuration")
        ),
        *(f"{BROKERS}/health?brokerId={each}" for each in broker_ids),
        *(f"{BROKERS}/{CLUSTER}/{each}/ownedNamespaces" for each in broker_ids),
        f"{BROKERS}/internal-configuration",
        "/admin/v2/resource-quotas",
        *(f"/admin/v2/resource-quotas/{NAMESPACE}/{bundle}" for bundle in bundles[:2]),
        "/admin/v2/resourcegroups",
        "/admin/v2/resourcegroups/rg",
        "/admin/v2/bookies/all",
        "/admin/v2/bookies/racks-info",
        "/admin/v2/worker/cluster",
    ]


_FROM_METADATA = "A Java broker reads the stored documents. pybroker answers from the owner's memory."
ALLOWED: dict[tuple[str, str], str] = {
    ("*/internal-info", "*body.cursors.*"): _FROM_METADATA,
    ("*/internal-info", "*body.properties.*"): _FROM_METADATA,
    ("*/internal-info", "*body.terminatedPosition.*"): _FROM_METADATA,
}
"""Differences between a Java broker's answer and a pybroker's, by patterns of path and place in the answer, with their reasons."""


def answer_of(place: Place, path: str) -> Json:
    """Return status and body as a value to compare. The text of a refusal is free."""
    status, _, data = send(place.http_url, "GET", path)
    if status >= 300:
        return {"status": status}
    try:
        body = json.loads(data) if data.strip() else None
    except ValueError:
        body = data.decode(errors="replace")
    return {"status": status, "body": Normaliser({}).value(with_sorted_lists(without_extras(body)))}


def without_extras(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_extras(each) for key, each in value.items() if key not in EXTRAS}
    if isinstance(value, list):
        return [without_extras(each) for each in value if not (isinstance(each, str) and each in EXTRAS)]
    return value


def with_sorted_lists(value: Any) -> Any:
    """Return lists in one order, because many stand for sets, without dynamic keys that only pybroker has."""
    if isinstance(value, dict):
        return {key: with_sorted_lists(each) for key, each in value.items()}
    if isinstance(value, list):
        kept = [with_sorted_lists(each) for each in value if not (isinstance(each, str) and each in OWN_DYNAMIC_KEYS)]
        return sorted(kept, key=lambda each: json.dumps(each, sort_keys=True))
    return value


def test_queries_have_the_same_answer_at_each_broker(filled: list[Place]) -> None:
    java, *own = filled
    paths = asked_paths(bundles_of(java, NAMESPACE), [each.broker_id for each in filled])
    assert len(paths) > 300
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    for path in paths:
        expected = answer_of(java, path)
        for place in own:
            for each in differences([("", answer_of(place, path))], [("", expected)]):
                reasons = [
                    row for row in ALLOWED if fnmatch.fnmatch(path, row[0]) and fnmatch.fnmatch(each.path, row[1])
                ]
                used.update(reasons)
                if not reasons:
                    found.append(f"{path} {each.path}: {place} {each.ours!r}, {java} {each.reference!r}")
    assert not found, f"{len(found)} differences:\n" + "\n".join(found)
    assert used == set(ALLOWED), f"no differences any more: {set(ALLOWED) - used}"


FIRST_POSITION = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
QUOTA = {"limitSize": 1_000_000, "policy": "producer_exception"}
GROUP = {"publishRateInMsgs": 1000, "publishRateInBytes": 1_000_000}
ISOLATION = {
    "namespaces": ["nowhere/.*"],
    "primary": ["a"],
    "secondary": [],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}},
}


def changes_of(tenant: str) -> list[tuple[str, str, object, str]]:
    """Return method, path and body of changes, in their order, and the query that shows each."""
    namespace = f"namespaces/{tenant}/ns"
    plain, parted = (f"persistent/{tenant}/ns/{each}" for each in ("plain", "parted"))
    quota = f"resource-quotas/{tenant}/ns/0x00000000_0x20000000"
    cluster = f"clusters/{CLUSTER}"
    return [
        ("PUT", f"tenants/{tenant}", {"allowedClusters": [CLUSTER], "adminRoles": []}, f"tenants/{tenant}"),
        ("POST", f"tenants/{tenant}", {"allowedClusters": [CLUSTER], "adminRoles": ["r"]}, f"tenants/{tenant}"),
        ("PUT", namespace, {"bundles": {"numBundles": 4}}, f"{namespace}/bundles"),
        ("PUT", f"{namespace}/0x00000000_0x40000000/split?unload=true", None, f"{namespace}/bundles"),
        ("POST", quota, {"msgRateIn": 5.0}, quota),
        (
            "POST",
            f"{namespace}/retention",
            {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10},
            f"{namespace}/retention",
        ),
        ("POST", f"{namespace}/messageTTL", 77, f"{namespace}/messageTTL"),
        ("POST", f"{namespace}/backlogQuota", QUOTA, f"{namespace}/backlogQuotaMap"),
        ("POST", f"{namespace}/permissions/app", ["produce"], f"{namespace}/permissions"),
        ("PUT", f"{namespace}/property/a/b", None, f"{namespace}/properties"),
        ("DELETE", f"{namespace}/messageTTL", None, f"{namespace}/messageTTL"),
        ("PUT", f"{parted}/partitions", 3, f"{parted}/partitions"),
        ("POST", f"{parted}/partitions", 5, f"{parted}/partitions"),
        ("PUT", plain, None, f"persistent/{tenant}/ns"),
        ("PUT", f"{plain}/subscription/s", FIRST_POSITION, f"{plain}/subscriptions"),
        ("PUT", f"{parted}/subscription/s", FIRST_POSITION, f"{parted}/subscriptions"),
        ("POST", f"{plain}/maxConsumers", 3, f"{plain}/maxConsumers"),
        ("PUT", f"{plain}/properties", {"a": "b"}, f"{plain}/properties"),
        ("POST", f"schemas/{tenant}/ns/plain/schema", schema("item"), f"schemas/{tenant}/ns/plain/schema"),
        ("DELETE", f"schemas/{tenant}/ns/plain/schema", None, f"schemas/{tenant}/ns/plain/schema"),
        ("PUT", f"resourcegroups/{tenant}", GROUP, f"resourcegroups/{tenant}"),
        ("DELETE", f"resourcegroups/{tenant}", None, f"resourcegroups/{tenant}"),
        ("POST", f"{cluster}/failureDomains/{tenant}", {"brokers": ["x:1"]}, f"{cluster}/failureDomains"),
        ("DELETE", f"{cluster}/failureDomains/{tenant}", None, f"{cluster}/failureDomains"),
        ("POST", f"{cluster}/namespaceIsolationPolicies/{tenant}", ISOLATION, f"{cluster}/namespaceIsolationPolicies"),
        ("DELETE", f"{cluster}/namespaceIsolationPolicies/{tenant}", None, f"{cluster}/namespaceIsolationPolicies"),
        ("POST", "brokers/configuration/maxConcurrentTopicLoadRequest/4000", None, "brokers/configuration/values"),
        ("DELETE", "brokers/configuration/maxConcurrentTopicLoadRequest", None, "brokers/configuration/values"),
        ("DELETE", f"{plain}/subscription/s", None, f"{plain}/subscriptions"),
        ("DELETE", plain, None, f"persistent/{tenant}/ns"),
        ("DELETE", f"{parted}/partitions", None, f"{parted}/partitions"),
        ("DELETE", namespace, None, f"namespaces/{tenant}"),
        ("DELETE", f"tenants/{tenant}", None, f"tenants/{tenant}"),
    ]


def change(places: Sequence[Place], asked: Place, call: tuple[str, str, object], query: str) -> None:
    """Send a change to one broker, and wait until all brokers answer the query alike, and otherwise than before."""
    method, path, body = call
    before = answer_of(asked, query)
    status, text = asked.call(method, path, body)
    assert status < 300, f"{method} {path} at {asked}: {status} {text}"

    def answers() -> list[Json]:
        return [answer_of(each, query) for each in places]

    def agree() -> bool:
        first, *others = answers()
        return first != before and not any(differences([("", first)], [("", each)]) for each in others)

    until(agree, lambda: f"{method} {path} at {asked}, before {before}: {answers()}")


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_changes_at_one_broker_are_seen_at_all(places: list[Place], asked: int) -> None:
    for method, path, body, query in changes_of(f"changes-{asked}"):
        change(places, places[asked], (method, f"/admin/v2/{path}", body), f"/admin/v2/{query}")


def scenario_names() -> list[str]:
    return [
        name
        for name, each in SCENARIOS.items()
        if not each.is_secured
        and not each.has_transactions
        and each.run.__module__.rpartition("scenarios_")[2] in THEMES
        and ".raw(" not in inspect.getsource(each.run)
        and not name.startswith(OF_ONE_BROKER)
    ]


class ClusterRun(Run):
    """A scenario that is asked of one broker of a cluster. The addresses of all brokers have the same name."""

    def name_brokers(self, places: Sequence[Place]) -> None:
        names = {each.url: "<broker url>" for each in places} | {each.http_url: "<http url>" for each in places}
        hosts = {url.split("//")[1]: f"{name[:-5]}>" for url, name in names.items()}
        self.normaliser = Normaliser({self.token: "<run>", **names, **hosts})

    def step(self, label: str, value: Any) -> None:
        super().step(label, without_extras(value))

    def http(self, method: str, path: str, body: Any, content_type: str, token: str | None = None) -> Any:
        data = None if body is ... else body if isinstance(body, bytes) else json.dumps(body).encode()
        assert self.broker.http_url is not None
        return send(self.broker.http_url, method, path, data, content_type)


def trace(name: str, place: Place, places: Sequence[Place]) -> ClusterRun:
    with ClusterRun(Broker(place.name, place.url, place.http_url), name, SECRET) as run:
        run.name_brokers(places)
        SCENARIOS[name].run(run)
    return run


def is_allowed(scenario: str, path: str) -> bool:
    return intended.reason_for(scenario, path) is not None or any(
        fnmatch.fnmatch(scenario, row[0]) and fnmatch.fnmatch(path, row[1]) for row in ALLOWED_STEPS
    )


@pytest.mark.parametrize("name", scenario_names())
def test_scenarios_have_the_same_trace_at_each_broker(places: list[Place], name: str) -> None:
    java, *own = places
    expected = [(step.label, step.value) for step in trace(name, java, places).steps]
    found: list[str] = []
    for place in own:
        steps = [(step.label, step.value) for step in trace(name, place, places).steps]
        found += [
            f"{each.path}: {place} {each.ours!r}, {java} {each.reference!r}"
            for each in differences(steps, expected)
            if not is_allowed(name, each.path)
        ]
    assert not found, f"{len(found)} differences:\n" + "\n".join(found)
