"""The base class of unittest tests that use a broker."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from pybroker.testing.broker import TestBroker
from pybroker.testing.choice import open_broker
from pybroker.testing.waiting import received, wait_for_backlog


class PulsarTestCase(unittest.TestCase):
    """A test case with a broker for all tests of the class: `self.pulsar_broker`. Faults end with each test."""

    pulsar_settings: ClassVar[dict[str, object]] = {}
    """Settings of an embedded broker, as for `pybroker.embed`."""
    pulsar_broker: ClassVar[TestBroker]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.pulsar_broker = open_broker(**cls.pulsar_settings)  # type: ignore[arg-type]
        cls.addClassCleanup(cls.pulsar_broker.close)

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        try:
            return super().run(result)
        finally:
            self.pulsar_broker.undo_faults()

    def wait_for_backlog(self, topic: str, subscription: str, count: int = 0, *, timeout_s: float = 10) -> None:
        wait_for_backlog(self.pulsar_broker, topic, subscription, count, timeout_s=timeout_s)

    def received(self, consumer: Any, count: int = 1, *, timeout_s: float = 10) -> list[Any]:
        return received(consumer, count, timeout_s=timeout_s)
