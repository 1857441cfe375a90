"""Connection attempts to other brokers, to real ports."""

from __future__ import annotations

import socket

from tests.support.waiting import until

from pybroker.cluster.ownership.broker_probes import MAX_AGE_MS, BrokerProbes
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner


class _Clock(Clock):
    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


async def test_probe_notices_closed_and_reopened_port() -> None:
    clock, tasks = _Clock(), TaskOwner("test")
    probes = BrokerProbes(clock, tasks)
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    url = f"pulsar://127.0.0.1:{port}"

    async def asked_anew() -> bool:
        """Return the result of a new attempt."""
        clock.now_ms += MAX_AGE_MS
        before = probes.is_unreachable(url)
        assert len(tasks) == 1
        assert probes.is_unreachable(url) == before, "a question does not wait for the attempt"
        assert len(tasks) == 1, "one attempt at a time"
        await until(lambda: not len(tasks), 0.01)
        return probes.is_unreachable(url)

    assert not await asked_anew()
    assert not len(tasks), "the result is not old"
    server.close()
    assert await asked_anew()
    server = socket.create_server(("127.0.0.1", port))
    assert not await asked_anew()
    server.close()


async def test_unknown_host_name_is_no_unreachable_broker() -> None:
    clock, tasks = _Clock(), TaskOwner("test")
    probes = BrokerProbes(clock, tasks)
    assert not probes.is_unreachable("pulsar://no-such-host.invalid:6650")
    await until(lambda: not len(tasks), 0.01)
    assert not probes.is_unreachable("pulsar://no-such-host.invalid:6650")
