"""`/admin/v2/{persistent|non-persistent}`: topics of a namespace, and the partitions that lookups by HTTP ask for."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, json_response, route
from pybroker.admin.routes.namespaces import existing_namespace

BASE = "/admin/v2/{domain}/{tenant}/{namespace}"


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_topics),
        route("GET", BASE + "/{topic}/partitions", get_partitions),
    ]


async def list_topics(call: Call) -> Response:
    domain, namespace = call.domain(), call.namespace_name()
    call.require_list_topics(namespace)
    existing_namespace(call, namespace)
    return json_response(await call.broker.list_topics(namespace, domain))


async def get_partitions(call: Call) -> Response:
    """Clients ask with `checkAllowAutoCreation=true` before a lookup, and mean to create the topic if it is missing."""
    topic = call.topic_name()
    call.require_lookup(topic)
    partitions = await call.broker.partitioned_metadata(topic, create=call.flag("checkAllowAutoCreation"))
    return json_response({"partitions": partitions, "deleted": False})
