"""The right that each route of the REST interface demands first, as docs/reference/rest.md lists it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.rest import Answer, call

from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.proxied_role import Principal
from pybroker.errors import AuthorizationError
from pybroker.model.names import DOMAINS, PERSISTENT, NamespaceName, TopicName

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
DOCUMENTS = [REFERENCE / "rest.md", REFERENCE / "rest-policies.md", REFERENCE / "rest-details.md"]
PERMISSIONS = "/admin/v2/namespaces/{}PermissionsOnTopics"
ON_TOPICS = [{"topic": "persistent://public/default/t", "role": "someone", "actions": ["produce"]}]
BODIES: dict[str, object] = {PERMISSIONS.format("grant"): ON_TOPICS, PERMISSIONS.format("revoke"): ON_TOPICS}
"""Of the calls whose body says what it is about."""
EACH_BY_RIGHT = {"/admin/v3/console/topics", "/admin/v3/console/rights", "/admin/v3/explain"}
"""A role without a right is shown less, and refused nothing: test_console.py, test_explain.py."""
NO_JSON = b"{"
SEGMENTS = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s"}
NONE = "-"
POLICY = "<policy>"


class RefusingAuthorization(AuthorizationService):
    """Lets nobody in anywhere, and remembers what was asked for, by the letters of the document."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.enabled = False  # no other rule applies

    def require_superuser(self, principal: Principal) -> None:
        self._refuse("S")

    def require_tenant_admin(self, tenant: str, principal: Principal) -> None:
        self._refuse("A")

    def require_namespace_admin(self, namespace: NamespaceName, principal: Principal) -> None:
        self._refuse("A")

    def require_list_topics(self, namespace: NamespaceName, principal: Principal) -> None:
        self._refuse("P")

    def require_lookup(self, topic: TopicName, principal: Principal) -> None:
        self._refuse("L")

    def require_produce(self, topic: TopicName, principal: Principal) -> None:
        self._refuse("produce")

    def require_consume(self, topic: TopicName, subscription: str, principal: Principal) -> None:
        self._refuse("C")

    def _refuse(self, right: str) -> None:
        self.asked.append(right)
        raise AuthorizationError(f"lacks {right}")


def method_of(route: Route) -> str:
    return min((route.methods or set()) - {"HEAD"})


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
        broker.service.broker_context.authorization = authorization = RefusingAuthorization()
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


def named(path: str) -> str:
    """A path in the words of the document, whatever the parameters are called."""
    path = re.sub(r"^/admin/v[23]", "", path)
    path = path.replace("{domain}/{tenant}/{namespace}/{topic}", "T").replace("{tenant}/{namespace}", "N")
    return re.sub(r"\{[^}]*\}", "{}", path)


def spelled_out(path: str) -> Iterator[str]:
    """The paths that one of the document's stands for: `[x]` may be there, of `{a,b}` one is, and `/...` is all below."""
    if path.endswith("/..."):
        base = path.removesuffix("/...")
        yield from (base, base + "/{}")
    elif optional := re.search(r"\[([^]]*)\]", path):
        for text in ("", optional[1]):
            yield from spelled_out(path.replace(optional[0], text, 1))
    elif choice := re.search(r"\{([^}]*,[^}]*)\}", path):
        for text in choice[1].split(","):
            yield from spelled_out(path.replace(choice[0], text, 1))
    else:
        yield named(path)


def documented_rights() -> dict[tuple[str, str], str]:
    """What the document says, by method and path; the method is `any` where it says so, the path of a policy is `<policy>`."""
    found: dict[tuple[str, str], str] = {}
    for line in (line for page in DOCUMENTS for line in page.read_text(encoding="utf-8").splitlines()):
        cells = [cell.strip() for cell in line.replace(r"\|", "/").strip("|").split("|")]
        if len(cells) != 4 or not re.fullmatch(r"[SAPLC-]( [SAPLC-])*|`produce`", cells[2]):
            continue
        methods = cells[0].split() or [POLICY]
        rights = cells[2].strip("`").split()
        for index, method in enumerate(methods):
            for text in re.findall(r"`([^`]*)`", cells[1]):
                for path in spelled_out(text):
                    found[method, path] = rights[index] if len(rights) > 1 else rights[0]
    return found


@pytest.mark.parametrize("domain", DOMAINS)
async def test_every_route_demands_the_right_that_is_documented_before_anything_else(domain: str) -> None:
    documented = documented_rights()
    wrong = []
    for (method, path), right in (await demanded_rights(domain)).items():
        words = named(path)
        said = documented.get((method, words)) or documented.get(("any", words))
        if said is None and words.startswith(("/namespaces/N/", "/T/")):
            base = words[: words.index("/", len("/namespaces/")) if words.startswith("/namespaces/") else 2]
            said = documented[POLICY, f"{base}/{POLICY}"]
        if said != right:
            wrong.append(f"{method} {path} demands {right}, documented is {said}")
    assert not wrong, "\n".join(wrong)


async def test_every_documented_call_is_served() -> None:
    async with memory_broker() as broker:
        served = {(method_of(route), named(route.path)) for route in routes_of(broker)}
    paths = {path for _, path in served}
    missing = [
        f"{method} {path}"
        for method, path in documented_rights()
        if method != POLICY and (method, path) not in served and not (method == "any" and path in paths)
    ]
    assert not missing, "\n".join(missing)
