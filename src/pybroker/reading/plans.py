"""Requests for read plans to a broker, for many topics at once. Responses in several parts are joined."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pybroker.reading.entry_source import ReadingFailed, TopicMissing
from pybroker.reading.positions import Place, PlannedLedger, SparsePoint, TopicPlan
from pybroker.reading.rest_topics import NOT_FOUND, parsed

if TYPE_CHECKING:
    from pybroker.client.rest import RestClient
    from pybroker.model.names import NamespaceName

TOPICS_AT_ONCE = 500
"""Topics in one request, limited so that the broker can serve others in between."""
MAX_ROUNDS = 10_000
"""Maximum number of requests for one set of plans. Each returns thousands of ledgers or points, so more requests
indicate a faulty broker.
"""
TRIES_OF_CHANGING = 20


PlanRequest = tuple[str, "Place | None", "Place | None"]
"""Topic or partition, start and end."""


class Plans:
    """Requests plans from one broker."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def of(self, requests: Sequence[PlanRequest], *, with_points: bool = True) -> list[TopicPlan]:
        found: dict[int, TopicPlan] = {}
        by_namespace: dict[NamespaceName, list[int]] = {}
        for number, request in enumerate(requests):
            by_namespace.setdefault(parsed(request[0]).namespace, []).append(number)
        for namespace, numbers in by_namespace.items():
            for start in range(0, len(numbers), TOPICS_AT_ONCE):
                part = numbers[start : start + TOPICS_AT_ONCE]
                plans = self._of_namespace(namespace, [requests[number] for number in part], with_points)
                found.update(zip(part, plans, strict=True))
        return [found[number] for number in range(len(requests))]

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        name = parsed(topic)
        # An end before the first entry, because only the position is needed.
        asked = {"topic": name.local_name, "publishTime": publish_time_ms, "end": (-1, -1)}
        shown = self._ask(name.namespace, [asked], with_points=False)[0]
        return Place(*shown["placeAtTime"])

    def _of_namespace(
        self, namespace: NamespaceName, requests: Sequence[PlanRequest], with_points: bool
    ) -> list[TopicPlan]:
        plans: dict[int, TopicPlan] = {}
        left = {number: _asked(request) for number, request in enumerate(requests)}
        for _ in range(MAX_ROUNDS):
            shown = self._ask(namespace, list(left.values()), with_points=with_points)
            for number, part in zip(list(left), shown, strict=True):
                if "start" in part:
                    plan = _plan(requests[number][0], part)
                    if requests[number][1] is None:
                        plan = replace(plan, lost=())  # a later part has no requested start, so it has no losses
                    known = plans.get(number)
                    plans[number] = plan if known is None else _joined(known, plan)
                following = part.get("next")
                if following is None:
                    del left[number]
                elif "start" in part:
                    left[number]["start"] = following
                    left[number].setdefault("end", None)
            if not left:
                return [plans[number] for number in range(len(requests))]
        raise ReadingFailed(
            f"the read plan of topics in namespace {namespace} is incomplete: the broker sent more than {MAX_ROUNDS} parts"
        )

    def _ask(self, namespace: NamespaceName, asked: list[dict[str, Any]], *, with_points: bool) -> list[dict[str, Any]]:
        path = f"/admin/v3/entries/persistent/{quote(namespace.tenant, safe='')}/{quote(namespace.local_name, safe='')}/plan"
        answers: list[dict[str, Any]] = [{}] * len(asked)
        open_numbers = list(range(len(asked)))
        for _ in range(TRIES_OF_CHANGING):
            body = {"topics": [asked[number] for number in open_numbers], "points": with_points}
            for number, shown in zip(open_numbers, self._rest.json("POST", path, body)["topics"], strict=True):
                answers[number] = shown
            # Topics that are being unloaded or trimmed: a further request waits until that is complete.
            open_numbers = [number for number in open_numbers if answers[number].get("status") in {429, 503}]
            if not open_numbers:
                break
        for shown in answers:
            if shown.get("status", 200) != 200:
                text = f"{namespace}/{shown['topic']}: {self._rest.where} answered {shown['status']}: {shown['reason']}"
                if shown["status"] == NOT_FOUND:
                    raise TopicMissing(text, f"persistent://{namespace}/{shown['topic']}")
                raise ReadingFailed(text)
        return answers


def _asked(request: PlanRequest) -> dict[str, Any]:
    topic, start, end = request
    asked: dict[str, Any] = {"topic": parsed(topic).local_name}
    if start is not None:
        asked["start"] = start
    if end is not None:
        asked["end"] = end
    return asked


def _plan(topic: str, shown: dict[str, Any]) -> TopicPlan:
    ledgers = tuple(
        PlannedLedger(
            each["ledgerId"],
            each["firstEntry"],
            each["endEntry"],
            each["sizeBytes"],
            each["messageCount"],
            each["isSealed"],
            tuple(SparsePoint(*point) for point in each["points"]),
            base64.b64decode(each.get("hidden", "")),
        )
        for each in shown.get("ledgers", ())
    )
    start, end, first = (Place(*shown[name]) for name in ("start", "end", "first"))
    return TopicPlan(topic, start, end, first, ledgers, tuple(shown.get("lost", ())), shown.get("isHeldBack", False))


def _joined(known: TopicPlan, following: TopicPlan) -> TopicPlan:
    return replace(
        known,
        end=following.end,
        is_held_back=following.is_held_back,
        ledgers=(*known.ledgers, *following.ledgers),
        lost=(*known.lost, *following.lost),
    )
