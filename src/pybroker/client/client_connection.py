"""One connection to one broker: handshake, requests and responses, keep-alive, and delivery to producers and consumers.

Invariants: each request ends with its response, ConnectionLost, or RequestTimedOut. After the end of the connection,
nothing more is delivered.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

from pybroker.client.access import Access
from pybroker.client.addresses import Address
from pybroker.client.client_tls import tls_context
from pybroker.client.failures import ConnectionLost, NotTrusted, RequestTimedOut, refusal
from pybroker.client.frames import DEFAULT_MAX_MESSAGE_BYTES, FrameReader, ReceivedEntry, read_event
from pybroker.errors import AuthenticationError, ProtocolViolation
from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import FRAME_PADDING_BYTES
from pybroker.wire.replies import NO_REQUEST_ID, PING, PONG, frame

CLIENT_VERSION = "pybroker"
PROTOCOL_VERSION = 21
KEEP_ALIVE_S = 30.0
"""Interval of PINGs on a silent connection. The client closes the connection after a second silent interval."""
WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""Producers wait while more unsent bytes than this are buffered."""

Command = pb.BaseCommand
_FIELD_OF_TYPE = {number: field.name for number, field in Command.DESCRIPTOR.fields_by_number.items()}
_WITH_REQUEST_ID = frozenset(
    number
    for number, field in Command.DESCRIPTOR.fields_by_number.items()
    if field.message_type is not None and "request_id" in field.message_type.fields_by_name
)
_ERROR_FIELDS = {
    number: (field.name, code, text)
    for number, field in Command.DESCRIPTOR.fields_by_number.items()
    for code, text in (("error", "message"), ("error_code", "error_message"))
    if field.message_type is not None and {"request_id", code, text}.issubset(field.message_type.fields_by_name)
}
"""The responses that can be a refusal, with the names of their fields for the error and its text."""
_UNASKED = frozenset({Command.CLOSE_PRODUCER, Command.CLOSE_CONSUMER})


class ConnectionUser(ABC):
    """The interface of a producer or consumer for its connection. Calls come from the event loop and must not raise."""

    @abstractmethod
    def received(self, event: pb.BaseCommand | ReceivedEntry) -> None:
        """Handle an entry, a receipt, a send error, or CLOSE_*. No call follows after CLOSE_*."""

    @abstractmethod
    def lost(self, error: ConnectionLost) -> None:
        """Handle the end of the connection. No call follows."""


@dataclass(frozen=True, slots=True)
class _Request:
    command: pb.BaseCommand
    answered: asyncio.Future[pb.BaseCommand]
    timeout: asyncio.Timeout


class Connection(asyncio.Protocol):
    """A connection to a broker, owned by the client that opened it."""

    def __init__(self, address: Address, access: Access) -> None:
        self.address = address
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self.features = pb.FeatureFlags()
        self.producers: dict[int, ConnectionUser] = {}
        self.consumers: dict[int, ConnectionUser] = {}
        self.ids = itertools.count()
        """Ids of producers and consumers. No id is used twice."""
        self.failure: ConnectionLost | None = None
        self._access = access
        self._reader = FrameReader(read_event)
        self._requests: dict[int, _Request] = {}
        self._request_ids = itertools.count()
        self._transport: asyncio.Transport | None = None
        self._connected: asyncio.Future[pb.BaseCommand] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._alive_timer: asyncio.TimerHandle | None = None
        self._is_quiet = False
        self._was_asked = False

    # --- life

    @classmethod
    async def open(cls, address: Address, access: Access, *, behind_proxy: Address | None = None) -> Connection:
        """Open a connection and complete the handshake. `behind_proxy`: the target broker if `address` is a proxy; None
        for a direct connection. Raises ConnectionLost, NotTrusted, AuthenticationError, AccessRefused.
        """
        loop = asyncio.get_running_loop()
        context = await asyncio.to_thread(tls_context, access) if address.is_tls else None
        connection = cls(address, access)
        server_name = address.host if context is not None else None
        try:
            async with asyncio.timeout(access.connection_timeout_s):
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=context, server_hostname=server_name
                )
                await connection._greet(behind_proxy)
        except TimeoutError:
            connection.abort("the broker did not respond in time")
            raise ConnectionLost(
                f"the broker {address} did not respond within {access.connection_timeout_s:g} s: check that it "
                "is running, and that the port belongs to the binary protocol"
            ) from None
        except ssl.SSLCertVerificationError as error:
            connection.abort(str(error))
            raise NotTrusted(str(address), error.verify_message) from error
        except (OSError, ssl.SSLError) as error:
            connection.abort(str(error))
            raise ConnectionLost(
                f"the broker {address} cannot be reached: {error}. Check the service URL, and whether the broker runs"
            ) from error
        except BaseException:
            connection.abort("the connection was not set up")
            raise
        return connection

    async def _greet(self, behind_proxy: Address | None) -> None:
        self._connected = asyncio.get_running_loop().create_future()
        command = Command(type=Command.CONNECT)
        connect = command.connect
        connect.client_version = CLIENT_VERSION
        connect.protocol_version = PROTOCOL_VERSION
        connect.feature_flags.supports_auth_refresh = True
        connect.feature_flags.supports_broker_entry_metadata = True
        connect.feature_flags.supports_partial_producer = True
        if self._access.method != "none":
            connect.auth_method_name = self._access.method
            connect.auth_data = await asyncio.to_thread(self._access.auth_data)
        if self._access.original_principal:
            connect.original_principal = self._access.original_principal
        if behind_proxy is not None:
            connect.proxy_to_broker_url = behind_proxy.host_and_port
        self.write(frame(command))
        answer = await self._connected
        if answer.type == Command.ERROR:
            failure = refusal(answer.error.error, answer.error.message)
            if isinstance(failure, AuthenticationError):
                raise AuthenticationError(f"the broker {self.address} does not accept these credentials: {failure}")
            raise failure
        self.features = answer.connected.feature_flags
        if answer.connected.max_message_size > 0:
            self.max_message_bytes = answer.connected.max_message_size
        self._reader.max_frame_bytes = self.max_message_bytes + FRAME_PADDING_BYTES
        self._look_alive()

    def abort(self, reason: str) -> None:
        self._end(ConnectionLost(f"the connection to {self.address} was aborted: {reason}"))

    async def close(self) -> None:
        self._end(ConnectionLost(f"the connection to {self.address} was closed by this client"))
        if self._transport is not None:
            await self._ended

    def _end(self, failure: ConnectionLost) -> None:
        if self.failure is None:
            self.failure = failure
            self._writable.set()
            if self._alive_timer is not None:
                self._alive_timer.cancel()
            waiting = [request.answered for request in self._requests.values()]
            if self._connected is not None:
                waiting.append(self._connected)
            self._requests.clear()
            for future in waiting:
                if not future.done():
                    future.set_exception(failure)
                    future.exception()  # mark as retrieved: the requester may be gone
            users = [*self.producers.values(), *self.consumers.values()]
            self.producers.clear()
            self.consumers.clear()
            for user in users:
                user.lost(failure)
        if self._transport is not None:
            self._transport.abort()

    # --- out

    async def request(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send `command` with a new request id, and return the response.

        Raises the broker's error, ConnectionLost, or RequestTimedOut. A PRODUCER command has no timeout while the
        broker queues the producer for exclusive access.
        """
        if self.failure is not None:
            raise self.failure
        request_id = next(self._request_ids)
        name = _FIELD_OF_TYPE[command.type]
        getattr(command, name).request_id = request_id
        answered: asyncio.Future[pb.BaseCommand] = asyncio.get_running_loop().create_future()
        timeout_s = self._access.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                self._requests[request_id] = _Request(command, answered, timeout)
                self.write(frame(command))
                answer = await answered
        except TimeoutError:
            raise RequestTimedOut(
                f"the broker {self.address} did not respond to {name} within {timeout_s:g} s: the broker may "
                "be overloaded, or the operation timeout is too short"
            ) from None
        finally:
            self._requests.pop(request_id, None)
        _raise_refusal(answer)
        return answer

    def detach_producer(self, producer_id: int) -> None:
        """Stop deliveries to the producer, and send CLOSE_PRODUCER without waiting for a response. Also for a producer
        whose PRODUCER request failed or timed out, because the broker may have created the producer.
        """
        if self.producers.pop(producer_id, None) is not None:
            close = pb.CommandCloseProducer(producer_id=producer_id, request_id=next(self._request_ids))
            self.write(frame(Command(type=Command.CLOSE_PRODUCER, close_producer=close)))

    def detach_consumer(self, consumer_id: int) -> None:
        if self.consumers.pop(consumer_id, None) is not None:
            close = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=next(self._request_ids))
            self.write(frame(Command(type=Command.CLOSE_CONSUMER, close_consumer=close)))

    def write(self, data: bytes) -> None:
        """Write whole frames. They are dropped if the connection has ended. Callers await `writable` before they write
        more.
        """
        if self.failure is None and self._transport is not None:
            self._transport.write(data)

    def write_parts(self, parts: list[bytes]) -> None:
        if self.failure is None and self._transport is not None:
            self._transport.writelines(parts)

    async def writable(self) -> None:
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Stop reading from the socket. Responses and PINGs are delayed, too."""
        if self._transport is not None and self.failure is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self.failure is None:
            self._transport.resume_reading()

    # --- in (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = str(exc) if exc is not None else "the broker closed it"
        self._end(ConnectionLost(f"the connection to {self.address} ended: {reason}"))
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._is_quiet = False
        try:
            events = self._reader.feed(data)
        except ProtocolViolation as error:
            self.abort(f"the broker sent invalid data: {error}")
            return
        for event in events:
            if isinstance(event, ReceivedEntry):
                user = self.consumers.get(event.consumer_id)
                if user is not None:
                    user.received(event)
            else:
                self._take(event)

    def _take(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind == Command.PING:
            self.write(PONG)
        elif kind == Command.SEND_RECEIPT:
            self._tell(self.producers, command.send_receipt.producer_id, command)
        elif kind == Command.SEND_ERROR:
            self._tell(self.producers, command.send_error.producer_id, command)
        elif kind == Command.CLOSE_PRODUCER:
            self._waits_no_more(command.close_producer.producer_id)
            self._tell(self.producers, command.close_producer.producer_id, command, is_last=True)
        elif kind == Command.CLOSE_CONSUMER:
            self._tell(self.consumers, command.close_consumer.consumer_id, command, is_last=True)
        elif kind == Command.REACHED_END_OF_TOPIC:
            self._tell(self.consumers, command.reachedEndOfTopic.consumer_id, command)
        elif kind == Command.ACTIVE_CONSUMER_CHANGE:
            self._tell(self.consumers, command.active_consumer_change.consumer_id, command)
        elif kind == Command.AUTH_CHALLENGE:
            self._answer_challenge()
        elif kind == Command.CONNECTED or (kind == Command.ERROR and command.error.request_id == NO_REQUEST_ID):
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(command)
        elif kind in _WITH_REQUEST_ID and kind not in _UNASKED:
            self._answered(command)

    def _tell(
        self, users: dict[int, ConnectionUser], user_id: int, command: pb.BaseCommand, *, is_last: bool = False
    ) -> None:
        user = users.pop(user_id, None) if is_last else users.get(user_id)
        if user is not None:
            user.received(command)

    def _answered(self, command: pb.BaseCommand) -> None:
        request = self._requests.get(getattr(command, _FIELD_OF_TYPE[command.type]).request_id)
        if request is None or request.answered.done():
            return
        if command.type == Command.PRODUCER_SUCCESS and not command.producer_success.producer_ready:
            request.timeout.reschedule(None)  # the producer is queued; a second response follows
        else:
            request.answered.set_result(command)

    def _waits_no_more(self, producer_id: int) -> None:
        """Fail the request of a producer that the broker closes while it waits for exclusive access."""
        for request in self._requests.values():
            is_its = request.command.type == Command.PRODUCER and request.command.producer.producer_id == producer_id
            if is_its and not request.answered.done():
                request.answered.set_exception(
                    ConnectionLost("the broker closed the producer while it waited for exclusive access: try again")
                )

    def _answer_challenge(self) -> None:
        """Send the current credentials, because the previous ones expire. Reads them in a thread, because they may come
        from an identity provider.
        """
        reading = asyncio.get_running_loop().run_in_executor(None, self._access.auth_data)
        reading.add_done_callback(self._send_credentials)

    def _send_credentials(self, reading: asyncio.Future[bytes]) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if self.failure is not None:
            return
        if error is not None:
            self.abort(f"the broker requested new credentials, and reading them failed: {error}")
            return
        command = Command(type=Command.AUTH_RESPONSE)
        command.authResponse.client_version = CLIENT_VERSION
        command.authResponse.protocol_version = PROTOCOL_VERSION
        command.authResponse.response.auth_method_name = self._access.method
        command.authResponse.response.auth_data = reading.result()
        self.write(frame(command))

    def _look_alive(self) -> None:
        if self._is_quiet and self._was_asked:
            logs.warning("client.connection_silent", broker=str(self.address))
            self.abort(f"the broker sent nothing for {2 * KEEP_ALIVE_S:g} s")
            return
        self._was_asked = self._is_quiet
        if self._is_quiet:
            self.write(PING)
        self._is_quiet = True
        self._alive_timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._look_alive)


def _raise_refusal(answer: pb.BaseCommand) -> None:
    kind = answer.type
    if kind == Command.LOOKUP_RESPONSE:
        lookup = answer.lookupTopicResponse
        if lookup.response == pb.CommandLookupTopicResponse.Failed:
            raise refusal(lookup.error, lookup.message)
    elif kind == Command.PARTITIONED_METADATA_RESPONSE:
        partitions = answer.partitionMetadataResponse
        if partitions.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise refusal(partitions.error, partitions.message)
    elif kind in _ERROR_FIELDS:
        name, code, text = _ERROR_FIELDS[kind]
        response = getattr(answer, name)
        if response.HasField(code):
            raise refusal(getattr(response, code), getattr(response, text))
