"""The JSON texts of the WebSocket API, and the text forms of message ids and times. Pure."""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from google.protobuf.message import DecodeError
from msgspec import UNSET, UnsetType

from pybroker.client.message import Encryption, EncryptionKey, Message, MessageId, OutgoingMessage
from pybroker.wire import pulsar_api_pb2 as pb

CANNOT_READ_JSON = 3
INVALID_PAYLOAD = 7
UNKNOWN = 8
"""Error codes of a send acknowledgement."""

COMPRESSIONS = {"NONE": pb.NONE, "LZ4": pb.LZ4, "ZLIB": pb.ZLIB, "ZSTD": pb.ZSTD, "SNAPPY": pb.SNAPPY}
_COMPRESSION_NAMES: dict[int, str] = {number: name for name, number in COMPRESSIONS.items()}
MAX_DELAY_MS = 1 << 62
_MASK_64 = (1 << 64) - 1
_EPOCH_MS = 1000
_Text = str | int | float | None
"""A text; like Pulsar, the broker also accepts a number or Boolean."""


class Unreadable(ValueError):
    """A text from a client does not have the expected form. `code` is the error code for the send acknowledgement."""

    def __init__(self, code: int, text: str, context: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.context = context


class ProducerMessage(msgspec.Struct):
    """A message from a producer. Unknown members are ignored."""

    payload: _Text = None
    properties: dict[str, _Text] | None = None
    context: _Text = None
    key: _Text = None
    replicationClusters: list[str] | None = None  # noqa: N815  (the names of the JSON members)
    eventTime: _Text = None  # noqa: N815
    deliverAt: int = 0  # noqa: N815
    deliverAfterMs: int = 0  # noqa: N815
    encryptionParam: _Text = None  # noqa: N815
    compressionType: str | int | None = None  # noqa: N815
    uncompressedMessageSize: int | None = None  # noqa: N815


class ConsumerCommand(msgspec.Struct):
    """A command from a consumer or reader. Without a type it is an acknowledgement."""

    type: str | None = None
    messageId: str | None = None  # noqa: N815
    permitMessages: int | None = None  # noqa: N815


class ProducerAck(msgspec.Struct):
    """The acknowledgement of one message of a producer."""

    result: str
    errorMsg: str | UnsetType = UNSET  # noqa: N815
    messageId: bytes | UnsetType = UNSET  # noqa: N815
    context: str | UnsetType = UNSET
    errorCode: int = 0  # noqa: N815
    schemaVersion: int = 0  # noqa: N815


class KeyContext(msgspec.Struct):
    """The key of an encrypted message."""

    keyValue: bytes | None = None  # noqa: N815
    metadata: dict[str, str] | None = None


class EncryptionContext(msgspec.Struct):
    """How a message is encrypted."""

    keys: dict[str, KeyContext]
    param: bytes
    algorithm: str | UnsetType
    compressionType: str  # noqa: N815
    uncompressedMessageSize: int  # noqa: N815
    batchSize: int | None  # noqa: N815
    encrypted: bool
    """Whether the payload is still encrypted."""


class ConsumerMessage(msgspec.Struct):
    """A message for a consumer or reader."""

    messageId: bytes  # noqa: N815
    payload: bytes
    properties: dict[str, str]
    publishTime: str  # noqa: N815
    redeliveryCount: int  # noqa: N815
    eventTime: str | UnsetType = UNSET  # noqa: N815
    encryptionContext: EncryptionContext | UnsetType = UNSET  # noqa: N815
    key: str | UnsetType = UNSET


_producer_messages = msgspec.json.Decoder(ProducerMessage | None, strict=False)
_commands = msgspec.json.Decoder(ConsumerCommand, strict=False)
_keys = msgspec.json.Decoder(dict[str, KeyContext])
_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


# --- producers ---------------------------------------------------------------------------------------------------------


def outgoing_message(
    text: bytes, now_ms: int, keys: tuple[EncryptionKey, ...] = ()
) -> tuple[OutgoingMessage, str | None]:
    """Return the message that the JSON `text` of a producer describes, and its `context` (None if absent), which the
    acknowledgement repeats. Raises Unreadable.

    `now_ms`: the current Unix time in milliseconds, for relative delivery times. `keys`: keys with which the client has
    encrypted the message.
    """
    try:
        given = _producer_messages.decode(text) or ProducerMessage()  # as in Pulsar, null is an empty object
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(CANNOT_READ_JSON, str(error) or "the JSON is nested too deeply") from error
    context = _text(given.context)
    payload = _text(given.payload)
    if payload is None:
        raise Unreadable(INVALID_PAYLOAD, "the message has no payload", context)
    try:
        value = decoded_base64(payload)
    except ValueError as error:
        raise Unreadable(INVALID_PAYLOAD, f"Invalid Base64 message-payload error={error}", context) from error
    properties: dict[str, str] = {}
    for name, given_text in (given.properties or {}).items():
        property_text = _text(given_text)
        if property_text is None:
            raise Unreadable(INVALID_PAYLOAD, f"Need Non-Null value for key: {name}", context)
        properties[name] = property_text
    event_time = _text(given.eventTime)
    try:
        event_time_ms = 0 if event_time is None else time_ms(event_time)
    except ValueError as error:
        raise Unreadable(INVALID_PAYLOAD, str(error), context) from error
    deliver_at_ms = max(0, min(given.deliverAt, MAX_DELAY_MS))
    if given.deliverAfterMs > 0:
        deliver_at_ms = now_ms + min(given.deliverAfterMs, MAX_DELAY_MS)
    message = OutgoingMessage(
        value,
        _text(given.key),
        properties=properties,
        event_time_ms=event_time_ms,
        deliver_at_ms=deliver_at_ms,
        replicate_to=tuple(given.replicationClusters or ()),
        encryption=_encryption(given, keys, context) if keys else None,
    )
    return message, context


def _encryption(given: ProducerMessage, keys: tuple[EncryptionKey, ...], context: str | None) -> Encryption:
    try:
        param = decoded_base64(_text(given.encryptionParam) or "")
    except ValueError as error:
        raise Unreadable(INVALID_PAYLOAD, f"Invalid Base64 encryptionParam error={error}", context) from error
    compression, size_bytes = given.compressionType, given.uncompressedMessageSize
    number = compression if isinstance(compression, int) else COMPRESSIONS.get(compression or "")
    if (number is None) != (size_bytes is None) and (number or size_bytes is not None):
        raise Unreadable(
            INVALID_PAYLOAD,
            "the params compressionType and uncompressedMessageSize should both empty or both non-empty",
            context,
        )
    if number not in {None, *COMPRESSIONS.values()} or not 0 <= (size_bytes or 0) < 1 << 31:
        raise Unreadable(INVALID_PAYLOAD, "compressionType or uncompressedMessageSize is invalid", context)
    return Encryption(keys, param, compression=number or 0, uncompressed_bytes=size_bytes or 0)


def encryption_keys(text: str) -> tuple[EncryptionKey, ...] | tuple[str, ...]:
    """Return the keys in the query parameter `encryptionKeys`. Raises ValueError.

    The parameter is either base64 of a JSON object with keys that the client has used to encrypt its messages (returned
    as EncryptionKey), or a list of names of public keys with which the broker encrypts them (returned as str).
    """
    try:
        content = decoded_base64(text.strip())
        _any_object.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise ValueError("the parameter contains no key name") from None
        return tuple(names)
    try:
        found = _keys.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not found or any(not name.strip() or not key.keyValue for name, key in found.items()):
        raise ValueError("an encryption key in the JSON object has an empty name or no keyValue")
    return tuple(EncryptionKey(name.strip(), key.keyValue or b"", key.metadata or {}) for name, key in found.items())


def stored_ack(message_id: MessageId, context: str | None) -> bytes:
    id_bytes = encoded_id(message_id._replace(batch_size=0))
    return _encoder.encode(ProducerAck("ok", messageId=id_bytes, context=UNSET if context is None else context))


def failed_ack(code: int, text: str, context: str | None) -> bytes:
    ack = ProducerAck(f"send-error:{code}", errorMsg=text, context=UNSET if context is None else context)
    return _encoder.encode(ack)


# --- consumers ---------------------------------------------------------------------------------------------------------


def command_of(text: bytes) -> ConsumerCommand:
    """Return the command in the JSON `text` of a consumer or reader. Raises Unreadable."""
    try:
        return _commands.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(CANNOT_READ_JSON, str(error) or "the JSON is nested too deeply") from error


def delivered_message(message: Message) -> bytes:
    return _encoder.encode(
        ConsumerMessage(
            encoded_id(message.id),
            message.value or b"",
            dict(message.properties),
            time_text(message.publish_time_ms),
            message.redelivery_count,
            time_text(message.event_time_ms) if message.event_time_ms else UNSET,
            UNSET if message.encryption is None else _encryption_context(message.encryption),
            UNSET if message.key is None else message.key,
        )
    )


def _encryption_context(encryption: Encryption) -> EncryptionContext:
    return EncryptionContext(
        {key.name: KeyContext(key.value, dict(key.metadata)) for key in encryption.keys},
        encryption.param,
        UNSET if encryption.algorithm is None else encryption.algorithm,
        _COMPRESSION_NAMES.get(encryption.compression, "NONE"),
        encryption.uncompressed_bytes,
        encryption.batch_size,
        encrypted=not encryption.is_decrypted,
    )


def end_of_topic(*, is_at_end: bool) -> bytes:
    return b'{"endOfTopic":true}' if is_at_end else b'{"endOfTopic":false}'


# --- message ids and times ---------------------------------------------------------------------------------------------


def encoded_id(message_id: MessageId) -> bytes:
    """Return `message_id` in the binary form of Pulsar's clients (MessageIdData)."""
    data = pb.MessageIdData(
        ledgerId=message_id.ledger_id & _MASK_64,
        entryId=message_id.entry_id & _MASK_64,
        batch_size=message_id.batch_size,
    )
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if message_id.batch_index >= 0:
        data.batch_index = message_id.batch_index
    if message_id.first_chunk is not None:
        data.first_chunk_message_id.ledgerId, data.first_chunk_message_id.entryId = message_id.first_chunk
    return data.SerializeToString()


def decoded_id(text: str | None) -> MessageId:
    """Return the message id in `text`, base64 of MessageIdData. Raises Unreadable if the id is missing or invalid."""
    if not text:
        raise Unreadable(CANNOT_READ_JSON, "the command has no messageId")
    try:
        data = pb.MessageIdData.FromString(decoded_base64(text))
    except (ValueError, DecodeError) as error:
        raise Unreadable(CANNOT_READ_JSON, f"the messageId {text[:100]!r} is not valid: {error}") from error
    first = data.first_chunk_message_id
    return MessageId(
        _signed(data.ledgerId),
        _signed(data.entryId),
        data.partition,
        data.batch_index,
        max(0, data.batch_size),
        (_signed(first.ledgerId), _signed(first.entryId)) if data.HasField("first_chunk_message_id") else None,
    )


def decoded_base64(text: str) -> bytes:
    """Decode base64, with or without padding at the end. Raises ValueError."""
    try:
        return a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise ValueError(str(error)) from error


def time_text(time_ms: int) -> str:
    """Return a Unix time in milliseconds as ISO 8601 in UTC, without trailing zeros of the fraction."""
    second, fraction_ms = divmod(time_ms, 1000)
    fraction = f".{fraction_ms:03d}".rstrip("0") if fraction_ms else ""
    return f"{_second_text(second)}{fraction}Z"


@lru_cache(maxsize=16)
def _second_text(second: int) -> str:
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a producer may have set any time
        return "9999-12-31T23:59:59"


def time_ms(text: str) -> int:
    """Return the Unix time in milliseconds of an ISO 8601 text with an offset. Raises ValueError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"Text {text[:100]!r} could not be parsed as a time") from None
    if found.tzinfo is None:
        raise ValueError(f"Text {text[:100]!r} could not be parsed: the time has no offset, such as Z or +01:00")
    return int(found.timestamp() * _EPOCH_MS)


def _text(given: _Text) -> str | None:
    if given is None or isinstance(given, str):
        return given
    return str(given).lower() if isinstance(given, bool) else str(given)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
