"""PROTOBUF_NATIVE schemas: a JSON document with the topic's message type and the Protobuf files that define it.

``{"fileDescriptorSet": base64, "rootMessageTypeName": "package.Message", "rootFileDescriptorName": "file.proto"}``
"""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from pybroker.schema.json_text import JsonValue, parse_json
from pybroker.schema.schema_data import InvalidSchema


def root_message_name(data: bytes) -> str:
    return root_message(data).full_name


def root_message(data: bytes) -> Descriptor:
    """Return the message type of a PROTOBUF_NATIVE definition. Raises InvalidSchema if the definition is damaged or its
    Protobuf files are inconsistent.
    """
    document = parse_json(data)
    if not isinstance(document, dict):
        raise InvalidSchema("the definition of the PROTOBUF_NATIVE schema is not a JSON object")
    root_file = _text(document, "rootFileDescriptorName")
    root_name = _text(document, "rootMessageTypeName")
    files = _files(_text(document, "fileDescriptorSet"))
    if root_file not in files:
        raise InvalidSchema(f"the root file {root_file!r} of the schema is not among its descriptors")
    pool = _link(files)
    return pool.FindMessageTypeByName(_find_message(files[root_file], root_name))


def _text(document: dict[str, JsonValue], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidSchema(f"the field {key!r} of the schema definition is missing, empty or not a string")
    return value


def _files(text: str) -> dict[str, FileDescriptorProto]:
    try:
        descriptors = FileDescriptorSet.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise InvalidSchema(f"fileDescriptorSet: {error}") from None
    for file in descriptors.file:
        # Java treats an empty syntax as proto2; Python's Protobuf library refuses it.
        if not file.syntax:
            file.ClearField("syntax")
    return {file.name: file for file in descriptors.file}


def _link(files: dict[str, FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """Add the files in import order, so that Protobuf checks each against its imports."""
    pool = descriptor_pool.DescriptorPool()
    done: set[str] = set()
    opened: set[str] = set()
    waiting = list(files)
    while waiting:
        name = waiting[-1]
        if name in done:
            waiting.pop()
            continue
        if name not in files:
            raise InvalidSchema(f"the file {name!r} is imported by the schema, but missing from its descriptors")
        missing = [dependency for dependency in files[name].dependency if dependency not in done]
        if missing and name in opened:
            raise InvalidSchema(f"file {name!r} imports itself")
        opened.add(name)
        waiting.extend(missing)
        if missing:
            continue
        try:
            pool.AddSerializedFile(files[name].SerializeToString())
        except TypeError as error:
            raise InvalidSchema(f"file {name!r}: {error}") from None
        done.add(name)
    return pool


def _find_message(file: FileDescriptorProto, root_name: str) -> str:
    """Return the full name of a message. `root_name` may be relative to the file's package."""
    prefix = f"{file.package}." if file.package else ""
    level: dict[str, DescriptorProto] = {message.name: message for message in file.message_type}
    inner_name = root_name.removeprefix(prefix)
    for part in inner_name.split("."):
        if part not in level:
            raise InvalidSchema(f"the schema is invalid: file {file.name!r} contains no message {root_name!r}")
        level = {message.name: message for message in level[part].nested_type}
    return prefix + inner_name
