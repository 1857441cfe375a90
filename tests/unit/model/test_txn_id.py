"""Names of transactions."""

from __future__ import annotations

from pybroker.model.txn_id import ID_BASE_BESIDE_PULSAR, TxnAction, TxnId, is_passed, passed_by
from pybroker.wire import pulsar_api_pb2 as pb


def test_an_id_is_written_as_pulsar_writes_it() -> None:
    assert str(TxnId(3, 17)) == "(3,17)"


def test_ids_of_one_coordinator_are_in_the_order_in_which_they_were_given() -> None:
    assert sorted([TxnId(0, 10), TxnId(0, 9), TxnId(1, 1)]) == [TxnId(0, 9), TxnId(0, 10), TxnId(1, 1)]


def test_actions_have_the_numbers_of_the_wire() -> None:
    assert [action.value for action in TxnAction] == [pb.COMMIT, pb.ABORT]


def test_what_a_mark_passes_is_the_same_however_it_is_looked_for() -> None:
    few, many = [TxnId(0, 3), TxnId(1, 4), TxnId(0, 9)], [TxnId(most, least) for least in range(50) for most in (0, 1)]
    for before, mark in ((0, 3), (2, 9), (3, 3), (3, 8), (9, 40), (0, 100)):
        for known in (few, many):
            assert passed_by(dict.fromkeys(known), 0, before, mark) == [
                txn for txn in known if txn.most == 0 and before < txn.least <= mark
            ]


def test_low_water_mark_of_one_kind_of_broker_does_not_pass_ids_of_the_other() -> None:
    own = ID_BASE_BESIDE_PULSAR + 5
    ids = (0, 1, 7, ID_BASE_BESIDE_PULSAR + 1, own, own + 1)
    assert [least for least in ids if is_passed(least, own)] == [ID_BASE_BESIDE_PULSAR + 1, own]
    assert [least for least in ids if is_passed(least, 7)] == [0, 1, 7]
    assert not any(is_passed(least, 0) for least in ids)
    assert passed_by([TxnId(3, least) for least in ids], 3, 0, own) == [
        TxnId(3, ID_BASE_BESIDE_PULSAR + 1),
        TxnId(3, own),
    ]
    assert passed_by([TxnId(3, least) for least in ids], 3, 7, own) == [
        TxnId(3, ID_BASE_BESIDE_PULSAR + 1),
        TxnId(3, own),
    ]
