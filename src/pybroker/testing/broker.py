"""A broker for a test: its addresses, a namespace for the test, its admin API, and the control of an embedded broker."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from pybroker.client.access import Access
from pybroker.client.rest import Refused, RestClient

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pybroker.embedding import Faults

ADMIN_TIMEOUT_S = 30.0


class AdminError(Exception):
    """The admin API answered a call with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class BrokerNotRestarted(Exception):
    """A test called `crash()` without `restart()`."""


class TestClock(Protocol):
    """The broker's clock."""

    def now_ms(self) -> int: ...

    def now(self) -> datetime: ...

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None: ...


class TestBroker(ABC):
    """An embedded or real broker, created by `open_broker`. Any thread may call any method. On a real broker,
    operations that it does not support skip the test.
    """

    __test__ = False  # prevents pytest from collecting the class

    is_embedded: bool
    namespace: str
    """Namespace of the tests' topics; empty at first, and again after `reset`."""

    def __init__(self) -> None:
        self._serial = itertools.count(1)

    @property
    @abstractmethod
    def service_url(self) -> str: ...

    @property
    @abstractmethod
    def admin_url(self) -> str: ...

    @property
    @abstractmethod
    def clock(self) -> TestClock:
        """The broker's clock. Advancing the clock of a real broker skips the test."""

    @property
    @abstractmethod
    def faults(self) -> Faults:
        """The faults that a test can inject. With a real broker, their use skips the test."""

    @abstractmethod
    def crash(self) -> None:
        """Stop the broker as with `kill -9`. Data that it has confirmed to clients is kept. With a real broker this skips
        the test.
        """

    @abstractmethod
    def restart(self) -> None:
        """Start the broker again at the same addresses. If it is running, stop it first as `crash` does. With a real
        broker this skips the test.
        """

    @abstractmethod
    def reset(self) -> None:
        """Remove all data of previous tests."""

    @abstractmethod
    def undo_faults(self) -> None:
        """End all faults at the end of a test. Warns of faults that never happened (UnusedFault). Raises
        BrokerNotRestarted if the test did not restart a crashed broker.
        """

    @abstractmethod
    def require_running(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop the broker, or disconnect from a real one. Idempotent."""

    def topic(self, name: str = "") -> str:
        """Return the full name of a topic in the test's namespace; without `name`, of an unused topic."""
        return f"persistent://{self.namespace}/{name or f'topic-{next(self._serial)}'}"

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Send one request to the admin API and return the JSON document. `path` is the part after `/admin/v2/`. Raises
        AdminError.
        """
        self.require_running()
        access = Access(self.service_url, self.admin_url, operation_timeout_s=ADMIN_TIMEOUT_S)
        with closing(RestClient(access, patience_s=0)) as rest:
            try:
                return rest.json(method, f"/admin/v2/{path.lstrip('/')}", body, may_repeat=False)
            except Refused as error:
                raise AdminError(error.status, error.reason) from None

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the stats of a topic; for a partitioned topic, of all partitions together. Raises AdminError."""
        path = admin_path(topic)
        try:
            found = self.admin("GET", f"{path}/stats")
        except AdminError as error:
            if error.status != 404:
                raise
            found = self.admin("GET", f"{path}/partitioned-stats")
        assert isinstance(found, dict)
        return found

    def backlog(self, topic: str, subscription: str) -> int:
        """Return the number of messages that the subscription has not acknowledged; -1 if topic or subscription does
        not exist.
        """
        try:
            found = self.stats(topic)["subscriptions"].get(subscription)
        except AdminError as error:
            if error.status == 404:
                return -1
            raise
        return -1 if found is None else int(found["msgBacklog"])


class EmbeddedTestBroker(TestBroker):
    """A broker in this process, in memory unless a directory is set."""

    is_embedded = True
    namespace = "public/default"

    def __init__(self, directory: str | Path | None = None, **settings: object) -> None:
        from pybroker.embedding.embedded_broker import configuration  # noqa: PLC0415  (a broker's worth of modules)
        from pybroker.embedding.thread import BrokerThread  # noqa: PLC0415

        super().__init__()
        self._thread = BrokerThread(configuration(directory, settings))

    @property
    def service_url(self) -> str:
        return self._thread.service_url

    @property
    def admin_url(self) -> str:
        return self._thread.admin_url

    @property
    def clock(self) -> TestClock:
        return self._thread.clock

    @property
    def faults(self) -> Faults:
        return self._thread.faults

    def crash(self) -> None:
        self._thread.crash()

    def restart(self) -> None:
        self._thread.restart()

    def reset(self) -> None:
        self._thread.reset()

    def undo_faults(self) -> None:
        from pybroker.embedding.faults import warn_of  # noqa: PLC0415

        unused = self._thread.faults.end_all()
        was_running = self._thread.is_running
        if not was_running:
            self._thread.restart()
        warn_of(unused)
        if not was_running:
            raise BrokerNotRestarted(
                "the test ended while its broker was crashed, so its clients got no response after crash(): "
                "call restart() after crash()"
            )

    def require_running(self) -> None:
        if not self._thread.is_running:
            raise BrokerNotRestarted("the broker of this test is crashed: call restart() after crash()")

    def close(self) -> None:
        self._thread.close()


def admin_path(topic: str) -> str:
    domain, _, rest = topic.rpartition("://")
    if rest.count("/") < 2:
        rest = f"public/default/{rest}"
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain or 'persistent'}/{tenant}/{namespace}/{quote(name, safe='')}"
