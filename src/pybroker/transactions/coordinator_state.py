"""Rules of one transaction coordinator: its transactions, and their state transitions.

    OPEN ── commit ──> COMMITTING ── all participants confirmed ──> COMMITTED (removed)
      └── abort, timeout ──> ABORTING ── all participants confirmed ──> ABORTED (removed)

A method refuses, or returns the log record of the decision. The caller appends the record to the log and then applies
it; recovery applies the same records in the same order. Transactions of a sink (`sinks.py`) are committed by one
record.

Invariants: ids increase and never repeat; a transaction that is COMMITTING or ABORTING never changes its direction and
accepts no more participants; all transactions up to the low-water mark have ended; `size_bytes` is the sum over all
transactions; the mark of a sink (its last committed batch) only increases while its writer is the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from pybroker.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.records import FORMAT_VERSION, WITHOUT_SINKS, Kind, Record
from pybroker.transactions.sinks import Asking, Label, Mark, Marks, OpenOfSinks
from pybroker.waiting.fair_shares import FairShares, holder_of_role

TRANSACTION_BYTES = 700
"""An open transaction without participants: its objects, in the log, and among the timeouts."""
LABEL_BYTES = 200
"""Additional memory for a transaction of a sink, besides the names."""
PARTICIPANT_BYTES = 950
"""Memory of a participant besides its name: 150 bytes here, and up to 800 at the topic or subscription."""

ALL_IN_FULL: Mapping[str, str] = MappingProxyType({})
"""Value of `as_sent`, which maps full topic names to the names that the client sent, if the client sent full names."""
SENT_NAME_BYTES = 150
"""Memory of an item of `as_sent`, besides the text of the name."""


def not_found(txn_id: TxnId) -> TransactionNotFound:
    """Return the error for an unknown transaction, with Pulsar's text."""
    return TransactionNotFound(f"The transaction with this txdID `{txn_id}`not found ")


class Phase(enum.StrEnum):
    """State of a coordinator, named as in Pulsar's REST API."""

    INITIALIZING = "Initializing"
    READY = "Ready"
    CLOSED = "Close"


class Status(enum.StrEnum):
    """Status of a transaction, with names as in Pulsar's REST API."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


_ENDING = {TxnAction.COMMIT: Status.COMMITTING, TxnAction.ABORT: Status.ABORTING}
_ENDING_KINDS = {TxnAction.COMMIT: Kind.COMMITTING, TxnAction.ABORT: Kind.ABORTING}
_ENDED_KINDS = {Status.COMMITTING: Kind.COMMITTED, Status.ABORTING: Kind.ABORTED}


class Transaction:
    """A transaction that has not ended."""

    __slots__ = (
        "_holder",
        "as_sent",
        "id",
        "label",
        "opened_ms",
        "owner",
        "partitions",
        "size_bytes",
        "status",
        "subscriptions",
        "timeout_ms",
    )

    def __init__(
        self, txn_id: TxnId, opened_ms: int, timeout_ms: int, owner: str | None, label: Label | None = None
    ) -> None:
        self.id = txn_id
        self.status = Status.OPEN
        self.opened_ms = opened_ms
        self.timeout_ms = timeout_ms
        self.owner = owner
        self._holder: str | None = None
        self.label = label
        """The sink and batch of the transaction; None if it belongs to no sink."""
        self.partitions: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}
        self.as_sent: dict[str, str] = {}
        """The client's spelling of topics whose full names it did not use."""
        self.size_bytes = TRANSACTION_BYTES
        if label is not None:
            self.size_bytes += LABEL_BYTES + len(label.sink) + len(label.writer) + len(label.run)

    @property
    def holder(self) -> str:
        """Name of the holder (role or address) whose fair share the transaction uses (`waiting/fair_shares.py`)."""
        return holder_of_role(self.owner).name if self._holder is None else self._holder

    def held_by(self, name: str) -> None:
        self._holder = None if self.owner is not None and holder_of_role(self.owner).name == name else name

    @property
    def action(self) -> TxnAction | None:
        """The end in progress (commit or abort); None while the transaction is open."""
        return {Status.COMMITTING: TxnAction.COMMIT, Status.ABORTING: TxnAction.ABORT}.get(self.status)

    @property
    def participants(self) -> int:
        return len(self.partitions) + len(self.subscriptions)

    def add(
        self, partitions: Iterable[str], subscriptions: Iterable[tuple[str, str]], as_sent: Mapping[str, str]
    ) -> None:
        for name, sent in as_sent.items():
            if name not in self.as_sent:
                self.as_sent[name] = sent
                self.size_bytes += SENT_NAME_BYTES + len(sent)
        for name in partitions:
            if name not in self.partitions:
                self.partitions[name] = None
                self.size_bytes += PARTICIPANT_BYTES + len(name)
        for pair in subscriptions:
            if pair not in self.subscriptions:
                self.subscriptions[pair] = None
                self.size_bytes += PARTICIPANT_BYTES + len(pair[0]) + len(pair[1])


class CoordinatorState:
    """State of one coordinator, which changes only by applying log records. A sink is the name under which a program
    (the writer) writes numbered batches; the transactions of a batch are committed together, once.
    """

    def __init__(self, coordinator_id: int, sizes: FairShares | None = None, id_base: int = 0) -> None:
        """`sizes`: the bytes of the transactions of all coordinators, by holder. `id_base`: all new ids are larger than
        this number.
        """
        self.coordinator_id = coordinator_id
        self.counts = FairShares()
        self.sizes = FairShares() if sizes is None else sizes
        self.last_least = id_base
        self.size_bytes = 0
        self.marks = Marks()
        self._live: dict[int, Transaction] = {}  # in the order of ids
        self._of_sinks = OpenOfSinks()

    def __len__(self) -> int:
        return len(self._live)

    @property
    def low_water_mark(self) -> int:
        """Highest id (its low half, `least`) up to which all transactions have ended."""
        return next(iter(self._live)) - 1 if self._live else self.last_least

    def transactions(self) -> Iterable[Transaction]:
        return self._live.values()

    def find(self, least: int) -> Transaction | None:
        """Return the transaction with this low half of its id; None if it has ended or is unknown."""
        return self._live.get(least)

    def existing(self, txn_id: TxnId) -> Transaction:
        found = self._live.get(txn_id.least)
        if found is None:
            raise not_found(txn_id)
        return found

    def held_by(self, transaction: Transaction, name: str) -> None:
        """Set the holder (role or address) whose fair share the transaction uses. Necessary after the log was read,
        because the log does not contain addresses.
        """
        self._count(transaction.holder, -1, -transaction.size_bytes)
        transaction.held_by(name)
        self._count(name, 1, transaction.size_bytes)

    def leave(self) -> None:
        """Remove all transactions of this state from the fair shares, because the log is read again into a new state."""
        for transaction in self._live.values():
            self._count(transaction.holder, -1, -transaction.size_bytes)
        self._live = {}

    def _count(self, holder: str, count: int, size_bytes: int) -> None:
        if count:
            self.counts.add(holder, count)
        self.sizes.add(holder, size_bytes)
        self.size_bytes += size_bytes

    def of_sink(self, sink: str) -> list[Transaction]:
        """Return the sink's transactions that have not ended, the oldest first."""
        return [self._live[least] for least in self._of_sinks.of(sink)]

    def sinks(self) -> set[str]:
        return {*self._of_sinks.sinks(), *(sink for sink, _ in self.marks)}

    # --- decisions ---------------------------------------------------------------------------------------------

    def new(self, opened_ms: int, timeout_ms: int, owner: str | None, label: Label | None = None) -> Record:
        least = self.last_least + 1
        record = Record(WITHOUT_SINKS, Kind.NEW, least, least, opened_ms, timeout_ms, owner)
        return record if label is None else _labelled(record, label)

    def add(
        self,
        transaction: Transaction,
        partitions: Iterable[str],
        subscriptions: Iterable[tuple[str, str]],
        as_sent: Mapping[str, str] = ALL_IN_FULL,
    ) -> Record | None:
        """Return the log record that adds participants; None if the transaction already has all of them. Raises
        InvalidTxnStatus if the transaction is ending.

        `as_sent`: topic names as the client sent them, by full name.
        """
        if transaction.status is not Status.OPEN:
            raise InvalidTxnStatus(
                f"transaction {transaction.id} is {transaction.status} and accepts no more partitions or "
                "subscriptions: open another transaction"
            )
        new_partitions = tuple(dict.fromkeys(name for name in partitions if name not in transaction.partitions))
        new_subscriptions = tuple(
            dict.fromkeys(each for each in subscriptions if each not in transaction.subscriptions)
        )
        if not new_partitions and not new_subscriptions:
            return None
        return Record(
            WITHOUT_SINKS,
            Kind.ADD,
            transaction.id.least,
            self.last_least,
            partitions=new_partitions,
            subscriptions=new_subscriptions,
            as_sent={name: sent for name, sent in as_sent.items() if name not in transaction.as_sent},
        )

    def end(self, transaction: Transaction, action: TxnAction) -> Record | None:
        """Return the log record that starts the commit or abort (`action`); None if it has started. Raises
        InvalidTxnStatus if the opposite is in progress, or if `action` commits a transaction of a sink, which only
        `together` may do.
        """
        if transaction.status is _ENDING[action]:
            return None
        of = transaction.label
        if of is not None and action is TxnAction.COMMIT and transaction.status is Status.OPEN:
            raise InvalidTxnStatus(
                f"transaction {transaction.id} was opened for batch {of.batch} of the sink {of.sink} and can be "
                "committed only with this batch (POST /admin/v3/transactions/sinks/.../commit)"
            )
        if transaction.status is not Status.OPEN:
            raise InvalidTxnStatus(
                f"transaction {transaction.id} is {transaction.status} and cannot become {_ENDING[action]} any more"
            )
        return Record(WITHOUT_SINKS, _ENDING_KINDS[action], transaction.id.least, self.last_least)

    def ended(self, transaction: Transaction) -> Record:
        return Record(WITHOUT_SINKS, _ENDED_KINDS[transaction.status], transaction.id.least, self.last_least)

    def together(
        self, label: Label, leasts: Iterable[int], asking: Asking, now_ms: int, forgets: str, *, takes_over: bool
    ) -> Record | None:
        """Return the log record that commits the transactions of a sink's batch, and aborts the sink's other open
        transactions up to that batch. Return None if the batch, or a later one, was committed before.

        `label`: sink, batch and writer. `leasts`: the low 64 bits of the transaction ids. `asking`: the role of the
        request. `forgets`: another sink, whose record is deleted so that this sink can get one (the result of
        `Marks.makes_room`); "" if none is deleted. `takes_over`: replace another writer of the sink. Raises
        TransactionNotFound, InvalidTxnStatus, and AuthorizationError if the sink belongs to another role.
        """
        if self.marks.is_repeat(label, asking, takes_over=takes_over):
            return None
        commits = dict.fromkeys(leasts)
        for least in commits:
            transaction = self.existing(TxnId(self.coordinator_id, least))
            if not asking.may(transaction.owner):
                raise not_found(transaction.id)
            of = transaction.label
            if of is None or (of.sink, of.batch, of.writer) != (label.sink, label.batch, label.writer):
                raise InvalidTxnStatus(
                    f"nothing was committed: transaction {transaction.id} was not opened for batch "
                    f"{label.batch} of the sink {label.sink} by the writer {label.writer!r}"
                )
            if transaction.status is not Status.OPEN:
                raise InvalidTxnStatus(
                    f"nothing was committed: transaction {transaction.id} is {transaction.status} and cannot "
                    "be committed any more. Write the batch again in new transactions"
                )
        mark = self.marks.get(label.sink)
        owner = asking.owner if mark is None else mark.owner
        aborts = [
            each.id.least
            for each in self._in_the_way(self._of_sinks.of(label.sink), label, asking)
            if each.id.least not in commits
        ]
        return Record(
            FORMAT_VERSION,
            Kind.TOGETHER,
            0,
            self.last_least,
            owner=owner,
            sink=label.sink,
            batch=label.batch,
            writer=label.writer,
            commits=tuple(commits),
            aborts=tuple(aborts),
            forgets=forgets,
            marked_ms=now_ms,
        )

    def left_open(self, sink: str, up_to_batch: int, asking: Asking) -> list[Transaction]:
        """Return the open transactions of a sink for the batches up to and including `up_to_batch`, except those that
        the role of `asking` may not end.
        """
        return [each for each in self._open_among(self._of_sinks.of(sink), asking) if _batch(each) <= up_to_batch]

    def left_by_other_runs(self, label: Label, asking: Asking) -> list[Transaction]:
        """Return the open transactions of the label's sink that will not be committed: of earlier runs of the label's
        writer, up to the label's batch, and of other writers.
        """
        return self._in_the_way(self._of_sinks.of_others(label), label, asking)

    def _in_the_way(self, leasts: Iterable[int], label: Label, asking: Asking) -> list[Transaction]:
        return [
            each
            for each in self._open_among(leasts, asking)
            if each.label is not None and (each.label.batch <= label.batch or each.label.writer != label.writer)
        ]

    def _open_among(self, leasts: Iterable[int], asking: Asking) -> Iterator[Transaction]:
        found = (self._live[least] for least in leasts)
        return (each for each in found if each.status is Status.OPEN and asking.may(each.owner))

    def forget_sink(self, sink: str) -> Record:
        """Return the log record with which the coordinator forgets the last committed batch of `sink`. After it is
        applied, a repeated batch is committed again.
        """
        return Record(FORMAT_VERSION, Kind.SINK_GONE, 0, self.last_least, sink=sink)

    def whole_mark(self, sink: str) -> Record | None:
        """Return the log record of the sink's last committed batch; None if the sink has no committed batch or its
        record was deleted.
        """
        mark = self.marks.get(sink)
        if mark is None:
            return None
        return Record(
            FORMAT_VERSION,
            Kind.SINK,
            0,
            self.last_least,
            owner=mark.owner,
            sink=sink,
            batch=mark.batch,
            writer=mark.writer,
            marked_ms=mark.marked_ms,
        )

    def whole(self, transaction: Transaction) -> Record:
        """Return a log record with the whole state of a transaction. It replaces all earlier records of the
        transaction.
        """
        record = Record(
            WITHOUT_SINKS,
            Kind.WHOLE,
            transaction.id.least,
            self.last_least,
            transaction.opened_ms,
            transaction.timeout_ms,
            transaction.owner,
            transaction.status,
            tuple(transaction.partitions),
            tuple(transaction.subscriptions),
            dict(transaction.as_sent),
        )
        return record if transaction.label is None else _labelled(record, transaction.label)

    # --- application of records ------------------------------------------------------------------------------------

    def apply(self, record: Record) -> Transaction | None:
        """Apply a log record. Return the transaction that it changes or ends; None for a record of a sink, or if the
        transaction has ended before.
        """
        self.last_least = max(self.last_least, record.last)
        if record.kind in (Kind.NEW, Kind.WHOLE):
            return self._put(record)
        if record.kind in (Kind.TOGETHER, Kind.SINK, Kind.SINK_GONE):
            self._apply_of_sink(record)
            return None
        transaction = self._live.get(record.least)
        if transaction is None:
            return None  # It has ended, and its first record was trimmed.
        if record.kind is Kind.ADD:
            before = transaction.size_bytes
            transaction.add(record.partitions, record.subscriptions, record.as_sent)
            self._count(transaction.holder, 0, transaction.size_bytes - before)
        elif record.kind is Kind.COMMITTING:
            transaction.status = Status.COMMITTING
        elif record.kind is Kind.ABORTING:
            transaction.status = Status.ABORTING
        else:
            del self._live[record.least]
            self._count(transaction.holder, -1, -transaction.size_bytes)
            if transaction.label is not None:
                self._of_sinks.remove(transaction.label, record.least)
        return transaction

    def _apply_of_sink(self, record: Record) -> None:
        if record.forgets:
            self.marks.remove(record.forgets)
        if record.kind is Kind.SINK_GONE:
            self.marks.remove(record.sink)
        else:
            self.marks.put(record.sink, Mark(record.batch, record.writer, record.owner, record.marked_ms))
        for leasts, status in ((record.commits, Status.COMMITTING), (record.aborts, Status.ABORTING)):
            for least in leasts:
                transaction = self._live.get(least)
                if transaction is not None:  # otherwise its first record was trimmed
                    transaction.status = status

    def _put(self, record: Record) -> Transaction:
        before = self._live.get(record.least)
        label = Label(record.sink, record.batch, record.writer, record.run) if record.sink else None
        transaction = Transaction(
            TxnId(self.coordinator_id, record.least), record.opened_ms, record.timeout_ms, record.owner, label
        )
        transaction.status = Status(record.status or Status.OPEN)
        transaction.add(record.partitions, record.subscriptions, record.as_sent)
        self._live[record.least] = transaction
        if label is not None:
            self._of_sinks.add(label, record.least)
        if before is not None:
            self._count(before.holder, -1, -before.size_bytes)
        self._count(transaction.holder, 1, transaction.size_bytes)
        return transaction

    def all_applied(self) -> None:
        """Sort the transactions by id after the log was read, because rewritten ones are at its end."""
        self._live = dict(sorted(self._live.items()))
        self.marks.in_order()

    def check_invariants(self) -> None:
        assert list(self._live) == sorted(self._live), "transactions stand in the order of their ids"
        assert all(least <= self.last_least for least in self._live), (
            "a live transaction has an id that was never assigned"
        )
        assert self.size_bytes == sum(each.size_bytes for each in self._live.values()), "bytes are counted wrong"
        self.counts.check_invariants()
        self.sizes.check_invariants()
        for name in {each.holder for each in self._live.values()}:
            held = [each for each in self._live.values() if each.holder == name]
            assert self.counts.used_by(name) == len(held), "counted for another holder"
            assert self.sizes.used_by(name) >= sum(each.size_bytes for each in held)
        assert self.counts.used == len(self._live)
        of_sinks = {least for sink in self._of_sinks.sinks() for least in self._of_sinks.of(sink)}
        assert of_sinks == {least for least, each in self._live.items() if each.label is not None}, "of which sink"
        assert self.low_water_mark <= self.last_least
        assert all(least == each.id.least for least, each in self._live.items())


def _batch(transaction: Transaction) -> int:
    assert transaction.label is not None, "of a sink"
    return transaction.label.batch


def _labelled(record: Record, label: Label) -> Record:
    return msgspec.structs.replace(
        record, v=FORMAT_VERSION, sink=label.sink, batch=label.batch, writer=label.writer, run=label.run
    )
