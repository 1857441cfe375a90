"""Events of one consumer in order, while the data key of an encrypted entry is decrypted in a thread.

Invariant: events are handled in the order of their arrival. Entries without encryption, and those whose data key is
cached, are handled immediately if no event waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pybroker.client.consuming.flow_window import messages_of
from pybroker.client.frames import Event, ReceivedEntry
from pybroker.errors import ProtocolViolation
from pybroker.wire.entry_metadata import is_encrypted
from pybroker.wire.stored_entry import split_entry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from pybroker.client.message_crypto import MessageCrypto
    from pybroker.runtime.tasks import TaskOwner
    from pybroker.wire import pulsar_api_pb2 as pb

Handle = Callable[[Event, "Sequence[AESGCM]"], None]


class DelayedEvents:
    """The events of a consumer that has a key reader. The permits of the consumer limit the number of waiting entries."""

    def __init__(self, crypto: MessageCrypto, tasks: TaskOwner, handle: Handle) -> None:
        """`handle` is called with each event, and with the data keys of an encrypted entry."""
        self._crypto = crypto
        self._tasks = tasks
        self._handle = handle
        self._waiting: deque[Event] = deque()
        self._is_running = False

    def received(self, event: Event) -> None:
        metadata = None if self._waiting else _metadata_of_encrypted(event)
        if not self._waiting and metadata is None:
            self._handle(event, ())
            return
        if metadata is not None and (found := self._crypto.cached(metadata)):
            self._handle(event, found)
            return
        self._waiting.append(event)
        if not self._is_running:
            self._is_running = self._tasks.start(self._run(), "decryption")

    async def _run(self) -> None:
        try:
            while self._waiting:
                event = self._waiting[0]
                metadata = _metadata_of_encrypted(event)
                data_keys = () if metadata is None else await self._crypto.opened(metadata)
                if self._waiting and self._waiting[0] is event:  # not dropped meanwhile
                    self._waiting.popleft()
                    self._handle(event, data_keys)
        finally:
            self._is_running = False

    def clear(self) -> None:
        """Drop all waiting events, because the connection is lost."""
        self._waiting.clear()

    def stop(self) -> None:
        """Drop all events, also those that arrive later, because the consumer is closed."""
        self._waiting.clear()
        self._handle = _drop  # so that the consumer is freed without a full garbage collection

    def drop_entries(self) -> int:
        """Drop the waiting entries, which the broker sends again. Return their number of messages."""
        dropped = [event for event in self._waiting if isinstance(event, ReceivedEntry)]
        self._waiting = deque(event for event in self._waiting if not isinstance(event, ReceivedEntry))
        return sum(messages_of(entry.data) for entry in dropped)


def _drop(event: Event, data_keys: Sequence[AESGCM]) -> None:
    pass


def _metadata_of_encrypted(event: Event) -> pb.MessageMetadata | None:
    if not isinstance(event, ReceivedEntry) or not is_encrypted(event.data):
        return None
    try:
        return split_entry(event.data)[0]
    except (ProtocolViolation, DecodeError):
        return None  # the handler reports the damage
