"""The right that each route of the REST interface demands first, as docs/reference/rest.md lists it."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.routing import Route
from tests.support.documented_permissions import POLICY, documented_permissions, method_of, named, permission_of
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.rest import Answer, call

from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.proxied_role import Principal
from pybroker.config import BrokerConfig
from pybroker.errors import AuthorizationError
from pybroker.metadata.resources import Resources
from pybroker.model.names import DOMAINS, PERSISTENT, NamespaceName, TopicName

PERMISSIONS = "/admin/v2/namespaces/{}PermissionsOnTopics"
ON_TOPICS = [{"topic": "persistent://public/default/t", "role": "someone", "actions": ["produce"]}]
BODIES: dict[str, object] = {PERMISSIONS.format("grant"): ON_TOPICS, PERMISSIONS.format("revoke"): ON_TOPICS}
"""Of the calls whose body says what it is about."""
EACH_BY_RIGHT = {"/admin/v3/console/topics", "/admin/v3/console/rights", "/admin/v3/explain"}
"""A role without a right is shown less, and refused nothing: test_console.py, test_explain.py."""
NO_JSON = b"{"
SEGMENTS = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s"}
NONE = "-"


class RefusingAuthorization(AuthorizationService):
    """Lets nobody in anywhere, and remembers what was asked for, by the letters of the document."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(BrokerConfig(), resources)  # disabled: no other rule applies
        self.asked: list[str] = []

    async def require_superuser(self, principal: Principal) -> None:
        self._refuse("S")

    async def require_tenant_admin(self, tenant: str, principal: Principal) -> None:
        self._refuse("A")

    async def require_namespace_admin(self, namespace: NamespaceName, principal: Principal) -> None:
        self._refuse("A")

    async def require_list_topics(self, namespace: NamespaceName, principal: Principal) -> None:
        self._refuse("P")

    async def require_lookup(self, topic: TopicName, principal: Principal) -> None:
        self._refuse("L")

    async def require_produce(self, topic: TopicName, principal: Principal) -> None:
        self._refuse("produce")

    async def require_consume(self, topic: TopicName, subscription: str, principal: Principal) -> None:
        self._refuse("C")

    def _refuse(self, right: str) -> None:
        self.asked.append(right)
        raise AuthorizationError(f"lacks {right}")


async def answer_of(broker: MemoryBroker, route: Route, domain: str) -> Answer:
    """What the route answers to names that exist, with a body that is none of its."""
    names = {**SEGMENTS, "domain": domain}
    path = re.sub(r"\{(\w+)(:path)?\}", lambda match: names.get(match[1], "1"), route.path)
    url = f"http://127.0.0.1:{broker.port}{path}?tenant=public"
    return await asyncio.to_thread(call, url, method_of(route), body=BODIES.get(route.path, NO_JSON))


def routes_of(broker: MemoryBroker) -> list[Route]:
    return [route for route in broker.routes if isinstance(route, Route)]


async def demanded_rights(domain: str) -> dict[tuple[str, str], str]:
    """The right that each route demands, by method and path; fails for one that goes on when it is refused.

    Of non-persistent topics only the routes that name a topic's domain.
    """
    found: dict[tuple[str, str], str] = {}
    async with memory_broker() as broker:
        await broker.topic("persistent://public/default/t")
        broker.service.broker_context.authorization = authorization = RefusingAuthorization(broker.service.resources)
        for route in routes_of(broker):
            if domain != PERSISTENT and "{domain}/{tenant}" not in route.path:
                continue
            if route.path in EACH_BY_RIGHT:
                found["GET", route.path] = NONE
                continue
            authorization.asked.clear()
            answer = await answer_of(broker, route, domain)
            right = authorization.asked[0] if authorization.asked else NONE
            assert len(authorization.asked) < 2, f"{route.path}: a refusal was not the end"
            assert right == NONE or answer.status in {401, 403}, f"{method_of(route)} {route.path}: {answer}"
            found[method_of(route), route.path] = right
    return found


@pytest.mark.parametrize("domain", DOMAINS)
async def test_every_route_demands_the_right_that_is_documented_before_anything_else(domain: str) -> None:
    documented = documented_permissions()
    wrong = []
    for (method, path), right in (await demanded_rights(domain)).items():
        said = permission_of(documented, method, path)
        if said != right:
            wrong.append(f"{method} {path} demands {right}, documented is {said}")
    assert not wrong, "\n".join(wrong)


async def test_every_documented_call_is_served() -> None:
    async with memory_broker() as broker:
        served = {(method_of(route), named(route.path)) for route in routes_of(broker)}
    paths = {path for _, path in served}
    missing = [
        f"{method} {path}"
        for method, path in documented_permissions()
        if method != POLICY and (method, path) not in served and not (method == "any" and path in paths)
    ]
    assert not missing, "\n".join(missing)
