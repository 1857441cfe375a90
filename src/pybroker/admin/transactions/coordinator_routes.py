"""REST routes of transaction coordinators and their transactions: statistics, slow transactions, aborts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.queries import WITH_METADATA, Query
from pybroker.admin.calls.routing import route
from pybroker.admin.transactions.coordinator_owners import coordinator_owners, of_other_brokers
from pybroker.admin.transactions.views import coordinator_stats, log_stats, transaction_metadata
from pybroker.errors import AdminError, BrokerError, TransactionCoordinatorNotFound
from pybroker.model.txn_id import TxnAction, TxnId

if TYPE_CHECKING:
    from pybroker.transactions.coordinator import Coordinator
    from pybroker.transactions.coordinator_state import Transaction

BASE = "/admin/v3/transactions"
MAX_SLOW = 1000
"""Maximum number of slow transactions in a response, oldest first."""
MAX_SLOW_PARTICIPANTS = 10_000
"""Maximum number of participants in a response. The transaction that reaches this number is listed completely, as the last one."""
LOOKED_AT_A_TURN = 256
ABORT_WAIT_S = 25.0
COORDINATOR = Query("coordinatorId", "only this coordinator", int)


def routes() -> list[Route]:
    return [
        route("GET", BASE + "/coordinators", list_coordinators),
        route("GET", BASE + "/coordinatorStats", get_coordinator_stats, queries=(COORDINATOR,)),
        route(
            "GET",
            BASE + "/coordinatorInternalStats/{coordinator}",
            get_coordinator_internal_stats,
            queries=(WITH_METADATA,),
        ),
        route("GET", BASE + "/transactionMetadata/{most}/{least}", get_transaction_metadata),
        route("GET", BASE + "/slowTransactions/{milliseconds}", list_slow_transactions, queries=(COORDINATOR,)),
        route("POST", BASE + "/transactionCoordinator/replicas", grow_coordinators, body=int),
        route(
            "POST",
            BASE + "/abortTransaction/{most}/{least}",
            abort_transaction,
            answers={
                204: "All participants have been notified",
                202: "The abort has started; some participants have not confirmed it",
            },
        ),
    ]


def require_enabled(call: Call) -> None:
    if not call.broker.transactions.is_enabled:
        raise AdminError(503, "This Broker is not configured with transactionCoordinatorEnabled=true.")


def found_coordinator(call: Call, coordinator_id: int) -> Coordinator:
    try:
        return call.broker.transactions.find(coordinator_id)
    except TransactionCoordinatorNotFound as error:
        raise AdminError(404, f"Transaction coordinator not found! coordinator id : {coordinator_id}") from error


def _asked_coordinators(call: Call) -> list[Coordinator] | Coordinator:
    if call.query("coordinatorId") is None:
        return call.broker.transactions.running()
    return found_coordinator(call, call.query_integer("coordinatorId", 0))


def txn_id_of(call: Call) -> TxnId:
    return TxnId(call.integer("most"), call.integer("least"))


async def _transaction(call: Call) -> tuple[Coordinator, Transaction]:
    txn_id = txn_id_of(call)
    try:
        await call.require_superuser()
    except AdminError:
        try:
            found = await call.broker.transactions.listed_transaction(txn_id)
        except BrokerError:
            found = None
        if call.role is None or found is None or found[1].owner != call.role:
            raise
        return found
    require_enabled(call)
    return await call.broker.transactions.listed_transaction(txn_id)


async def list_coordinators(call: Call) -> Response:
    """List the transaction coordinators with the brokers that run them. A coordinator starts when its first client connects."""
    await call.require_superuser()
    require_enabled(call)
    own = call.broker.presence.addresses.resolve(None)
    urls = [own if owner is None else owner.urls for owner in await coordinator_owners(call, may_assign=True)]
    return json_response([{"id": index, "brokerServiceUrl": each.broker_url} for index, each in enumerate(urls)])


async def get_coordinator_stats(call: Call) -> Response:
    """Return statistics of the coordinator `coordinatorId`; without this parameter, statistics of all started
    coordinators of the cluster by id.
    """
    await call.require_superuser()
    require_enabled(call)
    asked = _asked_coordinators(call)
    if isinstance(asked, list):
        found = {each.id: coordinator_stats(each) for each in asked}
        found.update(await of_other_brokers(call, "/coordinatorStats"))
        return json_response({str(number): found[number] for number in sorted(found)})
    return json_response(coordinator_stats(asked))


async def get_coordinator_internal_stats(call: Call) -> Response:
    """Return the internal statistics of the managed ledger that stores a coordinator's log."""
    await call.require_superuser()
    require_enabled(call)
    coordinator = found_coordinator(call, call.integer("coordinator"))
    await coordinator.ready()
    log = coordinator.log
    if log is None:
        raise AdminError(
            503,
            (
                f"Transaction coordinator {coordinator.id} is not ready: it is still reading its log. Send the request "
                "again"
            ),
        )
    return json_response({"transactionLogStats": log_stats(coordinator, log, with_metadata=call.flag("metadata"))})


async def get_transaction_metadata(call: Call) -> Response:
    """Return the status and participants of a transaction. As in Pulsar, any role may call this.

    The owner and superusers also see which participants have not confirmed the end of the transaction.
    """
    require_enabled(call)
    coordinator, transaction = await call.broker.transactions.listed_transaction(txn_id_of(call))
    with_own = await call.broker.broker_context.authorization.may_use(transaction.owner, call.principal)
    return json_response(_shown(call, coordinator, transaction, with_own=with_own))


def _shown(call: Call, coordinator: Coordinator, transaction: Transaction, *, with_own: bool) -> dict[str, Any]:
    now_ms = call.runtime.clock.wall_ms()
    loaded = call.broker.loaded.persistent.get
    return transaction_metadata(coordinator, transaction, now_ms, loaded, with_own=with_own)


async def list_slow_transactions(call: Call) -> Response:
    """List transactions that have been open, or ending, for at least the given milliseconds, oldest first. Without
    `coordinatorId`, the list covers all coordinators of the cluster.
    """
    await call.require_superuser()
    require_enabled(call)
    least_ms = call.integer("milliseconds")
    asked = _asked_coordinators(call)
    now_ms = call.runtime.clock.wall_ms()
    found: list[tuple[int, Coordinator, Transaction]] = []
    if not isinstance(asked, list):
        await asked.ready()
    for coordinator in asked if isinstance(asked, list) else [asked]:  # none while it reads its log
        for index, transaction in enumerate(list(coordinator.state.transactions())):
            if index % LOOKED_AT_A_TURN == LOOKED_AT_A_TURN - 1:
                await asyncio.sleep(0)
            if now_ms - transaction.opened_ms >= least_ms:
                found.append((transaction.opened_ms, coordinator, transaction))
            else:
                break  # in opening order
    found.sort(key=lambda each: (each[0], each[2].id))
    shown: dict[str, Any] = {}
    room = MAX_SLOW_PARTICIPANTS
    for _, coordinator, transaction in found[:MAX_SLOW]:
        shown[str(transaction.id)] = _shown(call, coordinator, transaction, with_own=True)
        room -= transaction.participants
        if room <= 0:
            break
    if isinstance(asked, list):
        for of_coordinator in (await of_other_brokers(call, f"/slowTransactions/{least_ms}")).values():
            shown.update(of_coordinator)
        shown = dict(sorted(shown.items(), key=lambda each: int(each[1].get("openTimestamp", 0)))[:MAX_SLOW])
    return json_response(shown)


async def grow_coordinators(call: Call) -> Response:
    """Increase the number of coordinators. 406 if the new number is not higher."""
    await call.require_superuser()
    require_enabled(call)
    await call.broker.transactions.grow(await call.json(int))
    return no_content()


async def abort_transaction(call: Call) -> Response:
    """Abort a transaction on behalf of its owner. 404 if it does not exist, 409 if it is being committed."""
    coordinator, transaction = await _transaction(call)
    try:
        async with asyncio.timeout(ABORT_WAIT_S):
            await coordinator.end(transaction, TxnAction.ABORT)
    except TimeoutError:
        return Response(status_code=202)
    return no_content()
