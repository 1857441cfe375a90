"""Stores messages that a consumer session has delivered too often in a dead letter topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.client.message import OutgoingMessage
from pybroker.client.producing.message_producer import MessageProducer, Publishing, open_message_producer
from pybroker.model.names import TopicName

if TYPE_CHECKING:
    from pybroker.client.client import Client
    from pybroker.client.message import Message
    from pybroker.websocket.session_parameters import DeadLetters

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Properties of a dead letter, as Pulsar's clients set them."""


class DeadLetterProducer:
    """Producer for the dead letter topic of one session. It is created for the first message, and closed with the
    session.
    """

    def __init__(self, client: Client, topic: TopicName, settings: DeadLetters) -> None:
        self.max_redeliver_count = settings.max_redeliver_count
        self._client = client
        self._topic = topic
        self._initial_subscription = settings.initial_subscription
        self._producer: MessageProducer | None = None

    async def store(self, message: Message) -> None:
        """Store a copy of `message` in the dead letter topic. If this fails, raises the producer's error, and the
        message is not stored.
        """
        if self._producer is None:
            publishing = Publishing(is_batching=False, initial_subscription=self._initial_subscription)
            self._producer = await open_message_producer(self._client, self._topic, publishing)
        properties = {
            **message.properties,
            REAL_TOPIC: message.properties.get(REAL_TOPIC, message.topic),
            ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID, str(message.id)),
        }
        letter = OutgoingMessage(
            message.value,
            message.key,
            message.is_key_encoded,
            message.ordering_key,
            properties,
            event_time_ms=message.event_time_ms,
        )
        await (await self._producer.submit(letter))

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
