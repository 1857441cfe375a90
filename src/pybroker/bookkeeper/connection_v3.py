"""A connection of protocol version 3 to one bookie, for operations that are rare and that version 2 lacks.

Failure: after a timeout, an invalid response or a lost connection, all requests fail with BookieUnavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from pybroker.bookkeeper.errors import BookieUnavailable, BookKeeperError, InvalidAnswer
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.messages_v3 import (
    BookieSpace,
    ExplicitLac,
    FrameReader,
    Operation,
    decode_response,
    force_request,
    info_request,
    read_lac_request,
    result_of,
    write_lac_request,
)


class ConnectionV3(asyncio.Protocol):
    """A connection of protocol version 3. Before the first request, the owner passes it to an `OpenTransport`, which
    connects it.
    """

    def __init__(self, bookie_id: str, options: BookKeeperOptions) -> None:
        self.bookie_id = bookie_id
        self._options = options
        self._transport: asyncio.WriteTransport | None = None
        self._frames = FrameReader(options.max_frame_bytes)
        self._requests: dict[int, tuple[Operation, int | None, asyncio.Future[object]]] = {}
        self._last_number = 0
        self._close_reason: str | None = None

    async def write_lac(self, ledger_id: int, last_confirmed: int, master_key: bytes, record: bytes) -> None:
        """Store the id of the last confirmed entry of a ledger (LAC) on the bookie. `record`: the id with its digest
        (`EntryFormat.pack_last_confirmed`). Raises BookKeeperError.
        """
        await self._call(
            Operation.WRITE_LAC,
            ledger_id,
            lambda number: write_lac_request(number, ledger_id, last_confirmed, master_key, record),
        )

    async def read_lac(self, ledger_id: int) -> ExplicitLac:
        """Return the last record that `write_lac` stored on the bookie for a ledger, and the last entry of the ledger
        on the bookie. Raises NoSuchEntry if the bookie has neither, and other BookKeeperErrors.
        """
        result = await self._call(Operation.READ_LAC, ledger_id, lambda number: read_lac_request(number, ledger_id))
        assert isinstance(result, ExplicitLac)
        return result

    async def force(self, ledger_id: int) -> None:
        """Make all acknowledged entries of a ledger durable on the bookie, also entries that the bookie acknowledged
        without a sync (deferred sync). Raises BookKeeperError.
        """
        await self._call(Operation.FORCE, ledger_id, lambda number: force_request(number, ledger_id))

    async def space(self) -> BookieSpace:
        result = await self._call(Operation.INFO, None, info_request)
        assert isinstance(result, BookieSpace)
        return result

    async def _call(self, operation: Operation, ledger_id: int | None, encode: Callable[[int], bytes]) -> object:
        if self._transport is None or self._close_reason is not None:
            raise BookieUnavailable(f"Bookie {self.bookie_id} is not connected: {self._close_reason}.")
        self._last_number += 1
        number = self._last_number
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._requests[number] = (operation, ledger_id, done)
        self._transport.write(encode(number))
        try:
            async with asyncio.timeout(self._options.read_timeout_ms / 1000):
                return await done
        except TimeoutError as error:
            self.close(f"no response to {operation.name} within {self._options.read_timeout_ms:g} ms")
            raise BookieUnavailable(f"Bookie {self.bookie_id} did not respond to {operation.name} in time.") from error
        finally:
            self._requests.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's transport has another base class

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                response = decode_response(body)
                request = self._requests.get(response.header.txn_id)
                if request is None:
                    continue  # The caller was cancelled: numbers are never used again.
                operation, ledger_id, done = request
                result = result_of(response, operation, ledger_id)
                if done.done():
                    continue
                if isinstance(result, BookKeeperError):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        except InvalidAnswer as error:
            self.close(f"invalid answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(f"connection lost: {exc}" if exc is not None else "the bookie closed the connection")

    def close(self, reason: str) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        if self._transport is not None:
            self._transport.abort()
        for _, _, done in self._requests.values():
            if not done.done():
                done.set_exception(BookieUnavailable(f"Bookie {self.bookie_id}: {reason}."))
