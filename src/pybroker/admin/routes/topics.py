"""`/admin/v2/{persistent|non-persistent}`: the topics of a namespace, making and deleting one, its properties.

What is particular to partitioned topics is in `partitioned_topics.py`.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, json_response, no_content, route
from pybroker.admin.routes.namespaces import existing_namespace
from pybroker.cluster.bundles import find_bundle
from pybroker.errors import AdminError, NotAllowedError, TopicNotFound
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.names import TopicName
from pybroker.model.system_topics import is_transaction_internal

BASE = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = BASE + "/{topic}"


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_topics),
        route("PUT", TOPIC, create_topic),
        route("DELETE", TOPIC, delete_topic),
        route("GET", TOPIC + "/properties", get_properties),
        route("PUT", TOPIC + "/properties", set_properties),
        route("DELETE", TOPIC + "/properties", delete_property),
    ]


async def list_topics(call: Call) -> Response:
    """Partitions one by one; of one bundle only, if the query names one."""
    domain, namespace = call.domain(), call.namespace_name()
    call.require_list_topics(namespace)
    policies = existing_namespace(call, namespace)
    names = await call.broker.directory.list(namespace, domain, include_system=call.flag("includeSystemTopic"))
    bundle = call.query("bundle")
    if bundle:
        boundaries = policies.bundles.boundaries
        names = [name for name in names if str(find_bundle(TopicName.parse(name), boundaries)) == bundle]
    return json_response(names)


async def create_topic(call: Call) -> Response:
    name = creatable_topic(call)
    properties = await call.optional_json(dict[str, str]) or {}
    if not name.is_persistent:
        raise NotAllowedError("non-persistent topics are not supported yet")
    try:
        await call.broker.creation.create(name, properties)
    except NotAllowedError as error:
        raise AdminError(409, str(error)) from error
    return no_content()


async def delete_topic(call: Call) -> Response:
    name = call.topic_name()
    call.require_namespace_admin(name.namespace)
    if call.broker.partitioned.get(name) is not None:
        raise AdminError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic.",
        )
    await call.broker.delete_topic(name, force=call.flag("force"))
    return no_content()


async def get_properties(call: Call) -> Response:
    name = call.topic_name()
    call.require_lookup(name)
    _require_persistent(name)
    existing_namespace(call, name.namespace)
    metadata = call.broker.partitioned.get(name)
    if metadata is not None:
        return json_response(metadata.properties or {})
    topic = await call.broker.get_topic(name, may_create=False)
    return json_response(topic.ledger.properties)


async def set_properties(call: Call) -> Response:
    """Those of the body besides what there is."""
    properties = await call.optional_json(dict[str, str]) or {}
    await _change_properties(call, properties, removed=None)
    return no_content()


async def delete_property(call: Call) -> Response:
    await _change_properties(call, {}, removed=call.query("key"))
    return no_content()


async def _change_properties(call: Call, added: dict[str, str], removed: str | None) -> None:
    name = call.topic_name()
    call.require_namespace_admin(name.namespace)
    _require_persistent(name)
    existing_namespace(call, name.namespace)

    def changed(properties: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in {**properties, **added}.items() if key != removed}

    def change(metadata: PartitionedTopicMetadata) -> None:
        metadata.properties = changed(metadata.properties or {}) or None

    if call.broker.partitioned.get(name) is not None:
        await call.broker.partitioned.update(name, change)
        return
    topic = await call.broker.get_topic(name, may_create=False)
    await call.broker.ledgers.set_properties(topic.ledger, changed(topic.ledger.properties))


def creatable_topic(call: Call) -> TopicName:
    """The topic of the path, which whoever asks may make, in a namespace that exists."""
    name = call.topic_name()
    call.require_namespace_admin(name.namespace)
    policies = call.resources.namespace(name.namespace)
    if policies is None or policies.deleted:
        raise TopicNotFound("Namespace not found")
    if is_transaction_internal(name):
        raise AdminError(400, "Cannot create topic in system topic format!")
    return name


def _require_persistent(name: TopicName) -> None:
    if not name.is_persistent:
        raise AdminError(406, "Need to provide a persistent topic name")
