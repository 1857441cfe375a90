"""A day with `pulsar-admin`: the daily operations of `docs/reference/pulsar-admin.md`, in one walk, through the published tool.

Needs Java. What a command prints is compared member by member when it is JSON, line by line when it is not.
"""

import json
import re
import time
from collections.abc import Callable

from tests.differential.harness import Run, scenario
from tests.differential.normalise import Json
from tests.differential.pulsar_admin import AdminAnswer, PulsarAdmin

_POSITION = re.compile(r"(?<![.\w])(\d+):(-?\d+)(?::-?\d+)*\b")
_SET = re.compile(r"\[(\w+(?:, \w+)*)\]")
_TIME = re.compile(r"(?<=Publish time: )\d+")
# What a failed command prints before the reason is the tool's own business.
_REASON = re.compile(r"^Reason: ", re.MULTILINE)
_SETTLED_S = 30.0


class Walk:
    """Runs commands and records what they print."""

    def __init__(self, run: Run, admin: PulsarAdmin) -> None:
        self._run, self._admin = run, admin

    def __call__(self, *arguments: str) -> None:
        """Run a command and record its exit code and what it prints."""
        answer = self._admin.run(*arguments)
        self._run.step(_label(self._run, arguments), {"done": answer.is_done, "printed": self._printed(answer)})

    def unordered(self, *arguments: str) -> None:
        """The same for names that come in any order."""
        answer = self._admin.run(*arguments)
        names = [line.strip(' ",') for line in answer.output.splitlines()]
        self._run.step(_label(self._run, arguments), {"done": answer.is_done, "printed": sorted(filter(None, names))})

    def own(self, *arguments: str) -> None:
        """The same for a list that is also of other runs: only what this run made is recorded."""
        answer = self._admin.run(*arguments)
        lines = [line.strip(' ",') for line in answer.output.splitlines() if self._run.token in line]
        self._run.step(_label(self._run, arguments), {"done": answer.is_done, "printed": sorted(lines)})

    def until(self, is_there: Callable[[str], bool], *arguments: str) -> None:
        """Repeat a command until what it prints holds: policies and rates take effect a little later than they are set."""
        deadline_s = time.monotonic() + _SETTLED_S
        while not is_there(self._admin.run(*arguments).output) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        self(*arguments)

    def _printed(self, answer: AdminAnswer) -> Json:
        if not answer.is_done:
            return "<failed>" if _REASON.search(answer.errors) else answer.errors.strip()
        try:
            printed: Json = json.loads(answer.output)
        except ValueError:
            return [self._line(line) for line in answer.output.splitlines() if line.strip()]
        return _POSITION.sub(self._position, printed) if isinstance(printed, str) else self._document(printed)

    def _line(self, line: str) -> str:
        named = _TIME.sub("<time>", _POSITION.sub(self._position, line))
        return _SET.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", named)

    def _position(self, found: re.Match[str]) -> str:
        return self._run.normaliser.position(int(found[1]), int(found[2]))

    def _document(self, value: Json, field: str = "") -> Json:
        """JSON without what the stats scenarios compare already, where brokers differ by what they are."""
        if isinstance(value, dict):
            return {key: "<stored>" if key in _STORED else self._document(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self._document(each, field) for each in value]
        return _POSITION.sub(self._position, value) if isinstance(value, str) and field in _POSITIONS else value


_POSITIONS = frozenset(("firstMessageId", "lastMessageId"))
# What is of one broker or moment: bytes and ledgers as it stores them, times, names that the client makes up.
_STORED = frozenset(
    (
        "activeConsumerName",
        "address",
        "averageMsgSize",
        "backlogSize",
        "bytesInCounter",
        "bytesOutCounter",
        "clientVersion",
        "consumerName",
        "currentLedgerSize",
        "cursors",
        "lastAckedTime",
        "lastConfirmedEntry",
        "lastConsumedTime",
        "lastPublishTimeStamp",
        "ledgers",
        "storageSize",
        "topicCreationTimeStamp",
        "totalSize",
        "version",
    )
)


def _label(run: Run, arguments: tuple[str, ...]) -> str:
    return run.normaliser.text(" ".join(arguments))


@scenario
def pulsar_admin_daily_operations(run: Run) -> None:
    """Sixty and more daily operations with pulsar-admin, in order, from creating a tenant to deleting it."""
    assert run.broker.http_url is not None
    with PulsarAdmin(run.broker.http_url) as admin:
        walk = Walk(run, admin)
        tenant, namespace = run.tenant(), f"{run.tenant()}/ns"
        _cluster_and_brokers(walk)
        _tenants_and_namespaces(walk, tenant, namespace)
        _namespace_policies(walk, namespace)
        _topics(run, walk, namespace)
        _partitioned_topics(run, walk, namespace)
        _topic_policies(walk, namespace)
        _messages_and_subscriptions(run, walk, namespace)
        _mistakes(walk, tenant, namespace)
        _the_end(walk, tenant, namespace)


def _cluster_and_brokers(walk: Walk) -> None:
    walk.unordered("clusters", "list")
    walk("clusters", "list-failure-domains", "standalone")
    walk("brokers", "list", "standalone")
    walk("brokers", "leader-broker")
    walk("brokers", "healthcheck")
    walk("brokers", "get-all-dynamic-config")
    walk("resource-quotas", "get")


def _tenants_and_namespaces(walk: Walk, tenant: str, namespace: str) -> None:
    walk("tenants", "create", tenant, "--allowed-clusters", "standalone")
    walk.own("tenants", "list")
    walk("tenants", "update", tenant, "--admin-roles", "one,two", "--allowed-clusters", "standalone")
    walk("tenants", "get", tenant)
    walk("namespaces", "create", namespace, "--bundles", "4")
    walk("namespaces", "list", tenant)
    walk("namespaces", "bundles", namespace)
    walk("namespaces", "policies", namespace)


def _namespace_policies(walk: Walk, namespace: str) -> None:
    walk("namespaces", "set-retention", namespace, "--size", "100M", "--time", "2h")
    walk("namespaces", "get-retention", namespace)
    walk("namespaces", "set-message-ttl", namespace, "--messageTTL", "3600")
    walk("namespaces", "get-message-ttl", namespace)
    walk("namespaces", "set-backlog-quota", namespace, "--limit", "10M", "--policy", "producer_request_hold")
    walk("namespaces", "get-backlog-quotas", namespace)
    walk("namespaces", "set-dispatch-rate", namespace, "--msg-dispatch-rate", "1000")
    walk("namespaces", "get-dispatch-rate", namespace)
    walk("namespaces", "set-publish-rate", namespace, "--msg-publish-rate", "1000")
    walk("namespaces", "get-publish-rate", namespace)
    walk("namespaces", "remove-publish-rate", namespace)
    walk("namespaces", "set-max-producers-per-topic", namespace, "--max-producers-per-topic", "50")
    walk("namespaces", "get-max-producers-per-topic", namespace)
    walk("namespaces", "set-deduplication", namespace, "--enable")
    walk("namespaces", "get-deduplication", namespace)
    walk("namespaces", "remove-deduplication", namespace)
    walk("namespaces", "set-auto-topic-creation", namespace, "--enable", "--type", "non-partitioned")
    walk("namespaces", "get-auto-topic-creation", namespace)
    walk("namespaces", "set-schema-compatibility-strategy", namespace, "--compatibility", "BACKWARD")
    walk("namespaces", "get-schema-compatibility-strategy", namespace)
    walk("namespaces", "set-delayed-delivery", namespace, "--enable", "--time", "2s")
    walk("namespaces", "get-delayed-delivery", namespace)
    walk(
        "namespaces",
        "set-inactive-topic-policies",
        namespace,
        "--disable-delete-while-inactive",
        "--max-inactive-duration",
        "1h",
        "--delete-mode",
        "delete_when_no_subscriptions",
    )
    walk("namespaces", "get-inactive-topic-policies", namespace)
    walk("namespaces", "grant-permission", namespace, "--role", "app", "--actions", "produce,consume")
    walk("namespaces", "permissions", namespace)
    walk("namespaces", "revoke-permission", namespace, "--role", "app")
    walk("namespaces", "policies", namespace)


def _topics(run: Run, walk: Walk, namespace: str) -> None:
    topic = run.topic("plain", namespace)
    walk("topics", "create", topic, "--metadata", "owner=ops")
    walk.unordered("topics", "list", namespace)
    walk.unordered("namespaces", "topics", namespace)
    walk("topics", "get-properties", topic)
    walk("topics", "lookup", topic)
    walk("topics", "bundle-range", "persistent://public/default/a name of two+ words")
    walk("topics", "stats", topic)
    walk("topics", "grant-permission", topic, "--role", "app", "--actions", "produce")
    walk("topics", "permissions", topic)
    walk("topics", "revoke-permission", topic, "--role", "app")
    walk("topics", "delete", topic)


def _partitioned_topics(run: Run, walk: Walk, namespace: str) -> None:
    topic = run.topic("parts", namespace)
    walk("topics", "create-partitioned-topic", topic, "--partitions", "2")
    walk("topics", "list-partitioned-topics", namespace)
    walk("topics", "get-partitioned-topic-metadata", topic)
    walk("topics", "create-subscription", topic, "--subscription", "sub")
    walk("topics", "update-partitioned-topic", topic, "--partitions", "3")
    walk("topics", "get-partitioned-topic-metadata", topic)
    walk.unordered("topics", "subscriptions", topic)
    walk.unordered("topics", "list", namespace)
    walk("topics", "partitioned-stats", topic)
    walk("topics", "partitioned-stats-internal", topic)
    walk("topics", "delete-partitioned-topic", topic, "--force")


def _topic_policies(walk: Walk, namespace: str) -> None:
    topic = f"persistent://{namespace}/policies"
    walk("topics", "create", topic)
    walk("topicPolicies", "set-retention", topic, "--size", "5M", "--time", "1h")  # less than the backlog quota
    walk("topicPolicies", "set-retention", topic, "--size", "50M", "--time", "1h")
    walk.until(lambda printed: "retentionSizeInMB" in printed, "topicPolicies", "get-retention", topic)
    walk("topicPolicies", "set-message-ttl", topic, "--ttl", "60")
    walk.until(lambda printed: "60" in printed, "topicPolicies", "get-message-ttl", topic)
    walk("topicPolicies", "set-max-consumers", topic, "--max-consumers", "7")
    walk.until(lambda printed: "7" in printed, "topicPolicies", "get-max-consumers", topic)
    walk("topicPolicies", "get-max-producers", topic, "--applied")
    walk("topicPolicies", "remove-max-consumers", topic)
    walk.until(lambda printed: "7" not in printed, "topicPolicies", "get-max-consumers", topic)
    walk("topics", "delete", topic)


def _messages_and_subscriptions(run: Run, walk: Walk, namespace: str) -> None:
    topic = run.topic("messages", namespace)
    client = run.client()
    consumer = client.subscribe(topic, "work")
    producer = client.create_producer(topic, batching_enabled=False, producer_name="writer")
    for index in range(10):
        producer.send(f"message {index}".encode(), properties={"index": str(index)}, partition_key="key")
    for message in run.receive(consumer, 3):
        consumer.acknowledge(message)
    walk.until(lambda printed: '"msgBacklog" : 7' in printed, "topics", "stats", topic)
    consumer.close()
    walk("topics", "stats-internal", topic)
    walk("topics", "last-message-id", topic)
    walk("topics", "peek-messages", topic, "--subscription", "work", "--count", "2")
    walk("topics", "examine-messages", topic, "--initialPosition", "earliest", "--messagePosition", "1")
    walk("topics", "skip", topic, "--subscription", "work", "--count", "2")
    walk("topics", "create-subscription", topic, "--subscription", "audit", "--messageId", "earliest")
    walk.unordered("topics", "subscriptions", topic)
    walk("topics", "expire-messages", topic, "--subscription", "audit", "--expireTime", "3600")
    walk("topics", "reset-cursor", topic, "--subscription", "work", "--time", "1h")
    walk("topics", "clear-backlog", topic, "--subscription", "audit")
    walk("topics", "analyze-backlog", topic, "--subscription", "work")
    walk("topics", "unload", topic)
    walk("topics", "compaction-status", topic)
    walk("topics", "unsubscribe", topic, "--subscription", "audit")
    walk("topics", "get-backlog-quotas", topic)
    walk("namespaces", "clear-backlog", namespace, "--force")
    walk("namespaces", "unload", namespace)
    walk("topics", "terminate", topic)
    producer.close()
    walk("topics", "delete", topic, "--force")


def _mistakes(walk: Walk, tenant: str, namespace: str) -> None:
    walk("tenants", "create", tenant, "--allowed-clusters", "standalone")
    walk("namespaces", "create", namespace)
    walk("namespaces", "policies", f"{tenant}/none")
    walk("topics", "stats", f"persistent://{namespace}/none")
    walk("topics", "delete", f"persistent://{namespace}/none")
    walk("topics", "subscriptions", f"persistent://{namespace}/none")
    walk("schemas", "get", f"persistent://{namespace}/none")
    walk("tenants", "delete", tenant)


def _the_end(walk: Walk, tenant: str, namespace: str) -> None:
    walk("namespaces", "delete", namespace)
    walk("tenants", "delete", tenant)
    walk("tenants", "get", tenant)
