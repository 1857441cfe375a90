"""What a write is told is checked before anything runs."""

import pickle

import pytest

from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.writer.sink_options import parse_write_options
from pybroker.wire import pulsar_api_pb2 as pb

URL = {"service.url": "pulsar://b:6650"}


def test_defaults_write_at_least_once_in_batches() -> None:
    options = parse_write_options({**URL, "topic": "t"}, is_stream=False)
    assert options.topic == "persistent://public/default/t"
    assert options.delivery == "at-least-once"
    assert (options.batch_messages, options.batch_bytes, options.compression) == (1000, 128 * 1024, pb.NONE)
    assert pickle.loads(pickle.dumps(options)) == options


def test_keys_of_the_scala_connector_mean_the_same() -> None:
    given = {"pulsar.producer.compressionType": "LZ4", "pulsar.producer.batchingmaxmessages": "7", "batchBy": "key"}
    options = parse_write_options({**URL, **given}, is_stream=False)
    assert (options.compression, options.batch_messages, options.batches_by_key) == (pb.LZ4, 7, True)
    assert options.topic is None


def test_exactly_once_needs_an_id_and_the_address_of_rest_and_no_topic() -> None:
    level = {**URL, "delivery": "exactly-once", "sinkId": "mine"}
    with pytest.raises(InvalidOptions, match=r"admin\.url"):
        parse_write_options(level, is_stream=True)
    with pytest.raises(InvalidOptions, match="with delivery=exactly-once set a unique name"):
        parse_write_options({**URL, "delivery": "exactly-once", "admin.url": "http://b:8080"}, is_stream=True)
    options = parse_write_options({**level, "admin.url": "http://b:8080"}, is_stream=True)
    assert (options.sink_id, options.topic, options.transaction_timeout_s) == ("mine", None, 600)
    short = {**level, "admin.url": "http://b:8080", "transactionTimeoutMs": "1500"}
    assert parse_write_options(short, is_stream=True).transaction_timeout_s == 1.5


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="one of at-least-once, effectively-once, exactly-once"):
        parse_write_options({**URL, "delivery": "at-most-once"}, is_stream=True)


def test_effectively_once_needs_an_id_that_outlives_the_query() -> None:
    level = {**URL, "delivery": "effectively-once", "topic": "t"}
    with pytest.raises(InvalidOptions, match="option topic"):
        parse_write_options({**URL, "delivery": "effectively-once"}, is_stream=True)
    with pytest.raises(InvalidOptions, match="sinkId"):
        parse_write_options(level, is_stream=True)
    with pytest.raises(InvalidOptions, match="jobId"):
        parse_write_options(level, is_stream=False)
    assert parse_write_options({**level, "sinkId": "mine"}, is_stream=True).sink_id == "mine"
    assert parse_write_options({**level, "jobId": "day-1"}, is_stream=False).sink_id == "day-1"
    derived = [
        parse_write_options({**level, "checkpointlocation": place}, is_stream=True).sink_id
        for place in ("/c/a", "/c/a/", "/c/b")
    ]
    assert derived[0] == derived[1] != derived[2]
    with pytest.raises(InvalidOptions, match="letters"):
        parse_write_options({**level, "sinkId": "a b"}, is_stream=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics", "a"),
        ("topic", "a/b"),
        ("compressionType", "gzip"),
        ("batchingMaxMessages", "0"),
        ("batchingMaxMessages", "1000000"),
        ("hashingScheme", "md5"),
        ("schemaType", "XML"),
        ("sendTimeoutMs", "-1"),
        ("transactionTimeoutMs", "0"),
        ("pulsar.producer.producerName", "p"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(key: str, value: str) -> None:
    with pytest.raises(InvalidOptions, match=key):
        parse_write_options({**URL, key: value}, is_stream=False)
