"""CONNECT, AUTH_RESPONSE, PING and PONG, and the expiry of credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.auth.authentication import Identity
from pybroker.errors import AuthenticationError, BrokerError, NotAllowedError, ProtocolViolation, TooManyRequests
from pybroker.runtime import logs
from pybroker.version import __version__
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.session import SessionState, negotiated_version

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

AUTH_REFRESH_CHALLENGE = b"PulsarAuthRefresh"
_AUTH_METHODS = {pb.AuthMethodYcaV1: "ycav1", pb.AuthMethodAthens: "athenz"}


def connect(connection: Connection, command: pb.BaseCommand) -> None:
    """Authenticate the client and open the session. If that fails, send ERROR with request id -1 and close the
    connection.
    """
    request = command.connect
    broker = connection.broker
    connection.context.introduced(connection)
    limit = connection.context.connection_limit(connection)
    if limit:
        _refuse(connection, NotAllowedError(f"Reached the maximum number of connections ({limit})"))
        return
    method = request.auth_method_name or _AUTH_METHODS.get(request.auth_method, "")
    if request.original_principal or request.original_auth_data:
        refusal = AuthenticationError(
            "connections through a Pulsar proxy are not supported; connect to the broker directly"
        )
        _not_authenticated(connection, method, refusal)
        return
    if broker.authentication.is_immediate(method, request.auth_data):
        try:
            identity = broker.authentication.authenticate(
                method, request.auth_data, connection.certificate, broker.runtime.clock.wall_ms() / 1000
            )
        except AuthenticationError as error:
            _not_authenticated(connection, method, error)
        else:
            _open_session(connection, request, identity)
    else:
        connection.session.move_to(SessionState.AUTHENTICATING)
        connection.tasks.start(_connect_in_turn(connection, method, request), "authenticate")


async def _connect_in_turn(connection: Connection, method: str, request: pb.CommandConnect) -> None:
    try:
        identity = await _authenticate_in_turn(connection, method, request.auth_data)
    except (AuthenticationError, TooManyRequests) as error:
        _not_authenticated(connection, method, error)
        return
    if connection.session.state is SessionState.AUTHENTICATING:
        _open_session(connection, request, identity)


async def _authenticate_in_turn(connection: Connection, method: str, data: bytes) -> Identity:
    broker = connection.broker
    return await broker.authentication.authenticate_in_turn(
        method, data, connection.certificate, broker.runtime.clock.wall_ms() / 1000, connection.host
    )


def _not_authenticated(connection: Connection, method: str, error: AuthenticationError | TooManyRequests) -> None:
    _refuse(connection, error, f" (authentication method: {method or 'none'})")


def _open_session(connection: Connection, request: pb.CommandConnect, identity: Identity) -> None:
    broker = connection.broker
    connection.identity = identity
    connection.role = connection.identity.role
    connection.client_version = request.client_version
    connection.features = request.feature_flags
    connection.supports_partial_producer = request.feature_flags.supports_partial_producer
    connection.takes_entry_metadata = (
        request.feature_flags.supports_broker_entry_metadata
        and broker.runtime.config.exposing_broker_entry_metadata_to_client_enabled
    )
    version = negotiated_version(request.protocol_version)
    connection.session.protocol_version = version
    connection.session.move_to(SessionState.CONNECTED)
    connection.accept_messages()
    reply = pb.BaseCommand(type=pb.BaseCommand.CONNECTED)
    reply.connected.server_version = f"pybroker-{__version__}"
    reply.connected.protocol_version = version
    reply.connected.max_message_size = connection.context.max_message_bytes
    # The flags do not depend on the client's. `supports_repl_dedup_by_lid_and_eid` is absent: a replicator would expect
    # the broker to deduplicate by source position.
    flags = reply.connected.feature_flags
    flags.supports_topic_watchers = broker.runtime.config.enable_broker_topic_list_watcher
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    flags.supports_topic_watcher_reconcile = broker.runtime.config.enable_broker_topic_list_watcher
    connection.send(replies.frame(reply))
    if connection.context.is_logged(connection, "connection.opened"):
        logs.info(
            "connection.opened",
            connection=connection.address,
            client=connection.client_version,
            role=connection.role or "none",
        )


def _refuse(connection: Connection, error: BrokerError, note: str = "") -> None:
    connection.runtime.stats.connections_failed += 1
    connection.refused("CONNECT", type(error)(f"{error}{note}"))
    connection.send(replies.error(replies.NO_REQUEST_ID, error))
    connection.close(f"refused: {error}")


def check_expiry(connection: Connection) -> None:
    """Request new credentials from a client whose credentials have expired. Close the connection if the client does not
    support this or does not answer.
    """
    identity = connection.identity
    if identity is None or identity.expires_at_s is None:
        return
    if connection.runtime.clock.wall_ms() / 1000 < identity.expires_at_s:
        return
    if connection.is_challenged or not connection.features.supports_auth_refresh:
        connection.refused("CONNECT", AuthenticationError("the credentials have expired"))
        connection.close("credentials have expired")
        return
    connection.is_challenged = True
    reply = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
    reply.authChallenge.challenge.auth_method_name = identity.method
    reply.authChallenge.challenge.auth_data = AUTH_REFRESH_CHALLENGE
    reply.authChallenge.protocol_version = connection.session.protocol_version
    connection.send(replies.frame(reply))


def auth_response(connection: Connection, command: pb.BaseCommand) -> None:
    """Accept renewed credentials of the same role. Close the connection if the role differs."""
    if connection.session.state is not SessionState.CONNECTED:
        raise ProtocolViolation(
            "the client sent AUTH_RESPONSE before the broker sent CONNECTED"
        )  # the broker sends its challenge later
    if connection.is_renewing:
        raise ProtocolViolation("the client sent AUTH_RESPONSE while an earlier AUTH_RESPONSE is being checked")
    response = command.authResponse.response
    method, data = response.auth_method_name, response.auth_data
    broker = connection.broker
    if not broker.authentication.is_immediate(method, data):
        connection.is_renewing = True
        connection.tasks.start(_renew_in_turn(connection, method, data), "authenticate")
        return
    try:
        identity = broker.authentication.authenticate(
            method, data, connection.certificate, broker.runtime.clock.wall_ms() / 1000
        )
    except AuthenticationError as error:
        _refuse(connection, error)
    else:
        _renew(connection, identity)


async def _renew_in_turn(connection: Connection, method: str, data: bytes) -> None:
    try:
        identity = await _authenticate_in_turn(connection, method, data)
    except (AuthenticationError, TooManyRequests) as error:
        _refuse(connection, error)
    else:
        _renew(connection, identity)
    finally:
        connection.is_renewing = False


def _renew(connection: Connection, identity: Identity) -> None:
    if identity.role != connection.role:
        _refuse(connection, AuthenticationError("the new credentials are for a different role"))
        return
    connection.identity = identity
    connection.is_challenged = False


def ping(connection: Connection, _command: pb.BaseCommand) -> None:
    """Send PONG. Before CONNECT, a client may send maxPingsBeforeConnect PINGs."""
    if connection.session.state is not SessionState.CONNECTED:
        connection.early_pings += 1
        if connection.early_pings > connection.context.max_pings_before_connect:
            raise ProtocolViolation("the client sent too many PING commands before CONNECT (maxPingsBeforeConnect)")
    connection.send(replies.PONG)


def pong(_connection: Connection, _command: pb.BaseCommand) -> None:
    """Do nothing: receiving data already renewed the session."""
