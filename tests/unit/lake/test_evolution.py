"""Which changes of columns a table takes, and the text of those that it cannot."""

import pyarrow as pa
import pytest

from pybroker.lake.evolution import (
    AddColumn,
    ChangeInside,
    EvolutionRefused,
    PromoteColumn,
    RenameColumn,
    evolved,
    steps_between,
)

OLD = pa.schema(
    [("id", pa.int32()), ("price", pa.float32()), ("name", pa.string()), ("at", pa.struct([("x", pa.int32())]))]
)


def test_the_same_columns_need_nothing_whatever_their_order() -> None:
    assert steps_between(OLD, pa.schema(list(reversed(list(OLD)))), {}) == []


def test_a_column_that_is_not_read_any_more_stays() -> None:
    assert steps_between(OLD, OLD.remove(0), {}) == []


def test_a_new_column_may_be_null() -> None:
    field = pa.field("extra", pa.string(), nullable=False)
    assert steps_between(OLD, OLD.append(field), {}) == [AddColumn(field.with_nullable(True))]


@pytest.mark.parametrize(("name", "kind"), [("id", pa.int64()), ("price", pa.float64())])
def test_a_column_is_promoted_to_a_wider_type(name: str, kind: pa.DataType) -> None:
    wanted = pa.schema([field.with_type(kind) if field.name == name else field for field in OLD])
    assert steps_between(OLD, wanted, {}) == [PromoteColumn(name, kind)]
    assert steps_between(wanted, OLD, {}) == []  # what is narrower fits as it is


def test_a_decimal_gets_more_digits_but_never_another_scale() -> None:
    old, new = pa.schema([("d", pa.decimal128(5, 2))]), pa.schema([("d", pa.decimal128(9, 2))])
    assert steps_between(old, new, {}) == [PromoteColumn("d", pa.decimal128(9, 2))]
    with pytest.raises(EvolutionRefused):
        steps_between(old, pa.schema([("d", pa.decimal128(9, 3))]), {})


def test_a_rename_that_was_told_keeps_the_column_and_may_widen_it() -> None:
    wanted = pa.schema([("number", pa.int64())])
    assert steps_between(OLD, wanted, {"number": "id"}) == [
        RenameColumn("id", "number"),
        PromoteColumn("number", pa.int64()),
    ]
    after = evolved(OLD, steps_between(OLD, wanted, {"number": "id"}))
    assert after.names == ["number", "price", "name", "at"]
    assert after.field("number").type == pa.int64()


def test_a_rename_that_was_done_before_is_not_done_again() -> None:
    present = OLD.set(0, pa.field("number", pa.int32()))
    assert steps_between(present, present, {"number": "id"}) == []


def test_a_struct_gets_a_part() -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.int32())])
    assert steps_between(OLD, OLD.set(3, pa.field("at", kind)), {}) == [ChangeInside("at", kind)]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (pa.field("id", pa.string()), "'id' is int32 and would become string"),
        (pa.field("name", pa.int32()), "'name' is string and would become int32"),
        (pa.field("at", pa.struct([("x", pa.string())])), "'at.x' is int32 and would become string"),
        (pa.field("ID", pa.int32()), "differ in case only"),
    ],
)
def test_what_loses_values_is_refused_with_its_name_and_what_to_do(field: pa.Field, text: str) -> None:
    with pytest.raises(EvolutionRefused, match=text) as refusal:
        steps_between(OLD, pa.schema([field]), {})
    assert "--table" in str(refusal.value)
