"""`/admin/v2/clusters`: clusters that tenants and namespaces can use, with their addresses."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, empty_ok, json_response, no_content
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.model.policies import ClusterData

BASE = "/admin/v2/clusters"

# Permitted schemes of each URL.
URL_SCHEMES = {
    "serviceUrl": ("http",),
    "serviceUrlTls": ("https",),
    "brokerServiceUrl": ("pulsar",),
    "brokerServiceUrlTls": ("pulsar+ssl",),
}


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_clusters),
        route("GET", BASE + "/{cluster}", get_cluster),
        route("PUT", BASE + "/{cluster}", create_cluster, body=ClusterData),
        route("POST", BASE + "/{cluster}", update_cluster, body=ClusterData),
        route("DELETE", BASE + "/{cluster}", delete_cluster),
        route("GET", BASE + "/{cluster}/peers", get_peers),
        route("POST", BASE + "/{cluster}/peers", set_peers, body=list[str]),
    ]


async def list_clusters(call: Call) -> Response:
    return json_response(sorted(call.resources.clusters()))


async def get_cluster(call: Call) -> Response:
    await call.require_superuser()
    return json_response(_existing_cluster(call, call.name("cluster")))


async def create_cluster(call: Call) -> Response:
    await call.require_superuser()
    name, data = call.name("cluster"), await _cluster_data(call)
    if call.resources.cluster(name) is not None:
        raise AdminError(409, f"Cluster already exists: {name}")
    await call.resources.put_cluster(name, data)
    return empty_ok()


async def update_cluster(call: Call) -> Response:
    await call.require_superuser()
    name, data = call.name("cluster"), await _cluster_data(call)
    _existing_cluster(call, name)
    await call.resources.put_cluster(name, data)
    return empty_ok()


async def delete_cluster(call: Call) -> Response:
    """Delete a cluster. 412 while a namespace uses the cluster, or while the cluster has an isolation policy."""
    await call.require_superuser()
    name = call.name("cluster")
    if await call.broker.cluster_documents.isolation_policies(name):
        raise AdminError(412, f"Cluster {name} is not empty: it has namespace isolation policies")
    await call.resources.delete_cluster(name)
    return no_content()


async def get_peers(call: Call) -> Response:
    await call.require_superuser()
    peers = _existing_cluster(call, call.name("cluster")).peerClusterNames
    return empty_ok() if peers is None else json_response(peers)


async def set_peers(call: Call) -> Response:
    """Set the peer clusters, to which clients may fail over from this cluster. A body of `null` removes them."""
    await call.require_superuser()
    name, peers = call.name("cluster"), await call.optional_json(list[str])
    _existing_cluster(call, name)
    for peer in peers or ():
        if peer == name:
            raise AdminError(412, f"{name} itself can't be part of peer-list")
        if call.resources.cluster(peer) is None:
            raise AdminError(412, f"Peer cluster {peer} does not exist")
    peers = None if peers is None else sorted(set(peers))

    def change(data: ClusterData) -> None:
        data.peerClusterNames = peers

    await call.resources.update_cluster(name, change)
    return no_content()


def _existing_cluster(call: Call, name: str) -> ClusterData:
    data = call.resources.cluster(name)
    if data is None:
        raise AdminError(404, "Cluster does not exist")
    return data


async def _cluster_data(call: Call) -> ClusterData:
    data = await call.optional_json(ClusterData)
    if data is None:
        raise BadBody(
            'The request needs a body with the addresses of the cluster, such as {"serviceUrl": "http://HOST:8080"}'
        )
    for key, schemes in URL_SCHEMES.items():
        url: str | None = getattr(data, key)
        # Clients accept several hosts after one scheme.
        if url and not ("://" in url.split(",")[0] and all(_is_url(part, schemes) for part in url.split(","))):
            raise AdminError(400, f"{key} is {url!r}: expected {schemes[0]}://host:port")
    return data


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text if "://" in text else f"{schemes[0]}://{text}")
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
