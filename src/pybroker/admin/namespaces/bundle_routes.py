"""`/admin/v2/namespaces/{tenant}/{namespace}/{bundle}`: unload, split and inspect bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

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
from pybroker.admin.calls.redirects import DESTINATION, LARGEST, is_moved_by_leader, redirect, to_owner_of
from pybroker.admin.calls.route_paths import NAMESPACE
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_owners import assign, destination_url, on_each_bundle
from pybroker.admin.slices import exhaust
from pybroker.cluster.bundles import (
    Bundle,
    checked_bundle,
    fullest_bundle,
    hash_position,
    split_boundaries,
    split_positions,
)
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import BundlesData

BUNDLE = NAMESPACE + "/{bundle}"

# In place of a bundle to split; not supported, because the load of each bundle is not measured.
HOT = "HOT"

TO_BROKER = Query(DESTINATION, "id of the broker that shall own the bundle")
SPLIT = (
    Query("splitAlgorithmName", "default: `defaultNamespaceBundleSplitAlgorithm`"),
    Query("unload", "unload the bundle afterwards", bool),
    Query("authoritative", "set by a broker that redirects the call", bool),
)
NAMED_TOPICS = Query("topics", "only these topics, separated by commas")


def routes() -> list[Route]:
    return [
        route("PUT", NAMESPACE + "/unload", unload_namespace),
        route("PUT", BUNDLE + "/unload", unload_bundle, queries=(TO_BROKER,)),
        route("PUT", BUNDLE + "/split", split_bundle, body=list[int], queries=SPLIT),
        route("GET", BUNDLE + "/topicHashPositions", get_hash_positions, queries=(NAMED_TOPICS,)),
        route("DELETE", BUNDLE, delete_bundle, queries=(FORCE,)),
    ]


async def unload_namespace(call: Call) -> Response:
    """Close all topics of the namespace. Clients reconnect."""
    namespace = superusers_namespace(call)
    existing_namespace(call, namespace, "Namespace not found")
    await on_each_bundle(call, namespace, "/unload", partial(_unload, call, namespace), may_acquire=False)
    return no_content()


async def unload_bundle(call: Call) -> Response:
    """Close the topics of a bundle. Clients reconnect. In a cluster, the broker `destinationBroker` owns the bundle
    afterwards.
    """
    namespace = superusers_namespace(call)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    destination = call.query(DESTINATION)
    url = destination_url(call, destination)
    whole, ownership = NamespaceBundle(namespace, bundle), call.broker.ownership
    if destination and url is not None and ownership is not None:
        owner = await ownership.present_owner(whole)
        if owner is not None and is_moved_by_leader(ownership, owner):
            ownership.registry.assign(str(whole), destination)
            return redirect(call, ownership, owner.urls, without=DESTINATION)
    await _unload(call, namespace, bundle)
    if url is not None:
        await assign(call, whole, url)
    return no_content()


async def split_bundle(call: Call) -> Response:
    """Split a bundle, or the bundle with the most topics (`LARGEST`), with `splitAlgorithmName`. `unload=true` unloads
    it afterwards.

    The body is a list of hash positions, for specified_positions_divide only.
    """
    namespace = superusers_namespace(call)
    boundaries = _boundaries(call, namespace)
    wanted = await call.optional_json(list[int]) or []
    algorithm = call.query("splitAlgorithmName") or call.config.default_namespace_bundle_split_algorithm
    supported = call.config.supported_namespace_bundle_split_algorithms
    if algorithm not in supported:
        raise AdminError(
            412, f"Unsupported namespace bundle split algorithm, supported algorithms are [{', '.join(supported)}]"
        )
    names = await _topics(call, namespace)
    bundle = _bundle_to_split(call, boundaries, names)
    whole = NamespaceBundle(namespace, bundle)
    ownership = call.broker.ownership
    if ownership is not None:  # The path may name no bundle, so the owner is known only now.
        path = f"/admin/v2/namespaces/{namespace}/{bundle}/split"
        response = await to_owner_of(call, ownership, whole, may_acquire=True, path=path)
        if response is not None:
            return response
    inside = [position for position in map(hash_position, names) if position in bundle]
    cut = split_positions(bundle, algorithm, inside, wanted)

    def change(bundles: BundlesData) -> BundlesData:
        # Check again: a concurrent request may have split it
        checked_bundle(str(bundle), bundles.boundaries)
        new = split_boundaries(bundles.boundaries, bundle, cut)
        return BundlesData(new, len(new) - 1)

    if not cut:
        return no_content()
    parts = [Bundle(lower, upper) for lower, upper in pairwise([bundle.lower, *cut, bundle.upper])]
    if ownership is None:
        await call.resources.update_bundles(namespace, change)
    else:
        owned = [NamespaceBundle(namespace, part) for part in parts]
        await ownership.split(whole, owned, lambda: call.resources.update_bundles(namespace, change))
    if call.flag("unload"):
        for part in parts:
            await _unload(call, namespace, part)
    return no_content()


async def get_hash_positions(call: Call) -> Response:
    """Return the hash of each topic name in a bundle, from which a split position can be chosen; with `topics`, only of
    these topics.
    """
    namespace = call.namespace_name()
    call.require_list_topics(namespace)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    asked = {text for value in call.queries("topics") for text in value.split(",")}
    names = [name for name in await _topics(call, namespace) if not asked or name in asked]
    shown = await positions_in(call, names, bundle)
    return json_response({"namespace": str(namespace), "bundle": str(bundle), "topicHashPositions": shown})


async def delete_bundle(call: Call) -> Response:
    """Delete a bundle without topics (204). With topics: 409, unless `force=true`, which also deletes the topics."""
    namespace = administered_namespace(call)
    bundle = checked_bundle(call.name("bundle"), _boundaries(call, namespace))
    is_forced = call.flag("force")
    if is_forced and not call.config.force_delete_namespace_allowed:
        raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
    names = await positions_in(call, await _topics(call, namespace), bundle)
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


async def _topics(call: Call, namespace: NamespaceName) -> list[str]:
    return await listed_topics(call, namespace, None, include_system=True)


def _bundle_to_split(call: Call, boundaries: list[str], names: list[str]) -> Bundle:
    text = call.name("bundle")
    if text == HOT:
        raise AdminError(
            404,
            (
                f"Bundle range {HOT} not found: this broker does not measure the load of bundles. Use the range of "
                "a bundle"
            ),
        )
    if text == LARGEST:
        return fullest_bundle(boundaries, [hash_position(name) for name in names])
    return checked_bundle(text, boundaries)


async def _unload(call: Call, namespace: NamespaceName, bundle: Bundle | None) -> None:
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
