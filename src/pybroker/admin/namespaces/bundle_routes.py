"""`/admin/v2/namespaces/{tenant}/{namespace}/{bundle}`: unload, inspect and delete bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import (
    administered_namespace,
    existing_namespace,
    listed_topics,
    superusers_namespace,
)
from pybroker.admin.calls.queries import FORCE, Query
from pybroker.admin.calls.redirects import DESTINATION, is_moved_by_leader, redirect
from pybroker.admin.calls.route_paths import NAMESPACE
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_owners import assign, destination_url, on_each_bundle
from pybroker.admin.slices import exhaust
from pybroker.cluster.bundles import (
    Bundle,
    checked_bundle,
    hash_position,
)
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName, TopicName

BUNDLE = NAMESPACE + "/{bundle}"

TO_BROKER = Query(DESTINATION, "id of the broker that shall own the bundle")
NAMED_TOPICS = Query("topics", "only these topics, separated by commas")


def routes() -> list[Route]:
    return [
        route("PUT", NAMESPACE + "/unload", unload_namespace),
        route("PUT", BUNDLE + "/unload", unload_bundle, queries=(TO_BROKER,)),
        route("GET", BUNDLE + "/topicHashPositions", get_hash_positions, queries=(NAMED_TOPICS,)),
        route("DELETE", BUNDLE, delete_bundle, queries=(FORCE,)),
    ]


async def unload_namespace(call: Call) -> Response:
    """Close all topics of the namespace. Clients reconnect."""
    namespace = await superusers_namespace(call)
    existing_namespace(call, namespace, "Namespace not found")
    await on_each_bundle(call, namespace, "/unload", partial(unload_topics, call, namespace), may_acquire=False)
    return no_content()


async def unload_bundle(call: Call) -> Response:
    """Close the topics of a bundle. Clients reconnect. In a cluster, the parameter `destinationBroker` names the broker
    that owns the bundle afterwards.
    """
    namespace = await superusers_namespace(call)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    destination = call.query(DESTINATION)
    url = destination_url(call, destination)
    whole, ownership = NamespaceBundle(namespace, bundle), call.broker.ownership
    if destination and url is not None and ownership is not None:
        owner = await ownership.present_owner(whole)
        if owner is not None and is_moved_by_leader(ownership, owner):
            ownership.registry.assign(str(whole), destination)
            return redirect(call, ownership, owner.urls, without=DESTINATION)
    await unload_topics(call, namespace, bundle)
    if url is not None:
        await assign(call, whole, url)
    return no_content()


async def get_hash_positions(call: Call) -> Response:
    """Return the hash of each topic name in a bundle, to choose a split position. `topics` limits the result to these
    topics.
    """
    namespace = call.namespace_name()
    await call.require_list_topics(namespace)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    asked = {text for value in call.queries("topics") for text in value.split(",")}
    names = [name for name in await topics_of_namespace(call, namespace) if not asked or name in asked]
    shown = await positions_in(call, names, bundle)
    return json_response({"namespace": str(namespace), "bundle": str(bundle), "topicHashPositions": shown})


async def delete_bundle(call: Call) -> Response:
    """Delete a bundle without topics (204). With topics: 409, unless `force=true`, which also deletes the topics."""
    namespace = await administered_namespace(call)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    is_forced = call.flag("force")
    if is_forced and not call.config.force_delete_namespace_allowed:
        raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
    names = await positions_in(call, await topics_of_namespace(call, namespace), bundle)
    if names and not is_forced:
        raise AdminError(409, f"Cannot delete non empty bundle: the bundle contains {len(names)} topics")
    for name in names:
        await call.broker.topics.delete(TopicName.parse(name))
    return no_content()


async def positions_in(call: Call, names: Iterable[str], bundle: Bundle) -> dict[str, int]:
    found: dict[str, int] = {}

    def steps() -> Iterator[None]:
        for name in names:
            position = hash_position(name)
            if position in bundle:
                found[name] = position
            yield

    await exhaust(steps(), call.runtime.clock)
    return found


def _boundaries(call: Call, namespace: NamespaceName) -> list[str]:
    return existing_namespace(call, namespace).bundles.boundaries


async def topics_of_namespace(call: Call, namespace: NamespaceName) -> list[str]:
    return await listed_topics(call, namespace, None, include_system=True)


async def unload_topics(call: Call, namespace: NamespaceName, bundle: Bundle | None) -> None:
    """Release `bundle`, which this broker owns. A standalone broker instead closes the topics of `bundle`, or of the
    whole namespace if `bundle` is None.
    """
    if call.broker.ownership is not None and bundle is not None:
        await call.broker.ownership.release(NamespaceBundle(namespace, bundle))
        return
    for topic in call.broker.loaded.all():
        name = topic.name
        if name.namespace != namespace or (bundle is not None and hash_position(name) not in bundle):
            continue
        # Closing yields to the event loop; topics closed meanwhile are skipped.
        if call.broker.loaded.get(name) is topic:
            await call.broker.topics.unload(topic)
