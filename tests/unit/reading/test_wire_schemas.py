"""Each type of schema is one number to the client and one name to tables."""

import pytest

from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.reading.wire_schemas import schema_info, topic_schema
from pybroker.schema.schema_data import InvalidSchema, SchemaType
from pybroker.wire import pulsar_api_pb2 as pb

STORED = [kind for kind in SchemaType if kind not in (SchemaType.NONE, SchemaType.AUTO_CONSUME)]


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.name)
def test_a_schema_survives_the_way_to_the_wire_and_back(kind: SchemaType) -> None:
    info = SchemaInfo(kind.name, b"definition", {"a": "1"}, "orders")
    schema = topic_schema(info, "other")
    assert schema is not None
    assert schema.type in pb.Schema.Type.values()
    assert schema_info(schema) == info


@pytest.mark.parametrize("name", ["BYTES", "NONE"])
def test_plain_bytes_have_no_schema(name: str) -> None:
    assert topic_schema(SchemaInfo(name), "orders") is None


def test_a_type_of_a_newer_protocol_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="99"):
        topic_schema(SchemaInfo("99"), "orders")
