"""`/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/...`: policies of one topic.

GET returns the value that is set on the topic; with `?applied=true`, the effective value from any level.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response, no_content
from pybroker.admin.calls.existing import topic_exists
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.queries import APPLIED
from pybroker.admin.calls.route_paths import TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.policies.policy_values import (
    QUOTA_TYPE,
    check_clusters,
    checked_quota,
    checked_retention,
    quota_type,
)
from pybroker.broker.topic.backlog_rules import is_quota_above_retention
from pybroker.errors import AdminError, InvalidTopicName, TopicNotFound
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.names import TopicName
from pybroker.model.policies import (
    BacklogQuota,
    BacklogQuotaType,
    DispatchRate,
    RetentionPolicies,
    SubscriptionPolicies,
    TopicPolicies,
)

SUBSCRIPTION_RATE = "/{subscription}/dispatchRate"


def routes() -> list[Route]:
    return [
        route("GET", TOPIC + "/retention", get_retention, queries=(APPLIED,)),
        route("POST", TOPIC + "/retention", set_retention, body=RetentionPolicies),
        route("DELETE", TOPIC + "/retention", remove_retention),
        route("GET", TOPIC + "/backlogQuotaMap", get_backlog_quotas, queries=(APPLIED,)),
        route("POST", TOPIC + "/backlogQuota", set_backlog_quota, body=BacklogQuota, queries=(QUOTA_TYPE,)),
        route("DELETE", TOPIC + "/backlogQuota", remove_backlog_quota, queries=(QUOTA_TYPE,)),
        route("GET", TOPIC + "/replication", get_replication, queries=(APPLIED,)),
        route("POST", TOPIC + "/replication", set_replication, body=list[str]),
        route("DELETE", TOPIC + "/replication", remove_replication),
        route("GET", TOPIC + "/shadowTopics", get_shadow_topics),
        route("PUT", TOPIC + "/shadowTopics", set_shadow_topics, body=list[str]),
        route("DELETE", TOPIC + "/shadowTopics", remove_shadow_topics),
        route("GET", TOPIC + SUBSCRIPTION_RATE, get_subscription_rate, queries=(APPLIED,)),
        route("POST", TOPIC + SUBSCRIPTION_RATE, set_subscription_rate, body=DispatchRate),
        route("DELETE", TOPIC + SUBSCRIPTION_RATE, remove_subscription_rate),
        route("DELETE", TOPIC + "/policies", remove_policies),
    ]


async def get_retention(call: Call) -> Response:
    topic = await policies_topic(call)
    if call.flag("applied"):
        return json_response((await _in_force(call, topic)).retention)
    shown = (await call.resources.topic_policies(topic)).retentionPolicies
    return empty_ok() if shown is None else json_response(shown)


async def set_retention(call: Call) -> Response:
    """Set the retention. A request without a body, or with `null`, changes nothing."""
    topic = await policies_topic(call)
    retention = checked_retention(await call.optional_json(RetentionPolicies))
    if retention is None:
        return no_content()

    def change(policies: TopicPolicies) -> None:
        if is_quota_above_retention(_with_own(call, topic, policies).size_quota, retention):
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


async def get_backlog_quotas(call: Call) -> Response:
    """Return the backlog quotas that are set on the topic; with `applied=true`, the effective quotas if none is set, as
    in Pulsar.
    """
    topic = await policies_topic(call)
    own = await call.resources.topic_policies(topic)
    if own.backlogQuotaMap or not call.flag("applied"):
        return json_response(own.backlogQuotaMap)
    effective = await _in_force(call, topic)
    return json_response({BacklogQuotaType.SIZE: effective.size_quota, BacklogQuotaType.AGE: effective.age_quota})


async def set_backlog_quota(call: Call) -> Response:
    """Set a backlog quota. A request without a body, or with `null`, removes it."""
    topic, kind = await policies_topic(call), quota_type(call)
    quota = checked_quota(await call.optional_json(BacklogQuota))

    def change(policies: TopicPolicies) -> None:
        retention = _with_own(call, topic, policies).retention
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


async def get_replication(call: Call) -> Response:
    topic = await policies_topic(call)
    if call.flag("applied"):
        return json_response((await _in_force(call, topic)).replication_clusters)
    shown = (await call.resources.topic_policies(topic)).replicationClusters
    return empty_ok() if shown is None else json_response(shown)


async def set_replication(call: Call) -> Response:
    """Set the replication clusters. They must exist, the tenant must be allowed to use them, and they must include this
    cluster.
    """
    topic = await policies_topic(call)
    clusters = await call.optional_json(list[str])
    if not clusters:
        raise AdminError(412, "ClusterIds should not be null or empty")
    if call.config.cluster_name not in clusters:
        raise AdminError(412, "Can not remove local cluster from the local topic-level replication clusters policy")
    check_clusters(call, topic.tenant, clusters)

    def change(policies: TopicPolicies) -> None:
        policies.replicationClusters = clusters

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_replication(call: Call) -> Response:
    def change(policies: TopicPolicies) -> None:
        policies.replicationClusters = None

    await call.resources.update_topic_policies(await policies_topic(call), change)
    return no_content()


async def get_shadow_topics(call: Call) -> Response:
    shown = (await call.resources.topic_policies(await policies_topic(call))).shadowTopics
    return empty_ok() if shown is None else json_response(shown)


async def set_shadow_topics(call: Call) -> Response:
    """Set the shadow topics, which must exist and be persistent."""
    topic = await policies_topic(call)
    shadows = await call.optional_json(list[str])
    if not shadows:
        raise AdminError(412, "Cannot specify empty shadow topics, please use remove command instead.")
    for text in shadows:
        try:
            shadow = TopicName.parse(text)
        except InvalidTopicName as error:
            raise AdminError(412, f"Topic name is not valid: {error}") from error
        if not shadow.is_persistent:
            raise AdminError(412, "Only persistent topic can be set as shadow topic")
        if not await topic_exists(call, shadow):
            raise AdminError(412, f"Shadow topic [{text}] not exists.")

    def change(policies: TopicPolicies) -> None:
        policies.shadowTopics = shadows

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_shadow_topics(call: Call) -> Response:
    def change(policies: TopicPolicies) -> None:
        policies.shadowTopics = None

    await call.resources.update_topic_policies(await policies_topic(call), change)
    return no_content()


async def get_subscription_rate(call: Call) -> Response:
    """Return the dispatch rate that is set for one subscription. The subscription need not exist."""
    topic, name = await policies_topic(call), call.name("subscription")
    effective = await _in_force(call, topic)
    if call.flag("applied"):
        return json_response(effective.subscription_dispatch_rate_of(name))
    shown = effective.own_subscription_dispatch_rates.get(name)
    return empty_ok() if shown is None else json_response(shown)


async def set_subscription_rate(call: Call) -> Response:
    """Set the dispatch rate for one subscription. A request without a body, or with `null`, changes nothing."""
    topic, name = await policies_topic(call), call.name("subscription")
    rate = await call.optional_json(DispatchRate)
    if rate is None:
        return no_content()

    def change(policies: TopicPolicies) -> None:
        policies.subscriptionPolicies.setdefault(name, SubscriptionPolicies()).dispatchRate = rate

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_subscription_rate(call: Call) -> Response:
    topic, name = await policies_topic(call), call.name("subscription")

    def change(policies: TopicPolicies) -> None:
        policies.subscriptionPolicies.pop(name, None)

    await call.resources.update_topic_policies(topic, change)
    return no_content()


async def remove_policies(call: Call) -> Response:
    """Remove all policies of the topic. The topic need not exist."""
    await call.resources.delete_topic_policies(await _topic(call))
    return no_content()


async def _in_force(call: Call, topic: TopicName) -> EffectivePolicies:
    return await call.broker.policies_in_force.of_topic(topic)


def _with_own(call: Call, topic: TopicName, own: TopicPolicies) -> EffectivePolicies:
    return call.broker.broker_context.effective_policies(topic.namespace, own)


async def policies_topic(call: Call) -> TopicName:
    """Return the name of the topic in the path. Raises TopicNotFound if the topic does not exist, and AdminError 412
    for a partition, because partitions share the policies of their partitioned topic.
    """
    topic = await _topic(call)
    if topic.partition_index >= 0:
        raise AdminError(412, "Not allowed to set/get topic policy for a partition")
    if not await topic_exists(call, topic):
        raise TopicNotFound(f"Topic {topic} not found")
    return topic


async def _topic(call: Call) -> TopicName:
    topic = call.topic_name()
    await call.require_namespace_admin(topic.namespace)
    namespace_of_topics(call, topic.namespace)
    if not call.config.topic_level_policies_enabled:
        raise AdminError(405, "Topic level policies are disabled (topicLevelPoliciesEnabled=false)")
    return topic
