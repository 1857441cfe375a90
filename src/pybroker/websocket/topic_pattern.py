"""The topics of a namespace that match the regular expression of a consumer session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pybroker.client.failures import ClientError
from pybroker.errors import AuthorizationError, BrokerError, InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.model.topic_patterns import InvalidPattern, TopicsPattern, UnsupportedPattern, pattern_in_namespace
from pybroker.runtime import logs
from pybroker.websocket.session_parameters import InvalidParameter

if TYPE_CHECKING:
    from pybroker.client.client import Client
    from pybroker.client.consuming.message_consumer import MessageConsumer

INTERVAL_S = 60.0
"""New topics are found after this time, as in Pulsar's clients."""
MAX_PATTERN_CHARACTERS = 1000


class PatternTopics:
    """The matching persistent topics of one namespace that the session may consume."""

    def __init__(self, client: Client, pattern: str, may_consume: Callable[[TopicName], Awaitable[None]]) -> None:
        """`pattern`: `persistent://tenant/namespace/regular-expression`. `may_consume` raises AuthorizationError.

        Raises InvalidParameter.
        """
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise InvalidParameter(f"topicsPattern is longer than {MAX_PATTERN_CHARACTERS} characters")
        try:
            self.namespace, expression = pattern_in_namespace(pattern)
            self._pattern = TopicsPattern.parse(expression)
        except (InvalidTopicName, InvalidPattern, UnsupportedPattern) as error:
            raise InvalidParameter(str(error)) from error
        self._client = client
        self._may_consume = may_consume

    async def current(self) -> list[TopicName]:
        """Return the matching topics, with a partitioned topic in place of its partitions. Raises ClientError or
        BrokerError if the topics cannot be listed.
        """
        found: dict[str, TopicName] = {}
        for text in await self._client.topics(str(self.namespace)):
            if not self._pattern.matches(text):
                continue
            name = TopicName.parse(text).partitioned_name
            if str(name) in found:
                continue
            try:
                await self._may_consume(name)
            except AuthorizationError:
                continue
            found[str(name)] = name
        return list(found.values())

    async def follow(self, consumer: MessageConsumer) -> None:
        """Attach `consumer` to new matching topics every `INTERVAL_S` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await consumer.attach(await self.current())
            except (ClientError, BrokerError) as error:
                logs.info("websocket.pattern_not_followed", namespace=str(self.namespace), reason=error)
