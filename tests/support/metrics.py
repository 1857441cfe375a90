"""Values on a broker's metrics page.

The broker counts an operation after its effect is visible to clients and in REST: an eviction, for example, moves the cursor
first, waits until the move is durable, and is counted then. A test that reads the page as soon as it sees the effect is therefore
early now and then, so tests wait for the value instead of reading the page once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.broker_process import BrokerProcess

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<labels>.*)\} (?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
WAIT_S = 60.0
PAUSE_S = 0.02


def metric_values(page: str, name: str, **labels: str) -> list[float]:
    """The values of all samples of that name that have these labels, among others."""
    found = []
    for line in page.splitlines():
        sample = _SAMPLE.fullmatch(line) if line.startswith(name + "{") else None
        if sample is not None and labels.items() <= dict(_LABEL.findall(sample["labels"])).items():
            found.append(float(sample["value"]))
    return found


def until_metric(broker: BrokerProcess, accepted: Callable[[float], bool], name: str, **labels: str) -> float:
    """Wait until the one sample of that name and these labels has an accepted value; return the value.

    Raises AssertionError with the last values that the page showed.
    """
    deadline_s = time.monotonic() + WAIT_S
    while True:
        values = metric_values(broker.get("/metrics"), name, **labels)
        if len(values) == 1 and accepted(values[0]):
            return values[0]
        assert time.monotonic() < deadline_s, f"{name} {labels} is {values or 'not on the page'}"
        time.sleep(PAUSE_S)
