"""Limit of the number of fields in a large command, checked before protobuf creates an object for each field.

Two bytes of a command can become an object of a hundred bytes. Real commands have at most some hundreds of fields.
Message metadata has no such limit: see `entry_metadata`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from pybroker.errors import BrokerError, ConsumerAssignError, MetadataError, NotAllowedError, ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.varint import decode, skip_field

LARGE_COMMAND_BYTES = 16 * 1024
"""Smaller commands cannot contain enough fields to matter."""
LENGTH_DELIMITED = 2
"""The wire type of strings, bytes and messages."""
_MESSAGE_ID = pb.MessageIdData.DESCRIPTOR
"""Not descended into: it has numbers only, for which protobuf creates no objects."""
_ERRORS: dict[str, type[BrokerError]] = {"metadata": MetadataError, "keySharedMeta": ConsumerAssignError}
"""Errors sent if the fields of these messages exceed the limit."""


class FieldCount:
    """Counts the fields of one command, including nested messages, up to `limit`. `request_id` is set when the request
    id is found.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._own_field = ""  # the current field of the command
        self.request_id: int | None = None

    def refusal(self, data: bytes, start: int, end: int, command: Message) -> BrokerError | None:
        """Return the error for the command in `data[start:end]` if it has too many fields, else None. `command` is an
        empty message of the command's type. Raises ProtocolViolation if the fields are malformed.
        """
        descriptor: Any = command.DESCRIPTOR
        self._count(data, start, end, descriptor)
        if self._left >= 0:
            return None
        error = _ERRORS.get(self._own_field, NotAllowedError)
        return error(
            f"{command.DESCRIPTOR.name} has more than {self._limit} fields, in {self._own_field} (maxFieldsInCommand)"
        )

    def _count(self, data: bytes, pos: int, end: int, message: Descriptor) -> None:
        fields = message.fields_by_number
        is_command = message.name.startswith("Command")
        while pos < end:
            self._left -= 1
            if self._left < 0:
                return
            tag, pos = decode(data, pos, end)
            field = fields.get(tag >> 3)
            if is_command:
                self._own_field = "unknown fields" if field is None else field.name
            if tag & 7 == LENGTH_DELIMITED:
                size, start = decode(data, pos, end)
                pos = start + size
                if pos > end:
                    raise ProtocolViolation("the client sent a damaged command, which ends within a field")
                if field is not None and field.message_type not in (None, _MESSAGE_ID):
                    self._count(data, start, pos, field.message_type)
            elif field is not None and field.name == "request_id" and tag & 7 == 0:
                self.request_id, pos = decode(data, pos, end)
            else:
                pos = skip_field(data, tag, pos, end)
