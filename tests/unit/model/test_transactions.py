"""Names of transactions."""

from __future__ import annotations

from pybroker.model.transactions import TxnAction, TxnId
from pybroker.wire import pulsar_api_pb2 as pb


def test_an_id_is_written_as_pulsar_writes_it() -> None:
    assert str(TxnId(3, 17)) == "(3,17)"


def test_ids_of_one_coordinator_are_in_the_order_in_which_they_were_given() -> None:
    assert sorted([TxnId(0, 10), TxnId(0, 9), TxnId(1, 1)]) == [TxnId(0, 9), TxnId(0, 10), TxnId(1, 1)]


def test_actions_have_the_numbers_of_the_wire() -> None:
    assert [action.value for action in TxnAction] == [pb.COMMIT, pb.ABORT]
