"""`/admin/v3/shares`: usage of limited resources by holder (role or client address), and release of a holder's usage.

`waiting/fair_shares.py` has the rules. The resources are transactions, sinks, read leases, and live streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.waiting.fair_shares import FairShares

SHARES = "/admin/v3/shares"
MAX_HOLDERS = 100
"""Maximum number of holders listed per resource, largest first."""
HOLDER = Query(
    "holder", "the holder, as `GET /admin/v3/shares` shows it: `role NAME`, `connection /HOST:PORT`, `address HOST`"
)


class LiveConnections(Protocol):
    """Streams of live figures that the web console has open."""

    shares: FairShares

    @property
    def limit(self) -> int:
        """Return the maximum number of streams."""

    def end_all_of(self, holder: str) -> int:
        """End all streams of `holder`. Return the number of ended streams."""


class _Resource(NamedTuple):
    unit: str
    key: str
    limit: int
    shares: list[FairShares]
    end_all_of: Callable[[str], Awaitable[int]]


class ShareRoutes:
    """Routes that show and release the usage of limited resources."""

    def __init__(self, broker: BrokerService, live: LiveConnections) -> None:
        self._broker = broker
        self._live = live

    def routes(self) -> list[Route]:
        return [
            route("GET", SHARES, self.list_shares),
            route(
                "DELETE",
                SHARES + "/{resource}",
                self.take_back,
                queries=(HOLDER,),
                answers={200: "Number of released objects", 404: "No such resource", 412: "The query has no holder"},
            ),
        ]

    def _resources(self) -> dict[str, _Resource]:
        broker, config = self._broker, self._broker.runtime.config
        transactions, leases, live = broker.transactions, broker.broker_context.read_leases, self._live
        running = transactions.running()

        async def end_leases(name: str) -> int:
            ended = leases.end_all_of(name)
            for topic in broker.loaded.persistent.values():
                if ended and not topic.is_fenced:
                    topic.ledger.trim_soon()
            return ended

        async def end_streams(name: str) -> int:
            return live.end_all_of(name)

        return {
            "transactions": _Resource(
                "bytes",
                "maxOpenTransactionsSizeInMB",
                transactions.limit_bytes,
                [transactions.sizes],
                transactions.abort_all_of,
            ),
            "sinks": _Resource(
                "sinks",
                "maxTransactionSinksPerCoordinator",
                config.max_transaction_sinks_per_coordinator * max(1, len(running)),
                [each.state.marks.counts for each in running],
                transactions.forget_sinks_of,
            ),
            "read-leases": _Resource("leases", "maxReadLeases", leases.limit, [leases.shares], end_leases),
            "live-connections": _Resource(
                "connections", "consoleMaxLiveConnections", live.limit, [live.shares], end_streams
            ),
        }

    async def list_shares(self, call: Call) -> Response:
        """Return the limit, the usage and the largest holders of each resource."""
        await call.require_superuser()
        return json_response({name: _shown(each) for name, each in self._resources().items()})

    async def take_back(self, call: Call) -> Response:
        """Release everything of one resource that a holder uses at this broker. Return the number of released objects
        (`ended`).

        Depending on the resource, this aborts the holder's transactions, deletes its sinks, or ends its read leases or
        live streams. Aborts are durable on return; topics and subscriptions are notified of them later.
        """
        await call.require_superuser()
        resource = self._resources().get(call.name("resource"))
        if resource is None:
            raise AdminError(
                404,
                (
                    f"The shared resource {call.name('resource')!r} does not exist: use one of "
                    f"{', '.join(self._resources())}"
                ),
            )
        holder = call.query("holder")
        if not holder:
            raise AdminError(412, f"The query needs the parameter holder=..., with a holder that GET {SHARES} returns")
        ended = await resource.end_all_of(holder)
        logs.warning("shares.ended", resource=call.name("resource"), holder=holder, ended=ended, role=call.role)
        return json_response({"ended": ended})


def _shown(resource: _Resource) -> dict[str, object]:
    used_by: Counter[str] = Counter()
    for shares in resource.shares:
        for name, used in shares.largest(MAX_HOLDERS):
            used_by[name] += used
    return {
        "limit": resource.limit,
        "unit": resource.unit,
        "key": resource.key,
        "used": sum(shares.used for shares in resource.shares),
        "holders": [{"holder": name, "used": used} for name, used in used_by.most_common(MAX_HOLDERS)],
    }
