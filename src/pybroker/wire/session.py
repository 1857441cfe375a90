"""States of a client session: the commands that are legal in each state, and keep-alive.

    CONNECTING --CONNECT ok--> CONNECTED --anything fatal--> CLOSED
        |                          ^
        +--needs another step--> AUTHENTICATING --AUTH_RESPONSE ok--+

As in Pulsar, a command that is not legal closes the connection.
"""

from __future__ import annotations

import enum

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand.Type
MAX_PROTOCOL_VERSION = 21
END_OF_TOPIC_VERSION = 9  # the first version with REACHED_END_OF_TOPIC
ACTIVE_CONSUMER_VERSION = 12  # the first version with ACTIVE_CONSUMER_CHANGE
CLIENTS_WITHOUT_END_OF_TOPIC = "Pulsar-CPP"
"""Clients based on the C++ client (Python, Node.js) close the connection at that command and subscribe again,
without end.
"""


class SessionState(enum.Enum):
    """The state of a client's connection."""

    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


_KEEP_ALIVE = frozenset({Type.PING, Type.PONG})
_CLIENT_COMMANDS = frozenset(
    {
        Type.AUTH_RESPONSE,
        Type.PARTITIONED_METADATA,
        Type.LOOKUP,
        Type.PRODUCER,
        Type.SEND,
        Type.CLOSE_PRODUCER,
        Type.SUBSCRIBE,
        Type.FLOW,
        Type.ACK,
        Type.UNSUBSCRIBE,
        Type.CLOSE_CONSUMER,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Type.CONSUMER_STATS,
        Type.SEEK,
        Type.GET_LAST_MESSAGE_ID,
        Type.GET_TOPICS_OF_NAMESPACE,
        Type.GET_SCHEMA,
        Type.GET_OR_CREATE_SCHEMA,
        Type.TC_CLIENT_CONNECT_REQUEST,
        Type.NEW_TXN,
        Type.ADD_PARTITION_TO_TXN,
        Type.ADD_SUBSCRIPTION_TO_TXN,
        Type.END_TXN,
        Type.END_TXN_ON_PARTITION,
        Type.END_TXN_ON_SUBSCRIPTION,
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_CLOSE,
    }
)
LEGAL_COMMANDS: dict[SessionState, frozenset[pb.BaseCommand.Type]] = {
    SessionState.CONNECTING: frozenset({Type.CONNECT}) | _KEEP_ALIVE,
    SessionState.AUTHENTICATING: frozenset({Type.AUTH_RESPONSE}) | _KEEP_ALIVE,
    SessionState.CONNECTED: _CLIENT_COMMANDS | _KEEP_ALIVE,
    SessionState.CLOSED: frozenset(),
}
_TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    SessionState.CONNECTING: frozenset({SessionState.AUTHENTICATING, SessionState.CONNECTED, SessionState.CLOSED}),
    SessionState.AUTHENTICATING: frozenset({SessionState.CONNECTED, SessionState.CLOSED}),
    SessionState.CONNECTED: frozenset({SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


class KeepAlive(enum.Enum):
    """The action of the broker when a keep-alive interval ends."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


class Session:
    """State and liveness of one connection. The caller calls `tick` once per keep-alive interval.

    A received frame proves that the client is alive.
    """

    def __init__(self) -> None:
        self.state = SessionState.CONNECTING
        self.protocol_version = 0
        self.has_heard = False
        """Whether a frame was received since the last tick; set by the caller."""
        self._pinged = False

    def move_to(self, state: SessionState) -> None:
        """Change the state. Closing twice is allowed; any other transition that the module's diagram does not contain
        fails an assertion.
        """
        if state is SessionState.CLOSED and self.state is SessionState.CLOSED:
            return
        assert state in _TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state

    def require_legal(self, command_type: pb.BaseCommand.Type) -> None:
        if command_type not in LEGAL_COMMANDS[self.state]:
            name = pb.BaseCommand.Type.Name(command_type)
            raise ProtocolViolation(
                f"the client sent {name} in the session state {self.state.value}, which does not permit it"
            )

    @property
    def knows_active_consumer(self) -> bool:
        return self.protocol_version >= ACTIVE_CONSUMER_VERSION

    def knows_end_of_topic(self, client_version: str) -> bool:
        is_known = not client_version.startswith(CLIENTS_WITHOUT_END_OF_TOPIC)
        return is_known and self.protocol_version >= END_OF_TOPIC_VERSION

    def tick(self) -> KeepAlive:
        if self.state is not SessionState.CONNECTED:
            return KeepAlive.CLOSE  # CONNECT not completed within a whole interval
        if self.has_heard:
            self.has_heard = False
            self._pinged = False
            return KeepAlive.NOTHING
        if self._pinged:
            return KeepAlive.CLOSE
        self._pinged = True
        return KeepAlive.PING


def negotiated_version(client_version: int) -> int:
    return min(client_version, MAX_PROTOCOL_VERSION) if client_version > 0 else 0
