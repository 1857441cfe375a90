"""One connection of a simulated client: commands out, frames in, and which answer belongs to which request.

What must hold: whatever the broker says lands on the tape; an answer without its request, or in another form than the protocol
promises, is noted as broken. It knows nothing of producers and consumers but whom to tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from tests.simulate import tape
from tests.simulate.tape import Tape
from tests.simulate.wire import Wire
from tests.support.raw_client import encode
from tests.support.raw_client import frame as framed

from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
Command = pb.BaseCommand

ANSWER_OF = {
    Type.PRODUCER: Type.PRODUCER_SUCCESS,
    Type.SUBSCRIBE: Type.SUCCESS,
    Type.CLOSE_PRODUCER: Type.SUCCESS,
    Type.CLOSE_CONSUMER: Type.SUCCESS,
    Type.UNSUBSCRIBE: Type.SUCCESS,
    Type.SEEK: Type.SUCCESS,
    Type.GET_LAST_MESSAGE_ID: Type.GET_LAST_MESSAGE_ID_RESPONSE,
    Type.CONSUMER_STATS: Type.CONSUMER_STATS_RESPONSE,
    Type.LOOKUP: Type.LOOKUP_RESPONSE,
    Type.PARTITIONED_METADATA: Type.PARTITIONED_METADATA_RESPONSE,
    Type.GET_TOPICS_OF_NAMESPACE: Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    Type.GET_SCHEMA: Type.GET_SCHEMA_RESPONSE,
    Type.GET_OR_CREATE_SCHEMA: Type.GET_OR_CREATE_SCHEMA_RESPONSE,
    Type.WATCH_TOPIC_LIST: Type.WATCH_TOPIC_LIST_SUCCESS,
    Type.WATCH_TOPIC_LIST_CLOSE: Type.SUCCESS,
    Type.ACK: Type.ACK_RESPONSE,
    Type.TC_CLIENT_CONNECT_REQUEST: Type.TC_CLIENT_CONNECT_RESPONSE,
    Type.NEW_TXN: Type.NEW_TXN_RESPONSE,
    Type.ADD_PARTITION_TO_TXN: Type.ADD_PARTITION_TO_TXN_RESPONSE,
    Type.ADD_SUBSCRIPTION_TO_TXN: Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    Type.END_TXN: Type.END_TXN_RESPONSE,
    Type.END_TXN_ON_PARTITION: Type.END_TXN_ON_PARTITION_RESPONSE,
    Type.END_TXN_ON_SUBSCRIPTION: Type.END_TXN_ON_SUBSCRIPTION_RESPONSE,
}
"""What answers a request besides ERROR."""
FIELD_OF = {
    value.number: field.name
    for value in pb.BaseCommand.Type.DESCRIPTOR.values
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.number == value.number
}
_NAME = pb.BaseCommand.Type.Name
_OPENS = (Type.PRODUCER, Type.SUBSCRIBE)


class Hearer(Protocol):
    """Who is told what is no answer."""

    def message(self, command: Command, entry: bytes) -> None: ...
    def receipt(self, command: Command) -> None: ...
    def send_error(self, command: Command) -> None: ...
    def closed_producer(self, producer_id: int) -> None: ...
    def closed_consumer(self, consumer_id: int) -> None: ...
    def told(self, command: Command) -> None: ...
    def link_lost(self) -> None: ...


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error


class LinkLost(Exception):
    """The connection ended before the answer came."""


class Link:
    """Made by `greet`; lives until either side ends it."""

    _numbers = count(1)

    def __init__(self, name: str, wire: Wire, tape_: Tape, actor: str, hearer: Hearer) -> None:
        self.name = name
        self._wire = wire
        self._tape = tape_
        self._actor = actor
        self._hearer = hearer
        self._request_ids = count(1)
        self._waiting: dict[int, tuple[int, asyncio.Future[Command]]] = {}
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        self._why = "ended"

    # --- out ---------------------------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Introduce itself. Raises LinkLost."""
        self.send(Type.CONNECT, client_version="simulated", protocol_version=21, feature_flags=_features())
        await self._connected

    def send(self, command: int, **fields: Any) -> None:
        """A command without an answer; nothing happens on a connection that is lost."""
        self._write(framed(encode(command, **fields)))  # type: ignore[arg-type]

    def send_entry(self, head: bytes, entry: bytes) -> None:
        self._write(framed(head, entry))

    def _write(self, data: bytes) -> None:
        if not self.is_lost and self._wire.is_open:
            self._wire.send(data)

    async def ask(self, command: int, **fields: Any) -> Command:
        """Raises Refused and LinkLost. Who gives up waiting is still answered."""
        _, future = self.begin(command, **fields)
        return await asyncio.shield(future)

    def begin(self, command: int, **fields: Any) -> tuple[int, asyncio.Future[Command]]:
        """Ask without waiting: the request's id, and what will have the answer. Raises LinkLost."""
        if self.is_lost:
            raise LinkLost
        request_id = next(self._request_ids)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = (command, future)
        self._tape.note(
            self._actor, tape.ASKED, link=self.name, request_id=request_id, command=_NAME(command),
            of=fields.get("consumer_id", fields.get("producer_id")),
            place=(fields.get("topic"), fields.get("subscription")) if command in _OPENS else None,
        )  # fmt: skip
        self.send(command, request_id=request_id, **fields)
        return request_id, future

    def cut(self, *, silently: bool = False) -> None:
        """End it without a word; silently: the broker does not even see it."""
        self._why = "cut"
        self._wire.cut(silently=silently)
        self.lose()

    def stall(self) -> None:
        self._wire.stall()

    # --- in ----------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Until the connection ends."""
        try:
            while True:
                self._take(*await self._wire.receive())
        except ConnectionError:
            self.lose()
        except asyncio.CancelledError:
            self.lose()
            raise

    def lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._tape.note(self._actor, tape.UNLINKED, link=self.name, why=self._why)
        if self._wire.is_open:
            self._wire.cut()
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            _fail(future, LinkLost())
        _fail(self._connected, LinkLost())
        self._hearer.link_lost()

    def _take(self, command: Command, entry: bytes) -> None:
        hearer = self._hearer
        kind = command.type
        if kind == Type.MESSAGE:
            hearer.message(command, entry)
        elif kind == Type.SEND_RECEIPT:
            hearer.receipt(command)
        elif kind == Type.SEND_ERROR:
            hearer.send_error(command)
        elif kind == Type.CONNECTED:
            if not self._connected.done():
                self._tape.note(self._actor, tape.LINKED, link=self.name)
                self._connected.set_result(None)
        elif kind == Type.CLOSE_PRODUCER:
            hearer.closed_producer(command.close_producer.producer_id)
        elif kind == Type.CLOSE_CONSUMER:
            hearer.closed_consumer(command.close_consumer.consumer_id)
        elif kind in (Type.ACTIVE_CONSUMER_CHANGE, Type.WATCH_TOPIC_UPDATE, Type.REACHED_END_OF_TOPIC, Type.PONG):
            hearer.told(command)
        else:
            self._answer(command)

    def _answer(self, command: Command) -> None:
        found = getattr(command, FIELD_OF[command.type])
        request_id = found.request_id
        error, message = _error_of(command, found)
        name = _NAME(command.type)
        self._tape.note(
            self._actor,
            tape.ANSWERED,
            link=self.name,
            request_id=request_id,
            answer=name,
            error=error,
            is_last=command.type != Type.PRODUCER_SUCCESS or found.producer_ready,
            **({"message": message} if error else {}),
        )
        entry = self._waiting.get(request_id)
        if entry is None:
            self._tape.note(
                self._actor,
                tape.BROKEN,
                rule="answers",
                text=f"{name} for request {request_id}, which waits for nothing",
            )
            return
        asked, future = entry
        if command.type not in (Type.ERROR, ANSWER_OF[asked]):  # type: ignore[index]
            self._tape.note(self._actor, tape.BROKEN, rule="answers", text=f"{name} answers {_NAME(asked)}")
        if command.type == Type.PRODUCER_SUCCESS and not found.producer_ready:
            hear: Callable[[Command], None] = self._hearer.told
            hear(command)
            return  # A second answer follows when it is ready.
        del self._waiting[request_id]
        if error:
            _fail(future, Refused(error, message))
        elif not future.done():
            future.set_result(command)


def _error_of(command: Command, found: Any) -> tuple[str, str]:
    """Name and text of the error in an answer, empty without one."""
    if command.type == Type.LOOKUP_RESPONSE and found.response != pb.CommandLookupTopicResponse.Failed:
        return "", ""
    if command.type == Type.PARTITIONED_METADATA_RESPONSE and (
        found.response != pb.CommandPartitionedTopicMetadataResponse.Failed
    ):
        return "", ""
    for field in ("error", "error_code"):
        if field in found.DESCRIPTOR.fields_by_name and found.HasField(field):
            text = found.error_message if "error_message" in found.DESCRIPTOR.fields_by_name else found.message
            return pb.ServerError.Name(getattr(found, field)), text
    return "", ""


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # Perhaps nobody waits any more.


def _features() -> pb.FeatureFlags:
    return pb.FeatureFlags(
        supports_broker_entry_metadata=True, supports_partial_producer=True, supports_topic_watchers=True
    )
