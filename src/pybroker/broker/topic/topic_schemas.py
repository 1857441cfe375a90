"""Check of a client's schema against the schemas of a topic: it is registered, already known, or incompatible.

A producer's schema is registered, unless clients may not create schema versions; then it must be known. A consumer's
schema is registered if it is the first schema of an unused topic; otherwise it must be able to read the existing
messages. A client without a schema is accepted, except for a producer if the policies enforce schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.topic.topic import Topic
from pybroker.errors import IncompatibleSchema
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.names import TopicName
from pybroker.model.system_topics import is_system_topic
from pybroker.schema.history import version_to_bytes
from pybroker.schema.schema_data import Incompatible, SchemaData

if TYPE_CHECKING:
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.runtime.runtime import Runtime


def schema_strategy(runtime: Runtime, name: TopicName, policies: EffectivePolicies) -> str:
    if is_system_topic(name):
        return runtime.config.system_topic_schema_compatibility_strategy
    return policies.schema_strategy


async def producer_schema_version(topic: TopicBase, schema: SchemaData | None) -> bytes:
    """Return the version of a producer's schema; empty without a schema. A new schema is registered if the policies
    permit that. Raises IncompatibleSchema, InvalidSchema, StoreError.
    """
    if schema is not None:
        return version_to_bytes(await _register(topic, schema))
    if topic.policies.schema_validation_enforced and (await topic.broker_context.schemas.history(topic.name)).latest:
        raise IncompatibleSchema(
            f"the producer has no schema, but topic {topic.name} requires one (schemaValidationEnforced)"
        )
    return b""


async def admit_consumer_schema(topic: TopicBase, schema: SchemaData) -> None:
    schemas = topic.broker_context.schemas
    if (await schemas.history(topic.name)).latest is None and not _is_used(topic):
        await _register(topic, schema)
    else:
        await schemas.check_consumer(topic.name, schema, schema_strategy(topic.runtime, topic.name, topic.policies))


async def _register(topic: TopicBase, schema: SchemaData) -> int:
    schemas, policies = topic.broker_context.schemas, topic.policies
    if policies.is_allow_auto_update_schema:
        return await schemas.register(topic.name, schema, schema_strategy(topic.runtime, topic.name, policies))
    version = await schemas.version_of(topic.name, schema)
    if version is None:
        raise Incompatible(
            f"the {schema.type.name} schema of the producer is not registered on topic {topic.name}, and clients may not "
            "register schemas (isAllowAutoUpdateSchema=false): register the schema with the REST API"
        )
    return version


def _is_used(topic: TopicBase) -> bool:
    return (
        bool(topic.producers)
        or _has_messages(topic)
        or any(not each.takes_any_schema for sub in topic.subscriptions.values() for each in sub.consumers)
    )


def _has_messages(topic: TopicBase) -> bool:
    return topic.ledger.size_bytes > 0 if isinstance(topic, Topic) else topic.counters.messages_in > 0
