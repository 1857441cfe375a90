"""`/admin/v2/namespaces/{tenant}/{namespace}/...`: retention and backlog quotas of all topics in a namespace."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, empty_ok, json_response, no_content
from pybroker.admin.calls.existing_namespaces import administered_namespace, existing_namespace
from pybroker.admin.calls.route_paths import NAMESPACE
from pybroker.admin.calls.routing import route
from pybroker.admin.policies.policy_values import QUOTA_TYPE, checked_quota, checked_retention, quota_type
from pybroker.broker.topic.backlog_rules import is_quota_above_retention
from pybroker.errors import AdminError
from pybroker.model.policies import BacklogQuota, BacklogQuotaType, NamespacePolicies, RetentionPolicies


def routes() -> list[Route]:
    return [
        route("GET", NAMESPACE + "/retention", get_retention),
        route("POST", NAMESPACE + "/retention", set_retention, body=RetentionPolicies),
        route("DELETE", NAMESPACE + "/retention", remove_retention),
        route("GET", NAMESPACE + "/backlogQuotaMap", get_backlog_quotas),
        route("POST", NAMESPACE + "/backlogQuota", set_backlog_quota, body=BacklogQuota, queries=(QUOTA_TYPE,)),
        route("DELETE", NAMESPACE + "/backlogQuota", remove_backlog_quota, queries=(QUOTA_TYPE,)),
    ]


async def get_retention(call: Call) -> Response:
    policies = await _policies(call)
    return empty_ok() if policies.retention_policies is None else json_response(policies.retention_policies)


async def set_retention(call: Call) -> Response:
    """Set the retention. A request without a body, or with `null`, removes it."""
    namespace = await administered_namespace(call)
    retention = checked_retention(await call.optional_json(RetentionPolicies))

    def change(policies: NamespacePolicies) -> None:
        if is_quota_above_retention(policies.backlog_quota_map.get(BacklogQuotaType.SIZE), retention):
            raise AdminError(412, "Retention Quota must exceed configured backlog quota for namespace.")
        policies.retention_policies = retention

    existing_namespace(call, namespace, "Namespace policies does not exist")
    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_retention(call: Call) -> Response:
    def change(policies: NamespacePolicies) -> None:
        policies.retention_policies = None

    await call.resources.update_namespace(await administered_namespace(call), change)
    return no_content()


async def get_backlog_quotas(call: Call) -> Response:
    return json_response((await _policies(call)).backlog_quota_map)


async def set_backlog_quota(call: Call) -> Response:
    namespace, kind = await administered_namespace(call), quota_type(call)
    quota = checked_quota(await call.optional_json(BacklogQuota))
    if quota is None:
        raise BadBody("The request needs a body with a backlog quota")

    def change(policies: NamespacePolicies) -> None:
        if kind is BacklogQuotaType.SIZE and is_quota_above_retention(quota, policies.retention_policies):
            raise AdminError(
                412,
                "Backlog Quota exceeds configured retention quota for namespace. "
                "Please increase retention quota and retry",
            )
        policies.backlog_quota_map[kind] = quota

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_backlog_quota(call: Call) -> Response:
    namespace, kind = await administered_namespace(call), quota_type(call)

    def change(policies: NamespacePolicies) -> None:
        policies.backlog_quota_map.pop(kind, None)

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def _policies(call: Call) -> NamespacePolicies:
    return existing_namespace(call, await administered_namespace(call))
