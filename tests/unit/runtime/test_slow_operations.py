"""Slow operations are logged once per kind and second."""

import io
import re
from collections.abc import Iterator

import pytest

from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations


class SteppedClock(Clock):
    def __init__(self) -> None:
        self.now_ms = 1000.0

    def monotonic_ms(self) -> float:
        return self.now_ms


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", stream)
    yield stream
    logs.configure()


def test_one_line_per_kind_and_second_counts_the_others(output: io.StringIO) -> None:
    clock = SteppedClock()
    slow = SlowOperations(clock, 100)
    slow.took("metadata", 99.9)
    for number in range(5):
        slow.took("metadata", 100 + number, path=f"/p{number}")
        slow.took("http", 250)
    clock.now_ms += 1000
    slow.took("metadata", 300)
    lines = [re.sub(r"^\S+ ", "", line) for line in output.getvalue().splitlines()]
    assert lines == [
        "WARNING operation.slow operation=metadata took_ms=100 unlogged=0 path=/p0",
        "WARNING operation.slow operation=http took_ms=250 unlogged=0",
        "WARNING operation.slow operation=metadata took_ms=300 unlogged=4",
    ]


def test_threshold_of_zero_switches_it_off(output: io.StringIO) -> None:
    slow = SlowOperations(SteppedClock(), 0)
    slow.took("journal", 1e9)
    slow.set_threshold(10)
    slow.took("journal", 10)
    slow.set_threshold(0)
    slow.took("http", 1e9)
    assert output.getvalue().count("operation.slow") == 1
