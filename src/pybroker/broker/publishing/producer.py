"""One attached producer: its name on the topic, and its messages in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pybroker.auth.permission import Permission
from pybroker.broker.context.peer import Peer
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.errors import BrokerError
from pybroker.model.counters import ProducerCounters


class Producer:
    """Producer of a client or of the broker itself. `pending` counts messages without receipt."""

    __slots__ = (
        "_drained",
        "_leave",
        "access_mode",
        "connected_since_ms",
        "counters",
        "epoch",
        "former_epoch",
        "has_user_provided_name",
        "is_closed",
        "is_encrypted",
        "is_waiting",
        "name",
        "peer",
        "pending",
        "permission",
        "producer_id",
        "properties",
        "refusal",
        "request_id",
        "schema_version",
        "topic_epoch",
    )

    def __init__(
        self,
        leave: Callable[[Producer], None],
        producer_id: int,
        name: str,
        has_user_provided_name: bool,
        epoch: int,
        peer: Peer,
        properties: Mapping[str, str],
        connected_since_ms: int,
        is_encrypted: bool = False,
        access_mode: AccessMode = AccessMode.SHARED,
        former_epoch: int | None = None,
        request_id: int = 0,
    ) -> None:
        """`leave` detaches the producer from the topic. `is_encrypted`: the client declares that it encrypts messages.
        `former_epoch`: the topic epoch of the client's earlier exclusive access. `request_id`: id of the PRODUCER
        command, for its second response when a waiting producer gets access.
        """
        self._leave = leave
        self.producer_id = producer_id
        self.name = name
        self.has_user_provided_name = has_user_provided_name
        self.epoch = epoch
        self.peer = peer
        self.properties = dict(properties)
        self.connected_since_ms = connected_since_ms
        self.is_encrypted = is_encrypted
        self.access_mode = access_mode
        self.former_epoch = former_epoch
        self.request_id = request_id
        self.topic_epoch: int | None = None
        """Epoch of the topic when the producer was attached; None if no producer ever had exclusive access."""
        self.permission: Permission | None = None
        """The permission to produce, if it was asked for; None: the topic asks for it."""
        self.is_waiting = False
        """True if the client was notified that it must wait for exclusive access."""
        self.refusal: BrokerError | None = None
        """Error that explains why the producer did not get exclusive access, or lost it."""
        self.counters = ProducerCounters()
        self.schema_version = b""
        """Empty without a schema."""
        self.pending = 0
        self.is_closed = False
        self._drained: asyncio.Event | None = None

    def completed(self, message_count: int) -> None:
        self.pending -= message_count
        assert self.pending >= 0, "more results than published messages"
        if not self.pending and self._drained is not None:
            self._drained.set()

    async def drained(self) -> None:
        if self.pending:
            self._drained = self._drained or asyncio.Event()
            self._drained.clear()
            await self._drained.wait()

    def detach(self) -> None:
        """Leave the topic. Messages in flight are still stored."""
        if not self.is_closed:
            self.is_closed = True
            self._leave(self)

    def close_from_broker(self) -> None:
        if not self.is_closed:
            self.detach()
            self.peer.close_producer(self.producer_id)
