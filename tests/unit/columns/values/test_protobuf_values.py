"""Payloads of PROTOBUF_NATIVE and PROTOBUF schemas become columns."""

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.support.payloads import EXAMPLES, decode, errors, rows

from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_decoder import fields_of, why_bytes
from pybroker.columns.values.value_schema import SchemaInfo

SCALARS = [
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
]
SCALARS += ["sfixed64", "bool", "string", "bytes"]


def add(message: DescriptorProto, name: str, kind: str, *, repeated: bool = False, **more: Any) -> None:
    """A field of a scalar type, or of a message or enum by its full name."""
    plain = kind in SCALARS
    number = len(message.field) + 1
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label, **more)
    if plain:
        field.type = FieldDescriptorProto.Type.Value("TYPE_" + kind.upper())
    elif kind.endswith("Colour"):
        field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, kind
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind


def add_map(message: DescriptorProto, full_name: str, name: str, value: str) -> None:
    entry = message.nested_type.add(name=name.capitalize() + "Entry")
    entry.options.map_entry = True
    add(entry, "key", "string")
    add(entry, "value", value)
    add(message, name, f"{full_name}.{entry.name}", repeated=True)


def order_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/wrappers.proto", "google/protobuf/timestamp.proto"])
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=2)
    item = file.message_type.add(name="Item")
    add(item, "sku", "string")
    add(item, "colour", ".shop.Colour")
    order = file.message_type.add(name="Order")
    for kind in SCALARS:
        add(order, f"a_{kind}", kind)
    add(order, "item", ".shop.Item")
    add(order, "items", ".shop.Item", repeated=True)
    add(order, "numbers", "uint64", repeated=True)
    add(order, "colours", ".shop.Colour", repeated=True)
    add_map(order, ".shop.Order", "prices", "double")
    add_map(order, ".shop.Order", "stock", ".shop.Item")
    add(order, "name", ".google.protobuf.StringValue")
    add(order, "at", ".google.protobuf.Timestamp")
    order.oneof_decl.add(name="either")
    add(order, "left", "int32", oneof_index=0)
    add(order, "right", "string", oneof_index=0)
    order.oneof_decl.add(name="_maybe")
    add(order, "maybe", "int32", oneof_index=1, proto3_optional=True)
    file.message_type.add(name="Empty")
    add(order, "empty", ".shop.Empty")
    return file


def known_files(*modules: Any) -> list[FileDescriptorProto]:
    files = []
    for module in modules:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return files


def native(files: list[FileDescriptorProto], root: str) -> SchemaInfo:
    document = {
        "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files[-1].name,
    }
    return SchemaInfo("PROTOBUF_NATIVE", json.dumps(document).encode())


def message_class(files: list[FileDescriptorProto], root: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(root))


FILES = [*known_files(wrappers_pb2, timestamp_pb2), order_file()]
ORDER = message_class(FILES, "shop.Order")
INFO = native(FILES, "shop.Order")
ZEROS: dict[str, Any] = {
    **{f"a_{kind}": 0 for kind in SCALARS},
    "a_bool": False,
    "a_string": "",
    "a_bytes": b"",
    "a_uint64": Decimal(0),
    "a_fixed64": Decimal(0),
    "item": None,
    "items": [],
    "numbers": [],
    "colours": [],
    "prices": {},
    "stock": {},
    "name": None,
    "at": None,
    "left": None,
    "right": None,
    "maybe": None,
    "empty": None,
}


def test_messages_become_structs_with_everything_inside_them() -> None:
    full = ORDER(
        a_uint64=2**64 - 1,
        a_uint32=2**32 - 1,
        a_sint64=-(2**63),
        a_bytes=b"\xff",
        item={"sku": "x", "colour": 2},
        items=[{"sku": "y"}, {}],
        numbers=[1, 2**64 - 1],
        colours=[0, 2, 7],
        prices={"a": 0.5},
        name={"value": ""},
        at={"seconds": 3, "nanos": 4},
        right="",
        maybe=0,
        empty={},
    )
    full.stock["s"].sku = "z"
    table = decode(INFO, [full.SerializeToString(), b"", None] * 2)
    read = {
        **ZEROS,
        "a_uint64": Decimal(2**64 - 1),
        "a_uint32": 2**32 - 1,
        "a_sint64": -(2**63),
        "a_bytes": b"\xff",
        "item": {"sku": "x", "colour": "BLUE"},
        "items": [{"sku": "y", "colour": "RED"}, {"sku": "", "colour": "RED"}],
        "numbers": [Decimal(1), Decimal(2**64 - 1)],
        "colours": ["RED", "BLUE", "7"],
        "prices": {"a": 0.5},
        "stock": {"s": {"sku": "z", "colour": "RED"}},
        "name": {"value": ""},
        "at": {"seconds": 3, "nanos": 4},
        "right": "",
        "maybe": 0,
        "empty": {},
    }
    assert rows(table) == [read, ZEROS, dict.fromkeys(ZEROS)] * 2
    assert table.schema.field("a_uint64").type == pa.decimal128(20, 0)
    assert table.schema.field("a_uint32").type == pa.int64()


@EXAMPLES
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=10))
def test_any_bytes_are_a_row_or_a_bad_record(payloads: list[bytes]) -> None:
    good = ORDER(a_int32=5).SerializeToString()
    table = decode(INFO, [good, *payloads, good])
    assert table.column("a_int32").to_pylist()[0] == table.column("a_int32").to_pylist()[-1] == 5
    for payload, error in zip(payloads, errors(table)[1:-1], strict=True):
        try:
            ORDER.FromString(payload)
        except DecodeError:
            assert error == "it is not a valid Protobuf message shop.Order"
        else:
            assert error is None


def test_only_the_wanted_columns_are_decoded() -> None:
    payload = ORDER(a_int32=5, item={"sku": "x"}).SerializeToString()
    assert rows(decode(INFO, [payload], wanted=["item", "a_int32"])) == [
        {"a_int32": 5, "item": {"sku": "x", "colour": "RED"}}
    ]


def test_a_field_of_proto2_that_is_not_there_is_null_and_a_text_that_is_none_is_a_bad_record() -> None:
    file = FileDescriptorProto(name="old.proto", syntax="proto2")
    message = file.message_type.add(name="Old")
    add(message, "text", "string")
    add(message, "number", "int32", default_value="7")
    payloads = [b"", b"\x0a\x01a\x10\x00", b"\x0a\x01\xff"]
    table = decode(native([file], "Old"), payloads)
    assert table.column("text").to_pylist() == [None, "a", None]
    assert table.column("number").to_pylist() == [None, 0, None]
    assert errors(table) == [None, None, "a text is not UTF-8"]


def recursive() -> FileDescriptorProto:
    file = FileDescriptorProto(name="node.proto", syntax="proto3")
    node = file.message_type.add(name="Node")
    add(node, "next", ".Node")
    return file


def doubling(levels: int) -> FileDescriptorProto:
    file = FileDescriptorProto(name="double.proto", syntax="proto3")
    for level in range(levels):
        message = file.message_type.add(name=f"M{level}")
        for name in ("a", "b"):
            add(message, name, f".M{level - 1}" if level else "int32")
    return file


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (native([recursive()], "Node"), "Node contains itself"),
        (native(known_files(struct_pb2), "google.protobuf.Struct"), "contains itself"),
        (native([doubling(30)], "M29"), "more than 20000"),
        (native([doubling(70)], "M69"), "deeper than 64"),
        (SchemaInfo("PROTOBUF_NATIVE", b"{}"), "definition is invalid"),
        (SchemaInfo("PROTOBUF_NATIVE", b"\xff" * 1000), "definition is invalid"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(info: SchemaInfo, reason: str) -> None:
    with pytest.raises(UnreadableSchema, match=reason):
        fields_of(info)


def test_well_known_messages_are_plain_ones() -> None:
    info = native(known_files(any_pb2), "google.protobuf.Any")
    payload = any_pb2.Any(type_url="t", value=b"v").SerializeToString()
    assert rows(decode(info, [payload])) == [{"type_url": "t", "value": b"v"}]


def described(*fields: dict[str, Any]) -> SchemaInfo:
    return SchemaInfo("PROTOBUF", b"{}", {"__PARSING_INFO__": json.dumps(fields)})


PLAIN = (
    {"number": 1, "name": "id", "type": "INT64", "label": "LABEL_OPTIONAL", "definition": None},
    {"number": 3, "name": "tags", "type": "STRING", "label": "LABEL_REPEATED"},
)


def test_a_protobuf_schema_with_plain_fields_is_read_by_their_numbers() -> None:
    info = described(*PLAIN)
    assert why_bytes(info) is None
    table = decode(info, [b"\x08\x05\x1a\x01a\x1a\x00", b"", b"\xff"])
    assert table.column("id").to_pylist() == [5, 0, None]
    assert table.column("tags").to_pylist() == [["a", ""], [], None]
    assert [bool(error) for error in errors(table)] == [False, False, True]


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (SchemaInfo("PROTOBUF", b"{}"), "has no field numbers"),
        (described(*PLAIN, {"number": 4, "name": "in", "type": "MESSAGE"}), "the content of its field 'in'"),
        (described({"number": 0, "name": "id", "type": "INT64"}), "is invalid"),
        (described({"number": 1, "type": "INT64"}), "is invalid"),
        (SchemaInfo("PROTOBUF", b"{}", {"__PARSING_INFO__": "[" * 10_000}), "is invalid"),
        (SchemaInfo("PROTOBUF", b"{}", {"__PARSING_INFO__": "7"}), "is invalid"),
    ],
)
def test_a_protobuf_schema_that_does_not_say_enough_stays_bytes_and_says_why(info: SchemaInfo, reason: str) -> None:
    assert rows(decode(info, [b"\xff"])) == [{"value": b"\xff"}]
    assert reason in (why_bytes(info) or "")


def test_versions_are_all_read_by_the_pinned_descriptors() -> None:
    older = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    add(older.message_type.add(name="Order"), "a_double", "double")
    known = {b"1": native([older], "shop.Order"), b"2": SchemaInfo("AVRO")}
    payload = ORDER(a_double=0.5).SerializeToString()
    table = decode(INFO, [payload, payload], versions=[b"1", b"2"], known=known)
    assert table.column("a_double").to_pylist() == [0.5, None]
    assert "its type is AVRO" in errors(table)[1]  # type: ignore[operator]
