"""Topic policies in `__change_events`, written in turn by a pybroker and a real Java broker on the same bookies."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from typing import Any

import pulsar
import pytest
from tests.bookkeeper.test_java_brokers import Brokers, two_brokers
from tests.support.bookkeeper_cluster import BookKeeperCluster

pytestmark = [pytest.mark.long, pytest.mark.cluster]
TOPIC = "persistent/public/default/with-policies"
OTHER = "persistent/public/default/without-policies"
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def brokers(cluster: BookKeeperCluster, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    return two_brokers(cluster, tmp_path_factory.mktemp("policies"))


class Admin:
    """REST calls about the policies of topics at one broker."""

    def __init__(self, http_url: str) -> None:
        self._root = f"{http_url}/admin/v2"

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._root}/{path}", data, headers, method=method)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    text = answer.read()
            except urllib.error.HTTPError as error:
                # A Java broker answers so while it opens the system topic.
                if error.code not in (409, 500, 503) or time.monotonic() > deadline:
                    raise
                time.sleep(0.3)
            else:
                return json.loads(text) if text else None

    def require(self, path: str, expected: object) -> None:
        """Wait until the policy has the value: a Java broker applies changes after it has answered."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.call("GET", path)) != expected:
            assert time.monotonic() < deadline, f"{path}: {found}"
            time.sleep(0.2)


def test_topic_policies_written_by_each_broker_are_in_force_at_the_other(brokers: Brokers) -> None:
    with brokers.running("own", ends_with=signal.SIGKILL) as client:
        for name in (TOPIC, OTHER):
            client.create_producer(name.replace("/", "://", 1)).send(b"1")
        own = Admin(brokers.own.http_url)
        own.call("POST", f"{TOPIC}/messageTTL?messageTTL=3600")
        own.call("POST", f"{TOPIC}/maxProducers", 1)
        own.call("POST", f"{TOPIC}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100})
        own.call("POST", f"{OTHER}/maxConsumers", 7)
        own.call("DELETE", f"{OTHER}/maxConsumers")
        own.require(f"{TOPIC}/messageTTL", 3600)
    with brokers.running("own") as client:
        own = Admin(brokers.own.http_url)
        own.require(f"{TOPIC}/maxProducers", 1)
        own.require(f"{OTHER}/maxConsumers", None)
    with brokers.running("java") as client:
        java = Admin(brokers.java.http_url)
        java.require(f"{TOPIC}/messageTTL", 3600)
        java.require(f"{TOPIC}/maxProducers", 1)
        java.require(f"{TOPIC}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100})
        java.require(f"{OTHER}/maxConsumers", None)
        java.call("POST", f"{TOPIC}/maxProducers", 2)
        java.call("POST", f"{TOPIC}/compactionThreshold", 1_000_000)
        java.call(
            "POST", f"{TOPIC}/replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 1}
        )
        java.call("DELETE", f"{TOPIC}/messageTTL")
        java.call("POST", f"{TOPIC}/maxSubscriptionsPerTopic?isGlobal=true", 9)
        java.require(f"{TOPIC}/maxProducers", 2)
        java.require(f"{TOPIC}/maxSubscriptionsPerTopic?isGlobal=true", 9)
        java.require(f"{TOPIC}/messageTTL", None)
    with brokers.running("own", ends_with=signal.SIGKILL) as client:
        own = Admin(brokers.own.http_url)
        own.require(f"{TOPIC}/maxProducers", 2)
        own.require(f"{TOPIC}/compactionThreshold", 1_000_000)
        own.require(f"{TOPIC}/messageTTL", None)
        producers = [client.create_producer(TOPIC.replace("/", "://", 1)) for _ in range(2)]
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(TOPIC.replace("/", "://", 1))
        assert len(producers) == 2
        own.call("POST", f"{TOPIC}/maxMessageSize", 5000)
        own.call("DELETE", f"{TOPIC}/compactionThreshold")
    with brokers.running("java") as client:
        java = Admin(brokers.java.http_url)
        java.require(f"{TOPIC}/maxMessageSize", 5000)
        java.require(f"{TOPIC}/compactionThreshold", None)
        rate = java.call("GET", f"{TOPIC}/replicatorDispatchRate")
        assert rate["dispatchThrottlingRateInMsg"] == 5
        java.require(f"{TOPIC}/maxSubscriptionsPerTopic?isGlobal=true", 9)


def test_deleted_topic_does_not_inherit_policies(brokers: Brokers) -> None:
    name = "persistent/public/default/deleted"
    with brokers.running("own") as client:
        own = Admin(brokers.own.http_url)
        client.create_producer(name.replace("/", "://", 1)).close()
        own.call("POST", f"{name}/maxProducers", 5)
        own.call("DELETE", name)
        client.create_producer(name.replace("/", "://", 1)).close()
        own.require(f"{name}/maxProducers", None)
    with brokers.running("java"):
        Admin(brokers.java.http_url).require(f"{name}/maxProducers", None)
