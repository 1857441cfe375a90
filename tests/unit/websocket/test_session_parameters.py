"""Query parameters of WebSocket sessions."""

from __future__ import annotations

import pytest

from pybroker.client.message import EARLIEST, LATEST, MessageId
from pybroker.websocket.session_parameters import (
    InvalidParameter,
    consumer_parameters,
    producer_parameters,
    reader_parameters,
)
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"


def test_defaults_of_producer_are_those_of_pulsar() -> None:
    parameters = producer_parameters({})
    publishing = parameters.publishing
    assert (publishing.is_batching, publishing.is_single_partition, publishing.send_timeout_s) == (False, True, 30)
    assert (publishing.name, publishing.initial_sequence_id, publishing.compression) == ("", None, pb.NONE)


def test_batching_parameters_count_only_with_batching() -> None:
    assert producer_parameters({"batchingMaxMessages": "x", "maxPendingMessages": "-1"}).max_pending_messages == 1000
    batched = producer_parameters(
        {"batchingEnabled": "TRUE", "maxPendingMessages": "7", "batchingMaxPublishDelay": "20"}
    )
    assert batched.max_pending_messages == batched.publishing.max_pending_entries == 7
    assert batched.publishing.batch_delay_s == pytest.approx(0.02)


@pytest.mark.parametrize(
    "query",
    [
        {"sendTimeoutMillis": "-1"},
        {"sendTimeoutMillis": "99999999999"},
        {"initialSequenceId": "1.5"},
        {"producerName": " "},
        {"hashingScheme": "md5"},
        {"batchingEnabled": "true", "batchingMaxPublishDelay": "0"},
    ],
)
def test_invalid_producer_parameter_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter):
        producer_parameters(query)


def test_consumer_queue_is_reduced_to_maximum_and_is_never_empty() -> None:
    for given, expected in (("100000", 1000), ("0", 1), ("5", 5)):
        parameters = consumer_parameters({"receiverQueueSize": given}, TOPIC, "s", keeps_batch_bits=False)
        assert parameters.max_pending_messages == parameters.receiving.queue_messages == expected


def test_dead_letter_topic_has_default_name_of_pulsar() -> None:
    letters = consumer_parameters({"maxRedeliverCount": "3"}, TOPIC, "s", keeps_batch_bits=False).dead_letters
    assert letters is not None
    assert (letters.max_redeliver_count, letters.topic) == (3, f"{TOPIC}-s-DLQ")


def test_reader_start_is_latest_unless_given() -> None:
    assert reader_parameters({}, "r").receiving.start == LATEST
    assert reader_parameters({"messageId": "earliest"}, "r").receiving.start == EARLIEST
    receiving = reader_parameters({"messageId": "CAUQADAA"}, "r").receiving
    assert (receiving.start, receiving.is_start_inclusive) == (MessageId(5, 0), False)
