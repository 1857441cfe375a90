"""What policies limit, frame by frame: newcomers that are refused, clients that wait, and both at once when a policy changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.conftest import running
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import NOTHING, RawClient, Type, connected
from tests.support.rest import Answer, call

from pybroker.wire import pulsar_api_pb2 as pb

TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
KEYS = [pb.EncryptionKeys(key="k", value=b"v")]
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running(tmp_path_factory.mktemp("limits")) as process:
        yield process


class Place:
    """A namespace of this test's own with one topic in it, and REST calls to both."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._admin = f"{broker.http_url}/admin/v2"
        self.name = f"public/limits-{next(_serial)}"
        self.topic = f"persistent://{self.name}/topic"
        self.namespace("PUT")

    def namespace(self, method: str, policy: str = "", body: object = None) -> None:
        self._done(call(f"{self._admin}/namespaces/{self.name}{policy and '/'}{policy}", method, body=body))

    def set(self, policy: str, body: object) -> None:
        self._done(call(f"{self._admin}/persistent/{self.name}/topic/{policy}", "POST", body=body))

    def unset(self, policy: str) -> None:
        self._done(call(f"{self._admin}/persistent/{self.name}/topic/{policy}", "DELETE"))

    def admin(self, method: str, path: str, body: object = None) -> None:
        self._done(call(self._admin + path, method, body=body))

    def get(self, what: str) -> Any:
        return call(f"{self._admin}/persistent/{self.name}/topic/{what}").json

    @staticmethod
    def _done(answer: Answer) -> None:
        assert answer.status < 300, answer


@pytest.fixture
def place(broker: BrokerProcess) -> Place:
    return Place(broker)


def refusal(reply: dict[str, Any]) -> str:
    assert reply["type"] == "ERROR", reply
    return str(reply["error"])


# --- how many ----------------------------------------------------------------------------------------------------------


def test_a_topic_s_limit_of_producers_wins_over_its_namespace_s_and_turns_newcomers_away(
    broker: BrokerProcess, place: Place
) -> None:
    place.namespace("POST", "maxProducersPerTopic", 1)
    with connected(broker) as client:
        client.open_producer(place.topic, 1)
        assert refusal(client.open_producer(place.topic, 2)) == "ProducerBusy"
        place.set("maxProducers", 2)
        assert client.open_producer(place.topic, 3)["type"] == "PRODUCER_SUCCESS"
        place.set("maxProducers", 1)
        assert refusal(client.open_producer(place.topic, 4)) == "ProducerBusy"
        assert client.publish(3, 1)[0]["type"] == "SEND_RECEIPT"
        place.set("maxProducers", 0)
        assert client.open_producer(place.topic, 5)["type"] == "PRODUCER_SUCCESS"
        place.unset("maxProducers")
        assert refusal(client.open_producer(place.topic, 6)) == "ProducerBusy"


def test_limits_of_consumers_hold_for_the_topic_and_for_each_subscription(broker: BrokerProcess, place: Place) -> None:
    place.namespace("POST", "maxConsumersPerSubscription", 1)
    with connected(broker) as client:
        client.subscribe(place.topic, 1, "Shared", subscription="a")
        assert refusal(client.subscribe(place.topic, 2, "Shared", subscription="a")) == "ConsumerBusy"
        place.set("maxConsumersPerSubscription", 2)
        assert client.subscribe(place.topic, 3, "Shared", subscription="a")["type"] == "SUCCESS"
        place.set("maxConsumers", 2)
        assert refusal(client.subscribe(place.topic, 4, "Shared", subscription="b")) == "ConsumerBusy"
        assert place.get("subscriptions") == ["a"], "who is refused leaves no subscription behind"
        place.set("maxConsumers", 3)
        assert client.subscribe(place.topic, 5, "Shared", subscription="b")["type"] == "SUCCESS"


def test_a_limit_of_subscriptions_holds_for_readers_and_rest_too(broker: BrokerProcess, place: Place) -> None:
    with connected(broker) as client:
        client.subscribe(place.topic, 1, subscription="a")
        place.set("maxSubscriptionsPerTopic", 1)
        assert refusal(client.subscribe(place.topic, 2, subscription="b")) == "NotAllowedError"
        assert refusal(client.subscribe(place.topic, 3, subscription="r", durable=False)) == "NotAllowedError"
        url = f"{broker.http_url}/admin/v2/persistent/{place.name}/topic/subscription/c"
        assert call(url, "PUT").status == 409
        place.unset("maxSubscriptionsPerTopic")
        assert client.subscribe(place.topic, 4, subscription="b")["type"] == "SUCCESS"


def test_one_address_has_limits_of_its_own(tmp_path: Path) -> None:
    limits = {"maxSameAddressProducersPerTopic": 1, "maxSameAddressConsumersPerTopic": 2}
    with running(tmp_path, **limits) as broker, connected(broker) as first, connected(broker) as second:
        topic = "persistent://public/default/topic"
        first.open_producer(topic, 1)
        assert refusal(second.open_producer(topic, 1)) == "ProducerBusy"
        assert second.open_producer(f"{topic}-other", 2)["type"] == "PRODUCER_SUCCESS"
        for client, subscription in ((first, "a"), (second, "b")):
            assert client.subscribe(topic, 3, subscription=subscription)["type"] == "SUCCESS"
        assert refusal(second.subscribe(topic, 4, subscription="c")) == "ConsumerBusy"
        first.close()
        assert place_is_free(second, topic)


def place_is_free(client: RawClient, topic: str) -> bool:
    """Whether a consumer is taken now; the broker may not have seen yet that another one left."""
    return any(client.subscribe(topic, 10 + each, subscription="c")["type"] == "SUCCESS" for each in range(200))


def test_topics_of_the_broker_itself_take_everybody(broker: BrokerProcess, place: Place) -> None:
    place.namespace("POST", "maxProducersPerTopic", 1)
    place.namespace("POST", "subscriptionTypesEnabled", ["Shared"])
    place.namespace("POST", "encryptionRequired", True)
    topic = f"persistent://{place.name}/__change_events"
    with connected(broker) as client:
        for producer_id in range(3):
            assert client.open_producer(topic, producer_id)["type"] == "PRODUCER_SUCCESS"
        assert client.subscribe(topic, 1, "Exclusive")["type"] == "SUCCESS"


# --- unacknowledged messages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"])
@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_who_is_stopped_by_unacknowledged_messages_goes_on_when_the_limit_is_raised_or_removed(
    broker: BrokerProcess, place: Place, policy: str, kind: str
) -> None:
    with connected(broker) as client:
        client.subscribe(place.topic, 1, kind)
        place.set(policy, 3)
        client.open_producer(place.topic, 2)
        client.publish(2, 30)
        client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        assert payloads(client, 3) == ["m0", "m1", "m2"]
        assert client.reply(0.2) == NOTHING
        place.set(policy, 5)
        assert payloads(client, 2) == ["m3", "m4"]
        assert client.reply(0.2) == NOTHING
        place.set(policy, 0)
        assert payloads(client, 25)[-1] == "m29"
        place.set(policy, 10)
        client.publish(2, 1, first=30)
        assert client.reply(0.2) == NOTHING, "it holds more than the lower limit"
        place.unset(policy)
        assert payloads(client, 1) == ["m30"]


def payloads(client: RawClient, count: int) -> list[str]:
    return [client.reply()["payload"] for _ in range(count)]


# --- what is allowed at all --------------------------------------------------------------------------------------------


def test_a_type_that_is_not_enabled_is_refused_and_consumers_that_use_it_stay(
    broker: BrokerProcess, place: Place
) -> None:
    with connected(broker) as client:
        client.subscribe(place.topic, 1, "Shared", subscription="stays")
        place.namespace("POST", "subscriptionTypesEnabled", ["Exclusive"])
        assert refusal(client.subscribe(place.topic, 2, "Shared", subscription="stays")) == "NotAllowedError"
        place.set("subscriptionTypesEnabled", ["Failover"])
        results = {
            kind: client.subscribe(place.topic, 3 + index, kind, subscription=kind) for index, kind in enumerate(TYPES)
        }
        assert [kind for kind in TYPES if results[kind]["type"] == "SUCCESS"] == ["Failover"]
        assert sorted(place.get("subscriptions")) == ["Failover", "stays"]
        client.send(Type.FLOW, consumer_id=1, messagePermits=10)
        client.open_producer(place.topic, 9)
        client.send_message(9, 0)
        assert {client.reply()["type"] for _ in range(2)} == {"SEND_RECEIPT", "MESSAGE"}


def test_who_does_not_encrypt_is_closed_and_refused_where_everybody_must(broker: BrokerProcess, place: Place) -> None:
    with connected(broker) as client:
        client.open_producer(place.topic, 1)
        client.open_producer(place.topic, 2, encrypted=True)
        place.namespace("POST", "encryptionRequired", True)
        assert client.reply() == {"type": "CLOSE_PRODUCER", "producer_id": "1", "request_id": str(2**64 - 1)}
        assert refusal(client.open_producer(place.topic, 3)) == "MetadataError"
        client.send_message(2, 0)
        refused = client.reply()
        assert (refused["type"], refused["error"]) == ("SEND_ERROR", "MetadataError")
        client.send_message(2, 1, metadata={"encryption_keys": KEYS})
        assert client.reply()["type"] == "SEND_RECEIPT"
        place.namespace("POST", "encryptionRequired", False)
        client.send_message(2, 2)
        assert client.reply()["type"] == "SEND_RECEIPT"
        assert client.open_producer(place.topic, 4)["type"] == "PRODUCER_SUCCESS"


def test_the_broker_may_require_encryption_of_everybody(tmp_path: Path) -> None:
    with running(tmp_path, encryptionRequireOnProducer="true") as broker, connected(broker) as client:
        topic = "persistent://public/default/topic"
        assert refusal(client.open_producer(topic, 1)) == "MetadataError"
        assert client.open_producer(topic, 1, encrypted=True)["type"] == "PRODUCER_SUCCESS"


def test_messages_over_the_topic_s_size_are_refused_one_by_one(broker: BrokerProcess, place: Place) -> None:
    with connected(broker) as client:
        client.open_producer(place.topic, 1)
        place.set("maxMessageSize", 100)
        for index, size_bytes in enumerate((10, 500, 10)):
            client.send_message(1, index, bytes(size_bytes))
        replies = {int(reply["sequence_id"]): reply for reply in (client.reply() for _ in range(3))}
        assert [replies[index]["type"] for index in range(3)] == ["SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT"]
        assert replies[1]["error"] == "NotAllowedError"
        chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 1000, "chunk_id": 0}
        client.send_message(1, 3, bytes(500), metadata=chunk, is_chunk=True)
        assert client.reply()["type"] == "SEND_RECEIPT"
        place.unset("maxMessageSize")
        client.send_message(1, 4, bytes(500))
        assert client.reply()["type"] == "SEND_RECEIPT"


# --- rates -------------------------------------------------------------------------------------------------------------

SLOW = {"publishThrottlingRateInMsg": 2}


def test_a_message_over_the_publish_rate_waits_and_all_behind_it_on_its_connection(
    broker: BrokerProcess, place: Place
) -> None:
    with connected(broker) as client, connected(broker) as other:
        client.open_producer(place.topic, 1)
        client.open_producer(f"{place.topic}-free", 2)
        other.open_producer(f"{place.topic}-free", 3)
        place.set("publishRate", SLOW)
        for index in range(4):
            client.send_message(1, index)
        client.send_message(2, 0)
        client.send(Type.PING)
        assert [client.reply()["type"] for _ in range(2)] == ["SEND_RECEIPT", "SEND_RECEIPT"]
        assert other.publish(3, 1)[0]["type"] == "SEND_RECEIPT", "other connections do not wait"
        rest = [(reply["type"], reply.get("producer_id")) for reply in (client.reply() for _ in range(4))]
        assert rest.index(("PONG", None)) >= 1, "the third message waits, and what is behind it"
        assert rest.count(("SEND_RECEIPT", "1")) == 2
        assert place.get("stats")["msgInCounter"] == 4


def test_who_waits_goes_on_at_once_when_the_publish_rate_is_raised_or_removed(
    broker: BrokerProcess, place: Place
) -> None:
    place.namespace("POST", "publishRate", {"publishThrottlingRateInMsg": 1})
    with connected(broker) as client:
        client.open_producer(place.topic, 1)
        for index in range(300):
            client.send_message(1, index)
        assert client.reply()["type"] == "SEND_RECEIPT"
        place.set("publishRate", {"publishThrottlingRateInMsg": 100})
        assert [client.reply()["type"] for _ in range(90)] == ["SEND_RECEIPT"] * 90
        place.set("publishRate", {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1})
        receipts = [int(client.reply()["sequence_id"]) for _ in range(209)]
        assert receipts == list(range(91, 300)), "nothing is lost, nothing overtakes"


def test_who_waits_may_leave_and_a_topic_may_close_meanwhile(broker: BrokerProcess, place: Place) -> None:
    with connected(broker) as leaving, connected(broker) as staying:
        leaving.open_producer(place.topic, 1)
        staying.open_producer(place.topic, 1)
        place.set("publishRate", {"publishThrottlingRateInByte": 1})
        for index in range(5):
            leaving.send_message(1, index)
            staying.send_message(1, index)
        staying.send(Type.PING)
        leaving.close()
        place.admin("DELETE", f"/persistent/{place.name}/topic?force=true")
        seen = [reply["type"] for reply in staying.replies(0.3)]
        assert "CLOSE_PRODUCER" in seen
        assert seen[-1] == "PONG", "what waited for a topic that is gone holds nothing up"


def test_the_broker_s_own_publish_rate_holds_for_all_topics_together(tmp_path: Path) -> None:
    with running(tmp_path, brokerPublisherThrottlingMaxMessageRate=4) as broker, connected(broker) as client:
        for producer_id in (1, 2):
            client.open_producer(f"persistent://public/default/topic-{producer_id}", producer_id)
        for index in range(4):
            client.send_message(1, index)
            client.send_message(2, index)
        assert [reply["type"] for reply in client.replies(0.1)][:4] == ["SEND_RECEIPT"] * 4
        rest = client.replies(1.0)
        assert {reply["type"] for reply in rest} == {"SEND_RECEIPT"}


# --- resource groups ---------------------------------------------------------------------------------------------------


def test_topics_of_a_resource_group_share_its_publish_rate_until_it_is_changed(
    broker: BrokerProcess, place: Place
) -> None:
    group = f"/resourcegroups/group-{next(_serial)}"
    place.admin("PUT", group, {"publishRateInMsgs": 1})
    place.namespace("POST", f"resourcegroup/{group.rpartition('/')[2]}")
    other = f"{place.topic}-other"
    with connected(broker) as first, connected(broker) as second:
        first.open_producer(place.topic, 1)
        second.open_producer(other, 1)
        for index in range(50):
            first.send_message(1, index)
            second.send_message(1, index)
        assert len(first.replies(0.1) + second.replies(0.1)) < 20
        place.admin("PUT", group, {"publishRateInMsgs": -1})
        assert first.replies(0.3)[-1]["sequence_id"] == "49"
        assert second.replies(0.3)[-1]["sequence_id"] == "49"


def test_topics_of_a_resource_group_share_its_dispatch_rate_until_it_is_changed(
    broker: BrokerProcess, place: Place
) -> None:
    group = f"/resourcegroups/group-{next(_serial)}"
    with connected(broker) as client:
        client.open_producer(place.topic, 1)
        client.publish(1, 30)
        place.admin("PUT", group, {"dispatchRateInMsgs": 1})
        place.namespace("POST", f"resourcegroup/{group.rpartition('/')[2]}")
        client.subscribe(place.topic, 1)
        client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
        assert client.reply()["type"] == "MESSAGE"
        assert len(client.replies(0.2)) < 20
        place.admin("PUT", group, {"dispatchRateInMsgs": 0})
        assert client.replies(1.5)[-1]["payload"] == "m29"


def test_a_group_is_deleted_once_no_namespace_names_it(broker: BrokerProcess, place: Place) -> None:
    name = f"group-{next(_serial)}"
    url = f"{broker.http_url}/admin/v2/resourcegroups"
    assert call(f"{url}/{name}").status == 404
    assert call(f"{url}/{name}", "PUT", body={"publishRateInMsgs": 10}).status == 204
    assert call(f"{url}/{name}", "PUT", body={"dispatchRateInBytes": 20}).status == 204
    assert call(f"{url}/{name}").json == {
        "publishRateInMsgs": 10,
        "publishRateInBytes": -1,
        "dispatchRateInMsgs": -1,
        "dispatchRateInBytes": 20,
    }
    assert name in call(url).json
    place.namespace("POST", f"resourcegroup/{name}")
    assert call(f"{url}/{name}", "DELETE").status == 412
    place.namespace("DELETE", "resourcegroup")
    assert call(f"{url}/{name}", "DELETE").status == 204
    assert call(f"{url}/{name}", "DELETE").status == 404
    for body in ("x", [1], {"publishRateInMsgs": "x"}, None):
        assert call(f"{url}/{name}", "PUT", body=body).status == 400


# --- replicated subscriptions ------------------------------------------------------------------------------------------


def test_a_subscription_that_is_to_be_replicated_stays_so_over_a_restart(tmp_path: Path) -> None:
    topic = "persistent://public/default/topic"
    properties = [pb.KeyValue(key="k", value="v")]
    with running(tmp_path) as broker:
        with connected(broker) as client:
            client.subscribe(topic, 1, replicate_subscription_state=True, subscription_properties=properties)
        for _ in range(2):
            with connected(broker) as client:
                assert client.subscribe(topic, 1, replicate_subscription_state=False)["type"] == "SUCCESS"
                stats = call(f"{broker.http_url}/admin/v2/persistent/public/default/topic/stats").json
                assert stats["subscriptions"]["sub"]["isReplicated"] is True
                assert stats["subscriptions"]["sub"]["subscriptionProperties"] == {"k": "v"}
            assert broker.stop() == 0
            broker.start()
