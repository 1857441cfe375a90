"""Opens the WebSocket sessions of a broker, runs them, and closes them when the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pybroker.broker.explain.steps import WEBSOCKET_CLIENT
from pybroker.client.consuming.message_consumer import MessageConsumer
from pybroker.client.message_crypto import MessageCrypto
from pybroker.client.producing.message_producer import open_message_producer
from pybroker.encryption.configured_keys import configured_key_reader
from pybroker.encryption.encryption_errors import CannotEncrypt
from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.websocket.consumer_session import ConsumerSession, ReaderSession
from pybroker.websocket.dead_letter_producer import DeadLetterProducer
from pybroker.websocket.frame_compression import session_extensions
from pybroker.websocket.namespace_totals import NamespaceTotals
from pybroker.websocket.producer_session import ProducerSession
from pybroker.websocket.session_clients import SessionClients
from pybroker.websocket.session_permissions import SessionPermissions
from pybroker.websocket.topic_pattern import PatternTopics
from pybroker.websocket.websocket_connection import Timing, WebSocketConnection

if TYPE_CHECKING:
    from websockets.extensions import Extension

    from pybroker.broker.service import BrokerService
    from pybroker.client.access import Access
    from pybroker.client.client import Client
    from pybroker.websocket.session import Session
    from pybroker.websocket.session_parameters import ConsumerParameters, ProducerParameters

_MS_PER_S = 1000
CLOSE_STEP_S = 0.01


class Sessions:
    """All sessions of one broker. Invariant: each listed session has a task that runs it."""

    def __init__(self, broker: BrokerService) -> None:
        self._sessions: dict[Session, None] = {}
        self.totals = NamespaceTotals()
        self.clients = SessionClients(broker)
        broker.permission_rechecks.add(SessionPermissions(self))
        self.opened_total = 0
        self.refused_total = 0
        self._broker = broker
        self._runtime = broker.runtime
        self._tasks = TaskOwner("websocket")
        keys = configured_key_reader(self._runtime.config)
        self._crypto_thread = self._runtime.threads.pool("crypto-keys")
        self._crypto = None if keys is None else MessageCrypto(keys, self._crypto_thread)
        self._is_closing = False

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    # --- opening -------------------------------------------------------------------------------------------------------

    def connection(self, address: str, extensions: Sequence[Extension] = ()) -> WebSocketConnection:
        """Return a connection for a session that is being opened. Raises ServiceNotReady while the broker stops."""
        if self._is_closing:
            raise ServiceNotReady("the broker is stopping: open the session at another broker, or try again later")
        config = self._runtime.config
        timing = Timing(
            max(0, config.web_socket_ping_duration_seconds),
            config.web_socket_session_idle_timeout_millis / _MS_PER_S,
        )
        return WebSocketConnection(
            address,
            self._runtime.memory,
            self._runtime.peer_clock,
            config.web_socket_max_text_frame_size,
            timing,
            self._tasks,
            session_extensions(extensions),
        )

    async def open_producer(
        self, connection: WebSocketConnection, access: Access, topic: TopicName, parameters: ProducerParameters
    ) -> ProducerSession:
        """Create a producer, and start the session that publishes with it. Raises CannotEncrypt,
        BrokerError if the broker refuses the producer, and ClientError for other failures, such as a lost connection.
        """
        if parameters.publishing.encryption_keys and self._crypto is None:
            raise CannotEncrypt("Can't add encryption key without configuring cryptoKeyReaderFactoryClassName")
        client = self.clients.borrow(access)
        try:
            publishing = replace(
                parameters.publishing,
                properties={WEBSOCKET_CLIENT: connection.address},
                crypto=self._crypto if parameters.publishing.encryption_keys else None,
            )
            producer = await open_message_producer(client, topic, publishing)
        except BaseException:
            await self.clients.give_back(client)
            raise
        session = ProducerSession(
            self._runtime,
            connection,
            str(topic),
            producer,
            parameters.max_pending_messages,
            parameters.encryption_keys,
        )
        self._start(session, client, None)
        return session

    async def open_consumer(
        self,
        connection: WebSocketConnection,
        access: Access,
        topics: Sequence[TopicName] | str,
        parameters: ConsumerParameters,
        may_consume: Callable[[TopicName], Awaitable[None]],
    ) -> ConsumerSession:
        """Create a consumer or reader, and start the session that delivers its messages. `topics`: topic names, or a
        pattern. `may_consume`: check of each topic that matches the pattern.

        Raises InvalidParameter for an invalid pattern, BrokerError if the broker refuses the consumer, and ClientError for
        other failures, such as a lost connection.
        """
        client = self.clients.borrow(access)
        properties = {WEBSOCKET_CLIENT: connection.address}
        receiving = replace(parameters.receiving, properties=properties, crypto=self._crypto)
        consumer = MessageConsumer(client, receiving)
        try:
            pattern = None
            if isinstance(topics, str):
                pattern = PatternTopics(client, topics, may_consume)
                await consumer.attach(await pattern.current())
            else:
                await consumer.attach(topics)
        except BaseException:
            await consumer.close()
            await self.clients.give_back(client)
            raise
        letters = None
        if parameters.dead_letters is not None:
            letters = DeadLetterProducer(
                client, TopicName.parse(parameters.dead_letters.topic), parameters.dead_letters
            )
        kind = ReaderSession if parameters.receiving.start is not None else ConsumerSession
        shown = topics if isinstance(topics, str) else ",".join(str(topic) for topic in topics)
        session = kind(self._runtime, connection, shown, consumer, parameters, letters, pattern)
        self._start(session, client, letters)
        return session

    def _start(self, session: Session, client: Client, letters: DeadLetterProducer | None) -> None:
        self.opened_total += 1
        self._sessions[session] = None
        self._tasks.start(self._run(session, client, letters), session.topic)
        logs.info(
            "websocket.session_opened", kind=session.kind, topic=session.topic, address=session.connection.address
        )

    async def _run(self, session: Session, client: Client, letters: DeadLetterProducer | None) -> None:
        try:
            await session.run()
        finally:
            del self._sessions[session]
            self.totals.ended(session)
            if letters is not None:
                await letters.close()
            await self.clients.give_back(client)

    def abandon(self, session: Session) -> None:
        """End a session whose client has left before the handshake was complete."""
        session.connection.connection_lost()

    # --- the end -------------------------------------------------------------------------------------------------------

    async def close(self, deadline_s: float) -> None:
        """Tell all clients that the broker stops, store the messages that they have sent, and close their producers and
        consumers. Sessions that are not closed after `deadline_s` seconds are aborted. Idempotent.
        """
        self._is_closing = True
        for session in [*self._sessions]:
            session.connection.shutdown()
        try:
            async with asyncio.timeout(deadline_s):
                while self._sessions:  # noqa: ASYNC110
                    await asyncio.sleep(CLOSE_STEP_S)
        except TimeoutError:
            logs.warning("websocket.sessions_aborted", sessions=len(self._sessions))
        await self._tasks.close()
        await self.clients.close()
        self._crypto_thread.shutdown(wait=False, cancel_futures=True)
