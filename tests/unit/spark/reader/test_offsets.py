"""Offsets mean the same after a trip through a checkpoint, and what others wrote is understood or refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.reading.positions import Place
from pybroker.spark.reader.offsets import (
    EARLIEST,
    LATEST,
    BoundKind,
    Bounds,
    CutRange,
    InvalidOffsets,
    TopicOffset,
    from_json,
    parse_offsets,
    parse_times,
    to_json,
)
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
numbers = st.integers(0, (1 << 63) - 1)
places = st.builds(Place, numbers, numbers)
topic_offsets = st.builds(
    TopicOffset,
    places,
    st.integers(0, 1000),
    st.none() | places,
    st.just(()),
) | st.builds(
    TopicOffset, places, st.just(0), places, st.lists(st.builds(CutRange, *[numbers] * 4), max_size=3).map(tuple)
)


@given(st.dictionaries(st.text(max_size=20).map(lambda name: TOPIC + name), topic_offsets, max_size=4))
def test_an_offset_comes_back_from_a_checkpoint(offsets: dict[str, TopicOffset]) -> None:
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_equal_offsets_are_equal_texts() -> None:
    one, two = TopicOffset(Place(1, 2)), TopicOffset(Place(3, 4))
    assert json.dumps(to_json({"b": two, "a": one})) == json.dumps(to_json({"a": one, "b": two}))


def test_the_text_is_readable() -> None:
    batch = TopicOffset(Place(5, 120), begun_at=Place(5, 100), ranges=(CutRange(5, 100, 120, 2000),))
    assert to_json({TOPIC: batch}) == {
        "v": 1,
        "t": {TOPIC: {"l": 5, "e": 120, "f": [5, 100], "r": [[5, 100, 120, 2000]]}},
    }
    assert to_json({TOPIC: batch.settled()}) == {"v": 1, "t": {TOPIC: {"l": 5, "e": 120}}}


@pytest.mark.parametrize(
    "document",
    [
        {TOPIC: [8, 1]},
        {"v": 2, "t": {}},
        {"v": 1},
        {"v": 1, "t": {TOPIC: {"l": 1}}},
        {"v": 1, "t": {TOPIC: {"l": "1", "e": 1}}},
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidOffsets):
        from_json(document)


def scala(topic: str, message_id: pb.MessageIdData) -> str:
    """As the Scala connector writes an offset: signed bytes of the message id."""
    serialised = message_id.SerializeToString()
    return json.dumps({topic: [byte - 256 if byte > 127 else byte for byte in serialised]})


def test_the_scala_connectors_offsets_are_understood() -> None:
    text = scala(TOPIC, pb.MessageIdData(ledgerId=300, entryId=7, partition=-1, batch_index=2))
    start = parse_offsets("startingOffsets", text, is_end=False).of(TOPIC)
    assert (start.place, start.batch_index) == (Place(300, 7), 2)
    end = parse_offsets("endingOffsets", text, is_end=True).of(TOPIC)
    assert (end.place, end.batch_index) == (Place(300, 7), 3)  # The message named is read.
    unbatched = scala(TOPIC, pb.MessageIdData(ledgerId=300, entryId=7))
    assert parse_offsets("endingOffsets", unbatched, is_end=True).of(TOPIC).place == Place(300, 8)


def test_the_scala_connectors_ends_of_a_topic_are_understood() -> None:
    minus_one, most = (1 << 64) - 1, (1 << 63) - 1
    earliest = scala(TOPIC, pb.MessageIdData(ledgerId=minus_one, entryId=minus_one))
    latest = scala(TOPIC, pb.MessageIdData(ledgerId=most, entryId=most))
    assert parse_offsets("startingOffsets", earliest, is_end=False).of(TOPIC) == EARLIEST
    assert parse_offsets("startingOffsets", latest, is_end=False).of(TOPIC) == LATEST


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [300, "x"],
        {"l": 1},
        {"l": 1, "e": -1},
        {"l": 1, "e": 2, "z": 3},
        5,
        "noon",
        {"l": 1, "e": 1 << 70},
        None,
        True,
    ],
)
def test_a_bound_that_is_none_is_refused_with_its_topic(value: object) -> None:
    with pytest.raises(InvalidOffsets, match=TOPIC):
        parse_offsets("startingOffsets", json.dumps({TOPIC: value}), is_end=False)


def test_deep_json_is_refused() -> None:
    with pytest.raises(InvalidOffsets):
        parse_offsets("startingOffsets", "{" + '"a":{' * 100_000, is_end=False)


def test_a_partitioned_topic_means_all_its_partitions() -> None:
    bounds = parse_times("startingTime", '{"t": 5, "t-partition-1": 7}', is_end=False)
    assert bounds.of(TOPIC + "-partition-0").time_ms == 5
    assert bounds.of(TOPIC + "-partition-1").time_ms == 7
    assert bounds.of("persistent://public/default/other") == EARLIEST


def test_times_are_milliseconds_or_have_a_zone() -> None:
    assert parse_times("startingTime", "1767225600000", is_end=False).otherwise.time_ms == 1767225600000
    assert parse_times("startingTime", "2026-01-01T01:00:00+01:00", is_end=False).otherwise.time_ms == 1767225600000
    assert parse_times("endingTime", "5", is_end=True).of("t").kind is BoundKind.TIME


def test_a_topic_that_is_not_read_is_an_error() -> None:
    bounds = parse_offsets("startingOffsets", '{"typo": "latest", "t": "earliest"}', is_end=False)
    with pytest.raises(InvalidOffsets, match="typo"):
        bounds.require_known("startingOffsets", [TOPIC + "-partition-0"])
    Bounds(LATEST).require_known("startingOffsets", [])
