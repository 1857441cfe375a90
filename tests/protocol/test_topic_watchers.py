"""Lists of topics by pattern, and watchers of them, said byte by byte to a running broker."""

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import CLOSED, RawClient, Type, connected
from tests.support.rest import Answer, call

from pybroker.model.topic_patterns import topics_hash
from pybroker.wire import pulsar_api_pb2 as pb

Mode = pb.CommandGetTopicsOfNamespace
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("watchers"))
    with process.running_well():
        yield process


class Namespace:
    """A namespace of a test's own."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self._broker = broker
        self.name = name

    def rest(self, method: str, path: str, body: object = None) -> Answer:
        answer = call(f"{self._broker.http_url}/admin/v2{path}", method, body=body)
        assert answer.status < 300, answer
        return answer

    def make(self, *topics: str) -> None:
        for topic in topics:
            self.rest("PUT", f"/persistent/{self.name}/{topic}")

    def drop(self, *topics: str) -> None:
        for topic in topics:
            self.rest("DELETE", f"/persistent/{self.name}/{topic}")

    def names(self, *topics: str) -> list[str]:
        return [f"persistent://{self.name}/{topic}" for topic in topics]

    def pattern(self, local: str) -> str:
        return f"persistent://{self.name}/{local}"


@pytest.fixture
def namespace(broker: BrokerProcess) -> Namespace:
    found = Namespace(broker, f"public/w{next(_serial)}")
    found.rest("PUT", f"/namespaces/{found.name}")
    return found


def listed(client: RawClient, namespace: Namespace, **fields: Any) -> dict[str, Any]:
    answer = client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace.name, **fields)
    assert answer["type"] == "GET_TOPICS_OF_NAMESPACE_RESPONSE", answer
    return {"topics": [], **answer}


def watch(client: RawClient, namespace: Namespace, pattern: str, watcher_id: int = 1, **fields: Any) -> dict[str, Any]:
    answer = client.request(
        Type.WATCH_TOPIC_LIST,
        namespace=namespace.name,
        watcher_id=watcher_id,
        topics_pattern=namespace.pattern(pattern),
        **fields,
    )
    assert answer["type"] == "WATCH_TOPIC_LIST_SUCCESS", answer
    assert answer["watcher_id"] == str(watcher_id)
    return {"topic": [], **answer}


def updates(client: RawClient) -> tuple[set[str], set[str], str]:
    """All that is told until it is quiet: which topics came and went in the end, and the last hash."""
    created: set[str] = set()
    deleted: set[str] = set()
    last_hash = ""
    for update in client.replies():
        assert update["type"] == "WATCH_TOPIC_UPDATE", update
        for name in update.get("new_topics", []):
            deleted.discard(name)
            created.add(name)
        for name in update.get("deleted_topics", []):
            created.discard(name)
            deleted.add(name)
        last_hash = update["topics_hash"]
    return created, deleted, last_hash


# --- lists -------------------------------------------------------------------------------------------------------------


def test_a_pattern_selects_in_the_broker(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-a", "foo-b", "bar")
    answer = listed(client, namespace, topics_pattern=namespace.pattern("foo.*"))
    assert answer["filtered"] is True
    assert answer["changed"] is True
    assert answer["topics"] == namespace.names("foo-a", "foo-b")
    assert answer["topics_hash"] == topics_hash(answer["topics"])


def test_a_list_that_the_client_has_is_not_sent_again(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-a", "bar")
    known = listed(client, namespace, topics_pattern=namespace.pattern("foo.*"))["topics_hash"]
    answer = listed(client, namespace, topics_pattern=namespace.pattern("foo.*"), topics_hash=known)
    assert (answer["changed"], answer["topics"], answer["topics_hash"]) == (False, [], known)


@pytest.mark.parametrize("pattern", ["f" * 60, "(?!bar).*"])
def test_what_the_broker_does_not_evaluate_gets_the_whole_list(
    client: RawClient, namespace: Namespace, pattern: str
) -> None:
    namespace.make("foo-a", "bar")
    answer = listed(client, namespace, topics_pattern=namespace.pattern(pattern))
    assert answer["filtered"] is False
    assert answer["topics"] == namespace.names("bar", "foo-a")


def test_what_is_no_pattern_is_refused(client: RawClient, namespace: Namespace) -> None:
    answer = client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace.name, topics_pattern="(")
    assert (answer["type"], answer["error"]) == ("ERROR", "MetadataError")


def test_partitions_are_listed_one_by_one_and_system_topics_not(client: RawClient, namespace: Namespace) -> None:
    namespace.rest("PUT", f"/persistent/{namespace.name}/part/partitions", 2)
    namespace.make("__transaction_buffer_snapshot")
    everything = namespace.names("part-partition-0", "part-partition-1")
    assert listed(client, namespace)["topics"] == everything
    assert listed(client, namespace, mode=Mode.ALL)["topics"] == everything
    assert listed(client, namespace, topics_pattern=namespace.pattern("part"))["topics"] == everything
    assert listed(client, namespace, mode=Mode.NON_PERSISTENT)["topics"] == []


def test_a_missing_namespace_has_no_topics(client: RawClient, broker: BrokerProcess) -> None:
    missing = Namespace(broker, "public/missing")
    answer = listed(client, missing)
    assert (answer["topics"], answer["topics_hash"]) == ([], "00000000")


# --- watchers ----------------------------------------------------------------------------------------------------------


def test_watchers_are_announced(broker: BrokerProcess) -> None:
    client = RawClient(broker.url)
    flags = client.connect()["feature_flags"]
    client.close()
    assert flags["supports_topic_watchers"] is True
    assert flags["supports_topic_watcher_reconcile"] is True


def test_a_watcher_begins_with_the_present_list(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-b", "foo-a", "bar")
    answer = watch(client, namespace, "foo.*")
    assert answer["topic"] == namespace.names("foo-a", "foo-b")
    assert answer["topics_hash"] == topics_hash(answer["topic"])
    again = watch(client, namespace, "foo.*", 2, topics_hash=answer["topics_hash"])
    assert (again["topic"], again["topics_hash"]) == ([], answer["topics_hash"])
    assert watch(client, namespace, "foo.*", 3, topics_hash="deadbeef")["topic"] == answer["topic"]


def test_what_comes_and_goes_is_told(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-a")
    watch(client, namespace, "foo.*")
    namespace.make("foo-b", "bar")
    assert updates(client) == (
        set(namespace.names("foo-b")),
        set(),
        topics_hash(namespace.names("foo-a", "foo-b")),
    )
    namespace.drop("foo-a", "bar")
    assert updates(client) == (set(), set(namespace.names("foo-a")), topics_hash(namespace.names("foo-b")))


def test_a_topic_that_a_producer_makes_is_told(broker: BrokerProcess, client: RawClient, namespace: Namespace) -> None:
    watch(client, namespace, ".*")
    with connected(broker) as other:
        assert other.open_producer(namespace.pattern("auto"))["type"] == "PRODUCER_SUCCESS"
    assert updates(client)[0] == set(namespace.names("auto"))


def test_partitions_are_told_as_a_topic_grows(client: RawClient, namespace: Namespace) -> None:
    watch(client, namespace, "part")
    path = f"/persistent/{namespace.name}/part/partitions"
    namespace.rest("PUT", path, 2)
    assert updates(client)[0] == set(namespace.names("part-partition-0", "part-partition-1"))
    namespace.rest("POST", path, 3)
    assert updates(client)[0] == set(namespace.names("part-partition-2"))
    namespace.rest("DELETE", path)
    created, deleted, last_hash = updates(client)
    assert not created
    assert deleted == set(namespace.names(*(f"part-partition-{index}" for index in range(3))))
    assert last_hash == "00000000"


def test_system_topics_are_not_told(client: RawClient, namespace: Namespace) -> None:
    watch(client, namespace, ".*")
    namespace.make("__transaction_buffer_snapshot", "mine")
    namespace.rest("POST", f"/persistent/{namespace.name}/mine/maxProducers", 3)
    assert updates(client)[0] == set(namespace.names("mine"))


def test_many_topics_at_once_are_few_updates(client: RawClient, namespace: Namespace) -> None:
    watch(client, namespace, "many")
    namespace.rest("PUT", f"/persistent/{namespace.name}/many/partitions", 100)
    told = client.replies()
    names = [name for update in told for name in update["new_topics"]]
    assert sorted(names) == sorted(namespace.names(*(f"many-partition-{index}" for index in range(100))))
    assert told[-1]["topics_hash"] == topics_hash(sorted(names))
    assert len(told) < 50


def test_an_id_in_use_answers_the_present_list_of_its_watcher(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-a", "bar")
    watch(client, namespace, "foo.*")
    assert watch(client, namespace, "bar")["topic"] == namespace.names("foo-a")
    namespace.make("foo-b", "barbar")
    assert updates(client)[0] == set(namespace.names("foo-b"))


def test_a_closed_watcher_is_told_nothing(client: RawClient, namespace: Namespace) -> None:
    watch(client, namespace, ".*")
    for _ in range(2):
        assert client.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=1)["type"] == "SUCCESS"
    namespace.make("foo-a")
    assert client.replies() == []


def test_watchers_outlive_their_namespace(client: RawClient, namespace: Namespace) -> None:
    namespace.make("foo-a")
    watch(client, namespace, "foo.*")
    namespace.drop("foo-a")
    namespace.rest("DELETE", f"/namespaces/{namespace.name}")
    assert updates(client) == (set(), set(namespace.names("foo-a")), "00000000")
    namespace.rest("PUT", f"/namespaces/{namespace.name}")
    namespace.make("foo-z")
    assert updates(client)[0] == set(namespace.names("foo-z"))


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("f" * 60, "NotAllowedError"),
        ("(?!foo).*", "NotAllowedError"),
        ("(", "InvalidTopicName"),
        ("http://public/default/.*", "InvalidTopicName"),
    ],
)
def test_a_pattern_that_cannot_be_watched_is_refused(client: RawClient, pattern: str, error: str) -> None:
    answer = client.request(Type.WATCH_TOPIC_LIST, namespace="public/default", watcher_id=1, topics_pattern=pattern)
    assert (answer["type"], answer.get("error")) == ("ERROR", error)
    client.send(Type.PING)
    assert client.reply()["type"] == "PONG"


def test_what_is_no_namespace_closes_the_connection(client: RawClient) -> None:
    answer = client.request(Type.WATCH_TOPIC_LIST, namespace="nonsense", watcher_id=1, topics_pattern=".*")
    assert answer == CLOSED


def test_a_connection_has_a_thousand_watchers_at_most(client: RawClient, namespace: Namespace) -> None:
    for watcher_id in range(1000):
        watch(client, namespace, ".*", watcher_id)
    fields = {"namespace": namespace.name, "topics_pattern": ".*"}
    answer = client.request(Type.WATCH_TOPIC_LIST, watcher_id=1000, **fields)
    assert answer["error"] == "NotAllowedError"
    client.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=0)
    watch(client, namespace, ".*", 1000)


def test_who_may_not_list_topics_may_not_watch_them(tmp_path: Path) -> None:
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(bytes(32)).decode()}",
        "authorizationEnabled": "true",
        "anonymousUserRole": "nobody",
    }
    with BrokerProcess(tmp_path, settings).running() as broker, connected(broker) as client:
        fields = {"namespace": "public/default", "topics_pattern": ".*"}
        for answer in (
            client.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **fields),
            client.request(Type.GET_TOPICS_OF_NAMESPACE, **fields),
        ):
            assert (answer["type"], answer["error"]) == ("ERROR", "AuthorizationError")


def test_the_list_of_a_namespace_that_does_not_exist_is_empty_for_persistent_topics_only(broker: BrokerProcess) -> None:
    with connected(broker) as client:
        for mode, answer in (
            ("PERSISTENT", "GET_TOPICS_OF_NAMESPACE_RESPONSE"),
            ("NON_PERSISTENT", "ERROR"),
            ("ALL", "ERROR"),
        ):
            found = client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/nowhere", mode=mode)
            assert found["type"] == answer, mode
            assert found.get("error", "MetadataError") == "MetadataError"


def test_watchers_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"enableBrokerTopicListWatcher": "false", "enableBrokerSideSubscriptionPatternEvaluation": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("off"), settings).running() as broker:
        client = RawClient(broker.url)
        assert "supports_topic_watchers" not in {
            name for name, value in client.connect()["feature_flags"].items() if value
        }
        fields = {"namespace": "public/default", "topics_pattern": "persistent://public/default/foo.*"}
        assert client.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **fields)["error"] == "NotAllowedError"
        assert client.request(Type.GET_TOPICS_OF_NAMESPACE, **fields)["filtered"] is False
        client.close()
