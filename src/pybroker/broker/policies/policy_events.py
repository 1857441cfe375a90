"""Format of the messages in the system topic `__change_events`, compatible with Pulsar's brokers. No IO.

A message has a key and an Avro record (`change_events.avsc`). The key is the full topic name, after `__G__` for
policies that all clusters share. A message without a value means that the topic has no such policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from io import BytesIO
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from pybroker.errors import InvalidTopicName
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.policies import TopicPolicies, from_pulsar_topic_policies, to_pulsar_topic_policies
from pybroker.model.position import Position
from pybroker.schema.schema_data import SchemaData, SchemaType

GLOBAL_PREFIX = "__G__"
BASE_PROPERTY = "pybroker-base"
"""Property of a message of pybroker: the position of the event that the change began with."""
_SCHEMA_PROPERTIES = {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"}  # read by Pulsar's clients


class InvalidEvent(ValueError):
    """The message is not a policy event about a topic of its namespace."""


class StoredPolicies(NamedTuple):
    """Policies of one event: the full Avro record, and the policies that this broker supports."""

    policies: TopicPolicies
    document: Mapping[str, Any]
    """The record as it was written. It can have policies that this broker does not know."""

    def changed(self, policies: TopicPolicies) -> dict[str, Any]:
        """Return the record with the values of `policies`. Fields that this broker does not support keep their values."""
        known = to_pulsar_topic_policies(self.policies)
        unknown = {name: value for name, value in self.document.items() if name not in known}
        return unknown | dict.fromkeys(known) | to_pulsar_topic_policies(policies)


class PolicyEvent(NamedTuple):
    """A decoded policy event."""

    topic: TopicName
    is_global: bool
    stored: StoredPolicies | None
    """None: the topic has no such policies."""
    base: Position | None = None
    """Position of the event that the change began with; EARLIEST without one. None: the event applies in any case."""


def event_key(topic: TopicName, *, is_global: bool = False) -> str:
    return f"{GLOBAL_PREFIX}{topic}" if is_global else str(topic)


def event_properties(base: Position | None) -> dict[str, str]:
    """Return the message properties of an event. `base`: position of the event on whose policies the change is based;
    None for an event without a base. Java brokers ignore the properties.
    """
    return {} if base is None else {BASE_PROPERTY: str(base)}


def encode_event(topic: TopicName, document: Mapping[str, Any], cluster: str) -> bytes:
    """Encode the policy record `document` as the value of a message. `cluster`: name of this broker's cluster. Raises
    TypeError or ValueError if the record does not match the schema.
    """
    from fastavro import schemaless_writer  # noqa: PLC0415  (20 ms and 3 MB, for a broker with topic policies only)

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


def decode_event(
    namespace: NamespaceName, key: str, value: bytes | None, properties: Mapping[str, str] = MappingProxyType({})
) -> PolicyEvent:
    """Decode a message of the system topic of `namespace`. Raises InvalidEvent.

    As in Pulsar, an event with the action DELETE has the same effect as a message without a value.
    """
    return _decoded(namespace, key, value)._replace(base=_base_of(properties))


def _base_of(properties: Mapping[str, str]) -> Position | None:
    ledger_id, _, entry_id = properties.get(BASE_PROPERTY, "").partition(":")
    try:
        return Position(int(ledger_id), int(entry_id))
    except ValueError:
        return None


def _decoded(namespace: NamespaceName, key: str, value: bytes | None) -> PolicyEvent:
    if not value:
        is_global = key.startswith(GLOBAL_PREFIX)
        return PolicyEvent(_topic(namespace, key.removeprefix(GLOBAL_PREFIX)), is_global, None)
    from fastavro import schemaless_reader  # noqa: PLC0415  (as above)

    data = BytesIO(value)
    try:
        event = schemaless_reader(data, _schema(), None)
        if not isinstance(event, dict) or event["eventType"] != "TOPIC_POLICY" or data.read(1):
            raise InvalidEvent(
                "a message in __change_events does not contain topic policies, but another kind of event"
            )
        about = event["topicPoliciesEvent"]
        name = f"{about['domain']}://{about['tenant']}/{about['namespace']}/{about['topic']}"
        document = about["policies"] or {}
        policies = from_pulsar_topic_policies(document)
    except InvalidEvent:
        raise
    except (EOFError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidEvent(f"this message is not an Avro record with a change of topic policies: {error}") from error
    topic = _topic(namespace, name)
    is_global = bool(document.get("isGlobal"))
    if event["actionType"] == "DELETE":
        return PolicyEvent(topic, is_global, None)
    return PolicyEvent(topic, is_global, StoredPolicies(policies, document))


def _topic(namespace: NamespaceName, name: str) -> TopicName:
    try:
        topic = TopicName.parse(name)
    except InvalidTopicName as error:
        raise InvalidEvent(
            f"this message changes the policies of {name[:200]!r}, which is not the name of a topic"
        ) from error
    if topic.namespace != namespace or topic.domain not in DOMAINS:
        raise InvalidEvent(f"this message changes the policies of {name[:200]!r}, which is not a topic of {namespace}")
    return topic


@cache
def event_schema() -> SchemaData:
    """Return the schema of the system topic, byte for byte as Pulsar registers it."""
    return SchemaData(SchemaType.AVRO, msgspec.json.encode(_definition()), _SCHEMA_PROPERTIES)


@cache
def _schema() -> Any:
    from fastavro import parse_schema  # noqa: PLC0415  (as above)

    return parse_schema(_definition())


def _definition() -> Any:
    return msgspec.json.decode(resources.files(__package__).joinpath("change_events.avsc").read_bytes())
