"""The rules of a session: time, order of answers, and what each loss means."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.zookeeper.errors import DamagedAnswer
from pybroker.zookeeper.operations import NodeEvent, NodeEventType, Operation
from pybroker.zookeeper.session import (
    Answer,
    AuthAnswered,
    Due,
    Established,
    FrameReader,
    LoginDue,
    Received,
    Refused,
    Session,
    SessionEvent,
    SessionState,
)

TIMEOUT_MS = 6000
LIMIT_BYTES = 1000


def frame(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def accepted(session_id: int = 7, timeout_ms: int = TIMEOUT_MS) -> bytes:
    return frame(pack(">iiqi", 0, timeout_ms, session_id, 16) + bytes(16) + b"\0")


def answer(xid: int, body: bytes = b"", code: int = 0, zxid: int = 1) -> bytes:
    return frame(pack(">iqi", xid, zxid, code) + body)


def connected(now_ms: float = 0) -> Session:
    session = Session(TIMEOUT_MS, LIMIT_BYTES)
    session.connect(now_ms)
    assert session.received(accepted(), now_ms) == [Established(None)]
    return session


def test_first_bytes_ask_for_a_new_session() -> None:
    session = Session(TIMEOUT_MS, LIMIT_BYTES)
    assert session.connect(0) == frame(pack(">iqiqi", 0, 0, TIMEOUT_MS, 0, 16) + bytes(16) + b"\0")
    assert session.state is SessionState.CONNECTING
    assert not session.holds(0)


def test_negotiated_timeout_counts() -> None:
    session = Session(TIMEOUT_MS, LIMIT_BYTES)
    session.connect(100)
    session.received(accepted(timeout_ms=12_000), 300)
    assert session.timeout_ms == 12_000
    assert session.lost_at_ms == 100 + 10_000, "5/6 after the request that was answered, not after its answer"


def test_answers_belong_to_requests_in_order() -> None:
    session = connected()
    session.request(Operation.GET, b"", "first", 1)
    session.request(Operation.SET, b"", "second", 2)
    received = session.received(answer(1, b"x") + answer(2, code=-101), 3)
    assert received == [Answer("first", 0, b"x"), Answer("second", -101, b"")]
    session.request(Operation.GET, b"", "third", 4)
    with pytest.raises(DamagedAnswer, match="request 9"):
        session.received(answer(9), 5)


def test_lost_by_clock_is_found_before_a_late_answer_is_used() -> None:
    """After a freeze of the process, the answer of long ago is in the socket's buffer."""
    session = connected()
    session.request(Operation.PING, b"", None, 1000)
    assert session.holds(5000 - 0.1)
    assert not session.holds(5000)
    assert session.received(answer(-2), 60_000) == [SessionEvent.LOST]
    assert session.state is SessionState.LOST
    assert session.session_id == 0
    assert session.received(answer(-2), 60_001) == []


def test_late_answer_extends_the_session_from_the_time_of_its_request() -> None:
    session = connected()
    session.request(Operation.PING, b"", None, 1000)
    assert session.received(answer(-2), 4900) == []
    assert session.lost_at_ms == 6000


def test_suspended_session_is_taken_up_again() -> None:
    session = connected()
    session.request(Operation.SET, b"", "lost", 10)
    assert session.disconnected() == (["lost"], SessionEvent.SUSPENDED)
    assert session.state is SessionState.SUSPENDED
    assert session.holds(4999)
    assert session.connect(3000)[4:].startswith(pack(">iqiq", 0, 0, TIMEOUT_MS, 7))
    assert session.received(accepted(), 3100) == [Established(SessionEvent.RECONNECTED)]
    assert session.lost_at_ms == 3000 + 5000


def test_suspended_session_is_lost_by_the_clock_alone() -> None:
    session = connected()
    session.disconnected()
    assert session.next_check_ms() == 5000
    assert session.check(4999) is None
    assert session.check(5000) is SessionEvent.LOST
    assert session.check(5001) is None
    session.connect(5100)
    assert session.received(accepted(8), 5200) == [Established(SessionEvent.RENEWED)]


def test_session_lost_during_the_handshake_is_not_taken_up_again() -> None:
    session = connected()
    session.disconnected()
    session.connect(4900)
    assert session.received(accepted(), 5000) == [SessionEvent.LOST]


def test_expired_session_is_lost_and_another_one_asked_for() -> None:
    session = connected()
    session.disconnected()
    session.connect(100)
    assert session.received(accepted(0, timeout_ms=0), 200) == [Refused(SessionEvent.LOST)]
    assert session.disconnected() == ([], None)
    assert session.connect(300)[4:].startswith(pack(">iqiq", 0, 0, TIMEOUT_MS, 0))


def test_refusal_after_a_loss_is_no_second_loss() -> None:
    session = connected()
    session.disconnected()
    session.check(5000)
    session.connect(5001)
    assert session.received(accepted(0, timeout_ms=0), 5002) == [Refused(None)]


def test_idle_connection_pings_and_silent_one_is_given_up() -> None:
    session = connected()
    assert session.due(999) is Due.NOTHING
    assert session.due(1000) is Due.PING
    session.request(Operation.PING, b"", None, 1000)
    assert session.due(1999) is Due.NOTHING
    assert session.due(2000) is Due.PING
    session.request(Operation.PING, b"", None, 2000)
    assert session.due(3999) is Due.PING
    assert session.due(4000) is Due.GIVE_UP_CONNECTION, "half of the time-out after the first ping"


def test_next_check_is_never_after_a_due_act() -> None:
    session = connected()
    assert session.next_check_ms() == 1000
    session.request(Operation.GET, b"", "get", 500)
    assert session.next_check_ms() == 1500
    session.request(Operation.PING, b"", None, 1500)
    session.request(Operation.PING, b"", None, 2500)
    assert session.next_check_ms() == 3500


def test_events_of_nodes_and_credentials_come_between_answers() -> None:
    session = connected()
    session.request(Operation.GET, b"", "get", 1)
    event = pack(">iii", 3, 3, 2) + b"/a"
    removed = pack(">iii", 7, 3, 2) + b"/a"
    received = session.received(
        answer(-1, event, zxid=-1) + answer(-4) + answer(-1, removed) + answer(1, b"v") + answer(-4, code=-115), 2
    )
    assert received == [
        NodeEvent(NodeEventType.DATA_CHANGED, "/a"),
        AuthAnswered(is_accepted=True),
        Answer("get", 0, b"v"),
        AuthAnswered(is_accepted=False),
    ]


def test_zxid_rises_with_answers_and_is_sent_at_the_next_connection() -> None:
    session = connected()
    session.request(Operation.GET, b"", "get", 1)
    session.received(answer(1, zxid=99), 2)
    session.disconnected()
    assert session.connect(3)[4:].startswith(pack(">iqi", 0, 99, TIMEOUT_MS))


def test_answer_above_the_limit_fails_alone() -> None:
    session = connected()
    session.request(Operation.GET, b"", "huge", 1)
    session.request(Operation.GET, b"", "small", 1)
    data = answer(1, bytes(LIMIT_BYTES * 3)) + answer(2, b"ok")
    received: list[Received] = []
    for start in range(0, len(data), 7):
        received += session.received(data[start : start + 7], 2)
    assert received == [Answer("huge", 0, None), Answer("small", 0, b"ok")]


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=60))
def test_chunks_never_change_the_frames(bodies: list[bytes], sizes: list[int]) -> None:
    data = b"".join(map(frame, bodies))
    whole = FrameReader(LIMIT_BYTES).feed(data)
    assert whole == [(body, False) for body in bodies]
    reader, position = FrameReader(LIMIT_BYTES), 0
    found: list[tuple[bytes, bool]] = []
    for size in sizes:
        found += reader.feed(data[position : position + size])
        position += size
    found += reader.feed(data[position:])
    assert found == whole


@given(st.binary(max_size=200))
def test_any_bytes_are_answers_or_damage(data: bytes) -> None:
    session = connected()
    session.request(Operation.GET, b"", "get", 1)
    try:
        session.received(data, 2)
    except DamagedAnswer:
        return
    assert session.state is SessionState.CONNECTED


@pytest.mark.parametrize("length", [-1, 1 << 30 | 1, int.from_bytes(b"HTTP")])
def test_impossible_length_is_damage(length: int) -> None:
    with pytest.raises(DamagedAnswer, match="not a ZooKeeper server"):
        FrameReader(LIMIT_BYTES).feed(pack(">i", length) + bytes(30))


def test_connection_is_used_only_after_its_login() -> None:
    session = Session(TIMEOUT_MS, LIMIT_BYTES, needs_login=True)
    session.connect(0)
    assert session.received(accepted(session_id=7), 10) == [LoginDue()]
    assert session.state is SessionState.CONNECTING
    session.request(Operation.SASL, b"", "login", 10)
    assert session.received(answer(1), 20) == [Answer("login", 0, b"")]
    assert session.opened() == Established(None)
    assert session.holds(20)
    # A login that fails leaves the former state, and the next connection asks for the same session.
    session.disconnected()
    session.connect(100)
    assert session.received(accepted(session_id=7), 110) == [LoginDue()]
    session.request(Operation.SASL, b"", "login", 110)
    assert session.disconnected() == (["login"], None)
    assert session.has_session
    assert session.check(TIMEOUT_MS * 5 / 6) is SessionEvent.LOST
    # A session whose login failed is not the client's: the next one is another one.
    session.connect(6000)
    assert session.received(accepted(session_id=8), 6010) == [LoginDue()]
    session.disconnected()
    assert session.session_id == 0
    session.connect(6100)
    session.received(accepted(session_id=9), 6110)
    assert session.opened() == Established(SessionEvent.RENEWED)
    assert session.session_id == 9
