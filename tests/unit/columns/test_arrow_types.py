"""What types of Arrow are called when only their layout differs."""

import pyarrow as pa
import pytest

from pybroker.columns.arrow_types import usual_type


@pytest.mark.parametrize(
    ("given", "usual"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.binary(16)),
        (pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.field("item", pa.int32(), nullable=False)), pa.list_(pa.field("element", pa.int32()))),
        (pa.map_(pa.large_string(), pa.large_binary()), pa.map_(pa.string(), pa.binary())),
        (
            pa.struct([pa.field("a", pa.large_list(pa.int8()), nullable=False, metadata={"id": "1"})]),
            pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int8())))]),
        ),
    ],
)
def test_layout_names_of_items_and_nullability_go_and_the_rest_stays(given: pa.DataType, usual: pa.DataType) -> None:
    found = usual_type(given)
    assert found.equals(usual, check_metadata=True)
    assert usual_type(found) == found
