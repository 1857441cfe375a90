"""A client's connection: handshake, frames in pieces, refusals, backpressure, liveness, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_client import encode, frame
from tests.unit.server.in_memory_connection import Server, Type, connect, lookup, ping, task_handler

from pybroker.errors import ServiceNotReady, StorageFull
from pybroker.server import read_pauses
from pybroker.server.connection import Connection
from pybroker.server.handler import Handler
from pybroker.server.paced_setups import PER_ITERATION
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.session import SessionState

ACCOUNTED = ("connections_created", "connections_closed", "active_connections")


def types(answers: list[pb.BaseCommand]) -> list[str]:
    return [pb.BaseCommand.Type.Name(each.type) for each in answers]


# --- handshake -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (Type.LOOKUP, {"topic": "t", "request_id": 1}),
        (Type.PRODUCER, {"topic": "t", "producer_id": 1, "request_id": 1}),
        (Type.FLOW, {"consumer_id": 1, "messagePermits": 1}),
        (Type.GET_SCHEMA, {"topic": "t", "request_id": 1}),
        (Type.AUTH_RESPONSE, {"protocol_version": 21}),
    ],
)
async def test_command_before_connect_closes_connection(command: pb.BaseCommand.Type, fields: dict[str, Any]) -> None:
    peer = Server().connect(is_introduced=False)
    peer.feed(frame(encode(command, **fields)))
    assert peer.state is SessionState.CLOSED
    assert peer.transport.is_closed
    assert "protocol violation" in peer.connection.close_reason


async def test_second_connect_closes_connection() -> None:
    peer = Server().connect()
    peer.feed(connect())
    assert peer.state is SessionState.CLOSED


async def test_ping_before_connect_is_answered() -> None:
    peer = Server().connect(is_introduced=False)
    peer.feed(ping())
    assert types(peer.answers) == ["PONG"]
    assert peer.state is SessionState.CONNECTING


async def test_command_behind_violation_is_not_served() -> None:
    served = []

    async def serve(connection: Connection, command: pb.BaseCommand) -> None:
        served.append(command)

    peer = Server(task_handler(serve)).connect(is_introduced=False)
    peer.feed(lookup(1) + connect() + lookup(2))
    await asyncio.sleep(0)
    assert served == []
    assert peer.answers == []


async def test_command_behind_close_is_not_served() -> None:
    served = []

    def close(connection: Connection, command: pb.BaseCommand) -> None:
        connection.close("test")

    async def serve(connection: Connection, command: pb.BaseCommand) -> None:
        served.append(command)

    server = Server({**task_handler(serve), Type.PONG: Handler("pong", inline=close)})
    peer = server.connect()
    peer.feed(frame(encode(Type.PONG)) + lookup(1))
    await asyncio.sleep(0)
    assert (served, peer.answers, peer.connection.close_reason) == ([], [], "test")


async def test_handshakes_of_a_burst_are_divided_among_iterations() -> None:
    served: list[str] = []

    async def serve(connection: Connection, command: pb.BaseCommand) -> None:
        served.append(connection.address)

    server = Server(task_handler(serve))
    peers = [server.connect(is_introduced=False) for _ in range(2 * PER_ITERATION + 1)]
    for peer in peers:
        peer.feed(connect() + lookup(1))
    waiting = peers[PER_ITERATION:]
    assert [peer.state for peer in peers[:PER_ITERATION]] == [SessionState.CONNECTED] * PER_ITERATION
    assert all(peer.state is SessionState.CONNECTING for peer in waiting)
    assert all(peer.transport.is_reading_paused for peer in waiting)
    assert server.runtime.memory.frames.used_bytes == len(waiting) * len(connect() + lookup(1))
    waiting[0].lose()
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(peer.state is SessionState.CONNECTED for peer in waiting[1:])
    assert not any(peer.transport.is_reading_paused for peer in waiting[1:])
    assert server.runtime.memory.frames.used_bytes == 0
    assert len(served) == len(peers) - 1


# --- frames ----------------------------------------------------------------------------------------------------------


@given(cuts=st.lists(st.integers(1, 40), max_size=20))
async def test_frames_in_any_pieces_are_served_in_order(cuts: list[int]) -> None:
    served: list[int] = []

    async def serve(connection: Connection, command: pb.BaseCommand) -> None:
        served.append(command.lookupTopic.request_id)

    peer = Server(task_handler(serve)).connect(is_introduced=False)
    data = connect() + b"".join(lookup(number) for number in range(4))
    for cut in cuts:
        peer.feed(data[:cut])
        data = data[cut:]
    peer.feed(data)
    await asyncio.sleep(0)
    assert served == [0, 1, 2, 3]
    assert peer.state is SessionState.CONNECTED


async def test_incomplete_frame_before_connect_is_counted_and_released_at_end() -> None:
    server = Server()
    peer = server.connect(is_introduced=False)
    peer.feed(connect()[:-1])
    assert peer.connection in server.context.frames.counted
    peer.lose()
    assert peer.connection not in server.context.frames.counted
    assert server.runtime.memory.frames.used_bytes == 0


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\x00\x00\x00\x02" + bytes(8), b"\x7f\xff\xff\xff\x00\x00\x00\x01"])
@pytest.mark.parametrize("is_introduced", [False, True])
async def test_malformed_frame_closes_connection(data: bytes, is_introduced: bool) -> None:
    peer = Server().connect(is_introduced=is_introduced)
    peer.feed(data)
    assert peer.state is SessionState.CLOSED


# --- requests --------------------------------------------------------------------------------------------------------


async def test_broker_error_of_task_is_answered_with_request_id() -> None:
    async def refuse(connection: Connection, command: pb.BaseCommand) -> None:
        raise ServiceNotReady("not now")

    peer = Server(task_handler(refuse)).connect()
    peer.feed(lookup(7))
    await asyncio.sleep(0)
    (answer,) = peer.answers
    assert (answer.error.request_id, answer.error.error) == (7, pb.ServerError.ServiceNotReady)
    assert peer.state is SessionState.CONNECTED


async def test_unexpected_exception_of_task_is_unknown_error_and_counted_once() -> None:
    async def fail(connection: Connection, command: pb.BaseCommand) -> None:
        raise KeyError("a bug")

    server = Server(task_handler(fail))
    peer = server.connect()
    peer.feed(lookup(7))
    await asyncio.sleep(0)
    (answer,) = peer.answers
    assert answer.error.error == pb.ServerError.UnknownError
    assert "a bug" not in answer.error.message
    assert server.runtime.stats.bugs == 1
    assert peer.state is SessionState.CONNECTED


async def test_unexpected_exception_while_decoding_closes_connection() -> None:
    server = Server()
    peer = server.connect()
    peer.connection.context.command_table = {}
    peer.feed(ping())
    assert peer.state is SessionState.CLOSED
    assert (server.runtime.stats.bugs, peer.connection.close_reason) == (1, "internal error")


async def test_full_disk_is_not_logged_for_each_client(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: Connection, command: pb.BaseCommand) -> None:
        raise StorageFull("no space")

    peer = Server(task_handler(fail)).connect()
    for request_id in range(3):
        peer.feed(lookup(request_id))
        await asyncio.sleep(0)
    assert len(peer.answers) == 3
    assert [record.message for record in caplog.records].count("storage.failed") == 0


async def test_reading_pauses_at_limit_of_requests_until_half_have_ended() -> None:
    ends: list[asyncio.Future[None]] = []

    async def wait(connection: Connection, command: pb.BaseCommand) -> None:
        ends.append(asyncio.get_running_loop().create_future())
        await ends[-1]

    peer = Server(task_handler(wait), max_concurrent_requests_per_connection=4).connect()
    for request_id in range(4):
        peer.feed(lookup(request_id))
    await asyncio.sleep(0)
    assert peer.transport.is_reading_paused
    assert "maxConcurrentRequestsPerConnection" in str(peer.connection.not_heard_because)
    for index, end in enumerate(ends[:2]):
        assert peer.transport.is_reading_paused, index
        end.set_result(None)
        await asyncio.sleep(0)
    assert not peer.transport.is_reading_paused
    peer.lose()
    await asyncio.sleep(0)


async def test_requests_in_progress_are_cancelled_when_connection_ends() -> None:
    cancelled = []

    async def wait(connection: Connection, command: pb.BaseCommand) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(command.lookupTopic.request_id)
            raise

    server = Server(task_handler(wait))
    peer = server.connect()
    peer.feed(lookup(3))
    await asyncio.sleep(0)
    peer.lose()
    for _ in range(5):
        await asyncio.sleep(0)
    assert cancelled == [3]


# --- backpressure ----------------------------------------------------------------------------------------------------


async def test_read_of_whole_budget_pauses_until_next_iteration() -> None:
    server = Server(connection_read_budget_bytes=len(ping()) * 100)
    peer = server.connect()
    peer.feed(ping() * 100)
    assert peer.transport.is_reading_paused
    await asyncio.sleep(0)
    assert not peer.transport.is_reading_paused
    assert len(peer.answers) == 100


async def test_client_that_does_not_read_gets_paused_when_answers_pile_up() -> None:
    server = Server(max_outbound_bytes_per_connection=1000)
    peer = server.connect()
    peer.transport.unread_bytes = 10_000_000
    peer.connection.pause_writing()
    assert not peer.connection.is_writable
    peer.feed(ping())
    assert peer.transport.is_reading_paused
    assert "does not read" in str(peer.connection.not_heard_because)
    peer.transport.unread_bytes = 0
    peer.connection.resume_writing()
    assert peer.connection.is_writable
    assert not peer.transport.is_reading_paused


async def test_client_that_reads_nothing_for_too_long_is_closed() -> None:
    server = Server(max_outbound_bytes_per_connection=1000)
    slow, stuck = server.connect("10.0.0.1"), server.connect("10.0.0.2")
    for peer in (slow, stuck):
        peer.transport.unread_bytes = 10_000_000
        peer.connection.pause_writing()
    server.clock.now_ms += 61_000
    slow.transport.unread_bytes -= 1
    server.context.close_stalled(60)
    assert (slow.transport.is_aborted, stuck.transport.is_aborted) == (False, True)


async def test_pauses_of_several_reasons_end_with_the_last_one() -> None:
    peer = Server().connect()
    for reason in (read_pauses.REQUESTS, read_pauses.PUBLISH_RATE):
        peer.connection._pauses.add(reason)
    peer.connection._pauses.remove(read_pauses.REQUESTS)
    peer.connection._pauses.remove(read_pauses.REQUESTS)
    assert peer.transport.is_reading_paused
    peer.connection._pauses.remove(read_pauses.PUBLISH_RATE)
    assert not peer.transport.is_reading_paused


# --- liveness --------------------------------------------------------------------------------------------------------


async def test_silent_client_gets_ping_then_is_closed() -> None:
    peer = Server().connect()
    peer.connection.keep_alive_tick()
    assert peer.answers == []  # it has sent CONNECT in this interval
    peer.connection.keep_alive_tick()
    assert types(peer.answers) == ["PING"]
    peer.connection.keep_alive_tick()
    assert peer.transport.is_aborted


async def test_any_command_answers_ping_of_keep_alive() -> None:
    peer = Server().connect()
    for _ in range(5):
        peer.connection.keep_alive_tick()
        peer.feed(ping())
    assert not peer.transport.is_closed


async def test_connection_without_connect_is_closed_after_timeout() -> None:
    server = Server(connect_command_timeout_ms=5000)
    late, early = server.connect(is_introduced=False), server.connect()
    server.clock.now_ms += 5000
    server.context.close_unauthenticated()
    assert (late.transport.is_aborted, early.transport.is_aborted) == (True, False)


async def test_liveness_check_is_answered_by_next_bytes() -> None:
    peer = Server(connection_liveness_check_timeout_millis=60_000).connect()
    check = asyncio.ensure_future(peer.connection.is_alive())
    await asyncio.sleep(0)
    assert types(peer.answers) == ["PING"]
    peer.feed(ping())
    assert await check


async def test_liveness_check_without_answer_closes_connection() -> None:
    peer = Server(connection_liveness_check_timeout_millis=1).connect()
    assert not await peer.connection.is_alive()
    assert peer.transport.is_aborted


# --- end -------------------------------------------------------------------------------------------------------------


async def test_close_writes_queued_answers_and_reads_nothing_more() -> None:
    peer = Server().connect()
    peer.feed(ping())
    peer.connection.close("test")
    assert types(peer.transport.commands) == ["PONG"]
    peer.connection.send(b"late")
    peer.connection._outbox.flush()
    assert types(peer.transport.commands) == ["PONG"]


async def test_end_of_input_aborts_connection() -> None:
    peer = Server().connect()
    assert not peer.connection.eof_received()
    assert peer.transport.is_aborted


async def test_ends_of_a_burst_are_divided_among_iterations() -> None:
    server = Server()
    peers = [server.connect(is_introduced=False) for _ in range(2 * PER_ITERATION)]
    keeps_open = [peer.connection.eof_received() for peer in peers]
    assert keeps_open == [False] * PER_ITERATION + [True] * PER_ITERATION
    assert [peer.transport.is_aborted for peer in peers] == [not keeps for keeps in keeps_open]
    peers[-1].lose()
    for _ in range(2):
        await asyncio.sleep(0)
    assert all(peer.transport.is_aborted for peer in peers[:-1])
    assert not peers[-1].transport.is_aborted


async def test_connections_are_counted_and_all_closed_is_set_at_last_end() -> None:
    server = Server()
    peers = [server.connect() for _ in range(3)]
    assert [getattr(server.runtime.stats, name) for name in ACCOUNTED] == [3, 0, 3]
    for peer in peers:
        assert not server.context.all_closed.is_set()
        peer.lose()
    assert server.context.all_closed.is_set()
    assert [getattr(server.runtime.stats, name) for name in ACCOUNTED] == [3, 3, 0]


async def test_connection_beyond_file_descriptors_displaces_unauthenticated_one() -> None:
    server = Server(max_clients=2)
    waiting, served = server.connect("10.0.0.1", is_introduced=False), server.connect("10.0.0.2")
    newest = server.connect("10.0.0.3", is_introduced=False)
    assert [each.transport.is_aborted for each in (waiting, served, newest)] == [True, False, False]


async def test_connection_beyond_file_descriptors_is_refused_without_unauthenticated_ones() -> None:
    server = Server(max_clients=2)
    served = [server.connect("10.0.0.1"), server.connect("10.0.0.2")]
    newest = server.connect("10.0.0.3", is_introduced=False)
    assert newest.transport.is_aborted
    assert not any(each.transport.is_aborted for each in served)


async def test_new_connection_during_stop_is_not_read() -> None:
    server = Server()
    server.context.is_stopping = True
    peer = server.connect(is_introduced=False)
    assert peer.transport.is_reading_paused
