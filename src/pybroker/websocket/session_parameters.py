"""The query parameters of a session, with Pulsar's names, defaults and refusals. Pure.

As in Pulsar, unknown parameters are ignored, and of a repeated parameter the first value counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pybroker.client.consuming.partition_consumer import Receiving, SubType
from pybroker.client.message import EARLIEST, LATEST, EncryptionKey, MessageId
from pybroker.client.producing.message_producer import Publishing
from pybroker.websocket.json_forms import COMPRESSIONS, Unreadable, decoded_id, encryption_keys
from pybroker.wire import pulsar_api_pb2 as pb

MAX_QUEUE_MESSAGES = 1000
"""Larger values of `receiverQueueSize` are reduced to this one."""
MAX_PENDING_MESSAGES = 1000
MAX_PENDING_BYTES = 256 * 1024
"""Bytes of unanswered messages above which a producer session reads no further message."""
QUEUE_BYTES = 64 * 1024
"""Bytes that a consumer session requests from the broker in advance."""
SEND_TIMEOUT_MS = 30_000
NACK_DELAY_MS = 60_000
LEAST_ACK_TIMEOUT_MS = 1000
MAX_INT = (1 << 31) - 1
MAX_ENCRYPTION_KEYS = 16
"""Maximum number of keys of a producer, each of which is stored with every message. Consumers try no more."""

_ROUTING_MODES = {"SinglePartition": True, "RoundRobinPartition": False, "CustomPartition": True}
_HASHES = {"JavaStringHash": False, "Murmur3_32Hash": True}
_TYPES = {
    "Exclusive": SubType.Exclusive,
    "Shared": SubType.Shared,
    "Failover": SubType.Failover,
    "Key_Shared": SubType.Key_Shared,
}
_MODES = {"Durable": True, "NonDurable": False}
_POSITIONS = {"Earliest": True, "Latest": False}

Value = TypeVar("Value")


class InvalidParameter(ValueError):
    """A query parameter has an invalid value."""


@dataclass(frozen=True)
class ProducerParameters:
    """The options of a producer session."""

    publishing: Publishing
    max_pending_messages: int
    encryption_keys: tuple[EncryptionKey, ...] = ()
    """The keys with which the client has encrypted its messages."""


@dataclass(frozen=True)
class DeadLetters:
    """When and where a consumer session stores messages that were redelivered too often."""

    max_redeliver_count: int
    topic: str
    initial_subscription: str


@dataclass(frozen=True)
class ConsumerParameters:
    """The options of a consumer or reader session."""

    receiving: Receiving
    subscription_type: str
    subscription_mode: str | None
    """None for a reader."""
    max_pending_messages: int
    """Messages that the session sends without an acknowledgement. Not used in pull mode."""
    is_pull_mode: bool = False
    ack_timeout_s: float = 0.0
    """Unacknowledged messages are redelivered after this time. 0: never."""
    dead_letters: DeadLetters | None = None


def producer_parameters(query: Mapping[str, str]) -> ProducerParameters:
    """Return the options of a producer. Raises InvalidParameter."""
    parameters = _Parameters(query)
    is_batching = parameters.flag("batchingEnabled")
    max_pending = MAX_PENDING_MESSAGES
    batch_messages, batch_delay_ms = Publishing.max_batch_messages, 1
    if is_batching:  # as in Pulsar, these are not even checked otherwise
        batch_messages = parameters.integer("batchingMaxMessages", batch_messages)
        max_pending = parameters.integer("maxPendingMessages", 0, least=0) or MAX_PENDING_MESSAGES
        batch_delay_ms = parameters.integer("batchingMaxPublishDelay", batch_delay_ms, least=1)
    initial_sequence_id = parameters.long("initialSequenceId")
    keys, key_names = parameters.encryption_keys()
    if keys:
        is_batching = False
    publishing = Publishing(
        name=parameters.name("producerName"),
        is_encrypted=bool(keys),
        encryption_keys=key_names,
        initial_sequence_id=initial_sequence_id,
        compression=pb.NONE if keys else parameters.one_of("compressionType", COMPRESSIONS, pb.NONE),
        is_batching=is_batching,
        batch_delay_s=batch_delay_ms / 1000,
        max_batch_messages=batch_messages if batch_messages > 0 else MAX_INT,
        hashes_by_murmur=parameters.one_of("hashingScheme", _HASHES, False),
        is_single_partition=parameters.one_of("messageRoutingMode", _ROUTING_MODES, True),
        max_pending_entries=max_pending,
        max_pending_bytes=MAX_PENDING_BYTES,
        send_timeout_s=parameters.integer("sendTimeoutMillis", SEND_TIMEOUT_MS, least=0) / 1000,
    )
    return ProducerParameters(publishing, max_pending, keys)


def consumer_parameters(
    query: Mapping[str, str], topic: str, subscription: str, *, keeps_batch_bits: bool
) -> ConsumerParameters:
    """Return the options of a consumer. `topic`: the consumer's first topic, from which the default name of the dead
    letter topic is derived.

    `keeps_batch_bits`: the broker accepts acknowledgements of single messages of a batch. Raises InvalidParameter.
    """
    parameters = _Parameters(query)
    if not subscription.strip():
        raise InvalidParameter("Empty subscription name")
    ack_timeout_ms = parameters.integer("ackTimeoutMillis", 0, least=0)
    if 0 < ack_timeout_ms < LEAST_ACK_TIMEOUT_MS:
        raise InvalidParameter(f"ackTimeoutMillis should be greater than {LEAST_ACK_TIMEOUT_MS} ms")
    kind = parameters.one_of("subscriptionType", _TYPES, SubType.Exclusive)
    is_durable = parameters.one_of("subscriptionMode", _MODES, True)
    queue_messages = _queue_messages(parameters)
    receiving = Receiving(
        subscription,
        kind,
        name=parameters.name("consumerName"),
        is_durable=is_durable,
        is_from_earliest=parameters.one_of("subscriptionInitialPosition", _POSITIONS, False),
        priority_level=parameters.integer("priorityLevel", 0, least=0),
        queue_messages=queue_messages,
        queue_bytes=QUEUE_BYTES,
        nack_delay_s=parameters.integer("negativeAckRedeliveryDelay", NACK_DELAY_MS, least=0) / 1000,
        takes_encrypted=query.get("cryptoFailureAction") == "CONSUME",
        discards_encrypted=query.get("cryptoFailureAction") == "DISCARD",
        keeps_batch_bits=keeps_batch_bits,
    )
    return ConsumerParameters(
        receiving,
        query.get("subscriptionType", "Exclusive"),
        query.get("subscriptionMode", "Durable"),
        queue_messages,
        is_pull_mode=parameters.flag("pullMode"),
        ack_timeout_s=ack_timeout_ms / 1000,
        dead_letters=_dead_letters(parameters, topic, subscription),
    )


def reader_parameters(query: Mapping[str, str], subscription: str) -> ConsumerParameters:
    """Return the options of a reader. Raises InvalidParameter."""
    parameters = _Parameters(query)
    queue_messages = _queue_messages(parameters)
    start = _start(query.get("messageId", ""))
    receiving = Receiving(
        subscription,
        name=query.get("readerName", ""),
        start=start,
        is_start_inclusive=start in (EARLIEST, LATEST),
        is_from_earliest=start != LATEST,
        takes_encrypted=query.get("cryptoFailureAction") == "CONSUME",
        discards_encrypted=query.get("cryptoFailureAction") == "DISCARD",
        queue_messages=queue_messages,
        queue_bytes=QUEUE_BYTES,
    )
    return ConsumerParameters(receiving, "Exclusive", None, queue_messages)


def _queue_messages(parameters: _Parameters) -> int:
    return max(1, min(parameters.integer("receiverQueueSize", MAX_QUEUE_MESSAGES, least=0), MAX_QUEUE_MESSAGES))


def _dead_letters(parameters: _Parameters, topic: str, subscription: str) -> DeadLetters | None:
    query = parameters.query
    if "maxRedeliverCount" not in query:
        if "deadLetterTopic" in query:
            raise InvalidParameter("MaxRedeliverCount must be > 0.")
        return None
    return DeadLetters(
        parameters.integer("maxRedeliverCount", 0, least=1),
        query.get("deadLetterTopic") or f"{topic}-{subscription}-DLQ",
        query.get("deadLetterSubscriptionName", ""),
    )


def _start(text: str) -> MessageId:
    if not text.strip() or text == "latest":
        return LATEST
    if text == "earliest":
        return EARLIEST
    try:
        return decoded_id(text)
    except Unreadable as error:
        raise InvalidParameter(f"Invalid messageId value: {error}") from error


class _Parameters:
    def __init__(self, query: Mapping[str, str]) -> None:
        self.query = query

    def name(self, key: str) -> str:
        """Return a name, or "" if the parameter is absent."""
        value = self.query.get(key)
        if value is None:
            return ""
        if not value.strip():
            raise InvalidParameter(f"{key} cannot be blank")
        return value

    def encryption_keys(self) -> tuple[tuple[EncryptionKey, ...], tuple[str, ...]]:
        """Return the keys of a client that encrypts its messages, and the names of keys with which the broker encrypts."""
        text = self.query.get("encryptionKeys")
        if text is None:
            return (), ()
        try:
            found = encryption_keys(text)
        except ValueError as error:
            raise InvalidParameter(
                "encryptionKeys must be names of keys, separated by commas, or base64 of a JSON object of keys with "
                f"keyValue: {error}"
            ) from error
        if len(found) > MAX_ENCRYPTION_KEYS:
            raise InvalidParameter(f"encryptionKeys has more than {MAX_ENCRYPTION_KEYS} keys")
        keys = tuple(each for each in found if isinstance(each, EncryptionKey))
        return keys, tuple(each for each in found if isinstance(each, str))

    def flag(self, key: str) -> bool:
        return self.query.get(key, "").lower() == "true"

    def integer(self, key: str, default: int, *, least: int = -MAX_INT) -> int:
        number = self._number(key, MAX_INT)
        if number is None:
            return default
        if number < least:
            raise InvalidParameter(f"{key} must be at least {least}, not {number}")
        return number

    def long(self, key: str) -> int | None:
        return self._number(key, (1 << 63) - 1)

    def _number(self, key: str, most: int) -> int | None:
        text = self.query.get(key)
        if text is None:
            return None
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))) or int(digits) > most:
            raise InvalidParameter(f'{key}: For input string: "{text[:100]}"')
        return int(text)

    def one_of(self, key: str, known: Mapping[str, Value], default: Value) -> Value:
        text = self.query.get(key)
        if text is None:
            return default
        if text not in known:
            raise InvalidParameter(f"Invalid {key} {text[:100]}: use one of {', '.join(known)}")
        return known[text]
