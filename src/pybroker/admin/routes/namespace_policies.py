"""`/admin/v2/namespaces/{tenant}/{namespace}/...`: retention, expiry and backlog quotas that hold for all its topics."""

from __future__ import annotations

from itertools import pairwise

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import BadBody, Call, empty_ok, json_response, no_content, route
from pybroker.admin.policy_values import (
    checked_quota,
    checked_retention,
    checked_ttl_s,
    quota_type,
)
from pybroker.admin.routes.namespaces import NAMESPACE, administered_namespace, existing_namespace
from pybroker.broker import cursor_moves
from pybroker.broker.backlog import is_quota_above_retention
from pybroker.cluster.lookup import find_bundle
from pybroker.errors import AdminError
from pybroker.model.names import PERSISTENT, TopicName
from pybroker.model.policies import (
    BacklogQuota,
    BacklogQuotaType,
    NamespacePolicies,
    RetentionPolicies,
)

CLEAR = "/clearBacklog"
BUNDLE_CLEAR = "/{bundle}" + CLEAR


def routes() -> list[Route]:
    return [
        route("GET", NAMESPACE + "/retention", get_retention),
        route("POST", NAMESPACE + "/retention", set_retention),
        route("DELETE", NAMESPACE + "/retention", remove_retention),
        route("GET", NAMESPACE + "/messageTTL", get_message_ttl),
        route("POST", NAMESPACE + "/messageTTL", set_message_ttl),
        route("DELETE", NAMESPACE + "/messageTTL", remove_message_ttl),
        route("GET", NAMESPACE + "/backlogQuotaMap", get_backlog_quotas),
        route("POST", NAMESPACE + "/backlogQuota", set_backlog_quota),
        route("DELETE", NAMESPACE + "/backlogQuota", remove_backlog_quota),
        route("POST", NAMESPACE + CLEAR, clear_backlog),
        route("POST", NAMESPACE + CLEAR + "/{subscription}", clear_backlog_of_subscription),
        route("POST", NAMESPACE + BUNDLE_CLEAR, clear_backlog),
        route("POST", NAMESPACE + BUNDLE_CLEAR + "/{subscription}", clear_backlog_of_subscription),
    ]


async def get_retention(call: Call) -> Response:
    policies = _policies(call)
    return empty_ok() if policies.retention_policies is None else json_response(policies.retention_policies)


async def set_retention(call: Call) -> Response:
    """No body, or `null`, unsets it."""
    namespace = administered_namespace(call)
    retention = checked_retention(await call.optional_json(RetentionPolicies))

    def change(policies: NamespacePolicies) -> None:
        if is_quota_above_retention(policies.backlog_quota_map.get(BacklogQuotaType.SIZE), retention):
            raise AdminError(412, "Retention Quota must exceed configured backlog quota for namespace.")
        policies.retention_policies = retention

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_retention(call: Call) -> Response:
    def change(policies: NamespacePolicies) -> None:
        policies.retention_policies = None

    await call.resources.update_namespace(administered_namespace(call), change)
    return no_content()


async def get_message_ttl(call: Call) -> Response:
    ttl_s = _policies(call).message_ttl_in_seconds
    return empty_ok() if ttl_s is None else json_response(ttl_s)


async def set_message_ttl(call: Call) -> Response:
    namespace = administered_namespace(call)
    ttl_s = checked_ttl_s(await call.json(int))

    def change(policies: NamespacePolicies) -> None:
        policies.message_ttl_in_seconds = ttl_s

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_message_ttl(call: Call) -> Response:
    def change(policies: NamespacePolicies) -> None:
        policies.message_ttl_in_seconds = None

    await call.resources.update_namespace(administered_namespace(call), change)
    return no_content()


async def get_backlog_quotas(call: Call) -> Response:
    return json_response(_policies(call).backlog_quota_map)


async def set_backlog_quota(call: Call) -> Response:
    namespace, kind = administered_namespace(call), quota_type(call)
    quota = checked_quota(await call.optional_json(BacklogQuota))
    if quota is None:
        raise BadBody("a backlog quota is needed")

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
    namespace, kind = administered_namespace(call), quota_type(call)

    def change(policies: NamespacePolicies) -> None:
        policies.backlog_quota_map.pop(kind, None)

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def clear_backlog(call: Call) -> Response:
    """Every subscription of every topic, or of those of one bundle, has read everything."""
    for name in await _topics_to_clear(call):
        topic = await call.broker.get_topic(name, may_create=False)
        for subscription in list(topic.subscriptions.values()):
            await cursor_moves.skip_all(subscription)
    return no_content()


async def clear_backlog_of_subscription(call: Call) -> Response:
    """The same for the subscriptions of one name; topics that have none are passed over."""
    for name in await _topics_to_clear(call):
        topic = await call.broker.get_topic(name, may_create=False)
        subscription = topic.subscriptions.get(call.name("subscription"))
        if subscription is not None:
            await cursor_moves.skip_all(subscription)
    return no_content()


async def _topics_to_clear(call: Call) -> list[TopicName]:
    namespace = administered_namespace(call)
    boundaries = existing_namespace(call, namespace).bundles.boundaries
    names = [TopicName.parse(text) for text in await call.broker.list_topics(namespace, PERSISTENT)]
    if "bundle" not in call.scope["path_params"]:
        return names
    bundle = call.name("bundle")
    if bundle not in {f"{first}_{last}" for first, last in pairwise(boundaries)}:
        raise AdminError(412, f"Namespace {namespace} has no bundle {bundle}")
    return [name for name in names if find_bundle(name, boundaries) == bundle]


def _policies(call: Call) -> NamespacePolicies:
    return existing_namespace(call, administered_namespace(call))
