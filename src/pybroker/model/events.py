"""What the hot commands say, as plain values: made by `wire`, used by the broker, without protobuf objects in between.

Neighbours that belong together are one event, so that what the layers below cost is paid once for a whole read of a socket.
"""

from __future__ import annotations

from pybroker.errors import BrokerError
from pybroker.model.txn_id import TxnId

NO_REQUEST = -1
"""The request id of an ACK that asks for no receipt."""


NO_ERROR = -1
"""What an ACK says of a message that is sound."""


class SendRun:
    """Consecutive SENDs of one producer, in one transaction or in none. The lists run in parallel; `highest_sequence_ids` holds 0
    where none was sent."""

    __slots__ = (
        "chunk_count",
        "has_markers",
        "highest_sequence_ids",
        "message_counts",
        "payloads",
        "producer_id",
        "sequence_ids",
        "size_bytes",
        "txn",
    )

    def __init__(self, producer_id: int, txn: TxnId | None = None) -> None:
        self.producer_id = producer_id
        self.txn = txn
        """The transaction that all of them are part of."""
        self.sequence_ids: list[int] = []
        self.highest_sequence_ids: list[int] = []
        self.message_counts: list[int] = []
        self.payloads: list[bytes] = []
        self.size_bytes = 0
        self.chunk_count = 0
        """How many of them are parts of a larger message."""
        self.has_markers = False
        """Whether some are for brokers alone, and not for consumers."""


class SendRefused:
    """A SEND that must be answered with SEND_ERROR: its bytes are sound as a frame, its content is not."""

    __slots__ = ("error", "producer_id", "sequence_id")

    def __init__(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.error = error


class PartialAck:
    """One entry of a batch, acknowledged in part: bits left at 1 in `ack_set` remain unacknowledged."""

    __slots__ = ("ack_set", "batch_size", "entry_id", "ledger_id")

    def __init__(self, ledger_id: int, entry_id: int, ack_set: list[int], batch_size: int) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.ack_set = ack_set
        self.batch_size = batch_size


class Ack:
    """An ACK, or several individual ones of one consumer that ask for no receipt.

    `groups` are whole entries: (ledger id, entry ids) in the order sent. `request_id` is -1 when no receipt is asked for;
    `validation_error` is what the client found wrong with what it acknowledges, -1 for nothing.
    """

    __slots__ = (
        "consumer_id",
        "groups",
        "is_cumulative",
        "partials",
        "request_id",
        "txn",
        "validation_error",
    )

    def __init__(self, consumer_id: int) -> None:
        self.consumer_id = consumer_id
        self.is_cumulative = False
        self.groups: list[tuple[int, list[int]]] = []
        self.partials: list[PartialAck] = []
        self.request_id = NO_REQUEST
        self.txn: TxnId | None = None
        """The transaction that it is part of."""
        self.validation_error = NO_ERROR


class Flow:
    """Permits of one consumer."""

    __slots__ = ("consumer_id", "permits")

    def __init__(self, consumer_id: int, permits: int) -> None:
        self.consumer_id = consumer_id
        self.permits = permits


class Redeliver:
    """Messages that a consumer wants again: (ledger id, entry id) as on the wire. `epoch` is -1 when none was sent."""

    __slots__ = ("consumer_id", "epoch", "positions")

    def __init__(self, consumer_id: int, epoch: int) -> None:
        self.consumer_id = consumer_id
        self.epoch = epoch
        self.positions: list[tuple[int, int]] = []


class CommandRefused:
    """A request that is answered with ERROR without being looked at."""

    __slots__ = ("command", "error", "request_id")

    def __init__(self, command: str, request_id: int, error: BrokerError) -> None:
        self.command = command
        """The name of its type."""
        self.request_id = request_id
        self.error = error
