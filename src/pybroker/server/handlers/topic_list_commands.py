"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE.

If a pattern is too long or not supported by the broker, GET_TOPICS_OF_NAMESPACE returns the unfiltered list and
WATCH_TOPIC_LIST fails. Clients then poll and filter themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.topic_directory import listed_bytes
from pybroker.broker.lifecycle.topic_watchers import select_topics
from pybroker.broker.lifecycle.watched_topics import TopicChanges, TopicWatcher, WatchedTopics
from pybroker.errors import InvalidTopicName, MetadataError, NotAllowedError, ProtocolViolation, TooManyRequests
from pybroker.memory.broker_memory import Holding
from pybroker.model.names import NON_PERSISTENT, PERSISTENT, NamespaceName
from pybroker.model.topic_patterns import InvalidPattern, TopicsPattern, UnsupportedPattern, topics_hash
from pybroker.server.handlers.authorization_errors import refused_to
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.session import SessionState

if TYPE_CHECKING:
    from pybroker.auth.proxied_role import Principal
    from pybroker.server.connection import Connection

MAX_WATCHERS_PER_CONNECTION = 1000
_Mode = pb.CommandGetTopicsOfNamespace.Mode
_DOMAIN_OF_MODE = {_Mode.PERSISTENT: PERSISTENT, _Mode.NON_PERSISTENT: NON_PERSISTENT, _Mode.ALL: None}


async def get_topics_of_namespace(connection: Connection, command: pb.BaseCommand) -> None:
    """Send the matching topics to the client; no topics if it already has the current list."""
    request = command.getTopicsOfNamespace
    broker = connection.broker
    namespace = _namespace(request.namespace)
    await _require_list(connection, namespace, "GetTopicsOfNamespace")
    if request.mode != _Mode.PERSISTENT and broker.resources.namespace(namespace) is None:
        # As in Pulsar, only this mode fails for a missing namespace; others return an empty list.
        raise MetadataError(f"Namespace {namespace} not found")
    pattern = _pattern_to_evaluate(connection, request)
    async with _room_for_list(connection, namespace) as room:
        topics = await broker.directory.list(namespace, _DOMAIN_OF_MODE[request.mode])
        room.count(listed_bytes(topics))
        if pattern is not None:
            topics = await select_topics(pattern, topics)
        _answer_list(connection, request, topics, is_filtered=pattern is not None)


def _answer_list(
    connection: Connection, request: pb.CommandGetTopicsOfNamespace, topics: list[str], *, is_filtered: bool
) -> None:
    reply = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = reply.getTopicsOfNamespaceResponse
    response.request_id = request.request_id
    response.topics_hash = topics_hash(topics)
    response.filtered = is_filtered
    response.changed = response.topics_hash != request.topics_hash
    if response.changed:
        response.topics.extend(topics)
    connection.send(replies.frame(reply))


@asynccontextmanager
async def _room_for_list(connection: Connection, namespace: NamespaceName) -> AsyncIterator[Holding]:
    """Reserve memory for a topic list, when the client has read earlier responses. Each connection builds one list at a
    time. Raises TooManyRequests after topicLoadTimeoutSeconds without memory.
    """
    memory, timeout_s = connection.context.memory, connection.runtime.config.topic_load_timeout_seconds
    room = Holding(memory, memory.lists)
    async with connection.list_turn:
        while not connection.is_writable:
            await connection.room_waiters.wait()
        try:
            async with asyncio.timeout(timeout_s):
                await room.wait(connection, connection.broker.directory.expected_bytes(namespace))
        except TimeoutError as error:
            raise TooManyRequests(
                f"the broker had no memory for a list of topics within {timeout_s} s (brokerMemoryLimitMB): "
                "try again later"
            ) from error
        try:
            yield room
        finally:
            room.close()


def _namespace(text: str) -> NamespaceName:
    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise ProtocolViolation(str(error)) from error


async def _require_watch(connection: Connection, namespace: NamespaceName) -> None:
    await _require_list(connection, namespace, "watchTopicList", "Proxy Client")  # as in Pulsar, also without a proxy


async def _require_list(connection: Connection, namespace: NamespaceName, what: str, client: str = "Client") -> None:
    with refused_to(what, client):
        await connection.broker.broker_context.authorization.require_list_topics(namespace, connection.principal)


def _pattern_to_evaluate(connection: Connection, request: pb.CommandGetTopicsOfNamespace) -> TopicsPattern | None:
    config = connection.runtime.config
    if not request.HasField("topics_pattern") or not config.enable_broker_side_subscription_pattern_evaluation:
        return None
    if len(request.topics_pattern) > config.subscription_pattern_max_length:
        return None
    try:
        return TopicsPattern.parse(request.topics_pattern)
    except UnsupportedPattern:
        return None
    except InvalidPattern as error:
        raise MetadataError(str(error)) from error


class ConnectionWatcher(TopicWatcher):
    """Sends changes of a topic list to a client that watches it."""

    def __init__(self, connection: Connection, watcher_id: int, watched: WatchedTopics) -> None:
        super().__init__(watched)
        self._connection = connection
        self._watcher_id = watcher_id
        self._is_answered = False

    @property
    def principal(self) -> Principal:
        return self._connection.principal

    @property
    def is_ready(self) -> bool:
        return self._is_answered and self._connection.is_writable

    def tell(self, changes: TopicChanges) -> None:
        update = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE)
        update.watchTopicUpdate.watcher_id = self._watcher_id
        update.watchTopicUpdate.new_topics.extend(changes.created)
        update.watchTopicUpdate.deleted_topics.extend(changes.deleted)
        update.watchTopicUpdate.topics_hash = changes.hash
        self._connection.send(replies.frame(update))

    def close_from_broker(self) -> None:
        # The protocol has no command that closes a watcher. The client learns of it from its next request.
        close_watcher(self._connection, self._watcher_id, self)

    def answer(self, request: pb.CommandWatchTopicList) -> None:
        """Send the list of matching topics, without names if the client already has the current list. Later changes
        follow as updates.
        """
        reply = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        response = reply.watchTopicListSuccess
        response.request_id = request.request_id
        response.watcher_id = self._watcher_id
        response.topics_hash = self.watched.hash
        if response.topics_hash != request.topics_hash:
            response.topic.extend(self.watched.names)
        self.forget()
        self._is_answered = True
        self._connection.send(replies.frame(reply))


async def watch_topic_list(connection: Connection, command: pb.BaseCommand) -> None:
    """Send the matching topics, and from then on created and deleted topics. For a watcher id that is in use, send its
    list again and ignore the new pattern.
    """
    request = command.watchTopicList
    watchers = connection.broker.topic_watchers
    namespace = _namespace(request.namespace)
    connection.watchers_being_opened.add(request.watcher_id)
    try:
        await _require_watch(connection, namespace)
        is_closed = request.watcher_id not in connection.watchers_being_opened
    finally:
        connection.watchers_being_opened.discard(request.watcher_id)
    watcher = connection.topic_watchers.get(request.watcher_id)
    if watcher is None:
        if is_closed:
            raise NotAllowedError(
                f"topic list watcher {request.watcher_id} was closed while its permission was checked"
            )
        if connection.session.state is SessionState.CLOSED:
            return  # closed during creation
        pattern = _watchable_pattern(connection, request.topics_pattern)
        watched = watchers.watched(namespace, pattern)
        watcher = connection.topic_watchers[request.watcher_id] = ConnectionWatcher(
            connection, request.watcher_id, watched
        )
        watchers.open(watcher)
    try:
        async with _room_for_list(connection, namespace):
            await watchers.load(watcher.watched)
        # While the list was read, the permission may have been revoked or the watcher closed.
        await _require_watch(connection, namespace)
        if connection.topic_watchers.get(request.watcher_id) is not watcher:
            raise NotAllowedError(f"topic list watcher {request.watcher_id} was closed while its list was read")
    except BaseException:
        close_watcher(connection, request.watcher_id, watcher)
        raise
    assert isinstance(watcher, ConnectionWatcher)
    watcher.answer(request)


def _watchable_pattern(connection: Connection, text: str) -> TopicsPattern:
    config = connection.runtime.config
    if not config.enable_broker_topic_list_watcher:
        raise NotAllowedError("topic list watchers are disabled (enableBrokerTopicListWatcher=false)")
    if len(connection.topic_watchers) >= MAX_WATCHERS_PER_CONNECTION:
        raise NotAllowedError(
            f"this connection already has {MAX_WATCHERS_PER_CONNECTION} topic list watchers, which is the maximum"
        )
    if len(text) > config.subscription_pattern_max_length:
        raise NotAllowedError(
            f"Unable to create topic list watcher: Pattern longer than maximum: {config.subscription_pattern_max_length}"
        )
    try:
        return TopicsPattern.parse(text)
    except UnsupportedPattern as error:
        raise NotAllowedError(str(error)) from error
    except InvalidPattern as error:
        raise InvalidTopicName(str(error)) from error


def close_watcher(connection: Connection, watcher_id: int, watcher: TopicWatcher) -> None:
    if connection.topic_watchers.get(watcher_id) is watcher:
        del connection.topic_watchers[watcher_id]
    connection.broker.topic_watchers.close(watcher)


async def watch_topic_list_close(connection: Connection, command: pb.BaseCommand) -> None:
    """Close a watcher. An unknown id is not an error.

    Runs as a task, as WATCH_TOPIC_LIST does, so that it cannot overtake an earlier WATCH_TOPIC_LIST of the same id.
    """
    request = command.watchTopicListClose
    connection.watchers_being_opened.discard(request.watcher_id)
    watcher = connection.topic_watchers.get(request.watcher_id)
    if watcher is not None:
        close_watcher(connection, request.watcher_id, watcher)
    connection.send(replies.success(request.request_id))
