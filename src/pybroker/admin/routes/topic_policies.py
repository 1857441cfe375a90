"""`/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/...`: policies of one topic.

A GET shows what is set for the topic alone; with `?applied=true` what is in force, wherever it comes from.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, empty_ok, json_response, no_content, route
from pybroker.admin.policy_values import (
    checked_quota,
    checked_retention,
    checked_ttl_s,
    quota_type,
)
from pybroker.admin.routes.namespaces import existing_namespace
from pybroker.broker.backlog import is_quota_above_retention
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.names import TopicName
from pybroker.model.policies import (
    BacklogQuota,
    BacklogQuotaType,
    RetentionPolicies,
    TopicPolicies,
)

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/retention", get_retention),
        route("POST", TOPIC + "/retention", set_retention),
        route("DELETE", TOPIC + "/retention", remove_retention),
        route("GET", TOPIC + "/messageTTL", get_message_ttl),
        route("POST", TOPIC + "/messageTTL", set_message_ttl),
        route("DELETE", TOPIC + "/messageTTL", remove_message_ttl),
        route("GET", TOPIC + "/backlogQuotaMap", get_backlog_quotas),
        route("POST", TOPIC + "/backlogQuota", set_backlog_quota),
        route("DELETE", TOPIC + "/backlogQuota", remove_backlog_quota),
        route("DELETE", TOPIC + "/policies", remove_policies),
    ]


async def get_retention(call: Call) -> Response:
    topic = await policies_topic(call)
    own = await call.resources.topic_policies(topic)
    shown = _effective(call, topic, own).retention if call.flag("applied") else own.retentionPolicies
    return empty_ok() if shown is None else json_response(shown)


async def set_retention(call: Call) -> Response:
    """No body, or `null`, changes nothing."""
    topic = await policies_topic(call)
    retention = checked_retention(await call.optional_json(RetentionPolicies))
    if retention is None:
        return no_content()

    def change(policies: TopicPolicies) -> None:
        if is_quota_above_retention(_effective(call, topic, policies).size_quota, retention):
            raise AdminError(
                412,
                "Retention Quota must exceed configured backlog quota for topic. "
                "Please increase retention quota and retry",
            )
        policies.retentionPolicies = retention

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_retention(call: Call) -> Response:
    def change(policies: TopicPolicies) -> None:
        policies.retentionPolicies = None

    await call.resources.update_topic_policies(await policies_topic(call), change)
    return no_content()


async def get_message_ttl(call: Call) -> Response:
    topic = await policies_topic(call)
    own = await call.resources.topic_policies(topic)
    shown = _effective(call, topic, own).message_ttl_s if call.flag("applied") else own.messageTTLInSeconds
    return empty_ok() if shown is None else json_response(shown)


async def set_message_ttl(call: Call) -> Response:
    """The value is a query parameter; without it nothing is set any more."""
    topic = await policies_topic(call)
    text = call.query("messageTTL")
    ttl_s = None if text is None else checked_ttl_s(_integer(text))

    def change(policies: TopicPolicies) -> None:
        policies.messageTTLInSeconds = ttl_s

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_message_ttl(call: Call) -> Response:
    def change(policies: TopicPolicies) -> None:
        policies.messageTTLInSeconds = None

    await call.resources.update_topic_policies(await policies_topic(call), change)
    return no_content()


async def get_backlog_quotas(call: Call) -> Response:
    """What is in force is shown as Pulsar does: a topic with quotas of its own shows those alone."""
    topic = await policies_topic(call)
    own = await call.resources.topic_policies(topic)
    if own.backlogQuotaMap or not call.flag("applied"):
        return json_response(own.backlogQuotaMap)
    effective = _effective(call, topic, own)
    return json_response({BacklogQuotaType.SIZE: effective.size_quota, BacklogQuotaType.AGE: effective.age_quota})


async def set_backlog_quota(call: Call) -> Response:
    """No body, or `null`, unsets it."""
    topic, kind = await policies_topic(call), quota_type(call)
    quota = checked_quota(await call.optional_json(BacklogQuota))

    def change(policies: TopicPolicies) -> None:
        retention = _effective(call, topic, policies).retention
        if kind is BacklogQuotaType.SIZE and is_quota_above_retention(quota, retention):
            raise AdminError(
                412,
                "Backlog Quota exceeds configured retention quota for topic. Please increase retention quota and retry",
            )
        if quota is None:
            policies.backlogQuotaMap.pop(kind, None)
        else:
            policies.backlogQuotaMap[kind] = quota

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_backlog_quota(call: Call) -> Response:
    topic, kind = await policies_topic(call), quota_type(call)

    def change(policies: TopicPolicies) -> None:
        policies.backlogQuotaMap.pop(kind, None)

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_policies(call: Call) -> Response:
    """All of them; also of a topic that does not exist, of which nothing is left then."""
    await call.resources.delete_topic_policies(_topic(call))
    return no_content()


def _effective(call: Call, topic: TopicName, own: TopicPolicies) -> EffectivePolicies:
    return call.broker.effective_policies(topic.namespace, own)


async def policies_topic(call: Call) -> TopicName:
    """The topic of the path, which exists and may have policies of its own."""
    topic = _topic(call)
    if not await call.broker.topic_exists(topic):
        raise TopicNotFound(f"Topic {topic} not found")
    return topic


def _topic(call: Call) -> TopicName:
    topic = call.topic_name()
    call.require_namespace_admin(topic.namespace)
    existing_namespace(call, topic.namespace)
    if not call.config.topic_level_policies_enabled:
        raise AdminError(405, "Topic level policies are disabled (topicLevelPoliciesEnabled)")
    return topic


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise AdminError(404, f"messageTTL is {text!r}: expected seconds, a whole number") from None
