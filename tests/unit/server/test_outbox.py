"""One write per event loop iteration, in order; small parts are joined, large ones are not copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from pybroker.broker.context.pumps import PumpList
from pybroker.server.outbox import FLUSH_NOW_BYTES, JOIN_BELOW_BYTES, Outbox

LARGE = b"L" * JOIN_BELOW_BYTES
SMALL = b"s" * (JOIN_BELOW_BYTES - 1)


class FakeLoop:
    """Runs the callbacks of `call_soon` at the end of the iteration."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.scheduled.append(callback)

    def end_turn(self) -> None:
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            callback()


class FakeTransport:
    """Records each write as the list of its parts."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.untaken_bytes = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append([data])

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(list(parts))

    def get_write_buffer_size(self) -> int:
        return self.untaken_bytes

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


def outbox() -> tuple[Outbox, FakeLoop, FakeTransport]:
    loop, transport = FakeLoop(), FakeTransport()
    made = Outbox(
        cast(asyncio.AbstractEventLoop, loop), cast(asyncio.Transport, transport), cast(PumpList, FakePumps())
    )
    return made, loop, transport


class FakePumps:
    def __init__(self) -> None:
        self.may_dispatch: Callable[[], bool] | None = None


def add_all(box: Outbox, parts: list[bytes]) -> None:
    box.add_parts(parts, sum(map(len, parts)), max(map(len, parts)))


def test_what_a_turn_brings_is_one_write_in_order() -> None:
    box, loop, transport = outbox()
    box.add(b"a")
    add_all(box, [b"b", b"c"])
    box.add(b"d")
    assert (transport.writes, len(loop.scheduled)) == ([], 1)
    loop.end_turn()
    assert transport.writes == [[b"abcd"]]
    assert loop.scheduled == []


def test_each_turn_has_its_own_write() -> None:
    box, loop, transport = outbox()
    for data in (b"a", b"b"):
        box.add(data)
        loop.end_turn()
    assert transport.writes == [[b"a"], [b"b"]]


def test_large_parts_are_handed_over_as_they_are_and_small_neighbours_joined() -> None:
    box, loop, transport = outbox()
    box.add(b"first ")
    add_all(box, [b"head", LARGE, b"head", SMALL, b"head", LARGE, LARGE])
    box.add(b" last")
    loop.end_turn()
    ((write),) = transport.writes
    assert write == [b"first head", LARGE, b"head" + SMALL + b"head", LARGE, LARGE, b" last"]
    assert write[1] is LARGE


def test_the_write_after_a_large_part_is_joined_again() -> None:
    box, loop, transport = outbox()
    add_all(box, [b"head", LARGE])
    loop.end_turn()
    add_all(box, [b"a", b"b"])
    loop.end_turn()
    assert transport.writes[1] == [b"ab"]


def test_a_lot_is_written_at_once_and_only_once() -> None:
    box, loop, transport = outbox()
    box.add(b"before")
    parts = [LARGE] * (FLUSH_NOW_BYTES // len(LARGE))
    add_all(box, parts)
    assert transport.writes == [[b"before", *parts]]
    assert box.size_bytes == 0
    loop.end_turn()
    assert len(transport.writes) == 1


def test_what_follows_a_write_at_once_is_still_written_in_this_turn() -> None:
    box, loop, transport = outbox()
    add_all(box, [LARGE] * (FLUSH_NOW_BYTES // len(LARGE)))
    box.add(b"after")
    loop.end_turn()
    assert transport.writes[1:] == [[b"after"]]


def test_the_size_counts_what_waits_here_and_in_the_transport() -> None:
    box, loop, transport = outbox()
    box.add(b"123")
    add_all(box, [b"45", b"6"])
    transport.untaken_bytes = 1000
    assert box.size_bytes == 1006
    loop.end_turn()
    assert box.size_bytes == 1000


def test_nothing_is_written_to_a_transport_that_closes() -> None:
    box, loop, transport = outbox()
    add_all(box, [b"a", LARGE])
    transport.closing = True
    loop.end_turn()
    assert (transport.writes, box.size_bytes) == ([], 0)


def test_an_empty_flush_writes_nothing() -> None:
    box, _, transport = outbox()
    box.flush()
    assert transport.writes == []


def test_messages_are_not_written_after_the_broker_may_have_lost_its_bundles() -> None:
    loop, transport, pumps = FakeLoop(), FakeTransport(), FakePumps()
    pumps.may_dispatch = lambda: False
    box = Outbox(cast(asyncio.AbstractEventLoop, loop), cast(asyncio.Transport, transport), cast(PumpList, pumps))
    box.add(b"receipt")
    loop.end_turn()
    assert (transport.writes, transport.closing) == ([[b"receipt"]], False)
    add_all(box, [b"message"])
    loop.end_turn()
    assert (transport.writes, transport.closing) == ([[b"receipt"]], True)
