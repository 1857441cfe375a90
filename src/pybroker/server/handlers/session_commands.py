"""CONNECT, AUTH_RESPONSE, PING and PONG, and the expiry of credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.auth import provider_names
from pybroker.auth.authentication import UNIDENTIFIED, Challenge, Identity, RemoteClient
from pybroker.auth.proxied_role import ProxiedRole
from pybroker.errors import (
    AuthenticationError,
    BrokerError,
    NotAllowedError,
    ProtocolViolation,
)
from pybroker.runtime import logs
from pybroker.server.pending_authentication import PendingAuthentication
from pybroker.version import __version__
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.session import SessionState, negotiated_version

if TYPE_CHECKING:
    from pybroker.server.connection import Connection

AUTH_REFRESH_CHALLENGE = b"PulsarAuthRefresh"
REPEAT_CHALLENGE_S = 1.0
"""A client keeps a token until it expires by its own clock, and so can renew it with the same token at the last moment."""
_AUTH_METHODS = {pb.AuthMethodYcaV1: "ycav1", pb.AuthMethodAthens: "athenz"}


def connect(connection: Connection, command: pb.BaseCommand) -> None:
    """Authenticate the client and open the session. If that fails, send ERROR with request id -1 and close the
    connection.
    """
    request = command.connect
    broker = connection.broker
    if _is_beyond_limit(connection):
        return
    method = request.auth_method_name or _AUTH_METHODS.get(request.auth_method, "")
    if not broker.authentication.enabled:
        _open_session(connection, request, UNIDENTIFIED)
        return
    connection.session.move_to(SessionState.AUTHENTICATING)
    _take_credentials(connection, _begin(connection, method, request), request.auth_data)


def _is_beyond_limit(connection: Connection) -> bool:
    limit = connection.context.connection_limit(connection)
    if limit:
        _refuse(connection, NotAllowedError(f"Reached the maximum number of connections ({limit})"))
    return bool(limit)


def _begin(connection: Connection, method: str, request: pb.CommandConnect | None) -> PendingAuthentication:
    client = RemoteClient(connection.host, connection.certificate)
    state = connection.broker.authentication.begin(method, client)
    connection.authentication = PendingAuthentication(method, state, request)
    return connection.authentication


def _take_credentials(connection: Connection, pending: PendingAuthentication, data: bytes) -> None:
    pending.is_step_running = True
    connection.context.check_begins(connection)
    connection.tasks.start(_step(connection, pending, data), "authenticate")


async def _step(connection: Connection, pending: PendingAuthentication, data: bytes) -> None:
    """Process credentials, or the answer to a challenge. Ends with CONNECTED or renewed credentials, with
    AUTH_CHALLENGE, or with the end of the connection.
    """
    try:
        found = await pending.state.authenticate(data)
        if pending.request is not None and isinstance(found, Identity):
            found = await _with_original_principal(connection, pending.request, found)
    except BrokerError as error:
        has_expired = isinstance(error, AuthenticationError) and error.reason == AuthenticationError.EXPIRED
        if pending.request is None and has_expired and not pending.is_repeated:
            await _repeat_challenge(connection, pending)
        elif connection.session.state is not SessionState.CLOSED:
            _refuse(connection, error, f" (authentication method: {pending.method or 'none'})")
        return
    finally:
        pending.is_step_running = False
        connection.context.check_ended(connection)
    if connection.session.state is SessionState.CLOSED:
        return
    if isinstance(found, Challenge):
        _challenge(connection, pending.method, found.data)
        return
    connection.authentication = None
    if pending.request is not None:
        _open_session(connection, pending.request, found)
    else:
        _renew(connection, found)


async def _with_original_principal(connection: Connection, request: pb.CommandConnect, identity: Identity) -> Identity:
    """Return the identity of the client that the proxy with `identity` connects. Without a proxy: `identity`.

    Raises AuthenticationError for invalid credentials of the client, and AuthorizationError for invalid roles.
    """
    broker = connection.broker
    original, expiring = request.original_principal, identity
    is_checked = broker.runtime.config.authenticate_original_auth_data
    if is_checked and (request.original_principal or request.original_auth_data):
        client = RemoteClient(connection.host)
        method = request.original_auth_method or provider_names.NONE
        data = request.original_auth_data.encode()
        expiring = await broker.authentication.authenticate(method, data, client)
        original = expiring.role or ""
    principal = broker.broker_context.authorization.with_original_principal(identity.role, original)
    if not isinstance(principal, ProxiedRole):
        return identity
    connection.is_of_proxy = not is_checked
    return expiring.of_client(principal)


async def _repeat_challenge(connection: Connection, pending: PendingAuthentication) -> None:
    """Request new credentials once more, from a client that sent expired ones."""
    await connection.runtime.sleep(REPEAT_CHALLENGE_S)
    if connection.session.state is not SessionState.CLOSED:
        again = _begin(connection, pending.method, None)
        again.is_repeated = True
        _challenge(connection, pending.method, AUTH_REFRESH_CHALLENGE)


def _open_session(connection: Connection, request: pb.CommandConnect, identity: Identity) -> None:
    if _is_beyond_limit(connection):  # Other clients may have been authenticated meanwhile.
        return
    broker = connection.broker
    connection.context.introduced(connection)
    connection.identity = identity
    connection.role, connection.proxy_role = identity.role, identity.proxy_role
    broker.broker_context.authorization.learn_soon(connection.principal)
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
    logged = type(error)(f"{error}{note}")
    logged.__cause__ = error.__cause__
    connection.refused("CONNECT", logged)
    connection.send(replies.error(replies.NO_REQUEST_ID, error))
    connection.close(f"refused: {error}")


def check_expiry(connection: Connection, period_s: float) -> None:
    """Request new credentials if they expire before the next check, in `period_s` seconds.

    Close the connection if its credentials have expired, and the client cannot renew them or has not answered an earlier
    request.
    """
    identity = connection.identity
    now_s = connection.runtime.clock.wall_ms() / 1000
    if identity is None or not identity.expires_within(period_s, now_s):
        return
    pending = connection.authentication
    if connection.is_of_proxy:
        # The proxy cannot send renewed credentials, because it did not forward those of the client.
        if identity.expires_within(0, now_s):
            connection.refused("CONNECT", AuthenticationError("the credentials of the proxy have expired"))
            connection.close("credentials have expired")
    elif pending is None and connection.features.supports_auth_refresh:
        _begin(connection, identity.method, None)
        _challenge(connection, identity.method, AUTH_REFRESH_CHALLENGE)
    elif (pending is None or not pending.is_step_running) and identity.expires_within(0, now_s):
        connection.refused("CONNECT", AuthenticationError("the credentials have expired"))
        connection.close("credentials have expired")


def _challenge(connection: Connection, method: str, data: bytes) -> None:
    reply = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
    reply.authChallenge.challenge.auth_method_name = method
    reply.authChallenge.challenge.auth_data = data
    reply.authChallenge.protocol_version = connection.session.protocol_version
    connection.send(replies.frame(reply))


def auth_response(connection: Connection, command: pb.BaseCommand) -> None:
    """Continue the authentication with the client's answer to a challenge.

    A client may also renew its credentials without a challenge. Credentials of another role close the connection.
    """
    response = command.authResponse.response
    pending = connection.authentication or _begin(connection, response.auth_method_name, None)
    if pending.is_step_running:
        raise ProtocolViolation("the client sent AUTH_RESPONSE while an earlier AUTH_RESPONSE is being checked")
    _take_credentials(connection, pending, response.auth_data)


def _renew(connection: Connection, identity: Identity) -> None:
    # The credentials of the proxy limit the connection, which its client must not prolong with credentials of its own.
    if identity.role != (connection.proxy_role if connection.is_of_proxy else connection.role):
        _refuse(connection, AuthenticationError("the new credentials are for a different role"))
        return
    connection.identity = identity


def ping(connection: Connection, _command: pb.BaseCommand) -> None:
    """Send PONG. Raises ProtocolViolation for more than maxPingsBeforeConnect PINGs before CONNECT."""
    if connection.session.state is not SessionState.CONNECTED:
        connection.early_pings += 1
        if connection.early_pings > connection.context.max_pings_before_connect:
            raise ProtocolViolation("the client sent too many PING commands before CONNECT (maxPingsBeforeConnect)")
    connection.send(replies.PONG)


def pong(_connection: Connection, _command: pb.BaseCommand) -> None:
    """Do nothing: receiving data already renewed the session."""
