"""Sinks: batches that several transactions write, in this process or in others, and one call commits, each once.

Beyond Pulsar: a broker of this project keeps of each sink the last batch that was committed, in the record that commits it. What
must hold: `commit_together` is only asked for when all that was done in its transactions is answered; it may be asked for again,
since a repeat has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pybroker.client.client_transactions import (
    DEFAULT_TIMEOUT_S,
    Coordinators,
    Transaction,
    TransactionFailed,
    TransactionState,
)
from pybroker.client.failures import ClientError
from pybroker.client.rest import BUSY_STATUSES, Refused, RestClient
from pybroker.errors import AuthenticationError, AuthorizationError, BrokerError, ServiceNotReady
from pybroker.model.txn_id import TxnId
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.client.access import Access
    from pybroker.client.client import Client

_NOT_THERE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}


class SinksNotServed(ClientError):
    """The broker commits no transactions together: it is Apache Pulsar, or an earlier version of this project."""


class BatchRefused(TransactionFailed):
    """The batch was not committed, and nothing of it: write it again in new transactions. The text says why."""


class Sink:
    """One sink of a cluster, by its name. Made by `PulsarClient.sink`; needs the access's `admin_url`."""

    def __init__(
        self,
        client: Client,
        coordinators: Coordinators,
        name: str,
        *,
        writer: str = "",
        run: str = "",
        takes_over: bool = False,
    ) -> None:
        """`writer`: who counts the batches; another one is refused, unless it `takes_over`. `run`: of the writer; what another
        run has left open is aborted by the next transaction that this run opens.
        """
        self.name = name
        self._client = client
        self._coordinators = coordinators
        self._writer = writer
        self._run = run
        self._takes_over = takes_over
        self._path = f"/admin/v3/transactions/sinks/{quote(name, safe='')}"

    async def last_batch(self) -> int | None:
        """The last batch that was committed, None when there is none. Raises as `commit_together`."""
        try:
            shown = await self._ask("GET", "", None)
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None
        batch = shown.get("lastBatch")
        return None if batch is None else int(batch)

    async def transaction(self, batch: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> Transaction | None:
        """A new transaction for the batch; None when that batch, or a later one, was committed: there is nothing to write.

        It is aborted by itself after `timeout_s`. Raises SinksNotServed, BatchRefused for another writer's sink, the broker's
        refusal, ConnectionLost.
        """
        body = {
            "batch": batch,
            "writer": self._writer,
            "run": self._run,
            "timeoutMillis": round(timeout_s * 1000),
            "takeOver": self._takes_over,
        }
        try:
            answer = await self._ask("POST", "/open", body)
        except Refused as error:
            if error.status in _NOT_THERE:
                raise SinksNotServed(
                    f"{error}: this broker cannot commit several transactions together; use one transaction for all, or "
                    "deduplication (delivery=effectively-once)"
                ) from error
            raise BatchRefused(str(error)) from error
        if answer["isCommitted"]:
            return None
        return await self._coordinators.adopted(TxnId(answer["most"], answer["least"]))

    async def commit_together(self, batch: int, transactions: Iterable[Transaction | TxnId]) -> bool:
        """Commit all of them as one, durably, whatever dies meanwhile; False when the batch, or a later one, was committed before.

        They were opened by `transaction` for this batch, here or in another process, where all that was done in them is answered.
        Whatever else is open of the sink up to this batch is aborted. Raises TransactionFailed, when something of a transaction of
        this process failed, and BatchRefused, when one of them is over: nothing was committed then, and those of this process are
        aborted. Raises ConnectionLost and the broker's errors when it cannot be known: ask again.
        """
        given = list(transactions)
        own = [each for each in given if isinstance(each, Transaction)]
        for each in own:
            if each.state is not TransactionState.UNKNOWN:  # asked for before, and not answered
                each.require_open()
        ids = [each.id if isinstance(each, Transaction) else each for each in given]
        for each in own:
            each.state = TransactionState.ENDING
        return await self._client.tasks.run_to_end(self._commit(batch, ids, own), f"batch {batch} of sink {self.name}")

    async def _commit(self, batch: int, ids: list[TxnId], own: list[Transaction]) -> bool:
        for each in own:
            failure = await each.settled()
            if failure is not None:
                await self._abort_own(own)
                raise TransactionFailed(f"batch {batch} of {self.name} was not committed: {failure}") from failure
        body = {"batch": batch, "transactions": ids, "writer": self._writer, "takeOver": self._takes_over}
        try:
            answer = await self._ask("POST", "/commit", body)
        except Refused as error:
            await self._abort_own(own)
            raise BatchRefused(str(error)) from error
        except BaseException:
            for each in own:
                each.state = TransactionState.UNKNOWN
            raise
        is_new = not answer["isRepeat"]
        for each in own:  # of a repeat, perhaps by the very first attempt of this call
            each.state = TransactionState.COMMITTED if is_new else TransactionState.UNKNOWN
        return is_new

    async def _abort_own(self, own: list[Transaction]) -> None:
        for each in own:
            try:
                await each.abort_ending()
            except (ClientError, BrokerError) as error:  # it ends by time
                logs.info("client.transaction_not_aborted", transaction=str(each.id), reason=error)

    async def abort(self, up_to_batch: int | None = None) -> int:
        """Abort what is open of the sink, up to that batch or all; how many those were. Raises as `commit_together`."""
        try:
            answer = await self._ask("POST", "/abort", {"batch": up_to_batch})
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return 0
        return int(answer["aborted"])

    async def _ask(self, method: str, path: str, body: object) -> Any:
        """Again and again while a broker restarts: each of these calls says the same when it comes twice."""

        async def attempt() -> Any:
            return await asyncio.to_thread(_call, self._client.access, method, self._path + path, body)

        return await self._client.retried(attempt)


def _call(access: Access, method: str, path: str, body: object) -> Any:
    """Send one request, without repetition. Raises the errors of RestClient, some of them as errors of the binary protocol."""
    with closing(RestClient(access, patience_s=0)) as rest:
        try:
            return rest.json(method, path, body, may_repeat=False)
        except Refused as error:
            raise _protocol_error(error) from error


def _protocol_error(error: Refused) -> Exception:
    """The error of the binary protocol that corresponds to an HTTP status, or `error` itself."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        return AuthenticationError(str(error))
    if error.status == HTTPStatus.FORBIDDEN:
        return AuthorizationError(str(error))
    return ServiceNotReady(str(error)) if error.status in BUSY_STATUSES else error
