"""`/admin/v2/resource-quotas`: expected load of a bundle, which is stored for load managers."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import existing_namespace
from pybroker.admin.calls.routing import route
from pybroker.cluster.bundles import checked_bundle
from pybroker.errors import AdminError
from pybroker.model.cluster_data import ResourceQuota
from pybroker.model.names import NamespaceName

BASE = "/admin/v2/resource-quotas"
BUNDLE = BASE + "/{tenant}/{namespace}/{bundle}"


def routes() -> list[Route]:
    return [
        route("GET", BASE, get_default_quota),
        route("POST", BASE, set_default_quota, body=ResourceQuota),
        route("GET", BUNDLE, get_quota),
        route("POST", BUNDLE, set_quota, body=ResourceQuota),
        route("DELETE", BUNDLE, remove_quota),
    ]


async def get_default_quota(call: Call) -> Response:
    """Return the quota of bundles without a specific quota."""
    await call.require_superuser()
    return json_response(await call.broker.cluster_documents.default_quota())


async def set_default_quota(call: Call) -> Response:
    """Set the default quota. A request without a body removes it."""
    await call.require_superuser()
    quota = await call.optional_json(ResourceQuota)
    if quota is None:
        await call.broker.cluster_documents.unset_default_quota()
    else:
        await call.broker.cluster_documents.put_default_quota(quota)
    return no_content()


async def get_quota(call: Call) -> Response:
    namespace, bundle = await _bundle(call)
    return json_response(await call.broker.cluster_documents.quota(namespace, bundle))


async def set_quota(call: Call) -> Response:
    """Set the quota of a bundle. A request without a body removes it."""
    namespace, bundle = await _bundle(call)
    quota = await call.optional_json(ResourceQuota)
    if quota is None:
        await call.broker.cluster_documents.unset_quota(namespace, bundle)
    else:
        await call.broker.cluster_documents.put_quota(namespace, bundle, quota)
    return no_content()


async def remove_quota(call: Call) -> Response:
    """Remove the quota of a bundle, so that the default quota applies. 404 if the bundle has no specific quota."""
    namespace, bundle = await _bundle(call)
    if not await call.broker.cluster_documents.unset_quota(namespace, bundle):
        raise AdminError(404, f"Bundle {namespace}/{bundle} has no specific resource quota")
    return no_content()


async def _bundle(call: Call) -> tuple[NamespaceName, str]:
    await call.require_superuser()
    namespace = call.namespace_name()
    boundaries = existing_namespace(call, namespace).bundles.boundaries
    return namespace, str(checked_bundle(call.name("bundle"), boundaries))
