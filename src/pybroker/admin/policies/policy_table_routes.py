"""REST routes of policies with a single value per level (namespace or topic).

GET returns the value of its own level; with `?applied=true`, where supported, the effective value. The columns of
`policy_table.py` define the differences between policies.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import BadBody, Call, empty_ok, json_response, no_content
from pybroker.admin.calls.existing_namespaces import administered_namespace, existing_namespace, superusers_namespace
from pybroker.admin.calls.queries import APPLIED, Query
from pybroker.admin.calls.route_paths import NAMESPACE, TOPIC
from pybroker.admin.calls.routing import Handler, route
from pybroker.admin.policies.policy_table import NO_CONTENT, REFUSED, TABLE, UNCHANGED, Level, PlainPolicy
from pybroker.admin.policies.policy_values import MAX_SIGNED_32
from pybroker.admin.policies.topic_policies import policies_topic
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName
from pybroker.model.policies import NamespacePolicies, TopicPolicies


def routes() -> list[Route]:
    found: list[Route] = []
    for policy in TABLE:
        if policy.namespace is not None:
            found += NamespaceCalls(policy, policy.namespace).routes()
        if policy.topic is not None:
            found += TopicCalls(policy, policy.topic).routes()
    return found


class LevelCalls:
    """Routes of one policy at one level."""

    def __init__(self, policy: PlainPolicy, level: Level) -> None:
        self._policy = policy
        self._level = level

    def _routes(self, base: str, get: Handler, put: Handler, unset: Handler, *, shows_applied: bool) -> list[Route]:
        path = f"{base}/{self._level.path}"
        takes_body = not self._level.is_in_query and self._level.fixed_value is None
        body = self._policy.value_type if takes_body else None
        given = (
            [Query(self._level.path, "the value; without a body the policy is removed", int)]
            if self._level.is_in_query
            else []
        )
        shown = [APPLIED] if shows_applied else []
        found = [
            route("GET", path, get, queries=shown),
            route(self._level.set_method, path, put, body=body, queries=given),
        ]
        return [*found, route("DELETE", path, unset)] if self._level.can_be_unset else found

    def _shown(self, value: object) -> Response:
        shown = self._level.unset if value is None else value
        if shown is NO_CONTENT:
            return no_content()
        return empty_ok() if shown is None else json_response(shown)

    async def _given(self, call: Call) -> object:
        level = self._level
        if level.fixed_value is not None:
            return level.fixed_value
        if level.is_in_query:
            value: object = _in_query(call, level.path)
        else:
            value = await call.optional_json(self._policy.value_type)
        if value is None:
            value = level.nothing
        if value is REFUSED:
            raise BadBody(f"The policy {level.path} needs a value in the request")
        if value is UNCHANGED or value is None:
            return value
        if value == level.unset_by:
            return None
        self._policy.check(call, value)
        return value


class NamespaceCalls(LevelCalls):
    """Routes of one policy on namespaces."""

    def routes(self) -> list[Route]:
        return self._routes(NAMESPACE, self._get, self._set, self._unset, shows_applied=self._level.is_applied)

    async def _get(self, call: Call) -> Response:
        """Return the value that is set on the namespace."""
        namespace = await administered_namespace(call)
        document = existing_namespace(call, namespace)
        shown = getattr(document, self._level.field)
        if self._policy.is_by_cluster:
            shown = shown.get(call.config.cluster_name)
        is_applied = self._level.is_applied and call.flag("applied")
        is_applied = is_applied or (self._level.shows_default and shown is None)
        if is_applied and self._policy.applied is not None:
            shown = self._policy.applied(call.broker.broker_context.effective_policies(namespace, TopicPolicies()))
        return self._shown(shown)

    async def _set(self, call: Call) -> Response:
        """Set the policy. A request without a value removes the policy, where permitted."""
        namespace = await self._changed_namespace(call)
        existing_namespace(call, namespace)
        value = await self._given(call)
        if value is not UNCHANGED:
            await self._store(call, namespace, value)
        return no_content()

    async def _changed_namespace(self, call: Call) -> NamespaceName:
        return (
            await superusers_namespace(call) if self._level.is_set_by_superusers else await administered_namespace(call)
        )

    async def _unset(self, call: Call) -> Response:
        """Remove the value, so that the broker's value applies."""
        await self._store(call, await self._changed_namespace(call), self._level.removed)
        return no_content()

    async def _store(self, call: Call, namespace: NamespaceName, value: object) -> None:
        cluster = call.config.cluster_name

        def change(policies: NamespacePolicies) -> None:
            for field in (self._level.field, *self._level.also):
                if not self._policy.is_by_cluster:
                    setattr(policies, field, value)
                elif value is None:
                    getattr(policies, field).pop(cluster, None)
                else:
                    getattr(policies, field)[cluster] = value

        await call.resources.update_namespace(namespace, change)


class TopicCalls(LevelCalls):
    """Routes of one policy on topics."""

    def routes(self) -> list[Route]:
        return self._routes(TOPIC, self._get, self._set, self._unset, shows_applied=self._policy.applied is not None)

    async def _get(self, call: Call) -> Response:
        """Return the value that is set on the topic; with `applied=true`, the effective value."""
        topic = await policies_topic(call)
        if self._policy.applied is not None and call.flag("applied"):
            return self._shown(self._policy.applied(await call.broker.policies_in_force.of_topic(topic)))
        return self._shown(getattr(await call.resources.topic_policies(topic), self._level.field))

    async def _set(self, call: Call) -> Response:
        """Set the policy. A request without a value removes the policy, where permitted."""
        await policies_topic(call)
        value = await self._given(call)
        if value is not UNCHANGED:
            await self._store(call, value)
        return no_content()

    async def _unset(self, call: Call) -> Response:
        """Remove the value, so that the value of the namespace or broker applies."""
        await self._store(call, self._level.removed)
        return no_content()

    async def _store(self, call: Call, value: object) -> None:
        def change(policies: TopicPolicies) -> None:
            setattr(policies, self._level.field, value)

        await call.resources.update_topic_policies(await policies_topic(call), change)


def _in_query(call: Call, name: str) -> int | None:
    text = call.query(name)
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        value = MAX_SIGNED_32 + 1
    if not -MAX_SIGNED_32 <= value <= MAX_SIGNED_32:
        raise AdminError(404, f"The query parameter {name} is {text!r}: expected a 32-bit integer")
    return value
