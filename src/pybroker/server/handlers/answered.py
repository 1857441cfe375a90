"""Requests whose failures are answered by a response of their own type, not by ERROR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pybroker.errors import BrokerError
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


@contextmanager
def answered(connection: Connection, reply: pb.BaseCommand, refuse: Callable[[BrokerError], None]) -> Iterator[None]:
    """Send `reply` in the end, whatever happens; `refuse` writes into it why the request failed, if it did."""
    try:
        yield
    except Exception as failure:  # noqa: BLE001  (`answerable` sorts them)
        refuse(connection.answerable(failure))
    connection.send(replies.frame(reply))
