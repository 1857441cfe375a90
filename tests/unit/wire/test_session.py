"""Legal commands by state, and the keep-alive of a silent peer."""

import itertools

import pytest

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.session import (
    LEGAL_COMMANDS,
    MAX_PROTOCOL_VERSION,
    KeepAlive,
    Session,
    SessionState,
    negotiated_version,
)

Type = pb.BaseCommand.Type
BROKER_ONLY = {
    Type.CONNECTED,
    Type.SEND_RECEIPT,
    Type.SEND_ERROR,
    Type.MESSAGE,
    Type.SUCCESS,
    Type.ERROR,
    Type.PRODUCER_SUCCESS,
    Type.PARTITIONED_METADATA_RESPONSE,
    Type.LOOKUP_RESPONSE,
    Type.CONSUMER_STATS_RESPONSE,
    Type.REACHED_END_OF_TOPIC,
    Type.GET_LAST_MESSAGE_ID_RESPONSE,
    Type.ACTIVE_CONSUMER_CHANGE,
    Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    Type.GET_SCHEMA_RESPONSE,
    Type.AUTH_CHALLENGE,
    Type.ACK_RESPONSE,
    Type.GET_OR_CREATE_SCHEMA_RESPONSE,
    Type.NEW_TXN_RESPONSE,
    Type.ADD_PARTITION_TO_TXN_RESPONSE,
    Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    Type.END_TXN_RESPONSE,
    Type.END_TXN_ON_PARTITION_RESPONSE,
    Type.END_TXN_ON_SUBSCRIPTION_RESPONSE,
    Type.TC_CLIENT_CONNECT_RESPONSE,
    Type.WATCH_TOPIC_LIST_SUCCESS,
    Type.WATCH_TOPIC_UPDATE,
    Type.TOPIC_MIGRATED,
}
PATHS = {
    SessionState.CONNECTING: [],
    SessionState.AUTHENTICATING: [SessionState.AUTHENTICATING],
    SessionState.CONNECTED: [SessionState.AUTHENTICATING, SessionState.CONNECTED],
    SessionState.CLOSED: [SessionState.CLOSED],
}


def session_in(state: SessionState) -> Session:
    session = Session()
    for step in PATHS[state]:
        session.move_to(step)
    assert session.state is state
    return session


@pytest.mark.parametrize("command_type", Type.values(), ids=Type.Name)
def test_every_command_is_either_legal_in_some_state_or_sent_by_brokers_only(command_type: pb.BaseCommand.Type) -> None:
    is_legal = any(command_type in commands for commands in LEGAL_COMMANDS.values())
    assert is_legal != (command_type in BROKER_ONLY)


@pytest.mark.parametrize(("state", "command_type"), list(itertools.product(SessionState, Type.values())))
def test_the_table_is_obeyed(state: SessionState, command_type: pb.BaseCommand.Type) -> None:
    session = session_in(state)
    if command_type in LEGAL_COMMANDS[state]:
        session.require_legal(command_type)
        return
    with pytest.raises(ProtocolViolation, match=Type.Name(command_type)):
        session.require_legal(command_type)


def test_nothing_but_connect_and_keep_alive_is_legal_before_connect() -> None:
    assert LEGAL_COMMANDS[SessionState.CONNECTING] == {Type.CONNECT, Type.PING, Type.PONG}
    assert LEGAL_COMMANDS[SessionState.AUTHENTICATING] == {Type.AUTH_RESPONSE, Type.PING, Type.PONG}


def test_a_second_connect_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        session_in(SessionState.CONNECTED).require_legal(Type.CONNECT)


ALLOWED = {
    (SessionState.CONNECTING, SessionState.AUTHENTICATING),
    (SessionState.CONNECTING, SessionState.CONNECTED),
    (SessionState.AUTHENTICATING, SessionState.CONNECTED),
    *((state, SessionState.CLOSED) for state in SessionState),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SessionState, SessionState)))
def test_a_session_moves_as_drawn_and_no_other_way(before: SessionState, after: SessionState) -> None:
    session = session_in(before)
    if (before, after) in ALLOWED:
        session.move_to(after)
        assert session.state is after
        return
    with pytest.raises(AssertionError):
        session.move_to(after)
    assert session.state is before


@pytest.mark.parametrize("state", [SessionState.CONNECTING, SessionState.AUTHENTICATING])
def test_who_is_not_connected_by_the_first_tick_is_given_up(state: SessionState) -> None:
    session = session_in(state)
    session.has_heard = True
    assert session.tick() is KeepAlive.CLOSE


def test_a_silent_peer_is_asked_once_and_then_given_up() -> None:
    session = session_in(SessionState.CONNECTED)
    assert session.tick() is KeepAlive.PING
    assert session.tick() is KeepAlive.CLOSE


def test_any_frame_is_a_sign_of_life() -> None:
    session = session_in(SessionState.CONNECTED)
    for _ in range(3):
        session.has_heard = True
        assert session.tick() is KeepAlive.NOTHING
        assert session.tick() is KeepAlive.PING


@pytest.mark.parametrize(
    ("client", "agreed"),
    [(-1, 0), (0, 0), (1, 1), (19, 19), (MAX_PROTOCOL_VERSION, MAX_PROTOCOL_VERSION), (999, MAX_PROTOCOL_VERSION)],
)
def test_the_lower_of_both_versions_is_spoken(client: int, agreed: int) -> None:
    assert negotiated_version(client) == agreed


def test_the_newest_version_is_the_protocols_newest() -> None:
    assert max(pb.ProtocolVersion.values()) == MAX_PROTOCOL_VERSION
