"""Memory of incomplete frames: counted in the memory budget, and limited for unauthenticated connections."""

from __future__ import annotations

from pybroker.config import BrokerConfig
from pybroker.memory.broker_memory import Memory
from pybroker.memory.memory_parts import OwnBounds
from pybroker.model.counters import BrokerStats
from pybroker.runtime.clock import Clock
from pybroker.server.frame_memory import FrameMemory
from pybroker.waiting.slots import Slots
from pybroker.wire.commands import Decoder
from pybroker.wire.session import Session, SessionState

LIMIT_BYTES = 10_000


class Sender:
    """A connection with an incomplete frame."""

    def __init__(self, frames: Frames) -> None:
        self.session = Session()
        self.decoder = Decoder()
        self.aborted = ""
        self._frames = frames
        frames.slots.admit(self, "10.0.0.1")

    def abort(self, reason: str) -> None:
        self.aborted = reason
        self.decoder.release()
        self._frames.memory.count(self, self.decoder)

    def connect(self) -> None:
        self._frames.slots.leave(self)
        self.session.move_to(SessionState.CONNECTED)
        self.decoder.accept_messages(1 << 20, 100, 1000)

    def feed(self, data: bytes) -> None:
        self.decoder.feed(data)
        self._frames.memory.count(self, self.decoder)

    def begin_frame(self, received_bytes: int, missing_bytes: int = 1) -> None:
        self.feed((received_bytes + missing_bytes - 4).to_bytes(4, "big") + bytes(received_bytes - 4))


class Frames:
    def __init__(self) -> None:
        self.budget = Memory(300 << 20, OwnBounds(), Clock())
        self.slots: Slots[Sender] = Slots(100, 100)
        self.stats = BrokerStats()
        config = BrokerConfig(max_frame_bytes_before_connect=LIMIT_BYTES)
        self.memory: FrameMemory[Sender] = FrameMemory(self.budget, self.slots, self.stats, config)

    @property
    def used_bytes(self) -> int:
        return self.budget.frames.used_bytes


def test_incomplete_frame_before_connect_is_counted_until_it_ends() -> None:
    frames = Frames()
    sender = Sender(frames)
    sender.begin_frame(100)
    assert sender in frames.memory.counted
    assert frames.used_bytes == sender.decoder.held_bytes >= 100
    sender.abort("by the test")
    assert sender not in frames.memory.counted
    assert frames.used_bytes == 0


def test_small_incomplete_frame_after_connect_is_not_counted() -> None:
    frames = Frames()
    sender = Sender(frames)
    sender.connect()
    sender.begin_frame(100)
    assert frames.used_bytes == 0


def test_large_incomplete_frame_after_connect_is_counted() -> None:
    frames = Frames()
    sender = Sender(frames)
    sender.connect()
    sender.begin_frame(3000, missing_bytes=500_000)
    assert sender.decoder.missing_bytes
    assert frames.used_bytes == sender.decoder.held_bytes > 0


def test_limit_before_connect_closes_longest_incomplete_frame() -> None:
    frames = Frames()
    senders = [Sender(frames) for _ in range(3)]
    for sender in senders:
        sender.begin_frame(3000)
        sender.aborted = ""
    newest = Sender(frames)
    newest.begin_frame(3000)
    assert [bool(sender.aborted) for sender in (*senders, newest)] == [True, False, False, False]
    assert frames.stats.connections_displaced == 1
    assert senders[0] not in frames.slots
    assert frames.used_bytes == sum(sender.decoder.held_bytes for sender in (*senders, newest)) <= LIMIT_BYTES


def test_connected_client_does_not_count_for_limit_before_connect() -> None:
    frames = Frames()
    connected = Sender(frames)
    connected.connect()
    connected.begin_frame(3000, missing_bytes=500_000)
    sender = Sender(frames)
    sender.begin_frame(3000)
    assert not connected.aborted
    assert not sender.aborted
