"""Messages as text and as JSON lines. `produce --json-lines` reads the output of `consume --json`. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from pybroker.cli.text_tables import moment, printable, value_text
from pybroker.client.message import Message, MessageId, OutgoingMessage

GAP = "  "


class NotAMessage(ValueError):
    """A line is not a valid message. The text contains no part of the line."""


def id_text(message_id: MessageId) -> str:
    """Return the id as `pybroker ack` accepts it: `LEDGER:ENTRY`, `LEDGER:ENTRY:INDEX` in a batch,
    `LEDGER:ENTRY:PARTITION:INDEX` in a partition.
    """
    text = f"{message_id.ledger_id}:{message_id.entry_id}"
    if message_id.partition >= 0:
        return f"{text}:{message_id.partition}:{message_id.batch_index}"
    return text if message_id.batch_index < 0 else f"{text}:{message_id.batch_index}"


def message_line(message: Message) -> str:
    """Return one line with id, publish time, key, properties and value."""
    parts = [id_text(message.id), moment(message.publish_time_ms) or "-"]
    if message.key is not None:
        parts.append(value_text(_key_bytes(message)))
    if message.properties:
        pairs = ", ".join(f"{name}={value}" for name, value in message.properties.items())
        parts.append(printable(f"{{{pairs}}}"))
    if message.redelivery_count:
        parts.append(f"(delivered {message.redelivery_count + 1} times)")
    parts.append(value_text(message.value))
    return GAP.join(parts)


def message_document(message: Message) -> dict[str, Any]:
    """Return the JSON document of a message. Bytes that are not UTF-8 are Base64 in a member whose name ends in Base64."""
    document: dict[str, Any] = {"messageId": id_text(message.id), "topic": message.topic}
    if message.key is not None:
        document |= _text_or_base64("key", _key_bytes(message))
    document |= {"value": None} if message.value is None else _text_or_base64("value", message.value)
    document["properties"] = dict(message.properties)
    document["publishTime"] = message.publish_time_ms
    if message.event_time_ms:
        document["eventTime"] = message.event_time_ms
    if message.ordering_key is not None:
        document["orderingKeyBase64"] = base64.b64encode(message.ordering_key).decode()
    if message.schema_version:
        document["schemaVersionBase64"] = base64.b64encode(message.schema_version).decode()
    document["producer"] = message.producer_name
    document["sequenceId"] = message.sequence_id
    document["redeliveryCount"] = message.redelivery_count
    return document


def _key_bytes(message: Message) -> bytes:
    assert message.key is not None
    if message.is_key_encoded:
        try:
            return base64.b64decode(message.key, validate=True)
        except (binascii.Error, ValueError):
            pass  # show invalid Base64 unchanged
    return message.key.encode("utf-8", "surrogateescape")


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}


def outgoing(line: bytes) -> OutgoingMessage:
    """Parse a JSON line into a message to publish. Members about its previous position are ignored."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise NotAMessage("the line is not JSON, which --json-lines requires") from None
    if not isinstance(document, dict):
        raise NotAMessage("the line is JSON, but not a JSON object")
    key, key_bytes = _member(document, "key", str), _bytes_member(document, "keyBase64")
    if key is not None and key_bytes is not None:
        raise NotAMessage("the message has both key and keyBase64: remove one of them")
    properties = document.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise NotAMessage("the message's properties must be an object of texts")
    return OutgoingMessage(
        _value(document),
        key if key_bytes is None else base64.b64encode(key_bytes).decode(),
        is_key_encoded=key_bytes is not None,
        ordering_key=_bytes_member(document, "orderingKeyBase64"),
        properties=properties,
        event_time_ms=_time(document, "eventTime"),
        deliver_at_ms=_time(document, "deliverAt"),
    )


def _value(document: dict[str, Any]) -> bytes | None:
    if "valueBase64" in document:
        return _bytes_member(document, "valueBase64")
    if "value" not in document:
        raise NotAMessage("the message has neither value nor valueBase64")
    value = document["value"]
    if value is None:
        return None
    # A value may be a JSON value instead of a string.
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode("utf-8", "surrogatepass")


def _member(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise NotAMessage(f"the field {name} of the message has the wrong type")
    return value


def _time(document: dict[str, Any], name: str) -> int:
    value = _member(document, name, int) or 0
    if not 0 <= value < 1 << 63:
        raise NotAMessage(f"the field {name} is not a time in milliseconds")
    return int(value)


def _bytes_member(document: dict[str, Any], name: str) -> bytes | None:
    text = _member(document, name, str)
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotAMessage(f"the field {name} of the message is not Base64") from None
