"""Publication of policy changes of topics in the namespace's system topic `__change_events`, as in Pulsar.

The policies are already stored in the metadata store, and this broker does not read the events; so a crash may lose an
event, but no policy. With ledgers on BookKeeper, `system_topic_policies.py` is used instead.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pybroker.broker.policies.policy_events import encode_event, event_schema
from pybroker.errors import BrokerError, StoreError
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import TopicPolicies, to_pulsar_topic_policies
from pybroker.runtime import logs
from pybroker.schema.history import version_to_bytes

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.topic_manager import Topics

MAX_WAITING_EVENTS = 10_000  # per namespace; above it the oldest is dropped
_STRATEGY = "ALWAYS_COMPATIBLE"  # accepts any schema that is registered already


class ChangeEvents:
    """Queue of policy change events, which are published in order and in the background."""

    def __init__(self, broker_context: BrokerContext, topics: Topics) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._topics = topics
        self._waiting: dict[NamespaceName, deque[tuple[TopicName, TopicPolicies | None]]] = {}

    def changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """Queue an event with the policies that are set on `topic` (None: no policies). The policies must already be
        durable.
        """
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
                    value = (
                        None if policies is None else encode_event(topic, to_pulsar_topic_policies(policies), cluster)
                    )
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
