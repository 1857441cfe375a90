"""Sinks, which write a batch in several transactions, in one or several processes, and commit all in one call.

An extension of Pulsar: the broker stores the last committed batch of each sink in the record that commits it, so a
repeated commit has no effect.

Invariant: `commit_together` sends its request only when all operations of its transactions are answered.
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
    """The broker does not support sinks: it is Apache Pulsar, or an earlier version of pybroker."""


class BatchRefused(TransactionFailed):
    """No message of the batch was committed. Write the batch again in new transactions."""


class Sink:
    """A named sink of a cluster: numbered batches, each committed exactly once. Created by `PulsarClient.sink`. Needs
    the `admin_url` of the access.
    """

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
        """`writer` identifies the job that numbers the batches. The broker rejects other writers unless they set
        `takes_over`. `run` identifies one run of the writer. The first transaction of a run aborts the open
        transactions of other runs.
        """
        self.name = name
        self._client = client
        self._coordinators = coordinators
        self._writer = writer
        self._run = run
        self._takes_over = takes_over
        self._path = f"/admin/v3/transactions/sinks/{quote(name, safe='')}"

    async def last_batch(self) -> int | None:
        """Return the number of the last committed batch; None if there is none. Raises ConnectionLost and the broker's
        errors.
        """
        try:
            shown = await self._ask("GET", "", None)
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None
        batch = shown.get("lastBatch")
        return None if batch is None else int(batch)

    async def transaction(self, batch: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> Transaction | None:
        """Open a transaction for the batch. Return None if this batch, or a later batch, is already committed. The
        broker aborts the transaction after `timeout_s` seconds.

        Raises SinksNotServed, BatchRefused if the sink belongs to another writer, the broker's error, ConnectionLost.
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
                    f"{error}: this broker cannot commit several transactions together. Use one transaction "
                    "for all messages, or deduplication (delivery=effectively-once)"
                ) from error
            raise BatchRefused(str(error)) from error
        if answer["isCommitted"]:
            return None
        return await self._coordinators.adopted(TxnId(answer["most"], answer["least"]))

    async def commit_together(self, batch: int, transactions: Iterable[Transaction | TxnId]) -> bool:
        """Commit all transactions of a batch atomically and durably. Return False if this batch or a later one was
        already committed. All other open transactions of the sink up to this batch are aborted.

        The transactions must come from `Sink.transaction`, in this or another process. A process that has used a
        transaction must have received the responses to all its operations in the transaction. After TransactionFailed
        (an operation in this process failed) and BatchRefused (a transaction has ended), nothing is committed, and the
        transactions of this process are aborted. After ConnectionLost and the broker's errors, the result is unknown:
        call again.
        """
        given = list(transactions)
        own = [each for each in given if isinstance(each, Transaction)]
        for each in own:
            if each.state is not TransactionState.UNKNOWN:  # UNKNOWN: an earlier call got no response
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
                raise TransactionFailed(
                    f"batch {batch} of the sink {self.name} was not committed: {failure}"
                ) from failure
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
        for each in own:  # a repeat may follow the first attempt of this call
            each.state = TransactionState.COMMITTED if is_new else TransactionState.UNKNOWN
        return is_new

    async def _abort_own(self, own: list[Transaction]) -> None:
        for each in own:
            try:
                await each.abort_ending()
            except (ClientError, BrokerError) as error:  # the transaction ends by its timeout
                logs.info("client.transaction_not_aborted", transaction=str(each.id), reason=error)

    async def abort(self, up_to_batch: int | None = None) -> int:
        """Abort the open transactions of the sink, for all batches or for batches up to `up_to_batch`. Return their
        number. Raises the same errors as `commit_together`.
        """
        try:
            answer = await self._ask("POST", "/abort", {"batch": up_to_batch})
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return 0
        return int(answer["aborted"])

    async def _ask(self, method: str, path: str, body: object) -> Any:
        async def attempt() -> Any:
            return await asyncio.to_thread(_call, self._client.access, method, self._path + path, body)

        return await self._client.retried(attempt)


def _call(access: Access, method: str, path: str, body: object) -> Any:
    """Send one request. Raises the errors of RestClient, some of them as errors of the binary protocol."""
    with closing(RestClient(access, patience_s=0)) as rest:
        try:
            return rest.json(method, path, body, may_repeat=False)
        except Refused as error:
            raise _protocol_error(error) from error


def _protocol_error(error: Refused) -> Exception:
    if error.status == HTTPStatus.UNAUTHORIZED:
        return AuthenticationError(str(error))
    if error.status == HTTPStatus.FORBIDDEN:
        return AuthorizationError(str(error))
    return ServiceNotReady(str(error)) if error.status in BUSY_STATUSES else error
