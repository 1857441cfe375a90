"""Topics of the broker's own: hidden, refused to others, and what is in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import Answer, call

REFUSED = "Cannot create topic in system topic format!"
SNAPSHOT = "__transaction_buffer_snapshot"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("system"))
    with process.running_well():
        yield process


def admin(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    return call(f"{broker.http_url}/admin/v2{path}", method, body=body)


def namespace_of(broker: BrokerProcess, name: str) -> str:
    """A new namespace, with one topic `t`."""
    assert admin(broker, "PUT", f"/namespaces/public/{name}").status == 204
    assert admin(broker, "PUT", f"/persistent/public/{name}/t").status == 204
    return f"public/{name}"


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/persistent/public/default/t-sub__transaction_pending_ack",
        "/non-persistent/public/default/t-sub__transaction_pending_ack",
        "/persistent/pulsar/system/__transaction_log_77",
        "/persistent/pulsar/system/transaction_coordinator_assign",
    ],
)
def test_what_transactions_rest_in_cannot_be_made_by_hand(broker: BrokerProcess, path: str) -> None:
    for target, body in ((path, None), (f"{path}/partitions", 2)):
        answer = admin(broker, "PUT", target, body)
        assert (answer.status, answer.json) == (400, {"reason": REFUSED}), target


@pytest.mark.parametrize(
    "topic",
    [
        "persistent://public/default/t-sub__transaction_pending_ack",
        "persistent://pulsar/system/__transaction_log_77",
        "persistent://pulsar/system/transaction_coordinator_assign-partition-3",
    ],
)
def test_no_client_produces_to_what_transactions_rest_in(client: RawClient, topic: str) -> None:
    assert client.open_producer(topic)["error"] == "NotAllowedError"
    assert client.subscribe(topic)["error"] == "NotAllowedError"


def test_system_topics_are_listed_when_asked_for(broker: BrokerProcess, client: RawClient) -> None:
    namespace = namespace_of(broker, "listed")
    assert client.open_producer(f"persistent://{namespace}/{SNAPSHOT}")["type"] == "PRODUCER_SUCCESS"
    mine, system = (f"persistent://{namespace}/{name}" for name in ("t", SNAPSHOT))
    assert admin(broker, "GET", f"/persistent/{namespace}").json == [mine]
    assert admin(broker, "GET", f"/persistent/{namespace}?includeSystemTopic=true").json == [system, mine]
    answer = client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace=namespace)
    assert answer["topics"] == [mine]


def test_a_namespace_with_nothing_but_system_topics_is_empty(broker: BrokerProcess) -> None:
    namespace = namespace_of(broker, "left")
    assert admin(broker, "POST", f"/persistent/{namespace}/t/maxProducers", 3).status == 204
    assert admin(broker, "DELETE", f"/namespaces/{namespace}").status == 409
    assert admin(broker, "DELETE", f"/persistent/{namespace}/t").status == 204
    assert admin(broker, "DELETE", f"/namespaces/{namespace}").status == 204
    assert admin(broker, "GET", f"/namespaces/{namespace}").status == 404


# --- change events -----------------------------------------------------------------------------------------------------


def events(client: RawClient, topic: str, count: int) -> list[dict[str, Any]]:
    """The next `count` messages of a topic, which are the only ones."""
    assert client.subscribe(topic)["type"] == "SUCCESS"
    client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
    found = [client.reply() for _ in range(count)]
    client.send(Type.PING)
    assert client.reply()["type"] == "PONG"
    return found


def test_every_change_of_a_topics_policies_is_a_message(broker: BrokerProcess, client: RawClient) -> None:
    namespace = namespace_of(broker, "changing")
    for path, body in (("maxProducers", 3), ("messageTTL?messageTTL=7", None)):
        assert admin(broker, "POST", f"/persistent/{namespace}/t/{path}", body).status == 204
    assert admin(broker, "DELETE", f"/persistent/{namespace}/t/maxProducers").status == 204
    assert admin(broker, "DELETE", f"/persistent/{namespace}/t").status == 204
    messages = events(client, f"persistent://{namespace}/__change_events", 4)
    for index, message in enumerate(messages):
        metadata = message["metadata"]
        assert message["checksum"] == "good"
        assert metadata["partition_key"] == f"persistent://{namespace}/t"
        assert metadata["sequence_id"] == str(index)
        assert metadata["replicate_to"] == ["standalone"]
    assert ["null_value" in message["metadata"] for message in messages] == [False, False, False, True]
    assert messages[-1]["payload"] == ""


def test_a_topic_without_policies_leaves_no_event(broker: BrokerProcess) -> None:
    namespace = namespace_of(broker, "quiet")
    assert admin(broker, "DELETE", f"/persistent/{namespace}/t").status == 204
    assert admin(broker, "GET", f"/persistent/{namespace}?includeSystemTopic=true").json == []


def test_change_events_can_be_switched_off(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"systemTopicEnabled": "false"}).running() as broker:
        namespace = namespace_of(broker, "off")
        assert admin(broker, "POST", f"/persistent/{namespace}/t/maxProducers", 3).status == 204
        assert admin(broker, "GET", f"/persistent/{namespace}/t/maxProducers").json == 3
        listed = admin(broker, "GET", f"/persistent/{namespace}?includeSystemTopic=true").json
        assert listed == [f"persistent://{namespace}/t"]


# --- health ------------------------------------------------------------------------------------------------------------


def test_the_health_check_writes_to_a_topic_of_the_brokers_own(broker: BrokerProcess, client: RawClient) -> None:
    address = broker.http_url.removeprefix("http://")
    for _ in range(3):
        assert admin(broker, "GET", "/brokers/health") == Answer(200, "ok")
    assert admin(broker, "GET", "/namespaces/pulsar").json == ["pulsar/system"]
    messages = events(client, f"persistent://pulsar/{address}/healthcheck", 3)
    assert len({message["message_id"]["entryId"] for message in messages}) == 3


def test_no_other_brokers_health_check_is_served(client: RawClient) -> None:
    answer = client.open_producer("persistent://pulsar/elsewhere:8080/healthcheck")
    assert (answer["type"], answer["error"]) == ("ERROR", "TopicNotFound")
