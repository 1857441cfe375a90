"""An embedded broker on a separate thread, for code without an event loop or with another one.

Invariants: each method may be called from any thread but the broker's; after `close` the thread has ended. In a forked
process the thread does not exist, and each call raises an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pybroker.broker_process import loop_factory
from pybroker.config import BrokerConfig
from pybroker.embedding.embedded_broker import EmbeddedBroker, NotRunning, configuration
from pybroker.embedding.faults import Faults

T = TypeVar("T")
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0


class ThreadClock:
    """The broker's clock, which follows the machine's clock until a test advances it."""

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread

    def now_ms(self) -> int:
        return self._thread.embedded.clock.now_ms()

    def now(self) -> datetime:
        return self._thread.embedded.clock.now()

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Advance the broker's clock by the sum of all arguments. On return, timers that became due have run.

        Calls from several threads run one after the other. Raises ValueError for a negative amount.
        """
        advance = self._thread.embedded.clock.advance
        self._thread.wait_for(
            advance(by, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        )


class BrokerThread:
    """A broker and its thread. `embed_in_thread` creates and closes it; any other creator must call `close`."""

    embedded: EmbeddedBroker

    def __init__(self, config: BrokerConfig) -> None:
        """Start the thread and the broker. Raises the errors of a broker that cannot start."""
        self._config = config
        self._process_id = os.getpid()
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="pybroker", daemon=True)
        self._thread.start()
        self._started.result(START_TIMEOUT_S)
        self.clock = ThreadClock(self)

    # --- methods of EmbeddedBroker -----------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        return self.embedded.service_url

    @property
    def admin_url(self) -> str:
        return self.embedded.admin_url

    @property
    def is_running(self) -> bool:
        return self.embedded.is_running

    @property
    def faults(self) -> Faults:
        return self.embedded.faults

    def crash(self) -> None:
        self.wait_for(self.embedded.crash())

    def restart(self) -> None:
        self.wait_for(self.embedded.restart())

    def reset(self) -> None:
        self.wait_for(self.embedded.reset())

    def close(self) -> None:
        """Stop the broker and end the thread. Idempotent; does nothing in a forked process."""
        if self._process_id != os.getpid() or self._loop is None:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("the broker's thread cannot close the broker: call close() from another thread")
        try:
            self._loop.call_soon_threadsafe(self._end.set)
        except RuntimeError:
            pass  # it has ended already
        self._thread.join()

    # --- the thread --------------------------------------------------------------------------------------------------

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the broker's event loop and return its result. Raises NotRunning if the event loop has ended,
        TimeoutError after `CALL_TIMEOUT_S` seconds.
        """
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._require_loop())
        except BaseException:
            work.close()  # it was never started
            raise
        try:
            return waiting.result(CALL_TIMEOUT_S)
        except BaseException:
            waiting.cancel()  # the caller no longer waits; no effect if the work has ended
            raise

    def _call(self, work: Callable[[], Any]) -> Any:
        if threading.current_thread() is self._thread:
            return work()

        async def call() -> Any:
            return work()

        return self.wait_for(call())

    def _require_loop(self) -> asyncio.AbstractEventLoop:
        if self._process_id != os.getpid():
            raise RuntimeError(
                "this broker runs in the parent process, so this process cannot use it: start a broker in "
                "this process, with its own fixture"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "this method was called on the broker's own thread and would wait forever: use `embedded` there"
            )
        if self._loop is None or self._loop.is_closed():
            raise NotRunning("the embedded broker was closed")
        return self._loop

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  (who waits for the start gets it)
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.embedded = EmbeddedBroker(self._config, self._call)
        await self.embedded.start()
        try:
            self._started.set_result(None)
            await self._end.wait()
        finally:
            await self.embedded.close()


@contextmanager
def embed_in_thread(directory: str | Path | None = None, **settings: object) -> Iterator[BrokerThread]:
    """Run `embed` on a separate thread until the end of the `with` block."""
    thread = BrokerThread(configuration(directory, settings))
    try:
        yield thread
    finally:
        thread.close()
