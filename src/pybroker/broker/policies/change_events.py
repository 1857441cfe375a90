"""Publishes each change of a topic's policies to the system topic `__change_events` of its namespace, as Pulsar does.

The policies are durable in the metadata store before, and this broker never reads the events: a crash or a full disk
can lose an event, but no policy. Events of one namespace are published in order, in the background.

A message has the topic's name as key and an Avro record (`change_events.avsc`) as value; an empty value means that the
topic has no policies.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec

from pybroker.errors import BrokerError, StoreError
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import TopicPolicies, to_pulsar_topic_policies
from pybroker.runtime import logs
from pybroker.schema.history import version_to_bytes
from pybroker.schema.schema_data import SchemaData, SchemaType

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.topic_manager import Topics

MAX_WAITING_EVENTS = 10_000  # per namespace; above it the oldest is dropped
_SCHEMA_PROPERTIES = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}  # read by Pulsar's clients

_STRATEGY = "ALWAYS_COMPATIBLE"  # accepts any schema that is registered already


class ChangeEvents:
    """Owned by the broker service, which reports the changes."""

    def __init__(self, broker_context: BrokerContext, topics: Topics) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._topics = topics
        self._waiting: dict[NamespaceName, deque[tuple[TopicName, TopicPolicies | None]]] = {}

    def changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Publish the own policies of `topic`, which are durable; None if it has none."""
        namespace = self._broker_context.resources.namespace(topic.namespace)
        if not self._runtime.config.system_topic_enabled or system_topics.is_system_topic(topic):
            return
        if namespace is None or namespace.deleted:
            return  # The topics of the namespace are deleted with it.
        waiting = self._waiting.get(topic.namespace)
        if waiting is not None:
            waiting.append((topic, policies))
            return
        self._waiting[topic.namespace] = deque([(topic, policies)], MAX_WAITING_EVENTS)
        self._broker_context.tasks.start(self._publish_all(topic.namespace), f"change events of {topic.namespace}")

    async def _publish_all(self, namespace: NamespaceName) -> None:
        waiting = self._waiting[namespace]
        cluster = self._runtime.config.cluster_name
        try:
            while waiting:
                topic, policies = waiting.popleft()
                try:
                    value = None if policies is None else encode_event(topic, policies, cluster)
                except (TypeError, ValueError) as error:  # Offload policies can contain any value.
                    logs.warning("change_events.not_encoded", topic=topic, error=str(error))
                    continue
                name = system_topics.change_events(namespace)
                producer = (await self._topics.get(name, may_create=True)).internal_producer()
                version = await self._broker_context.schemas.register(name, event_schema(), _STRATEGY)
                await producer.publish(
                    value,
                    key=str(topic),
                    replicate_to=[cluster],
                    schema_version=version_to_bytes(version),
                )
        except (BrokerError, StoreError) as error:
            logs.warning("change_events.not_published", namespace=namespace, events=len(waiting) + 1, error=str(error))
        finally:
            del self._waiting[namespace]


def encode_event(topic: TopicName, policies: TopicPolicies, cluster: str) -> bytes:
    from fastavro import schemaless_writer  # noqa: PLC0415  (20 ms and 3 MB, for a broker with topic policies only)

    document = to_pulsar_topic_policies(policies)
    event = {
        "actionType": "UPDATE",
        "eventType": "TOPIC_POLICY",
        "replicateTo": [cluster],
        "topicPoliciesEvent": {
            "domain": topic.domain,
            "tenant": topic.tenant,
            "namespace": topic.namespace.local_name,
            "topic": topic.local_name,
            "policies": {"isGlobal": False, "subscriptionTypesEnabled": [], "subscriptionPolicies": {}, **document},
        },
    }
    written = BytesIO()
    schemaless_writer(written, _schema(), event)
    return written.getvalue()


@cache
def event_schema() -> SchemaData:
    """Return the topic's schema, byte for byte as Pulsar registers it."""
    return SchemaData(SchemaType.AVRO, msgspec.json.encode(_definition()), _SCHEMA_PROPERTIES)


@cache
def _schema() -> Any:
    from fastavro import parse_schema  # noqa: PLC0415  (as above)

    return parse_schema(_definition())


def _definition() -> Any:
    return msgspec.json.decode(resources.files(__package__).joinpath("change_events.avsc").read_bytes())
