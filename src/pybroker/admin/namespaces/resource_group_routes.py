"""`/admin/v2/resourcegroups`: rate limits that topics of several namespaces share."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.metadata.resource_groups import ResourceGroupChange

BASE = "/admin/v2/resourcegroups"


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_groups),
        route("GET", BASE + "/{group}", get_group),
        route("PUT", BASE + "/{group}", put_group),
        route("DELETE", BASE + "/{group}", delete_group),
    ]


async def list_groups(call: Call) -> Response:
    await call.require_superuser()
    return json_response(call.broker.broker_context.resource_groups.names())


async def get_group(call: Call) -> Response:
    await call.require_superuser()
    group = call.broker.broker_context.resource_groups.get(call.name("group"))
    if group is None:
        raise AdminError(404, "ResourceGroup does not exist")
    return json_response(group)


async def put_group(call: Call) -> Response:
    """Create a resource group. If the group exists, change only the fields that the body contains."""
    await call.require_superuser()
    await call.broker.broker_context.resource_groups.put(call.name("group"), await call.json(ResourceGroupChange))
    return no_content()


async def delete_group(call: Call) -> Response:
    await call.require_superuser()
    name = call.name("group")
    for tenant in call.resources.tenants():
        for namespace in call.resources.namespaces(tenant):
            policies = call.resources.namespace(namespace)
            if policies is not None and policies.resource_group_name == name:
                raise AdminError(412, "ResourceGroup is in use")
    await call.broker.broker_context.resource_groups.delete(name)
    return no_content()
