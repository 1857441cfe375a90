"""Records of a coordinator's log: which version each has, and what is said of one that cannot be read."""

from __future__ import annotations

import json

import pytest

from pybroker.errors import StoreError
from pybroker.model.txn_id import TxnAction
from pybroker.transactions.coordinator_state import CoordinatorState
from pybroker.transactions.records import Kind, Record, decode, encode
from pybroker.transactions.sinks import Asking, Label

ANYBODY = Asking(None, may_all=True)
BATCH = Label("sink", 1, "writer", "run")


def version_of(record: Record | None) -> int:
    assert record is not None
    assert decode(encode(record)) == record
    return int(json.loads(encode(record))["v"])


def test_a_log_without_sinks_is_one_that_brokers_before_them_read() -> None:
    state = CoordinatorState(0)
    transaction = state.apply(state.new(1, 1000, None))
    assert transaction is not None
    added = state.add(transaction, ["topic"], [("topic", "s")])
    ending = state.end(transaction, TxnAction.COMMIT)
    assert ending is not None
    state.apply(ending)
    records = [state.new(1, 1, "role"), added, ending, state.whole(transaction), state.ended(transaction)]
    assert {version_of(record) for record in records} == {1}


def test_what_says_anything_of_a_sink_has_a_version_that_they_refuse() -> None:
    state = CoordinatorState(0)
    opened = state.new(1, 1000, None, BATCH)
    transaction = state.apply(opened)
    assert transaction is not None
    together = state.together(BATCH, [1], ANYBODY, 1, "", takes_over=False)
    assert together is not None
    whole = state.whole(transaction)
    state.apply(together)
    records = [opened, whole, together, state.whole_mark("sink"), state.forget_sink("sink")]
    assert {version_of(record) for record in records} == {2}


def test_a_record_of_a_sink_from_before_it_had_a_version_of_its_own_is_read() -> None:
    assert decode(b'{"v":1,"kind":"sink","least":0,"last":3,"sink":"s","batch":4}').kind is Kind.SINK


@pytest.mark.parametrize("kind", ["new", "of a later version"])
def test_a_later_version_is_named_whatever_else_the_record_says(kind: str) -> None:
    with pytest.raises(
        StoreError,
        match="version 3, but this broker reads only versions up to 2: start the newer version that wrote it",
    ):
        decode(json.dumps({"v": 3, "kind": kind, "least": 1, "last": 1}).encode())


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"v":1}', b'{"v":1,"kind":"no such","least":1,"last":1}'])
def test_a_damaged_record_says_so(record: bytes) -> None:
    with pytest.raises(StoreError, match="a record in the log of the transaction coordinator is damaged"):
        decode(record)
