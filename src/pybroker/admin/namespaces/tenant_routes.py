"""`/admin/v2/tenants`: administrators of a tenant, and the clusters that its namespaces may use."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing_namespaces import existing_tenant
from pybroker.admin.calls.queries import FORCE
from pybroker.admin.calls.route_paths import TENANTS
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.model.policies import TenantInfo


def routes() -> list[Route]:
    return [
        route("GET", TENANTS, list_tenants),
        route("GET", TENANTS + "/{tenant}", get_tenant),
        route("PUT", TENANTS + "/{tenant}", create_tenant),
        route("POST", TENANTS + "/{tenant}", update_tenant),
        route("DELETE", TENANTS + "/{tenant}", delete_tenant, queries=(FORCE,)),
    ]


async def list_tenants(call: Call) -> Response:
    await call.require_superuser()
    return json_response(sorted(call.resources.tenants()))


async def get_tenant(call: Call) -> Response:
    tenant = call.name("tenant")
    await call.require_tenant_admin(tenant)
    return json_response(existing_tenant(call, tenant))


async def create_tenant(call: Call) -> Response:
    await call.require_superuser()
    await call.resources.create_tenant(call.name("tenant"), await _tenant_info(call), call.config.max_tenants)
    return no_content()


async def update_tenant(call: Call) -> Response:
    tenant = call.name("tenant")
    await call.require_tenant_admin(tenant)
    info = await _tenant_info(call)
    existing_tenant(call, tenant, f"Tenant {tenant} not found")
    await call.resources.update_tenant(tenant, info)
    return no_content()


async def delete_tenant(call: Call) -> Response:
    tenant = call.name("tenant")
    await call.require_tenant_admin(tenant)
    existing_tenant(call, tenant, "Tenant doesn't exist")
    if call.flag("force"):
        if not call.config.force_delete_tenant_allowed:
            raise AdminError(405, "Broker doesn't allow forced deletion of tenants (forceDeleteTenantAllowed)")
        for namespace in call.resources.namespaces(tenant):
            await call.broker.namespace_deletion.delete(namespace, force=True)
    await call.resources.delete_tenant(tenant)
    return no_content()


async def _tenant_info(call: Call) -> TenantInfo:
    info = await call.optional_json(TenantInfo)
    if info is None:
        raise AdminError(412, "TenantInfo is null: the request needs a body with adminRoles and allowedClusters")
    if any(role != role.strip() for role in info.adminRoles):
        raise AdminError(412, "AdminRoles contains whitespace in the beginning or end.")
    # Both are sets, sorted for display.
    return TenantInfo(sorted(set(info.adminRoles)), sorted(set(info.allowedClusters)))
