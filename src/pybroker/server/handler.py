"""The handler of one command: a function that runs inline or as a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

C = TypeVar("C")
"""Type variable of the connection."""


def type_name(command: pb.BaseCommand) -> str:
    """Return the protocol's name of a command type, without `_REQUEST` or `_RESPONSE`."""
    return pb.BaseCommand.Type.Name(command.type).removesuffix("_RESPONSE").removesuffix("_REQUEST")


class Handler(Generic[C]):
    """A function and the name of its command's field in BaseCommand."""

    __slots__ = ("field", "is_inline", "name", "run", "run_inline")

    def __init__(
        self,
        field: str,
        *,
        inline: Callable[[C, pb.BaseCommand], None] | None = None,
        task: Callable[[C, pb.BaseCommand], Awaitable[None]] | None = None,
    ) -> None:
        self.field = field
        self.name = field
        self.is_inline = inline is not None
        if inline is not None:
            self.run_inline = inline
        else:
            assert task is not None
            self.run = task

    def topic(self, command: pb.BaseCommand) -> str:
        return str(getattr(getattr(command, self.field), "topic", ""))

    def request_id(self, command: pb.BaseCommand) -> int:
        message: Any = getattr(command, self.field)
        return int(getattr(message, "request_id", replies.NO_REQUEST_ID))


WEIGHED_REQUEST_BYTES = 4096


def weight_of(command: pb.BaseCommand) -> int:
    """Return the number of requests that a command counts for in maxConcurrentRequestsPerConnection: 1, and 1 more per
    4 KiB of its size, because waiting requests use memory.
    """
    return 1 + command.ByteSize() // WEIGHED_REQUEST_BYTES
