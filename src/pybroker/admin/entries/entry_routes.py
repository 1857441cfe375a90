"""`/admin/v3/entries/persistent/{tenant}/{namespace}/...`: bulk reads of ledger ranges, for analytics and pipelines.

Checks that the role may consume from the topic. Reads change nothing: no cursor moves, and no topic is created.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.existing import existing_topic, while_served
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import ENTRIES
from pybroker.admin.calls.routing import route
from pybroker.admin.entries.entry_blocks import BlocksResponse, BulkReads
from pybroker.admin.entries.entry_plan import AskedPlans, AskedTopic, PlanBudget, TopicShown, plan_of
from pybroker.broker.service import BrokerService
from pybroker.errors import AdminError, BrokerError, InvalidTopicName, NoSuchLedger
from pybroker.model.names import PERSISTENT, TopicName

TOPIC = ENTRIES + "/{topic}"
MAX_TOPICS = 2000
"""Maximum number of topics in one request for plans."""


TOPICS_AT_ONCE = 16
"""Topics of one request that are loaded concurrently."""


class PlansShown(msgspec.Struct):
    """Plans in the order of the request."""

    topics: list[TopicShown]


class EntryRoutes:
    """Routes of plans and bulk reads."""

    def __init__(self, broker: BrokerService) -> None:
        self.reads = BulkReads(broker.runtime.config, broker.runtime.clock, broker.runtime.memory)

    def routes(self) -> list[Route]:
        return [
            route("POST", ENTRIES + "/plan", self.plan, body=AskedPlans),
            route("GET", TOPIC + "/ledger/{ledger_id}", self.read, queries=_READ_QUERIES, answers=_READ_ANSWERS),
        ]

    async def plan(self, call: Call) -> Response:
        """Return plans: the entries of each requested topic between two positions.

        A plan contains ledgers with their requested entries, bytes and messages, points at which a ledger can be split,
        and requested entries that are deleted. Each topic has its own status, such as 404 or 403.
        """
        asked = await call.json(AskedPlans)
        if len(asked.topics) > MAX_TOPICS:
            raise AdminError(
                413,
                f"The request has {len(asked.topics)} topics, but at most {MAX_TOPICS} are allowed: split the request",
            )
        budget = PlanBudget(call.runtime)
        shown: list[TopicShown] = []
        for start in range(0, len(asked.topics), TOPICS_AT_ONCE):
            part = asked.topics[start : start + TOPICS_AT_ONCE]
            if budget.is_spent:
                shown += [TopicShown(each.topic, next=each.start or (-1, -1)) for each in part]
                continue
            async with asyncio.TaskGroup() as group:  # loading dominates
                tasks = [
                    group.create_task(_plan_or_refusal(call, each, budget, with_points=asked.points)) for each in part
                ]
            shown += [task.result() for task in tasks]
        return Response(msgspec.json.encode(PlansShown(shown)), media_type="application/json")

    async def read(self, call: Call) -> Response:
        """Return entries `first` up to but not including `end` of one ledger, as blocks of a segment file.

        The response contains at least entry `first`, and may contain entries outside the range. The header
        `X-Pybroker-Next-Entry` contains the entry id at which the next request continues. The reader must verify the
        positions and checksums in the blocks.
        """
        name = call.topic_name_of(PERSISTENT)
        await call.require_consume(name, "")
        topic = await existing_topic(call, name)
        topic.in_use()
        ledger_id = call.integer("ledger_id")
        count = topic.ledger.ledgers.entry_count_of(ledger_id)
        first, end = call.query_integer("first", 0), call.query_integer("end", count)
        if not 0 <= first < end:
            raise AdminError(
                412,
                (
                    f"The requested range of entries is empty (first={first}, end={end}): `end` is exclusive, so it "
                    "must be larger than `first`"
                ),
            )
        if not topic.ledger.ledgers.has_ledger(ledger_id):
            raise AdminError(
                410,
                f"Ledger {ledger_id} of {name} does not exist: it was deleted by retention, or it belonged to "
                "a deleted topic of this name",
            )
        if end > count:
            raise AdminError(
                416,
                f"Entries up to end={end} of ledger {ledger_id} of {name} were requested, but the ledger has "
                f"only {count} durable entries",
            )
        return BlocksResponse(self.reads, topic, call.broker.ledgers.store, ledger_id, first, end, call.holder)


_READ_QUERIES = (
    Query("first", "the first entry", int, 0),
    Query("end", "the entry after the last one; default: all durable entries", int),
)
_READ_ANSWERS = {
    410: "The topic does not have this ledger",
    412: "The range is empty",
    416: "Some of the entries do not exist or are not durable",
    429: "Too many bulk reads are waiting; retry after Retry-After seconds",
}


def local_topic(call: Call, local_name: str) -> TopicName:
    """Return the topic with this local name in the path's namespace. Raises AdminError 412 if the name is invalid."""
    try:
        return TopicName.parse(f"{PERSISTENT}://{call.namespace_name()}/{local_name}")
    except InvalidTopicName as error:
        raise AdminError(412, f"Topic name is not valid: {error}") from error


async def _plan_or_refusal(call: Call, asked: AskedTopic, budget: PlanBudget, *, with_points: bool) -> TopicShown:
    try:
        name = local_topic(call, asked.topic)
        await call.require_consume(name, "")
        topic = await existing_topic(call, name)
        topic.in_use()
        with while_served(topic):
            return await plan_of(topic, call.broker.ledgers.store, asked, budget, with_points=with_points)
    except AdminError as error:
        call.record_refusal(asked.topic, error)
        return TopicShown(asked.topic, status=error.status, reason=error.reason)
    except NoSuchLedger as error:
        return TopicShown(asked.topic, status=503, reason=f"A ledger was trimmed during the request; retry: {error}")
    except BrokerError as error:
        return TopicShown(asked.topic, status=type(error).http_status, reason=str(error))
