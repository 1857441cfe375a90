"""Every REST call by every client: the answers are in `clients.py`, the permission of each call in
docs/reference/rest.md and its further pages.

A call without a documented permission fails the test. Calls that change something have a body that is no JSON, or a topic
that does not exist, so that an allowed call fails after the broker has checked its permission.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.routing import Route
from tests.protocol.authorization_matrix.clients import client, expected_answers, secured_broker
from tests.protocol.authorization_matrix.http_exchange import Answer, HttpExchange
from tests.support.documented_permissions import Documented, documented_permissions, method_of, permission_of

OPEN = frozenset({"/", "/console", "/console/{file}", "/docs", "/live", "/metrics", "/ready", "/status.html"})
OPEN |= {f"/console/{path}" for path in ("sign-in", "login", "callback", "logout")}
"""Paths that need no credentials."""

NO_JSON = b"{"
NAMES = {"tenant": "acme", "namespace": "ns", "domain": "persistent", "cluster": "standalone"}
ON_TOPICS = [{"topic": "persistent://acme/ns/absent", "role": "someone", "actions": ["produce"]}]


class Special(NamedTuple):
    """A call whose permission depends on its body. Plans and leases have a status for each topic in their response."""

    permission: str
    body: object
    refused: int


SINK, ENTRIES = "/admin/v3/transactions/sinks/{sink}", "/admin/v3/entries/persistent/{tenant}/{namespace}"
SPECIAL = {
    "/admin/v2/namespaces/grantPermissionsOnTopics": Special("A", ON_TOPICS, 401),
    "/admin/v2/namespaces/revokePermissionsOnTopics": Special("A", ON_TOPICS, 401),
    f"{ENTRIES}/plan": Special("C", {"topics": [{"topic": "t"}]}, 401),
    f"POST {ENTRIES}/leases": Special("C", {"reader": "r", "topics": [{"topic": "t", "start": [0, 0]}]}, 401),
    f"{SINK}/open": Special("somewhere", {"batch": 1, "writer": "w", "run": "r"}, 403),
    f"{SINK}/commit": Special("somewhere", {"batch": 1, "transactions": [], "writer": "w"}, 403),
}

REFUSED = {"S": 401, "L": 401, "C": 401, "produce": 401, "P": 403, "A": 403}
"""The status of a missing permission, which differs in Pulsar for historical reasons."""
REFUSED_ADMIN_401 = re.compile(
    r"\w+ /admin/v\d/(tenants/"
    r"|(schemas|transactions)/"
    r"|namespaces/\{cluster\}/antiAffinity"
    r"|namespaces/\{tenant\}$"
    r"|namespaces/\{tenant\}/\{namespace\}/propert"
    r"|\{domain\}/\{tenant\}/\{namespace\}/\{topic\}"
    r"/(permissions|properties|unload|terminate|trim|truncate|compaction|offload|producer)(/|$))"
    r"|(PUT|DELETE) /admin/v2/namespaces/\{tenant\}/\{namespace\}$"
)
"""Calls with permission A that are refused with 401."""


class Row(NamedTuple):
    """One call of the matrix."""

    method: str
    path: str
    permission: str
    body: object
    refused: int

    def url(self, client_name: str) -> str:
        names = {**NAMES, "topic": "t" if self.method == "GET" else "absent", "sink": client_name}
        return re.sub(r"\{(\w+)(:path)?\}", lambda match: names.get(match[1], "1"), self.path) + "?tenant=acme"

    def is_as_expected(self, answer: str, status: int) -> bool:
        match answer:
            case "ok":
                return status not in {401, 403, 500}
            case "no":
                return status == self.refused
            case _:
                return status == int(answer)


def row_of(route: Route, documented: Documented) -> Row:
    method, path = method_of(route), route.path
    special = SPECIAL.get(path) or SPECIAL.get(f"{method} {path}")
    if special is not None:
        return Row(method, path, *special)
    permission = permission_of(documented, method, path)
    assert permission is not None, f"{method} {path}: docs/reference/rest.md does not list its permission"
    if path in OPEN:
        permission = "open"
    refused = 401 if REFUSED_ADMIN_401.match(f"{method} {path}") else REFUSED.get(permission, 0)
    return Row(method, path, permission, NO_JSON, refused)


def status_of(answer: Answer, row: Row) -> int:
    """Return the status; of plans and leases the status of the topic."""
    of_topic = re.search(rb'"status":(\d+)', answer.body) if row.path.startswith(ENTRIES) else None
    return answer.status if of_topic is None else int(of_topic[1])


async def test_every_rest_call_with_every_client() -> None:
    documented, answers = documented_permissions(), expected_answers()
    wrong = []
    async with secured_broker(transaction_coordinator_enabled=True) as broker, HttpExchange(broker.port) as http:
        for route in broker.routes:
            assert isinstance(route, Route)
            row = row_of(route, documented)
            for name, answer in answers[row.permission].items():
                headers = {"Accept": "text/html, */*", **client(name, row.permission).headers}
                status = status_of(await http.send(row.method, row.url(name), row.body, headers), row)
                if not row.is_as_expected(answer, status):
                    wrong.append(f"{row.method} {row.path} ({row.permission}) by {name}: {status}, expected {answer}")
    assert not wrong, "\n".join(wrong)


def test_all_special_rows_are_calls_of_the_broker() -> None:
    documented = documented_permissions()
    for path in SPECIAL:
        method, _, found = path.rpartition(" ")
        assert permission_of(documented, method or "POST", found), path
