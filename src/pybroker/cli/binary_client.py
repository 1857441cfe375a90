"""Client setup for `produce` and `consume`: the broker's address, an event loop, and a clean end at a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Self, TypeVar

from pybroker.cli.admin_rest import AdminRest, lookup_path
from pybroker.cli.exit_codes import CommandFailed, Interrupted
from pybroker.cli.which_broker import Where
from pybroker.client.access import Access, AccessRefused
from pybroker.client.failures import ClientError, ConnectionLost
from pybroker.client.pulsar_client import PulsarClient
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName

Result = TypeVar("Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def binary_access(where: Where, topic: TopicName) -> Access:
    """Return address and credentials for the binary protocol. If `where` has no service URL, the broker is asked for it
    over HTTP.
    """
    access = where.access
    if access.service_url:
        return access
    query = {"listenerName": access.listener_name}
    with AdminRest(where) as rest:
        found = rest.get(lookup_path(topic), query)
    admin_url = access.admin_url or ""
    secure, plain = found.get("brokerUrlTls"), found.get("brokerUrl")
    url = (secure or plain) if admin_url.startswith("https") else (plain or secure)
    if not url:
        raise CommandFailed(
            f"the broker at {access.admin_url} does not report the address of its binary protocol: add "
            "--service-url pulsar://HOST:PORT"
        )
    return replace(access, service_url=url)


class UntilSignal:
    """Runs coroutines. A first SIGINT or SIGTERM cancels `wait`, while other operations complete; a second one cancels
    these, too.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._task = asyncio.current_task()
        self._is_waiting = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            # Signal handlers exist only on the main thread.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._came, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(number)

    def _came(self, number: int) -> None:
        is_second = self.number is not None
        self.number = number
        assert self._task is not None
        if self._is_waiting or is_second:
            self._task.cancel()

    async def wait(self, what: Coroutine[Any, Any, Result]) -> Result:
        """Await the coroutine `what`. Raises Interrupted if a signal has arrived or arrives first."""
        if self.number is not None:
            what.close()  # never started
            self.check()
        self._is_waiting = True
        try:
            return await what
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self._is_waiting = False

    def check(self) -> None:
        if self.number is not None:
            raise Interrupted(self.number)


def run_with_client(access: Access, work: Callable[[PulsarClient, UntilSignal], Coroutine[None, None, int]]) -> int:
    async def session() -> int:
        with UntilSignal() as until:
            try:
                async with PulsarClient(access) as client:
                    return await work(client, until)
            except asyncio.CancelledError:
                until.check()
                raise

    try:
        return asyncio.run(session())
    except (ClientError, BrokerError, AccessRefused, ValueError) as error:
        raise CommandFailed(failure_text(error, access)) from error


def failure_text(error: Exception, access: Access) -> str:
    """Return one line that describes the error and, if known, a remedy."""
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectionLost):
        return f"{text}. If {access.service_url} is the wrong address, set another address with --service-url."
    return text
