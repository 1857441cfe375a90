"""Policies that are one value at each level, set, shown and unset alike: a table, and the calls that all of them share.

A GET shows what is set at its level alone; for a topic with `?applied=true` what is in force. A POST without a body, or
with `null`, unsets the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import BadBody, Call, Handler, empty_ok, json_response, no_content, route
from pybroker.admin.policy_values import MAX_SIGNED_32
from pybroker.admin.routes.namespaces import NAMESPACE, administered_namespace, existing_namespace
from pybroker.admin.routes.topic_policies import TOPIC, policies_topic
from pybroker.errors import AdminError
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.names import NamespaceName
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    DelayedDeliveryPolicies,
    DispatchRate,
    NamespacePolicies,
    SubscribeRate,
    TopicPolicies,
)


@dataclass(frozen=True, slots=True)
class PlainPolicy:
    """One row: the names of the policy in paths and documents, its type, and what makes sense."""

    path: str
    value_type: type[Any]
    namespace_field: str
    topic_field: str
    applied: Callable[[EffectivePolicies], Any]
    is_by_cluster: bool = False
    """Whether the namespace's document has a value for each cluster."""
    is_in_query: bool = False
    """Whether a topic's value comes as a query parameter of the path's name."""
    check: Callable[[Any], None] = lambda _: None
    """Raises AdminError for a value that nobody can mean."""


def _at_least_zero(minutes: int) -> None:
    if not 0 <= minutes <= MAX_SIGNED_32:
        raise AdminError(412, "Invalid value for subscription expiration time: it must be >= 0")


TABLE = (
    PlainPolicy(
        "dispatchRate",
        DispatchRate,
        "topicDispatchRate",
        "dispatchRate",
        lambda effective: effective.dispatch_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        "subscriptionDispatchRate",
        DispatchRate,
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        lambda effective: effective.subscription_dispatch_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        "subscribeRate",
        SubscribeRate,
        "clusterSubscribeRate",
        "subscribeRate",
        lambda effective: effective.subscribe_rate,
        is_by_cluster=True,
    ),
    PlainPolicy(
        "subscriptionExpirationTime",
        int,
        "subscription_expiration_time_minutes",
        "subscriptionExpirationTimeMinutes",
        lambda effective: effective.subscription_expiration_minutes,
        is_in_query=True,
        check=_at_least_zero,
    ),
    PlainPolicy(
        "autoSubscriptionCreation",
        AutoSubscriptionCreationOverride,
        "autoSubscriptionCreationOverride",
        "autoSubscriptionCreationOverride",
        lambda effective: effective.auto_subscription_creation,
    ),
    PlainPolicy(
        "delayedDelivery",
        DelayedDeliveryPolicies,
        "delayed_delivery_policies",
        "delayedDeliveryPolicies",
        lambda effective: effective.delayed_delivery,
    ),
)


def routes() -> list[Route]:
    return [
        route(method, f"{level}/{policy.path}", handler)
        for policy in TABLE
        for level, handlers in ((NAMESPACE, NamespaceCalls(policy)), (TOPIC, TopicCalls(policy)))
        for method, handler in handlers.by_method()
    ]


class NamespaceCalls:
    """The calls of one policy on namespaces."""

    def __init__(self, policy: PlainPolicy) -> None:
        self._policy = policy

    def by_method(self) -> list[tuple[str, Handler]]:
        return [("GET", self._get), ("POST", self._set), ("DELETE", self._unset)]

    async def _get(self, call: Call) -> Response:
        document = existing_namespace(call, administered_namespace(call))
        shown = getattr(document, self._policy.namespace_field)
        if self._policy.is_by_cluster:
            shown = shown.get(call.config.cluster_name)
        return empty_ok() if shown is None else json_response(shown)

    async def _set(self, call: Call) -> Response:
        namespace = administered_namespace(call)
        value = await call.optional_json(self._policy.value_type)
        if value is not None:
            self._policy.check(value)
        elif self._policy.is_in_query:
            _no_value()
        return await self._store(call, namespace, value)

    async def _unset(self, call: Call) -> Response:
        return await self._store(call, administered_namespace(call), None)

    async def _store(self, call: Call, namespace: NamespaceName, value: object) -> Response:
        field, cluster = self._policy.namespace_field, call.config.cluster_name

        def change(policies: NamespacePolicies) -> None:
            if not self._policy.is_by_cluster:
                setattr(policies, field, value)
            elif value is None:
                getattr(policies, field).pop(cluster, None)
            else:
                getattr(policies, field)[cluster] = value

        await call.resources.update_namespace(namespace, change)
        return no_content()


class TopicCalls:
    """The calls of one policy on topics."""

    def __init__(self, policy: PlainPolicy) -> None:
        self._policy = policy

    def by_method(self) -> list[tuple[str, Handler]]:
        return [("GET", self._get), ("POST", self._set), ("DELETE", self._unset)]

    async def _get(self, call: Call) -> Response:
        topic = await policies_topic(call)
        own = await call.resources.topic_policies(topic)
        shown = getattr(own, self._policy.topic_field)
        if call.flag("applied"):
            shown = self._policy.applied(call.broker.effective_policies(topic.namespace, own))
        return empty_ok() if shown is None else json_response(shown)

    async def _set(self, call: Call) -> Response:
        await policies_topic(call)
        value = self._in_query(call) if self._policy.is_in_query else await call.optional_json(self._policy.value_type)
        if value is not None:
            self._policy.check(value)
        return await self._store(call, value)

    async def _unset(self, call: Call) -> Response:
        return await self._store(call, None)

    def _in_query(self, call: Call) -> int:
        text = call.query(self._policy.path)
        try:
            return int(text or "")
        except ValueError:
            raise AdminError(404, f"{self._policy.path} is {text!r}: expected a whole number") from None

    async def _store(self, call: Call, value: object) -> Response:
        def change(policies: TopicPolicies) -> None:
            setattr(policies, self._policy.topic_field, value)

        await call.resources.update_topic_policies(await policies_topic(call), change)
        return no_content()


def _no_value() -> NoReturn:
    raise BadBody("a number is needed")
