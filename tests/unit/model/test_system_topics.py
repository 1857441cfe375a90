import pytest

from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName


@pytest.mark.parametrize(
    "name",
    [
        "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
        "persistent://pulsar/system/__transaction_log_0",
        "non-persistent://pulsar/system/resource-usage",
        "persistent://pulsar/system/anything",
        "persistent://t/ns/__change_events",
        "persistent://t/ns/__change_events-partition-1",
        "non-persistent://t/ns/__change_events",
        "persistent://t/ns/__transaction_buffer_snapshot",
        "persistent://t/ns/__transaction_buffer_snapshot_segments",
        "persistent://t/ns/__transaction_buffer_snapshot_indexes-partition-0",
        "persistent://t/ns/orders-sub__transaction_pending_ack",
        "persistent://t/ns/orders-partition-0-sub__transaction_pending_ack",
        "persistent://pulsar/127.0.0.1:8080/healthcheck",
        "persistent://pulsar/broker.example:8080/healthcheck",
    ],
)
def test_a_topic_of_the_brokers_own_is_a_system_topic(name: str) -> None:
    assert system_topics.is_system_topic(TopicName.parse(name))


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "__orders",
        "healthcheck",
        "persistent://t/ns/__change_events_of_mine",
        "persistent://t/ns/my__change_events",
        "persistent://t/ns/__transaction_buffer_snapshot_x",
        "persistent://t/ns/__transaction_pending_acks",
        "persistent://pulsar/reports/orders",
        "persistent://t/broker:8080/healthcheck",
    ],
)
def test_a_topic_of_users_is_no_system_topic(name: str) -> None:
    topic = TopicName.parse(name)
    assert not system_topics.is_system_topic(topic)
    assert not system_topics.is_transaction_internal(topic)


@pytest.mark.parametrize(
    ("name", "is_internal"),
    [
        ("persistent://pulsar/system/transaction_coordinator_assign", True),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-3", True),
        ("persistent://pulsar/system/__transaction_log_7", True),
        ("persistent://t/ns/orders-sub__transaction_pending_ack", True),
        ("non-persistent://t/ns/orders-sub__transaction_pending_ack", True),
        ("non-persistent://pulsar/system/__transaction_log_7", False),
        ("persistent://pulsar/system/resource-usage", False),
        ("persistent://t/ns/__transaction_log_7", False),
        ("persistent://t/ns/__transaction_buffer_snapshot", False),
        ("persistent://t/ns/__change_events", False),
    ],
)
def test_only_the_broker_may_make_what_transactions_rest_in(name: str, is_internal: bool) -> None:
    assert system_topics.is_transaction_internal(TopicName.parse(name)) == is_internal


def test_a_broker_tries_itself_in_a_namespace_of_its_address() -> None:
    topic = system_topics.health_check("broker.example:8080")
    assert str(topic) == "persistent://pulsar/broker.example:8080/healthcheck"
    assert system_topics.is_heartbeat_namespace(topic.namespace)


def test_each_namespace_has_a_topic_of_policy_changes() -> None:
    topic = system_topics.change_events(NamespaceName("t", "ns"))
    assert str(topic) == "persistent://t/ns/__change_events"
