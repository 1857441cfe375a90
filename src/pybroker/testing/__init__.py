"""Support for tests of programs that use Pulsar: a broker for a test run, with control of its clock and faults.

pytest finds the fixtures by itself (`plugin`); unittest uses `PulsarTestCase`; other code uses `open_broker`. The same
tests can run against a real broker. Modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.testing.broker import EmbeddedTestBroker, TestBroker
    from pybroker.testing.choice import open_broker
    from pybroker.testing.remote import RemoteTestBroker
    from pybroker.testing.test_case import PulsarTestCase
    from pybroker.testing.waiting import received, received_async, wait_for_backlog, wait_for_backlog_async

_MODULES = {
    "EmbeddedTestBroker": "broker",
    "PulsarTestCase": "test_case",
    "RemoteTestBroker": "remote",
    "TestBroker": "broker",
    "open_broker": "choice",
    "received": "waiting",
    "received_async": "waiting",
    "wait_for_backlog": "waiting",
    "wait_for_backlog_async": "waiting",
}

__all__ = [
    "EmbeddedTestBroker",
    "PulsarTestCase",
    "RemoteTestBroker",
    "TestBroker",
    "open_broker",
    "received",
    "received_async",
    "wait_for_backlog",
    "wait_for_backlog_async",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module  # noqa: PLC0415  (nothing is loaded with the package)

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
