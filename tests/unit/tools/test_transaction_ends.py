"""What logs and markers say of the ends of transactions."""

from __future__ import annotations

from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.tools.transaction_ends import TransactionEnds, record_of_nothing
from pybroker.transactions.records import WITHOUT_SINKS, Kind, Record, decode, encode


def record(kind: Kind, least: int, last: int = 9) -> bytes:
    return encode(Record(WITHOUT_SINKS, kind, least, last))


def test_coordinator_ends_what_it_knows_and_nothing_else() -> None:
    ends = TransactionEnds()
    log = [record(Kind.NEW, least) for least in (1, 2, 3)]
    log += [record(Kind.COMMITTING, 1), record(Kind.COMMITTED, 1), record(Kind.ABORTING, 2), b"rubbish"]
    assert ends.read_log(0, log) == 1
    assert [ends.will_end(TxnId(0, least)) for least in (1, 2, 3, 4)] == [False, True, True, False]
    assert [ends.is_open(TxnId(0, least)) for least in (1, 2, 3, 4)] == [False, False, True, False]
    assert ends.action_of(TxnId(0, 1)) is TxnAction.COMMIT
    assert ends.action_of(TxnId(0, 2)) is TxnAction.ABORT
    assert ends.action_of(TxnId(0, 3)) is None


def test_marker_tells_an_end_that_the_log_has_lost() -> None:
    ends = TransactionEnds()
    ends.read_log(0, [record(Kind.NEW, 1)])
    ends.marked(TxnId(0, 1), TxnAction.COMMIT)
    assert not ends.will_end(TxnId(0, 1))
    assert ends.action_of(TxnId(0, 1)) is TxnAction.COMMIT


def test_ids_that_a_log_does_not_know_are_forgotten_ones() -> None:
    ends = TransactionEnds()
    ends.read_log(0, [record(Kind.NEW, 1, last=5)])
    ends.read_log(1, [record(Kind.NEW, 1, last=5)])
    for txn in (TxnId(0, 5), TxnId(1, 6), TxnId(2, 1)):
        ends.seen(txn)
    assert ends.forgotten_ids() == {1: 6, 2: 1}
    assert ends.highest_id(0) == 5
    assert ends.highest_id(1) == 6


def test_record_of_nothing_says_the_highest_id_alone() -> None:
    ends = TransactionEnds()
    assert ends.read_log(3, [record_of_nothing(12)]) == 0
    assert ends.highest_id(3) == 12
    assert decode(record_of_nothing(12)).last == 12
    assert not ends.will_end(TxnId(3, 12))
