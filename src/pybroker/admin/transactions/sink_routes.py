"""REST routes of sinks. A sink is the name under which a program writes numbered batches; one call commits all
transactions of a batch exactly once.

Not in Pulsar. `transactions/sinks.py` has the rules. A role that may produce to any topic can create a sink. After the
first commit, only this role and superusers may use it. `open` and `commit` both check this.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.admin.transactions.coordinator_routes import BASE, require_enabled
from pybroker.errors import AdminError, TransactionCoordinatorNotFound
from pybroker.transactions.sinks import MAX_BATCH, MAX_NAME, Asking, Label, home_of

if TYPE_CHECKING:
    from pybroker.transactions.coordinator import Coordinator

SINK = BASE + "/sinks/{sink}"
AFTER = Query("after", "last name of the previous page")
MAX_SHOWN = 1000
"""Maximum number of sinks in a response. A request with `after` returns the next page."""
SHOWN_TRANSACTIONS = 100
END_WAIT_S = 25.0
"""Time that a commit waits for participants. It is below the client's request timeout, so that the client receives the
state.
"""
DEFAULT_TIMEOUT_MS = 60_000


class OpenBody(msgspec.Struct):
    """Batch of the sink, its writer (the program that numbers the batches), and the timeout of the transaction.
    `takeOver`: replace the current writer of the sink.
    """

    batch: int
    writer: str = ""
    run: str = ""
    timeoutMillis: int = DEFAULT_TIMEOUT_MS
    takeOver: bool = False


class CommitBody(msgspec.Struct):
    """Transactions of the batch as [most, least]: the halves of their ids. An empty list commits an empty batch."""

    batch: int
    transactions: list[tuple[int, int]] = []
    writer: str = ""
    takeOver: bool = False


class AbortBody(msgspec.Struct):
    """Abort the transactions up to this batch; without it, all transactions of the sink."""

    batch: int | None = None


def routes() -> list[Route]:
    return [
        route("GET", BASE + "/sinks", list_sinks, queries=(AFTER,)),
        route("GET", SINK, get_sink),
        route(
            "DELETE", SINK, delete_sink, answers={404: "The sink does not exist", 409: "The sink has open transactions"}
        ),
        route(
            "POST",
            SINK + "/open",
            open_transaction,
            body=OpenBody,
            answers={
                200: "The transaction, or that the batch is committed",
                403: "The sink belongs to another role, or the role may produce to no topic",
                409: "The sink belongs to another writer",
                429: "A limit of sinks or transactions is reached",
            },
        ),
        route(
            "POST",
            SINK + "/commit",
            commit,
            body=CommitBody,
            answers={
                200: "The batch is committed, by this or an earlier request",
                403: "The sink belongs to another role, or the role may produce to no topic",
                429: "The limit of sinks is reached",
                202: "The batch is committed; some topics have not confirmed it yet",
                404: "One of the transactions does not exist; nothing was committed",
                409: "A transaction cannot be committed, or the sink belongs to another writer; nothing was committed",
            },
        ),
        route("POST", SINK + "/abort", abort, body=AbortBody),
    ]


def _sink_name(call: Call) -> str:
    name = call.name("sink")
    require_name("sink", name)
    return name


def require_name(what: str, name: str) -> None:
    if len(name) > MAX_NAME or not name.isprintable():
        raise AdminError(
            412, f"The name of the {what} must have at most {MAX_NAME} characters, and no control characters"
        )


def _require_batch(batch: int) -> None:
    if not 0 <= batch <= MAX_BATCH:
        raise AdminError(412, f"The field batch of the request body is {batch}; it must be from 0 to {MAX_BATCH}")


async def _asking(call: Call) -> Asking:
    authorization = call.broker.broker_context.authorization
    owner = call.role if authorization.enabled else None
    return Asking(owner, await authorization.may_all(call.principal), call.holder)


async def _coordinator(call: Call, sink: str) -> Coordinator:
    """Return the coordinator of the sink. Raises AdminError 403 if the sink is new and the role may not produce to any
    topic.
    """
    coordinator = await call.broker.transactions.of_sink(sink)
    if coordinator.state.marks.get(sink) is None:
        authorization = call.broker.broker_context.authorization
        if not await authorization.may_produce_somewhere(call.principal):
            raise AdminError(
                403,
                f"Cannot create the sink {sink}: role {call.role!r} has no permission to produce to a topic. "
                "Grant the role `produce` on the namespace or topic to which the sink writes",
            )
    return coordinator


async def list_sinks(call: Call) -> Response:
    """List sinks by name, starting after the name `after`, at most 1,000 per response."""
    await call.require_superuser()
    require_enabled(call)
    after = call.query("after") or ""
    found: dict[str, Coordinator] = {}
    for coordinator in call.broker.transactions.running():
        found |= dict.fromkeys((sink for sink in coordinator.state.sinks() if sink > after), coordinator)
        await asyncio.sleep(0)
    names = sorted(found)[:MAX_SHOWN]
    return json_response({name: _shown(found[name], name, call) for name in names})


async def get_sink(call: Call) -> Response:
    """Return the last committed batch of a sink, the time of its commit, the writer, and the open transactions."""
    sink = _sink_name(call)
    return json_response(_shown(await _existing(call, sink), sink, call))


async def _existing(call: Call, sink: str) -> Coordinator:
    require_enabled(call)
    try:
        coordinator = await call.broker.transactions.ready(home_of(sink))
    except TransactionCoordinatorNotFound:  # not started, so no log
        raise _not_found(sink) from None
    state = coordinator.state
    mark, opened = state.marks.get(sink), state.of_sink(sink)
    if mark is None and not opened:
        raise _not_found(sink)
    asking = await _asking(call)
    if not (asking.may(mark.owner) if mark is not None else any(asking.may(each.owner) for each in opened)):
        raise AdminError(403, f"The sink {sink} belongs to another role: use another sink name")
    return coordinator


def _not_found(sink: str) -> AdminError:
    return AdminError(
        404, f"Sink {sink} does not exist: it has no committed batch and no open transaction. Check its name"
    )


def _shown(coordinator: Coordinator, sink: str, call: Call) -> dict[str, Any]:
    mark, opened = coordinator.state.marks.get(sink), coordinator.state.of_sink(sink)
    shown: dict[str, Any] = {"coordinator": coordinator.id}
    if mark is not None:
        shown |= {"lastBatch": mark.batch, "committedTimestamp": mark.marked_ms, "writer": mark.writer}
        if mark.owner is not None:
            shown["owner"] = mark.owner
    now_ms = call.runtime.clock.wall_ms()
    shown["openTransactionCount"] = len(opened)
    shown["openTransactions"] = [
        {
            "txnId": str(each.id),
            "status": str(each.status),
            "batch": each.label.batch,
            "writer": each.label.writer,
            "run": each.label.run,
            "ageMillis": max(0, now_ms - each.opened_ms),
        }
        for each in islice(opened, SHOWN_TRANSACTIONS)
        if each.label is not None
    ]
    return shown


async def delete_sink(call: Call) -> Response:
    """Delete the record of a sink's last batch. If the batch is repeated later, it is written again. 409 while the sink
    has open transactions.
    """
    sink = _sink_name(call)
    coordinator = await _existing(call, sink)
    if coordinator.state.of_sink(sink):
        raise AdminError(
            409,
            (
                f"The sink {sink} has open transactions: abort these transactions first (POST .../abort), or wait "
                "until they end"
            ),
        )
    await coordinator.forget_sink(sink)
    return no_content()


async def open_transaction(call: Call) -> Response:
    """Open a transaction for a batch of a sink. Return its id (`most` and `least`), or report that this batch or a
    later one is committed (`isCommitted`).

    Before a transaction is opened, two kinds of open transactions of the sink are aborted: those of other writers, and
    those that other runs of this writer (`run`) opened for this batch or earlier ones.
    """
    sink, body = _sink_name(call), await call.json(OpenBody)
    require_enabled(call)
    label = _label(sink, body.batch, body.writer, body.run)
    coordinator = await _coordinator(call, sink)
    asking = await _asking(call)
    txn = await coordinator.open_of_sink(label, asking, body.timeoutMillis, takes_over=body.takeOver)
    if txn is None:
        return json_response({"isCommitted": True})
    return json_response({"isCommitted": False, "most": txn.most, "least": txn.least})


async def commit(call: Call) -> Response:
    """Commit the transactions in the body, which belong to one batch of a sink, atomically. Of the sink's other open
    transactions, abort those for this or earlier batches, and all transactions of other writers.

    If this batch or a later one was committed before, nothing is committed, and `isRepeat` is true. The sink's open
    transactions for this and earlier batches are then aborted.
    """
    sink, body = _sink_name(call), await call.json(CommitBody)
    require_enabled(call)
    label = _label(sink, body.batch, body.writer, "")
    coordinator = await _coordinator(call, sink)
    for most, least in body.transactions:
        if most != coordinator.id:
            raise AdminError(
                404,
                f"Nothing was committed: transaction ({most},{least}) was not opened for the sink {sink}. Write the batch again "
                "in transactions that are opened for this sink",
            )
    leasts = [least for _, least in body.transactions]
    is_new = await coordinator.commit_together(label, leasts, await _asking(call), takes_over=body.takeOver)
    response = json_response({"isRepeat": not is_new, "batch": label.batch})
    try:
        async with asyncio.timeout(END_WAIT_S):
            await coordinator.sink_committed(sink)
    except TimeoutError:
        response.status_code = 202
    return response


async def abort(call: Call) -> Response:
    """Abort the open transactions of a sink for the batch in the body and earlier batches; all of them if the body has
    no `batch`. Return their number (`aborted`), with status 202 if some topics have not confirmed the abort yet.
    """
    sink, body = _sink_name(call), await call.json(AbortBody)
    if body.batch is not None:
        _require_batch(body.batch)
    coordinator = await _existing(call, sink)
    up_to = MAX_BATCH if body.batch is None else body.batch
    left = len(coordinator.state.left_open(sink, up_to, await _asking(call)))
    try:
        async with asyncio.timeout(END_WAIT_S):
            left = await coordinator.abort_of_sink(sink, up_to, await _asking(call))
    except TimeoutError:
        response = json_response({"aborted": left})
        response.status_code = 202
        return response
    return json_response({"aborted": left})


def _label(sink: str, batch: int, writer: str, run: str) -> Label:
    _require_batch(batch)
    require_name("writer", writer)
    require_name("run", run)
    return Label(sink, batch, writer, run)
