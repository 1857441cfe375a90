"""A test broker that is a running, external broker. Each test broker has its own namespace there.

An operation that only an embedded broker supports skips the test and reports the reason.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import SkipTest

from pybroker.testing.broker import AdminError, TestBroker, TestClock

if TYPE_CHECKING:
    from pybroker.embedding import Faults


def _skip(reason: str) -> NoReturn:
    raise SkipTest(f"the test needs the embedded broker, but --pulsar-url is set: {reason}")


class _RemoteClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now(self) -> datetime:
        return datetime.now(UTC)

    def advance(self, *_: object, **__: object) -> None:
        _skip("the time of a real broker cannot be advanced")


class _RemoteFaults:
    def undo_all(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        _skip(f"faults.{name} of a real broker")


class RemoteTestBroker(TestBroker):
    """A running broker, which `close` does not stop. Without an admin address, topics get a unique prefix instead of a
    namespace.
    """

    is_embedded = False

    def __init__(self, service_url: str, admin_url: str | None = None) -> None:
        """Connect, and create a namespace for the tests. Raises AdminError if the broker rejects this, OSError if the
        broker is not reachable.
        """
        super().__init__()
        self._service_url = service_url
        self._admin_url = admin_url.rstrip("/") if admin_url else None
        self._namespaces: list[str] = []
        self._prefix = ""
        self._begin()

    def _begin(self) -> None:
        name = f"test-{secrets.token_hex(6)}"
        self.namespace = "public/default"
        if self._admin_url is None:
            self._prefix = f"{name}-"
            return
        self.admin("PUT", f"namespaces/public/{name}")
        self.namespace = f"public/{name}"
        self._namespaces.append(self.namespace)

    @property
    def service_url(self) -> str:
        return self._service_url

    @property
    def admin_url(self) -> str:
        if self._admin_url is None:
            _skip("without --pulsar-admin-url there is no admin API")
        return self._admin_url

    @property
    def clock(self) -> TestClock:
        return _RemoteClock()

    @property
    def faults(self) -> Faults:
        return _RemoteFaults()  # type: ignore[return-value]

    def topic(self, name: str = "") -> str:
        return super().topic(f"{self._prefix}{name or f'topic-{next(self._serial)}'}")

    def crash(self) -> None:
        _skip("crash() of a real broker")

    def restart(self) -> None:
        _skip("restart() of a real broker")

    def reset(self) -> None:
        self.close()
        self._begin()

    def undo_faults(self) -> None: ...

    def require_running(self) -> None:
        """Do nothing: a test cannot crash a real broker."""

    def close(self) -> None:
        while self._namespaces:
            namespace = self._namespaces.pop()
            # Best effort: a failed cleanup must not fail other tests.
            with contextlib.suppress(AdminError, OSError):
                self._delete(namespace)

    def _delete(self, namespace: str) -> None:
        for kind in ("persistent", "non-persistent"):
            for topic in self.admin("GET", f"{kind}/{namespace}/partitioned") or ():
                path = topic.replace("://", "/")
                self.admin("DELETE", f"{path}/partitions?force=true")
            for topic in self.admin("GET", f"{kind}/{namespace}") or ():
                path = topic.replace("://", "/")
                with contextlib.suppress(AdminError):
                    self.admin("DELETE", f"{path}?force=true")
        self.admin("DELETE", f"namespaces/{namespace}")
