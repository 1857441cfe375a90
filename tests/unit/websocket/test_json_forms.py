"""The JSON texts of the WebSocket API."""

from __future__ import annotations

import json

import pytest

from pybroker.client.message import EARLIEST, Message, MessageId
from pybroker.websocket import json_forms
from pybroker.websocket.json_forms import Unreadable

# Ids as a Java broker sends them: ledger, entry, partition, batch index, batch size.
JAVA_IDS = {
    "CAUQADAA": MessageId(5, 0),
    "CAsQABgAMAA=": MessageId(11, 0, 0),
    "CAsQAxgAIAIwAw==": MessageId(11, 3, 0, 2, 3),
}


@pytest.mark.parametrize("text", JAVA_IDS)
def test_message_ids_have_the_form_of_java_broker(text: str) -> None:
    assert json_forms.decoded_id(text) == JAVA_IDS[text]
    assert json.loads(json_forms.stored_ack(JAVA_IDS[text]._replace(batch_size=0), None))["result"] == "ok"
    assert json_forms.encoded_id(JAVA_IDS[text]) == json_forms.decoded_base64(text)


@pytest.mark.parametrize("message_id", [EARLIEST, MessageId(7, 9, 2, first_chunk=(7, 5))])
def test_message_id_is_read_back(message_id: MessageId) -> None:
    encoded = json.loads(json_forms.delivered_message(Message(message_id, "t", b"")))["messageId"]
    assert json_forms.decoded_id(encoded) == message_id


def test_send_acknowledgements_have_the_members_of_pulsar() -> None:
    assert json_forms.stored_ack(MessageId(5, 0), "1") == (
        b'{"result":"ok","messageId":"CAUQADAA","context":"1","errorCode":0,"schemaVersion":0}'
    )
    assert json_forms.failed_ack(7, "no", None) == (
        b'{"result":"send-error:7","errorMsg":"no","errorCode":0,"schemaVersion":0}'
    )


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_577_836_800_123, "2020-01-01T00:00:00.123Z"),
        (1_577_836_800_190, "2020-01-01T00:00:00.19Z"),
    ],
)
def test_times_have_no_trailing_zeros_and_are_read_back(time_ms: int, text: str) -> None:
    assert json_forms.time_text(time_ms) == text
    assert json_forms.time_ms(text) == time_ms


def test_impossible_time_of_a_producer_is_still_a_text() -> None:
    assert json_forms.time_text((1 << 63) - 1).endswith("Z")


def test_delay_counts_from_now_and_is_bounded() -> None:
    message, _ = json_forms.outgoing_message(b'{"payload":"","deliverAfterMs":50}', 1000)
    assert message.deliver_at_ms == 1050
    message, _ = json_forms.outgoing_message(b'{"payload":"","deliverAt":77}', 1000)
    assert message.deliver_at_ms == 77
    message, _ = json_forms.outgoing_message(b'{"payload":"","deliverAfterMs":-1,"deliverAt":-5}', 1000)
    assert message.deliver_at_ms == 0


@pytest.mark.parametrize("text", [b'{"payload":"","deliverAt":"soon"}', b'{"payload":{}}', b"\xff", b"[" * 100_000])
def test_unreadable_text_names_the_code(text: bytes) -> None:
    with pytest.raises(Unreadable) as error:
        json_forms.outgoing_message(text, 0)
    assert error.value.code == json_forms.CANNOT_READ_JSON
