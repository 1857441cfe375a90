"""A client for callers without an event loop: a thread runs the event loop and keeps connections open between calls.

Create a new client after a fork: the thread exists only in the parent process, and calls in the child raise an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from pybroker.client.access import Access
from pybroker.client.client import Client
from pybroker.client.failures import ClientError

CLOSE_PATIENCE_S = 10.0
Result = TypeVar("Result")


class BackgroundClient:
    """A thread with an event loop, and its clients: `client`, and the clients that `another` created. `close` closes
    all.
    """

    def __init__(self, access: Access) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pulsar-client", daemon=True)
        self._thread.start()
        self._closed = False
        self._access = access
        self._clients: list[Client] = []
        try:
            self.client = self.another()
        except BaseException:
            self.close()
            raise

    def another(self) -> Client:
        client = self.run(_made(self._access))
        self._clients.append(client)
        return client

    @property
    def is_usable(self) -> bool:
        return not self._closed and self._process_id == os.getpid()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the event loop, and return its result or raise its error. If the wait is interrupted, `work` is
        cancelled. Raises ClientError if the client is closed, or was created before a fork.
        """
        if not self.is_usable:
            work.close()
            raise ClientError("this client is closed, or was created before a fork: create one client in each process")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the clients and end the thread. Does nothing if the client is closed already, or was created before a
        fork.
        """
        if not self.is_usable:
            return
        try:
            for client in self._clients:
                self.run(_closed(client))
        finally:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_PATIENCE_S)
            if not self._thread.is_alive():
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
                self._loop.close()


async def _made(access: Access) -> Client:
    return Client(access)  # created on the loop, because its locks and futures belong to it


async def _closed(client: Client) -> None:
    async with asyncio.timeout(CLOSE_PATIENCE_S):
        await client.close()
