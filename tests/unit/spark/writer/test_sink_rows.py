"""Which columns are what, and which rows go where."""

import numpy as np
import pyarrow as pa
import pytest

from pybroker.columns.packed_columns import MessageColumns
from pybroker.spark.writer.sink_rows import RowsRefused, by_topic, payload_fields, split


def test_what_is_no_metadata_is_the_payload() -> None:
    schema = pa.schema({"a": pa.int64(), "__key": pa.string(), "__topic": pa.string(), "b": pa.string()})
    assert [field.name for field in payload_fields(schema, None)] == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "topic", "text"),
    [
        (["value", "__messageId"], "t", "__messageId .*drop the column"),
        (["value"], None, "option topic"),
        (["__key"], "t", "no payload column"),
    ],
)
def test_columns_that_mean_nothing_are_refused(names: list[str], topic: str | None, text: str) -> None:
    with pytest.raises(RowsRefused, match=text):
        payload_fields(pa.schema({name: pa.string() for name in names}), topic)


def test_rows_go_to_the_topic_that_they_name_unless_one_is_given() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["1", "2", "3"], "__topic": ["a", "b", "a"]})
    found = {topic: rows.column("value").to_pylist() for topic, rows in by_topic(batch, None)}
    assert found == {"a": ["1", "3"], "b": ["2"]}
    assert [(topic, rows.num_rows) for topic, rows in by_topic(batch, "c")] == [("c", 3)]
    with pytest.raises(RowsRefused, match="__topic"):
        list(by_topic(pa.RecordBatch.from_pydict({"value": ["1"], "__topic": pa.array([None], pa.string())}), None))


def test_rows_of_a_partition_keep_their_order() -> None:
    rows = MessageColumns(pa.array([b"0", b"1", b"2", b"3"]))
    found = split(rows, np.array([1, 0, 1, 1]))
    assert {part: columns.values.to_pylist() for part, columns in found.items()} == {0: [b"1"], 1: [b"0", b"2", b"3"]}
    assert split(rows, np.array([2, 2, 2, 2])) == {2: rows}
