"""Connections that wait for their PROXY header: limits."""

from __future__ import annotations

import asyncio

from pybroker.runtime.proxied_port import WaitingConnections


async def test_waiting_connections_use_only_the_file_descriptors_that_are_left() -> None:
    clients = 0
    waiting = WaitingConnections(0, lambda: 3 - clients)
    first, second, third, fourth, fifth = tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(5)]
    assert [waiting.admit(each, "192.0.2.1") for each in (first, second, third)] == [None] * 3
    assert waiting.admit(fourth, "192.0.2.1") is first
    clients = 4
    assert waiting.admit(fifth, "192.0.2.1") is second
    for each in (third, fourth, fifth):
        waiting.leave(each)
    assert waiting.admit(first, "192.0.2.1") is None, "one connection may always wait"
    await asyncio.gather(*tasks)
