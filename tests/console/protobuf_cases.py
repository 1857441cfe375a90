"""Messages of PROTOBUF_NATIVE schemas of every type and shape, and what Google's own library makes of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf import duration_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

NUMBERS = {
    "double": -1.5,
    "float": 0.25,
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "int32": -(2**31),
    "fixed64": 2**63 + 1,
    "fixed32": 2**32 - 1,
    "bool": True,
    "uint32": 2**32 - 1,
    "sfixed32": -7,
    "sfixed64": -(2**62),
    "sint32": -(2**31),
    "sint64": -(2**63),
}
WHOLE_64 = {"int64", "uint64", "fixed64", "sfixed64", "sint64"}


class Case(NamedTuple):
    """A schema's text, a payload, and the value that the page has to show, as JSON."""

    schema: str
    payload: str
    expected: Any


def case(message: Message, files: list[FileDescriptorProto], payload: bytes | None = None) -> Case:
    schema = {
        "fileDescriptorSet": _set_of(*files),
        "rootMessageTypeName": message.DESCRIPTOR.full_name,
        "rootFileDescriptorName": message.DESCRIPTOR.file.name,
    }
    payload = message.SerializeToString() if payload is None else payload
    return Case(json.dumps(schema), base64.b64encode(payload).decode(), _expected(message))


def _set_of(*files: FileDescriptorProto) -> str:
    return base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()


def _expected(message: Message) -> Any:
    """What is there, as the page writes it: numbers as numbers while they are safe, bytes in hexadecimal digits."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key).lower(): _one(inner, each) for key, each in value.items()}
        elif field.is_repeated:
            found[field.name] = [_one(field, each) for each in value]
        else:
            found[field.name] = _one(field, value)
    return found


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        own = field.message_type.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}
        return json_format.MessageToDict(value) if own else _expected(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)


def every_type() -> FileDescriptorProto:
    """A message with a field, a list (packed and not) and a map of every type, a group, an enum, and itself inside."""
    file = FileDescriptorProto(name="every.proto", package="shop.v1", syntax="proto2")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=-1)
    root = file.message_type.add(name="Every")
    number = 0
    for name in [*NUMBERS, "string", "bytes", "enum"]:
        for suffix, label in (("", 1), ("_list", 3), ("_packed", 3)):
            if suffix == "_packed" and name in {"string", "bytes"}:
                continue
            number += 1
            field = _add(root, f"{name}{suffix}", number, name, label)
            field.options.packed = suffix == "_packed"
    for name in [*NUMBERS, "string", "bytes", "enum", "message"]:
        number += 1
        entry = root.nested_type.add(name=f"Map{number}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string" if name != "bool" else "bool", 1)
        _add(entry, "value", 2, name, 1)
        mapped = _add(root, f"{name}_map", number, "message", 3)
        mapped.type_name = f".shop.v1.Every.{entry.name}"
    group = root.nested_type.add(name="Part")
    _add(group, "sku", 1, "string", 1)
    _add(root, "part", 900, "group", 3).type_name = ".shop.v1.Every.Part"
    _add(root, "inner", 901, "message", 1)
    _add(root, "at", 902, "message", 3).type_name = ".google.protobuf.Timestamp"
    _add(root, "took", 903, "message", 3).type_name = ".google.protobuf.Duration"
    return file


def _add(message: DescriptorProto, name: str, number: int, kind: str, label: int) -> FieldDescriptorProto:
    field = message.field.add(name=name, number=number, label=label)
    field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    if kind in {"enum", "message"}:
        field.type_name = ".shop.v1.Colour" if kind == "enum" else ".shop.v1.Every"
    return field


class Hostile(NamedTuple):
    """A schema's text, a payload, and part of the reason why it cannot be read."""

    schema: str
    payload: str
    reason: str


def _every() -> tuple[Any, list[FileDescriptorProto]]:
    """The class of that message, and the files that tell it."""
    files = [FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in (timestamp_pb2, duration_pb2)]
    files.append(every_type())
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.v1.Every")), files


def cases() -> Iterator[Case]:
    """Read as Google's library reads them."""
    every, files = _every()
    value = every(string="grüße", bytes=b"\x00\xff", enum=-1, string_list=["a", "", "b"], bytes_list=[b"x"])
    value.enum_list.extend([0, -1])
    value.enum_packed.extend([-1, 0])
    for name, number in NUMBERS.items():
        setattr(value, name, number)
        for suffix in ("_list", "_packed"):
            getattr(value, name + suffix).extend([number, type(number)(0), type(number)(1)])
        getattr(value, f"{name}_map")["key" if name != "bool" else True] = number
    value.string_map["__proto__"] = ""
    value.bytes_map["b"] = b"\x01"
    value.enum_map["e"] = -1
    value.message_map["m"].inner.string = "deep"
    value.part.add(sku="one").SetInParent()
    value.part.add()
    value.inner.inner.inner.int32 = 0
    for moment in ("2026-11-23T17:00:00Z", "1969-12-31T23:59:59.500Z", "2026-11-23T17:00:00.000000001Z"):
        value.at.add().FromJsonString(moment)
    for text in ("1.5s", "-0.250s", "-3s"):
        value.took.add().FromJsonString(text)
    yield case(value, files)
    yield case(every(), files)
    # A map's entry without key and value, a key that comes twice, and packed numbers where none were expected.
    field = every.DESCRIPTOR.fields_by_name["int32_map"].number
    tag = bytes([field << 3 & 0x7F | 0x82, field >> 4]) if field > 15 else bytes([field << 3 | 2])
    raw = tag + b"\x00" + tag + b"\x05\n\x01k\x10\x01" + tag + b"\x05\n\x01k\x10\x02"
    yield case(every.FromString(raw), files, raw)
    struct: Any = struct_pb2.Struct()
    struct.update({"a": [1, "x", None, {"b": True}]})
    yield case(struct, [FileDescriptorProto.FromString(struct_pb2.DESCRIPTOR.serialized_pb)])
    own: Any = every_type()
    yield case(own, [FileDescriptorProto.FromString(FileDescriptorSet.DESCRIPTOR.file.serialized_pb)])


def hostile() -> Iterator[Hostile]:
    """Payloads and descriptors of ill will: each of them has to end, and to say why it is not shown."""
    every, files = _every()
    schema = case(every(), files).schema

    def each(payload: bytes, reason: str, schema: str = schema) -> Hostile:
        return Hostile(schema, base64.b64encode(payload).decode(), reason)

    deep: Any = every()
    within = deep
    for _ in range(90):
        within = within.inner
    within.int32 = 1
    yield each(deep.SerializeToString(), "nested too deeply")
    yield each(every(int32_packed=[1] * 30_000).SerializeToString(), "more than 20000 values")
    yield each(every(string_list=[""] * 30_000).SerializeToString(), "more than 20000 values")
    yield each(every(string="cut off").SerializeToString()[:-1], "ends too early")
    yield each(b"\x08\x00" * 1_000_000, "more than 20000 values")
    yield each(b"\xff" * 12, "too long")
    yield each(b"\x0b" * 1_000_000, "unknown wire type")  # groups in groups
    yield each(b"\x0b" + b"\x0b\x0c" * 1_000_000 + b"\x0c", "more than 20000 values")
    yield each(every(string="x").SerializeToString().replace(b"x", b"\xff"), "not UTF-8")
    yield each(b"", "", "no JSON")
    unknown = json.loads(schema) | {"rootMessageTypeName": "constructor"}
    yield each(b"", "does not have: constructor", json.dumps(unknown))
    endless = FileDescriptorProto(name="endless")
    for index in range(
        40
    ):  # what is not sent of a map is made: here two of the next kind, of which each is two of the next
        entry = endless.message_type.add(name=f"M{index}")
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value") if index < 39 else (), 1):
            _add(entry, name, number, "message", 1).type_name = f".M{index + 1}"
    made = {"rootMessageTypeName": "M0", "fileDescriptorSet": _set_of(endless)}
    yield each(b"", "more than 20000 values", json.dumps(made))
    nested = b""
    for _ in range(200):
        nested = _piece(3, nested)
    too_deep = base64.b64encode(_piece(1, _piece(4, nested))).decode()
    yield each(b"", "nested too deeply", json.dumps(json.loads(schema) | {"fileDescriptorSet": too_deep}))


def _piece(number: int, content: bytes) -> bytes:
    """A field that has a length, below 16 KiB."""
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content
