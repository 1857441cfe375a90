"""`.../{topic}/permissions` and `/namespaces/grantPermissionsOnTopics`: permissions of roles on single topics.

Permissions on a partitioned topic apply to its partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.existing import topic_exists
from pybroker.admin.calls.existing_namespaces import existing_tenant
from pybroker.admin.calls.route_paths import NAMESPACES, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError, InvalidTopicName, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.model.policies import AuthAction, NamespacePolicies, ordered_actions

PERMISSIONS = TOPIC + "/permissions"


class GrantOnTopic(msgspec.Struct):
    """Permissions of a role on one topic."""

    topic: str
    role: str
    actions: list[AuthAction] = []


class RevokeOnTopic(msgspec.Struct):
    """A role that loses its permissions on one topic."""

    topic: str
    role: str


def routes() -> list[Route]:
    return [
        route("POST", NAMESPACES + "/grantPermissionsOnTopics", grant_on_topics, body=list[GrantOnTopic]),
        route("POST", NAMESPACES + "/revokePermissionsOnTopics", revoke_on_topics, body=list[RevokeOnTopic]),
        route("GET", PERMISSIONS, get_permissions),
        route("POST", PERMISSIONS + "/{role}", grant, body=list[AuthAction]),
        route("DELETE", PERMISSIONS + "/{role}", revoke),
    ]


async def get_permissions(call: Call) -> Response:
    """Return the permissions on the topic, combined with the permissions on its namespace. A partition has the
    permissions of its partitioned topic.
    """
    topic = await _changeable(call, call.topic_name())
    policies = call.resources.namespace(topic.namespace)
    assert policies is not None, "a topic without a namespace cannot exist"
    granted = policies.auth_policies
    found: dict[str, list[AuthAction]] = {}
    for permissions in (granted.namespace_auth, granted.destination_auth.get(str(topic), {})):
        for role, actions in permissions.items():
            found[role] = ordered_actions([*found.get(role, ()), *actions])
    return json_response(found)


async def grant(call: Call) -> Response:
    """Replace the permissions of a role on the topic. A request without a body changes nothing."""
    topic, role = await _changeable(call, call.topic_name()), call.name("role")
    actions = await call.optional_json(list[AuthAction])
    if actions is not None:
        await _grant(call, [(topic, role, ordered_actions(actions))])
    return no_content()


async def revoke(call: Call) -> Response:
    """Remove the permissions of a role on the topic. A role without permissions is not an error."""
    topic, role = await _changeable(call, call.topic_name()), call.name("role")
    await _revoke(call, [(topic, role)])
    return no_content()


async def grant_on_topics(call: Call) -> Response:
    """Grant permissions on several topics of one namespace: on all of them or on none."""
    given = await call.json(list[GrantOnTopic])
    topics = await _topics_of_one_namespace(call, [each.topic for each in given])
    await _grant(
        call, [(topic, each.role, ordered_actions(each.actions)) for topic, each in zip(topics, given, strict=True)]
    )
    return no_content()


async def revoke_on_topics(call: Call) -> Response:
    """Revoke permissions on several topics of one namespace: on all of them or on none."""
    given = await call.json(list[RevokeOnTopic])
    topics = await _topics_of_one_namespace(call, [each.topic for each in given])
    await _revoke(call, [(topic, each.role) for topic, each in zip(topics, given, strict=True)])
    return no_content()


async def _grant(call: Call, grants: Sequence[tuple[TopicName, str, list[AuthAction]]]) -> None:
    def change(policies: NamespacePolicies) -> None:
        by_topic = policies.auth_policies.destination_auth
        for topic, role, actions in grants:
            by_topic.setdefault(str(topic), {})[role] = actions

    await call.resources.update_namespace(grants[0][0].namespace, change)


async def _revoke(call: Call, revoked: Sequence[tuple[TopicName, str]]) -> None:
    def change(policies: NamespacePolicies) -> None:
        by_topic = policies.auth_policies.destination_auth
        for topic, role in revoked:
            roles = by_topic.get(str(topic), {})
            roles.pop(role, None)
            if not roles:
                by_topic.pop(str(topic), None)

    await call.resources.update_namespace(revoked[0][0].namespace, change)


async def _topics_of_one_namespace(call: Call, texts: Sequence[str]) -> list[TopicName]:
    try:
        topics = [TopicName.parse(text) for text in texts]
    except InvalidTopicName as error:
        raise AdminError(412, f"Topic name is not valid: {error}") from error
    if len({topic.namespace for topic in topics}) != 1:
        raise AdminError(400, "The namespace should be the same")
    return [await _changeable(call, topic) for topic in topics]


async def _changeable(call: Call, topic: TopicName) -> TopicName:
    await call.require_topic_admin(topic)
    existing_tenant(call, topic.tenant)
    may_be_missing = call.config.allow_acl_changes_on_non_existent_topics
    has_namespace = call.resources.namespace(topic.namespace) is not None
    if not has_namespace or not (may_be_missing or await topic_exists(call, topic)):
        raise TopicNotFound(f"Topic {topic} not found")
    return topic
