"""Exactly-once delivery: tasks write in transactions, which the driver commits together.

Invariant: the driver gets a transaction only if each entry in it was sent once and is stored. An entry with a lost
response may or may not be stored, and sending it again could store it twice. So the task fails, and Spark repeats it in
a new transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from pybroker.client.background import BackgroundClient
from pybroker.client.client_transactions import Coordinators, Transaction
from pybroker.client.failures import ClientError
from pybroker.client.transactional_sinks import Sink
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnId
from pybroker.runtime import logs
from pybroker.spark.writer.sink_notes import Writer
from pybroker.spark.writer.sink_options import WriteOptions
from pybroker.spark.writer.topic_writer import Destination, PartitionSender, TopicWriter, WriteFailed

Result = TypeVar("Result")


class ExactWriter(TopicWriter):
    """Writes the rows of one task of one batch. Call `start` once, then `write` or `skip`, then `finish`; `abort` after a
    failure.
    """

    def __init__(self, options: WriteOptions, task: int, who: Writer, attempt: str) -> None:
        """`who` is the batch of the query that the task writes, and `attempt` identifies the driver's attempt to write
        it. The broker aborts open transactions of earlier attempts.
        """
        super().__init__(options, task)
        self._who = who
        self._attempt = attempt
        self._transaction: Transaction | None = None

    @property
    def txn(self) -> TxnId | None:
        """The transaction that the driver must commit; None if the batch is already committed."""
        return None if self._transaction is None else self._transaction.id

    def start(self) -> bool:
        """Open the task's transaction. Return False if the batch is already committed. Raises WriteFailed."""
        options = self._options

        async def begin() -> Transaction | None:
            sink = _sink(self._background, options, self._who, self._attempt)
            return await sink.transaction(self._who.batch, options.transaction_timeout_s)

        self._transaction = self._do(f"opening a transaction of the sink {options.sink_id}", begin())
        return self._transaction is not None

    def skip(self, batch: pa.RecordBatch) -> None:
        self.written.rows += batch.num_rows
        self.written.skipped_rows += batch.num_rows

    async def _open(self, destination: Destination, partition: TopicName) -> PartitionSender:
        assert self._transaction is not None
        await self._transaction.topic_takes_part(str(partition))
        producer = await self.open_producer(destination, partition, "", resends=False)
        return PartitionSender(producer, self._options, self._transaction.id)

    def abort(self) -> None:
        """Abort the transaction. If the broker cannot be reached, the transaction's timeout or the next attempt aborts
        it.
        """
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        try:
            self._background.run(transaction.abort())
        except (ClientError, BrokerError) as error:
            logs.info("sink.transaction_not_aborted", transaction=transaction.id, reason=error)


def commit_batch(options: WriteOptions, who: Writer, transactions: Sequence[TxnId]) -> bool:
    """Commit the transactions of all tasks of a batch atomically. Return False if the batch was committed before. The
    driver calls this after all tasks succeeded. Raises WriteFailed.
    """

    async def commit(background: BackgroundClient) -> bool:
        return await _sink(background, options, who, "").commit_together(who.batch, transactions)

    return _on_the_driver(options, f"committing batch {who.batch}", commit)


def abort_batch(options: WriteOptions, batch: int) -> int:
    """Abort all open transactions of the sink up to this batch. Return their number. The driver calls this after a task
    failed. Raises WriteFailed.
    """

    async def abort(background: BackgroundClient) -> int:
        return await _sink(background, options, Writer("", "", batch), "").abort(batch)

    return _on_the_driver(options, f"aborting batch {batch}", abort)


def _sink(background: BackgroundClient, options: WriteOptions, who: Writer, attempt: str) -> Sink:
    client = background.client
    return Sink(
        client, Coordinators(client), options.sink_id, writer=who.query, run=attempt, takes_over=options.takes_over
    )


def _on_the_driver(
    options: WriteOptions, operation: str, work: Callable[[BackgroundClient], Coroutine[Any, Any, Result]]
) -> Result:
    background = BackgroundClient(options.access)
    try:
        return background.run(work(background))
    except (ClientError, BrokerError, ValueError) as error:
        raise WriteFailed(
            f"{operation} of the sink {options.sink_id} failed at {options.access.admin_url}: {error}"
        ) from error
    finally:
        background.close()
