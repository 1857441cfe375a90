"""Lookup of the tenant or namespace in a path."""

from __future__ import annotations

from pybroker.admin.calls.call import Call
from pybroker.broker.lifecycle.topic_directory import listed_bytes
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName
from pybroker.model.policies import NamespacePolicies, TenantInfo


def existing_tenant(call: Call, tenant: str, refusal: str = "Tenant does not exist") -> TenantInfo:
    info = call.resources.tenant(tenant)
    if info is None:
        raise AdminError(404, refusal)
    return info


async def administered_namespace(call: Call) -> NamespaceName:
    """Return the namespace in the path. Raises AdminError 403 unless the role administers its tenant, 404 if the tenant
    does not exist.
    """
    namespace = call.namespace_name()
    await call.require_namespace_admin(namespace)
    return namespace


async def superusers_namespace(call: Call) -> NamespaceName:
    """Return the namespace in the path. Raises AdminError 401 unless the role is a superuser."""
    namespace = call.namespace_name()
    await call.require_superuser()
    return namespace


def existing_namespace(
    call: Call, namespace: NamespaceName, refusal: str = "Namespace does not exist"
) -> NamespacePolicies:
    policies = call.resources.namespace(namespace)
    if policies is None:
        raise AdminError(404, refusal)
    return policies


def namespace_of_topics(call: Call, namespace: NamespaceName) -> NamespacePolicies:
    """Return the policies of the namespace. If it does not exist, raises AdminError 404 with the text that Pulsar uses
    for topic operations.
    """
    return existing_namespace(call, namespace, "Namespace not found")


async def listed_topics(
    call: Call, namespace: NamespaceName, domain: str | None, *, include_system: bool = False
) -> list[str]:
    """Return the full names of the namespace's topics in one domain, or in both if `domain` is None. Memory for the
    list is reserved until the call ends. Raises AdminError 503 without enough memory.
    """
    directory = call.broker.directory
    room = await call.share.of_lists(directory.expected_bytes(namespace))
    names = await directory.list(namespace, domain, include_system=include_system)
    room.count(listed_bytes(names))
    return names
