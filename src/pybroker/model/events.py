"""Events: frequent commands of clients (SEND, ACK, FLOW) as plain values, without protobuf objects.

Consecutive commands of one kind become one event, so that the broker processes them once per socket read.
"""

from __future__ import annotations

from pybroker.errors import BrokerError
from pybroker.model.txn_id import TxnId

NO_REQUEST = -1
"""Request id of an ACK that requests no receipt."""


NO_ERROR = -1
"""Validation error of an ACK for a valid message."""


class SendRun:
    """Consecutive SENDs of one producer, in one transaction or in none. The lists have one item for each SEND.
    `highest_sequence_ids` has 0 for a SEND without the field.
    """

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
        self.sequence_ids: list[int] = []
        self.highest_sequence_ids: list[int] = []
        self.message_counts: list[int] = []
        self.payloads: list[bytes] = []
        self.size_bytes = 0
        self.chunk_count = 0
        """Messages that are chunks of a larger message."""
        self.has_markers = False
        """Whether some are markers for brokers, which consumers do not receive."""


class SendRefused:
    """A SEND that gets the response SEND_ERROR, because the content of its frame is invalid."""

    __slots__ = ("error", "producer_id", "sequence_id")

    def __init__(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.error = error


class PartialAck:
    """Acknowledgement of some messages of a batch. Messages with bit 1 in `ack_set` remain unacknowledged."""

    __slots__ = ("ack_set", "batch_size", "entry_id", "ledger_id")

    def __init__(self, ledger_id: int, entry_id: int, ack_set: list[int], batch_size: int) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.ack_set = ack_set
        self.batch_size = batch_size


class Ack:
    """One ACK, or several individual ACKs of one consumer that request no receipt.

    `groups` has the acknowledged entries: (ledger id, entry ids) in the order of the commands. `request_id` is -1 if no
    receipt is requested; `validation_error` is the error that the client found in the message, -1 for none.
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
        self.validation_error = NO_ERROR


class Flow:
    """A FLOW command: additional permits of one consumer."""

    __slots__ = ("consumer_id", "permits")

    def __init__(self, consumer_id: int, permits: int) -> None:
        self.consumer_id = consumer_id
        self.permits = permits


class Redeliver:
    """A request of a consumer to redeliver the entries at these positions (ledger id, entry id). `epoch` is -1 if the
    command has none.
    """

    __slots__ = ("consumer_id", "epoch", "positions")

    def __init__(self, consumer_id: int, epoch: int) -> None:
        self.consumer_id = consumer_id
        self.epoch = epoch
        self.positions: list[tuple[int, int]] = []


class CommandRefused:
    """A request that gets the response ERROR without being processed."""

    __slots__ = ("command", "error", "request_id")

    def __init__(self, command: str, request_id: int, error: BrokerError) -> None:
        self.command = command
        self.request_id = request_id
        self.error = error
