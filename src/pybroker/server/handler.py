"""How one command is served: at once, or as a task that may wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

C = TypeVar("C")
"""Whose commands are served: a connection."""


class Handler(Generic[C]):
    """How to serve one command. `field` is the name of its message in BaseCommand."""

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

    def request_id(self, command: pb.BaseCommand) -> int:
        """The request that an ERROR would answer."""
        message: Any = getattr(command, self.field)
        return int(getattr(message, "request_id", replies.NO_REQUEST_ID))
