"""The routes that open WebSocket sessions.

The producer, consumer or reader is created before the handshake is answered: a refusal is an HTTP status with its reason,
as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from starlette.responses import Response
from starlette.routing import Route
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pybroker.admin.calls.call import Call, ClientGone
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.admin.http.upgrade import SwitchingProtocols
from pybroker.auth import provider_names
from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError, ConnectionLost, RequestTimedOut
from pybroker.encryption.encryption_errors import CannotEncrypt
from pybroker.errors import (
    AdminError,
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidTopicName,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
    SubscriptionNotFound,
    TooManyRequests,
    TopicNotFound,
    TopicTerminatedError,
)
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.websocket import session_parameters
from pybroker.websocket.frame_compression import OFFER
from pybroker.websocket.session_parameters import InvalidParameter
from pybroker.websocket.session_permission import SessionPermission

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from websockets.extensions import Extension

    from pybroker.client.access import Access
    from pybroker.websocket.session import Session
    from pybroker.websocket.sessions import Sessions
    from pybroker.websocket.websocket_connection import WebSocketConnection

TOPIC = "{domain}/{tenant}/{namespace}/{topic}"
_PATHS = ("/ws/v2/producer", "/ws/v2/consumer", "/ws/v2/reader", "/ws/v3/consumer")
SWITCHING_PROTOCOLS = 101
UPGRADE_REQUIRED = 426
ANY_ORIGIN = "*"

_STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    ((InvalidParameter, InvalidTopicName, ValueError, CannotEncrypt), 400),
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    ((TopicNotFound, SubscriptionNotFound), 404),
    ((ProducerBusy, ConsumerBusy, ProducerFenced, IncompatibleSchema), 409),
    (TooManyRequests, 429),
    ((ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException, TopicTerminatedError), 503),
    ((ServiceNotReady, ConnectionLost), 503),
    (RequestTimedOut, 504),
)
"""The status of each refusal; of any other error 500. As in Pulsar, but 503 for a broker that is not ready or not
reached, for which Pulsar answers 500.
"""

_TOKEN = Query("token", "the token, for clients that cannot set the header Authorization")
_PRODUCER_QUERIES = (
    _TOKEN,
    Query("producerName", "the name of the producer; by default the broker assigns a name"),
    Query("initialSequenceId", "the first message has the next sequence id", int),
    Query("sendTimeoutMillis", "time until a message without a receipt fails; 0: never", int, 30_000),
    Query("batchingEnabled", "send messages in batches", bool),
    Query("batchingMaxMessages", "messages per batch; with batchingEnabled", int, 1000),
    Query("batchingMaxPublishDelay", "milliseconds that a batch waits; with batchingEnabled", int, 1),
    Query("maxPendingMessages", "unanswered messages above which no message is read; with batchingEnabled", int, 1000),
    Query(
        "messageRoutingMode",
        "the partition of a message without a key",
        str,
        "SinglePartition",
        ("SinglePartition", "RoundRobinPartition"),
    ),
    Query("hashingScheme", "the hash of keys", str, "JavaStringHash", ("JavaStringHash", "Murmur3_32Hash")),
    Query("compressionType", "the compression", str, "NONE", ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")),
    Query(
        "encryptionKeys",
        "names of the public keys for which the broker encrypts the messages, or base64 of a JSON object of the keys with "
        "which the client encrypts its messages",
    ),
)
_QUEUE = Query("receiverQueueSize", "messages that are sent without an acknowledgement; at most 1000", int, 1000)
_CRYPTO = Query(
    "cryptoFailureAction",
    "the treatment of messages that cannot be decrypted",
    str,
    "FAIL",
    ("FAIL", "DISCARD", "CONSUME"),
)
_CONSUMER_QUERIES = (
    _TOKEN,
    _CRYPTO,
    _QUEUE,
    Query("subscriptionType", "the type", str, "Exclusive", ("Exclusive", "Shared", "Failover", "Key_Shared")),
    Query("subscriptionMode", "whether the cursor is durable", str, "Durable", ("Durable", "NonDurable")),
    Query("subscriptionInitialPosition", "where a new subscription begins", str, "Latest", ("Latest", "Earliest")),
    Query("consumerName", "the name of the consumer; by default the broker assigns a name"),
    Query("priorityLevel", "the priority; 0 is the highest", int, 0),
    Query("ackTimeoutMillis", "time after which unacknowledged messages are redelivered; 0: never", int, 0),
    Query(
        "negativeAckRedeliveryDelay", "milliseconds until a negatively acknowledged message is redelivered", int, 60_000
    ),
    Query("maxRedeliverCount", "redeliveries after which a message is stored in the dead letter topic", int),
    Query("deadLetterTopic", "the dead letter topic; by default TOPIC-SUBSCRIPTION-DLQ"),
    Query("deadLetterSubscriptionName", "a subscription that is created with the dead letter topic"),
    Query("pullMode", "send messages only when the client requests them", bool),
)
_READER_QUERIES = (
    _TOKEN,
    _CRYPTO,
    _QUEUE,
    Query("readerName", "the name of the reader"),
    Query("messageId", "`earliest`, `latest`, or the message id after which the reader begins", str, "latest"),
)
_ANSWERS = {
    101: "The session is open",
    400: "A parameter or name is invalid",
    403: "The role may not use the topic",
    404: "The namespace or topic does not exist",
    405: "The request is not a WebSocket handshake",
    409: "Another producer has the name, or the subscription is in use",
    503: "The topic is terminated, its backlog quota is exceeded, or the broker is not ready",
}

Opening = Callable[["WebSocketConnection", "Access"], Awaitable["Session"]]


class WebSocketRoutes:
    """The routes of the service."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def routes(self) -> list[Route]:
        shown = {"answers": _ANSWERS}
        return [
            route("GET", f"/ws/v2/producer/{TOPIC}", self.producer, queries=_PRODUCER_QUERIES, **shown),
            route(
                "GET", f"/ws/v2/consumer/{TOPIC}/{{subscription}}", self.consumer, queries=_CONSUMER_QUERIES, **shown
            ),
            route(
                "GET",
                "/ws/v3/consumer/{subscription}",
                self.multi_topic_consumer,
                queries=(
                    Query("topics", "the topics, separated by commas"),
                    Query("topicsPattern", "a regular expression: persistent://tenant/namespace/EXPRESSION"),
                    *_CONSUMER_QUERIES,
                ),
                **shown,
            ),
            route("GET", f"/ws/v2/reader/{TOPIC}", self.reader, queries=_READER_QUERIES, **shown),
            *(route("GET", f"{path}/{{rest:path}}", self.incomplete) for path in _PATHS),
        ]

    async def incomplete(self, call: Call) -> Response:
        """Reject a path with too few or too many parts (400)."""
        raise AdminError(
            400,
            "Invalid topic name format: the path must be DOMAIN/TENANT/NAMESPACE/TOPIC, for a consumer with /SUBSCRIPTION",
        )

    async def producer(self, call: Call) -> Response:
        """Open the WebSocket session of a producer. Each text frame is a message, which is answered with its message id
        or its error.
        """
        topic = _topic(call)
        authorization, principal = call.broker.broker_context.authorization, call.principal
        permission = authorization.permission(lambda: authorization.require_produce(topic, principal))

        async def opened(connection: WebSocketConnection, access: Access) -> Session:
            parameters = session_parameters.producer_parameters(_query(call))
            await permission.require()
            return await self._sessions.open_producer(connection, access, topic, parameters)

        return await self._open(call, opened, SessionPermission(permission, ([topic],)))

    async def consumer(self, call: Call) -> Response:
        """Open the WebSocket session of a consumer. The client acknowledges each message with its message id."""
        return await self._consume(call, [_topic(call)])

    async def multi_topic_consumer(self, call: Call) -> Response:
        """Open the WebSocket session of a consumer of several topics (`topics`), or of the topics that match a pattern
        (`topicsPattern`).
        """
        topics, pattern = call.query("topics"), call.query("topicsPattern")
        if (topics is None) == (pattern is None):
            raise AdminError(400, "Invalid query params: give either topics or topicsPattern")
        if pattern is not None:
            return await self._consume(call, pattern)
        assert topics is not None
        return await self._consume(call, [_parsed(text.strip()) for text in topics.split(",")])

    async def _consume(self, call: Call, topics: Sequence[TopicName] | str) -> Response:
        authorization, principal = call.broker.broker_context.authorization, call.principal
        subscription = call.name("subscription")
        used = dict.fromkeys(() if isinstance(topics, str) else topics)
        """The topics for which the session needs the permission; of a pattern those that it has found."""
        dead_letters: list[TopicName] = []

        async def may_consume(topic: TopicName) -> None:
            await authorization.require_consume(topic, subscription, principal)
            used[topic] = None

        async def ask() -> None:
            for topic in dead_letters:
                await authorization.require_produce(topic, principal)
            for topic in [*used]:
                await authorization.require_consume(topic, subscription, principal)

        permission = authorization.permission(ask)

        async def opened(connection: WebSocketConnection, access: Access) -> Session:
            parameters = session_parameters.consumer_parameters(
                _query(call),
                topics if isinstance(topics, str) else str(topics[0]),
                subscription,
                keeps_batch_bits=call.config.acknowledgment_at_batch_index_level_enabled,
            )
            if parameters.dead_letters is not None:
                dead_letters.append(_parsed(parameters.dead_letters.topic))
            await permission.require()
            return await self._sessions.open_consumer(connection, access, topics, parameters, may_consume)

        return await self._open(call, opened, SessionPermission(permission, (used, dead_letters)))

    async def reader(self, call: Call) -> Response:
        """Open the WebSocket session of a reader. After `receiverQueueSize` messages, the client must acknowledge
        messages to receive more.
        """
        topic = _topic(call)
        authorization, principal = call.broker.broker_context.authorization, call.principal
        subscription = f"reader-{call.runtime.random.getrandbits(40):010x}"
        permission = authorization.permission(lambda: authorization.require_consume(topic, "", principal))

        async def may_consume(_topic: TopicName) -> None:
            """A reader has no pattern."""

        async def opened(connection: WebSocketConnection, access: Access) -> Session:
            parameters = session_parameters.reader_parameters(_query(call), subscription)
            await permission.require()
            return await self._sessions.open_consumer(connection, access, [topic], parameters, may_consume)

        return await self._open(call, opened, SessionPermission(permission, ([topic],)))

    async def _open(self, call: Call, opening: Opening, permission: SessionPermission) -> Response:
        head, extensions = _handshake(call)
        _check_origin(call)
        connection = self._sessions.connection(_address(call), extensions)
        if call.expires_at_s is not None:
            connection.lifetime_s = call.expires_at_s - call.runtime.clock.wall_ms() / 1000
        try:
            session = await opening(connection, self._access(call))
            session.permission = permission
            await self._require_still(session, permission)
        except (InvalidParameter, InvalidTopicName) as error:
            raise self._refused(call, error, f"Invalid query params: {error}") from error
        except (BrokerError, ClientError, CannotEncrypt, ValueError) as error:
            raise self._refused(call, error, f"Failed to create producer/consumer: {error}") from error
        return _Session(self._sessions, session, head)

    async def _require_still(self, session: Session, permission: SessionPermission) -> None:
        """Check the permission again if permissions changed while the session was opened."""
        try:
            await permission.permission.require()
        except BaseException:
            self._sessions.abandon(session)
            raise

    def _access(self, call: Call) -> Access:
        authentication = call.broker.authentication
        _, data = authentication.http_credentials(
            call.headers, call.scope["state"]["peer_certificate"], call.query("token") or ""
        )
        try:
            return self._sessions.clients.access(call.auth_method, data, call.original_principal)
        except AccessRefused as error:
            raise AdminError(500, f"The broker cannot open WebSocket sessions: {error}") from error

    def _refused(self, call: Call, error: Exception, text: str) -> AdminError:
        self._sessions.refused_total += 1
        status = next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)
        logs.info(
            "websocket.session_refused", path=call.scope["path"], address=_address(call), status=status, reason=error
        )
        return AdminError(status, text)


class _Session(SwitchingProtocols):
    """The response that completes the handshake of a session."""

    def __init__(self, sessions: Sessions, session: Session, head: bytes) -> None:
        super().__init__(session.connection, head)
        self._sessions = sessions
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ClientGone:
            self._sessions.abandon(self._session)
            raise


def _handshake(call: Call) -> tuple[bytes, Sequence[Extension]]:
    """Return the response head that accepts the handshake, and the negotiated extensions. Raises AdminError: 405 if the
    request is no handshake, 400 if the handshake is invalid.
    """
    has_body = call.headers.get("content-length", "0") != "0" or "transfer-encoding" in call.headers
    if has_body or call.scope["http_version"] != "1.1":
        raise AdminError(400, "A WebSocket handshake is a request of HTTP/1.1 without a body")
    server = ServerProtocol(extensions=[OFFER] if call.config.web_socket_compression_enabled else None)
    try:
        headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers.raw)
    except InvalidHandshake as error:  # control characters
        raise AdminError(400, f"Failed to open a WebSocket connection: {error}") from error
    response = server.accept(Request(call.scope["path"], headers))
    if response.status_code == SWITCHING_PROTOCOLS:
        return bytes(response.serialize()), server.extensions
    if response.status_code == UPGRADE_REQUIRED:
        raise AdminError(
            405, "This address serves WebSocket sessions only: use a WebSocket client, and ws:// or wss://"
        )
    raise AdminError(response.status_code, bytes(response.body or b"").decode().strip())


def _check_origin(call: Call) -> None:
    """Refuse web pages of other hosts on a broker without authentication, where they would have all permissions. Raises
    AdminError 403.
    """
    origin = call.headers.get("origin")
    allowed = call.config.web_socket_allowed_origins
    if origin is None or ANY_ORIGIN in allowed or origin in allowed or call.auth_method != provider_names.NONE:
        return
    host = _host_of(f"//{call.headers.get('host', '')}")
    if host is None or _host_of(origin) != host:
        raise AdminError(
            403,
            f"Web pages of {origin[:100]!r} may not open sessions without credentials: add the origin to "
            "webSocketAllowedOrigins, or enable authentication",
        )


def _host_of(url: str) -> str | None:
    """Return the host of a URL of a client; None if the URL has none, or is invalid."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _topic(call: Call) -> TopicName:
    """Return the topic of the path. Raises AdminError 400."""
    try:
        return call.topic_name()
    except AdminError as error:
        raise AdminError(400, f"Invalid topic name: {error.reason}") from error


def _parsed(text: str) -> TopicName:
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise AdminError(400, f"Invalid query params: {error}") from error


def _query(call: Call) -> dict[str, str]:
    pairs = parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return dict(reversed(pairs))


def _address(call: Call) -> str:
    client = call.scope["client"]
    return f"/{client[0]}:{client[1]}" if client else "unknown"
