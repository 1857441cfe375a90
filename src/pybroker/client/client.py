"""A client of one cluster: connections, topic lookup, and queries about topics.

Create a new client after a fork. A request that fails because a broker restarts or a topic moves is repeated until
`operation_timeout_s` has passed.
"""

from __future__ import annotations

import asyncio
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from pybroker.client.access import Access
from pybroker.client.addresses import Address, addresses
from pybroker.client.client_connection import Connection
from pybroker.client.failures import ClientError, ConnectionLost, RequestTimedOut, may_pass
from pybroker.client.reconnect_delay import ReconnectDelay
from pybroker.errors import TopicNotFound
from pybroker.model.names import TopicName
from pybroker.runtime.tasks import TaskOwner
from pybroker.waiting.keyed_lock import KeyedLock
from pybroker.wire import pulsar_api_pb2 as pb

MAX_REDIRECTS = 20

Command = pb.BaseCommand
Result = TypeVar("Result")


@dataclass(frozen=True)
class TopicSchema:
    """The schema of a topic. `type` is a number of the protocol's `Schema.Type`."""

    type: int
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    version: bytes = b""
    """Assigned by the broker; empty for a schema to be registered."""

    def to_wire(self) -> pb.Schema:
        schema = pb.Schema(name=self.name, schema_data=self.data, type=self.type)  # type: ignore[arg-type]
        for name, value in self.properties.items():
            schema.properties.add(key=name, value=value)
        return schema


class Closing(ABC):
    """An asynchronous context manager that calls `close` at the end of its block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None: ...


class ClientPart(Closing):
    """The interface by which a client closes its producers and consumers."""

    @abstractmethod
    async def client_closed(self) -> None:
        """End all tasks and timers, and make all waiting calls fail. This method itself must not raise."""


class Client(Closing):
    """A client of one cluster: an asynchronous context manager, for use on one event loop."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.tasks = TaskOwner("client")
        self.parts: dict[ClientPart, None] = {}
        self._seeds = addresses(access.service_url)
        self._seed = 0
        self._connections: dict[tuple[Address, Address | None], Connection] = {}
        self._opening: KeyedLock[tuple[Address, Address | None]] = KeyedLock()
        self._closed = False
        self._process_id = os.getpid()

    async def close(self) -> None:
        self._closed = True
        while self.parts:
            await self.parts.popitem()[0].client_closed()
        await self.tasks.close()
        for connection in [*self._connections.values()]:
            await connection.close()
        self._connections.clear()

    # --- requests

    async def partitions(self, topic: TopicName, *, may_create: bool = False) -> list[TopicName]:
        """Return the partitions of `topic`, or the topic itself if it has none. Raises TopicNotFound.

        `may_create`: the broker may create the topic, if its configuration allows that.
        """
        if topic.partition_index >= 0:
            return [topic]
        command = Command(type=Command.PARTITIONED_METADATA)
        command.partitionMetadata.topic = str(topic)

        async def ask() -> pb.BaseCommand:
            connection = await self.any_connection()
            if connection.features.supports_get_partitioned_metadata_without_auto_creation:
                command.partitionMetadata.metadata_auto_creation_enabled = may_create
            return await connection.request(command)

        count = (await self.retried(ask)).partitionMetadataResponse.partitions
        return [topic.partition(index) for index in range(count)] or [topic]

    async def topics(self, namespace: str) -> list[str]:
        command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.namespace = namespace
        answer = await self.ask_any(command)
        return list(answer.getTopicsOfNamespaceResponse.topics)

    async def schema(self, topic: TopicName, version: bytes | None = None) -> TopicSchema | None:
        command = Command(type=Command.GET_SCHEMA)
        command.getSchema.topic = str(topic)
        if version is not None:
            command.getSchema.schema_version = version

        async def ask() -> pb.BaseCommand:
            return await (await self.connection_for(topic)).request(command)

        try:
            answer = (await self.retried(ask)).getSchemaResponse
        except TopicNotFound:
            return None
        found: pb.Schema = answer.schema
        properties = {str(pair.key): str(pair.value) for pair in found.properties}  # type: ignore[attr-defined]
        return TopicSchema(found.type, found.schema_data, properties, found.name, answer.schema_version)

    async def ask_any(self, command: pb.BaseCommand) -> pb.BaseCommand:
        async def ask() -> pb.BaseCommand:
            return await (await self.any_connection()).request(command)

        return await self.retried(ask)

    async def retried(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Run `attempt` and return its result. Repeat it after errors for which `may_pass` is true. Raise the last
        error when the operation timeout has passed.
        """
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self.access.operation_timeout_s
        delay = ReconnectDelay(random.random())
        while True:
            try:
                return await attempt()
            except Exception as error:
                if not may_pass(error) or self._closed:
                    raise
                wait_s = delay.next_s()
                if now_s() + wait_s > deadline_s:
                    raise
            await asyncio.sleep(wait_s)

    # --- connections

    async def any_connection(self) -> Connection:
        failure: ConnectionLost | None = None
        for _ in self._seeds:
            try:
                return await self.connection_to(self._seeds[self._seed])
            except ConnectionLost as error:
                failure = error
                self._seed = (self._seed + 1) % len(self._seeds)
        assert failure is not None
        raise failure

    async def connection_to(self, address: Address, *, behind_proxy: Address | None = None) -> Connection:
        if os.getpid() != self._process_id:
            raise ClientError("this client was created before a fork: create one client in each process")
        key = (address, behind_proxy)
        async with self._opening.held(key):
            connection = self._connections.get(key)
            if connection is not None and connection.failure is None:
                return connection
            self._require_open()
            connection = await Connection.open(address, self.access, behind_proxy=behind_proxy)
            try:
                self._require_open()
            except ClientError:
                await connection.close()
                raise
            self._connections[key] = connection
            return connection

    def _require_open(self) -> None:
        if self._closed:
            raise ClientError("this client is closed: create a new client")

    async def connection_for(self, topic: TopicName) -> Connection:
        command = Command(type=Command.LOOKUP)
        lookup = command.lookupTopic
        lookup.topic = str(topic)
        lookup.authoritative = False
        if self.access.listener_name:
            lookup.advertised_listener_name = self.access.listener_name
        connection = await self.any_connection()
        for _ in range(MAX_REDIRECTS):
            answer = (await connection.request(command)).lookupTopicResponse
            url = answer.brokerServiceUrlTls if connection.address.is_tls else answer.brokerServiceUrl
            if not url:
                raise ClientError(
                    f"the broker that owns topic {topic} has no {'TLS' if connection.address.is_tls else 'plain'} "
                    "port: use the other scheme in the service URL, or another listener"
                )
            target = addresses(url)[0]
            if answer.response == pb.CommandLookupTopicResponse.Redirect:
                lookup.authoritative = answer.authoritative
                connection = await self.connection_to(target)
                continue
            if target == connection.address:
                return connection
            if answer.proxy_through_service_url:
                return await self.connection_to(self._seeds[self._seed], behind_proxy=target)
            return await self.connection_to(target)
        raise RequestTimedOut(
            f"the lookup of topic {topic} was redirected {MAX_REDIRECTS} times without a result: try again"
        )
