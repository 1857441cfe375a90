"""Messages are shown in a line, and what is written as JSON makes the same message again."""

import json

import pytest

from pybroker.cli.commands.produce import MAX_LINE_BYTES, LineCutter
from pybroker.cli.exit_codes import CommandFailed
from pybroker.cli.message_text import NotAMessage, message_document, message_line, outgoing
from pybroker.client.message import Message, MessageId

AT = MessageId(5, 7)


def test_a_line_has_id_time_key_properties_and_value() -> None:
    message = Message(
        AT, "t", b"hello", "k", properties={"a": "b"}, publish_time_ms=1_795_406_400_000, redelivery_count=1
    )
    assert message_line(message) == "5:7  2026-11-23T04:00:00.000Z  k  {a=b}  (delivered 2 times)  hello"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (AT, "5:7"),
        (MessageId(5, 7, -1, 2, 10), "5:7:2"),
        (MessageId(5, 7, 1, -1), "5:7:1:-1"),
        (MessageId(5, 7, 1, 2, 10), "5:7:1:2"),
    ],
)
def test_an_id_is_written_as_commands_take_it(at: MessageId, text: str) -> None:
    assert message_document(Message(at, "t", b""))["messageId"] == text


@pytest.mark.parametrize("hostile", [b"\x1b[2J", b"a\nb", "\u202e".encode(), b"\xff\xfe"])
def test_a_message_cannot_write_to_the_terminal_what_it_wants(hostile: bytes) -> None:
    text = hostile.decode("utf-8", "replace")
    line = message_line(Message(AT, "t", hostile, text, properties={text: text}))
    assert line.isprintable()


@pytest.mark.parametrize(
    "message",
    [
        Message(AT, "t", b"hello", "k", properties={"a": "b"}, event_time_ms=5),
        Message(AT, "t", b"\xff\x00", "aGk=", is_key_encoded=True),
        Message(AT, "t", b"x", "/w==", is_key_encoded=True, ordering_key=b"\x00"),
        Message(AT, "t", None, "gone"),
        Message(AT, "t", "grün\u2028".encode()),
        Message(AT, "t", b""),
    ],
)
def test_what_is_written_as_json_makes_the_same_message_again(message: Message) -> None:
    again = outgoing(json.dumps(message_document(message)).encode())
    assert again.value == message.value
    assert dict(again.properties) == dict(message.properties)
    assert again.event_time_ms == message.event_time_ms
    assert again.ordering_key == message.ordering_key
    assert message_document(Message(AT, "t", again.value, again.key, again.is_key_encoded)).get(
        "key"
    ) == message_document(message).get("key")


def test_a_value_that_is_json_itself_may_stand_as_it_is() -> None:
    assert outgoing(b'{"value": {"a": [1, "\xc3\xbc"]}}').value == '{"a": [1, "ü"]}'.encode()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"5",
        b"{}",
        b'{"value": 1',
        b'{"valueBase64": "%"}',
        b'{"value": "x", "key": 5}',
        b'{"value": "x", "key": "a", "keyBase64": "YQ=="}',
        b'{"value": "x", "properties": {"a": 1}}',
        b'{"value": "x", "properties": [1]}',
        b'{"value": "x", "eventTime": -1}',
        b'{"value": "x", "deliverAt": true}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(NotAMessage) as refused:
        outgoing(line)
    assert len(str(refused.value)) < 60


def test_lines_are_the_same_however_they_come() -> None:
    text = b"one\n\ntwo\nthree"
    for size in range(1, len(text) + 1):
        cutter = LineCutter(b"\n")
        lines = [line for start in range(0, len(text), size) for line in cutter.feed(text[start : start + size])]
        assert lines == [b"one", b"", b"two"]
        assert cutter.rest == b"three"


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    cutter = LineCutter(b"\n")
    piece = b"x" * (1 << 20)
    for _ in range(MAX_LINE_BYTES // len(piece)):
        assert not cutter.feed(piece)
    with pytest.raises(CommandFailed, match="--file"):
        cutter.feed(piece)
