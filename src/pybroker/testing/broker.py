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
    """The admin API has refused a call."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class BrokerNotRestarted(Exception):
    """A test called `crash()` without `restart()`."""


class TestClock(Protocol):
    """The broker's time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def now(self) -> datetime:
        """The same, in UTC."""

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
        """Advance the time by this amount. Work that became due is complete on return."""


class TestBroker(ABC):
    """Embedded or real; made by `open_broker`, ended by `close`. Any method may be called from any thread."""

    __test__ = False  # pytest looks for classes of this name

    is_embedded: bool
    namespace: str
    """Where the topics of tests belong; empty at first, and again after `reset`."""

    def __init__(self) -> None:
        self._serial = itertools.count(1)

    @property
    @abstractmethod
    def service_url(self) -> str:
        """For clients."""

    @property
    @abstractmethod
    def admin_url(self) -> str:
        """For the admin REST API."""

    @property
    @abstractmethod
    def clock(self) -> TestClock:
        """The broker's time. Moving that of a real broker skips the test."""

    @property
    @abstractmethod
    def faults(self) -> Faults:
        """The faults that can be injected. With a real broker this skips the test."""

    @abstractmethod
    def crash(self) -> None:
        """Stop as with `kill -9`; confirmed data are kept. With a real broker this skips the test."""

    @abstractmethod
    def restart(self) -> None:
        """Be there again, at the same addresses; crashes first if need be. With a real broker that skips the test."""

    @abstractmethod
    def reset(self) -> None:
        """Begin anew: nothing that tests have left is seen any more."""

    @abstractmethod
    def undo_faults(self) -> None:
        """End all faults at the end of a test; the broker runs afterwards. Warns of faults that never happened (UnusedFault).
        Raises BrokerNotRestarted if the test did not restart a crashed broker."""

    @abstractmethod
    def require_running(self) -> None:
        """Raise BrokerNotRestarted if the test uses the broker after `crash()`."""

    @abstractmethod
    def close(self) -> None:
        """End, or let go of a real one. Idempotent."""

    def topic(self, name: str = "") -> str:
        """The full name of a topic of the test's own; one that no test has used before without a name."""
        return f"persistent://{self.namespace}/{name or f'topic-{next(self._serial)}'}"

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Send one request to the admin API and return the document. `path` follows `/admin/v2/`. Raises AdminError."""
        self.require_running()
        access = Access(self.service_url, self.admin_url, operation_timeout_s=ADMIN_TIMEOUT_S)
        with closing(RestClient(access, patience_s=0)) as rest:
            try:
                return rest.json(method, f"/admin/v2/{path.lstrip('/')}", body, may_repeat=False)
            except Refused as error:
                raise AdminError(error.status, error.reason) from None

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the stats of a topic, of all its partitions together for a partitioned one. Raises AdminError."""
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
        """Messages that the subscription has not acknowledged; -1 while it, or its topic, is not there."""
        try:
            found = self.stats(topic)["subscriptions"].get(subscription)
        except AdminError as error:
            if error.status == 404:
                return -1
            raise
        return -1 if found is None else int(found["msgBacklog"])


class EmbeddedTestBroker(TestBroker):
    """In this process, in memory unless a directory is given."""

    is_embedded = True
    namespace = "public/default"

    def __init__(self, directory: str | Path | None = None, **settings: object) -> None:
        """As `pybroker.embed_in_thread`."""
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
                "the test ended while its broker was crashed, so nothing that its clients did after crash() had an answer: "
                "call restart() after crash()"
            )

    def require_running(self) -> None:
        if not self._thread.is_running:
            raise BrokerNotRestarted("the broker of this test is crashed: call restart() after crash()")

    def close(self) -> None:
        self._thread.close()


def admin_path(topic: str) -> str:
    """Where the admin API has a topic, which is given by its full name or within public/default."""
    domain, _, rest = topic.rpartition("://")
    if rest.count("/") < 2:
        rest = f"public/default/{rest}"
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain or 'persistent'}/{tenant}/{namespace}/{quote(name, safe='')}"
