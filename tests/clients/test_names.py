"""Names that clients may and may not give: long topics, blank subscriptions, namespaces that are not there."""

import re
import time

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess


def test_a_topic_of_thousands_of_characters_is_one_like_any_other(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = "persistent://public/default/" + "ü€ %/".replace("/", "") * 800
    client.create_producer(name).send(b"1")
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    message = reader.read_next(10_000)
    assert (message.data(), message.topic_name()) == (b"1", name)


@pytest.mark.parametrize("name", ["", " ", "\t", "\u3000"])
def test_a_subscription_needs_a_name(client: pulsar.Client, topic: str, name: str) -> None:
    with pytest.raises(pulsar.InvalidConfiguration):
        client.subscribe(topic, name)


@pytest.mark.parametrize(
    "mode", [pulsar.RegexSubscriptionMode.NonPersistentOnly, pulsar.RegexSubscriptionMode.AllTopics]
)
def test_a_pattern_in_a_namespace_that_does_not_exist_is_refused_at_once(
    client: pulsar.Client, mode: pulsar.RegexSubscriptionMode
) -> None:
    began_s = time.monotonic()
    with pytest.raises(pulsar.LookupError):
        client.subscribe(re.compile("persistent://public/nowhere/.*"), "s", regex_subscription_mode=mode)
    assert time.monotonic() - began_s < 10
