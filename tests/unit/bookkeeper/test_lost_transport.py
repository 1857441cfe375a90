"""A connection to a bookie that is lost but not reported as lost yet."""

from __future__ import annotations

import asyncio
from typing import Any

from pybroker.bookkeeper import BookKeeperOptions
from pybroker.bookkeeper.bookie_connection import BookieConnection
from pybroker.bookkeeper.errors import UNREACHABLE


class LostTransport(asyncio.Transport):
    """As uvloop's between a failed write and `connection_lost`."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    def writelines(self, list_of_data: Any) -> None:
        self.write(list_of_data)

    def abort(self) -> None:
        """It is closed."""


class Answers:
    def __init__(self) -> None:
        self.codes: list[int] = []

    def add_answered(self, entry_id: int, index: int, bookie_id: str, code: int) -> bool:
        self.codes.append(code)
        return False

    def confirm(self) -> None:
        """Nothing is confirmed."""


async def test_add_on_a_lost_connection_ends_as_unreachable() -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    connection, answers = BookieConnection("bookie-1", BookKeeperOptions(), lambda _: None), Answers()
    connection.connection_made(LostTransport())
    connection.add(answers, 0, 1, 0, b"frame")
    await asyncio.sleep(0)
    connection.connection_lost(ConnectionResetError("reset"))
    await asyncio.sleep(0)
    assert answers.codes == [UNREACHABLE]
    assert failures == []
