"""`/admin/v2/{persistent|non-persistent}`: list, creation and deletion of topics, and their properties."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import existing_namespace, listed_topics, namespace_of_topics
from pybroker.admin.calls.listed_everywhere import listed_everywhere
from pybroker.admin.calls.queries import FORCE, WITH_SYSTEM_TOPICS, Query
from pybroker.admin.calls.redirects import redirect
from pybroker.admin.calls.route_paths import TOPIC, TOPICS
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_routes import positions_in
from pybroker.cluster.bundles import bundles_of, checked_bundle
from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError, NotAllowedError, TopicNotFound
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.names import TopicName
from pybroker.model.system_topics import is_transaction_internal

BUNDLE = Query("bundle", "only topics of this bundle")


def routes() -> list[Route]:
    return [
        route("GET", TOPICS, list_topics, queries=(BUNDLE, WITH_SYSTEM_TOPICS)),
        route("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle}", list_non_persistent_in_bundle),
        route("PUT", TOPIC, create_topic),
        route("DELETE", TOPIC, delete_topic, queries=(FORCE,)),
        route("GET", TOPIC + "/properties", get_properties),
        route("PUT", TOPIC + "/properties", set_properties),
        route("DELETE", TOPIC + "/properties", delete_property, queries=(Query("key", "name of the property"),)),
    ]


async def list_topics(call: Call) -> Response:
    """List the topics and partitions of a namespace; with the query parameter `bundle`, only those of this bundle."""
    domain, namespace = call.domain(), call.namespace_name()
    await call.require_list_topics(namespace)
    policies = existing_namespace(call, namespace)
    names = await listed_everywhere(call, namespace, domain, include_system=call.flag("includeSystemTopic"))
    asked = call.query("bundle")
    if asked:
        bundle = next((each for each in bundles_of(policies.bundles.boundaries) if str(each) == asked), None)
        positions = {} if bundle is None else await positions_in(call, names, bundle)
        names = list(positions)
    return json_response(names)


async def list_non_persistent_in_bundle(call: Call) -> Response:
    namespace = call.namespace_name()
    await call.require_list_topics(namespace)
    bundle = checked_bundle(call.name("bundle"), existing_namespace(call, namespace).bundles.boundaries)
    ownership = call.broker.ownership
    if ownership is not None:
        owner = await ownership.present_owner(NamespaceBundle(namespace, bundle))
        if owner is None:
            return json_response([])
        if owner.kind is not OwnerKind.HERE:
            return redirect(call, ownership, owner.urls)
    names = await listed_topics(call, namespace, "non-persistent", include_system=True)
    return json_response(list(await positions_in(call, names, bundle)))


async def create_topic(call: Call) -> Response:
    name = await creatable_topic(call)
    properties = await call.optional_json(dict[str, str]) or {}
    try:
        await call.broker.making.create(name, properties)
    except NotAllowedError as error:
        raise AdminError(409, str(error)) from error
    return no_content()


async def delete_topic(call: Call) -> Response:
    name = call.topic_name()
    await call.require_namespace_admin(name.namespace)
    if is_transaction_internal(name):
        raise AdminError(405, f"Topic {name} cannot be deleted: it stores the state of transactions")
    if call.broker.partitioned.get(name) is not None:
        raise AdminError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic.",
        )
    try:
        await call.broker.topics.delete(name, force=call.flag("force"))
    except TopicNotFound:
        if name.is_persistent:
            raise
        namespace_of_topics(call, name.namespace)  # an unloaded topic counts as deleted
    return no_content()


async def get_properties(call: Call) -> Response:
    name = call.topic_name()
    await call.require_lookup(name)
    _require_persistent(name)
    namespace_of_topics(call, name.namespace)
    metadata = call.broker.partitioned.get(name)
    if metadata is not None:
        return json_response(metadata.properties or {})
    topic = await call.broker.topics.get(name, may_create=False)
    return json_response(topic.ledger.properties)


async def set_properties(call: Call) -> Response:
    """Add the properties in the body to the existing properties."""
    name = await _changeable_topic(call)
    await _change_properties(call, name, await call.optional_json(dict[str, str]) or {}, removed=None)
    return no_content()


async def delete_property(call: Call) -> Response:
    await _change_properties(call, await _changeable_topic(call), {}, removed=call.query("key"))
    return no_content()


async def _changeable_topic(call: Call) -> TopicName:
    name = call.topic_name()
    await call.require_topic_admin(name)
    _require_persistent(name)
    namespace_of_topics(call, name.namespace)
    return name


async def _change_properties(call: Call, name: TopicName, added: dict[str, str], removed: str | None) -> None:
    def changed(properties: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in {**properties, **added}.items() if key != removed}

    def change(metadata: PartitionedTopicMetadata) -> None:
        metadata.properties = changed(metadata.properties or {}) or None

    if call.broker.partitioned.get(name) is not None:
        await call.broker.partitioned.update(name, change)
        return
    topic = await call.broker.topics.get(name, may_create=False)
    changes: dict[str, str | None] = {**added}
    if removed is not None:
        changes[removed] = None
    await topic.ledger.document.change_properties(changes)


async def creatable_topic(call: Call) -> TopicName:
    """Return the topic in the path. Raises AdminError if the role may not create it, TopicNotFound if its namespace is
    missing.
    """
    name = call.topic_name()
    await call.require_namespace_admin(name.namespace)
    if call.resources.namespace(name.namespace) is None:  # waits for a running namespace deletion
        raise TopicNotFound("Namespace not found")
    if is_transaction_internal(name):
        raise AdminError(400, "Cannot create topic in system topic format!")
    return name


def _require_persistent(name: TopicName) -> None:
    if not name.is_persistent:
        raise AdminError(406, "Need to provide a persistent topic name")
