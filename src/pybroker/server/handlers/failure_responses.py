"""Error responses of commands whose response type has error fields, so that they do not use ERROR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pybroker.errors import BrokerError
from pybroker.server.handler import type_name
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection


@contextmanager
def answered(
    connection: Connection, reply: pb.BaseCommand, refuse: Callable[[BrokerError], None], topic: str = ""
) -> Iterator[None]:
    """Run the block, then send `reply`. If the block raises an error, `refuse` writes it into `reply` first."""
    try:
        yield
    except Exception as failure:  # noqa: BLE001  (`answerable` sorts them)
        error = connection.answerable(failure)
        connection.refused(type_name(reply), error, topic)
        refuse(error)
    connection.send(replies.frame(reply))
