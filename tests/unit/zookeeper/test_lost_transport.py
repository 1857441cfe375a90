"""A connection that is lost but not reported as lost yet."""

from __future__ import annotations

import asyncio
from typing import Any

from pybroker.zookeeper.client import _Link


class LostTransport(asyncio.Transport):
    """As uvloop's between a failed write and `connection_lost`."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")


async def test_lost_connection_gets_no_data() -> None:
    link = _Link(lambda *_: None)
    link.connection_made(LostTransport())
    link.write(b"request")
    link.connection_lost(ConnectionResetError("reset"))
    assert link.ended.done()
