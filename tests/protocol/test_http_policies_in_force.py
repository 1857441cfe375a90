"""Reads with `applied=true` take the policies of a loaded topic from the topic, and show each change at once."""

from __future__ import annotations

import pytest
from tests.support.memory_broker import MemoryBroker

from pybroker.broker.topic.topic import Topic
from pybroker.model.names import TopicName

NAMESPACE = "/namespaces/public/default"
NAME = TopicName.parse("persistent://public/default/t")
PATH = "/persistent/public/default/t"


async def applied(broker: MemoryBroker, path: str = PATH) -> object:
    return (await broker.rest("GET", f"{path}/maxProducers?applied=true")).json


async def change(broker: MemoryBroker, path: str, value: object) -> None:
    assert (await broker.rest("POST", path, value)).status == 204


async def test_applied_policies_of_a_loaded_topic_are_the_object_that_the_topic_uses(
    broker: MemoryBroker, topic: Topic
) -> None:
    found = await broker.service.policies_in_force.of_topic(NAME)
    assert found is topic.policies
    await change(broker, f"{PATH}/maxProducers", 7)
    renewed = await broker.service.policies_in_force.of_topic(NAME)
    assert renewed is topic.policies
    assert (found.max_producers, renewed.max_producers) == (0, 7)


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_applied_policies_show_each_change_at_once(broker: MemoryBroker, topic: Topic, is_loaded: bool) -> None:
    if not is_loaded:
        assert (await broker.rest("PUT", f"{PATH}/unload")).status == 204
        assert broker.service.loaded.get(NAME) is None
    assert await applied(broker) == 0
    await change(broker, f"{NAMESPACE}/maxProducersPerTopic", 3)
    assert await applied(broker) == 3
    await change(broker, f"{PATH}/maxProducers", 7)
    assert await applied(broker) == 7
    await change(broker, f"{NAMESPACE}/maxProducersPerTopic", 4)
    assert await applied(broker) == 7
    assert (await broker.rest("DELETE", f"{PATH}/maxProducers")).status == 204
    assert await applied(broker) == 4
    assert (await broker.rest("DELETE", f"{NAMESPACE}/maxProducersPerTopic")).status == 204
    assert await applied(broker) == 0


async def test_applied_policies_of_a_partitioned_topic_are_those_of_a_loaded_partition(broker: MemoryBroker) -> None:
    path, name = "/persistent/public/default/parts", TopicName.parse("persistent://public/default/parts")
    assert (await broker.rest("PUT", f"{path}/partitions", 3)).status == 204
    partition = await broker.topic(str(name.partition(2)))
    assert await broker.service.policies_in_force.of_topic(name) is partition.policies
    await change(broker, f"{path}/maxProducers", 7)
    assert await applied(broker, path) == 7


async def test_a_fenced_topic_does_not_answer_for_its_policies(broker: MemoryBroker, topic: Topic) -> None:
    topic.shared.is_fenced = True
    await change(broker, f"{PATH}/maxProducers", 7)
    assert topic.policies.max_producers == 0
    assert await applied(broker) == 7
    topic.shared.is_fenced = False
