import time

import pytest

from pybroker.errors import InvalidTopicName
from pybroker.model.topic_patterns import (
    InvalidPattern,
    TopicsPattern,
    UnsupportedPattern,
    pattern_in_namespace,
    topics_hash,
)

TOPICS = [
    "non-persistent://t/ns/foo-x",
    "persistent://t/ns/a$b",
    "persistent://t/ns/a.b",
    "persistent://t/ns/bar",
    "persistent://t/ns/foo-a",
    "persistent://t/ns/foo-b",
    "persistent://t/ns/part-partition-0",
    "persistent://t/ns/part-partition-11",
]


def selected(pattern: str) -> list[str]:
    parsed = TopicsPattern.parse(pattern)
    return [topic.removeprefix("persistent://t/ns/") for topic in TOPICS if parsed.matches(topic)]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("persistent://t/ns/foo-[ab]", ["foo-a", "foo-b"]),
        ("t/ns/foo-[ab]", ["foo-a", "foo-b"]),
        ("non-persistent://t/ns/foo-[ab]", ["foo-a", "foo-b"]),
        ("^persistent://t/ns/foo-[ab]$", ["foo-a", "foo-b"]),
        ("(?i)persistent://t/ns/FOO-[ab]", ["foo-a", "foo-b"]),
        (".*foo-[ab]", ["foo-a", "foo-b"]),
        ("persistent://t/ns/fo", []),
        ("foo-a", []),
        ("persistent://t/ns/FOO-a", []),
        ("persistent://other/ns/.*", []),
        ("persistent://t/ns/^foo-[ab]", []),
        (r"persistent://t/ns/\Qa.b\E", ["a.b"]),
        ("persistent://t/ns/a.b", ["a$b", "a.b"]),
        ("persistent://t/ns/(?<first>b)ar", ["bar"]),
        ("", []),
    ],
)
def test_a_pattern_means_the_whole_name_without_its_domain(pattern: str, topics: list[str]) -> None:
    assert selected(pattern) == topics


def test_partitions_match_by_the_name_of_their_topic() -> None:
    assert selected("t/ns/part") == ["part-partition-0", "part-partition-11"]
    assert selected("t/ns/part-partition-0") == []


def test_what_the_pattern_says_of_the_domain_selects_nothing() -> None:
    assert selected("t/ns/foo-.*") == ["non-persistent://t/ns/foo-x", "foo-a", "foo-b"]


@pytest.mark.parametrize("pattern", ["(", ")", "[", "*a", "a\\", "://t/ns/.*", "http://t/ns/.*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        TopicsPattern.parse(pattern)


@pytest.mark.parametrize("pattern", ["(?!foo).*", "(?=a)b", r"(a)\1", "a++", r"\p{Alpha}", "(?>a)", r"\pL{1,1000}"])
def test_what_cannot_be_evaluated_in_bounded_time_is_left_to_the_client(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        TopicsPattern.parse(f"persistent://t/ns/{pattern}")


def test_no_pattern_takes_more_time_than_the_name_is_long() -> None:
    started_s = time.process_time()
    for pattern in ("(x+x+)+y", "(x|x)*y", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)y"):
        assert not TopicsPattern.parse(pattern).matches("persistent://" + "x" * 1000)
    assert time.process_time() - started_s < 1


def test_equal_patterns_are_one_object() -> None:
    assert TopicsPattern.parse("persistent://t/ns/a") is TopicsPattern.parse("t/ns/a")


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ([], "00000000"),
        (["persistent://public/pw2/foo-a"], "730d603a"),
        (["persistent://public/pw2/foo-a", "persistent://public/pw2/foo-b"], "8c671ea1"),
    ],
)
def test_the_hash_is_the_one_that_clients_reckon(topics: list[str], expected: str) -> None:
    assert topics_hash(topics) == expected


@pytest.mark.parametrize("text", ["persistent://t/n.s/foo-[ab]|bar/x", "t/n.s/foo-[ab]|bar/x"])
def test_only_the_own_name_of_a_topic_is_an_expression(text: str) -> None:
    namespace, pattern = pattern_in_namespace(text)
    matches = TopicsPattern.parse(pattern).matches
    assert str(namespace) == "t/n.s"
    assert matches("persistent://t/n.s/foo-a")
    assert matches("persistent://t/n.s/bar/x")
    assert not matches("persistent://t/nXs/foo-a")
    assert not matches("bar/x")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InvalidTopicName),
        ("foo", InvalidTopicName),
        ("t/ns", InvalidTopicName),
        ("t*/ns/foo", InvalidTopicName),
        ("t/ns/(", InvalidPattern),
        ("t/ns/(?=x)y", UnsupportedPattern),
    ],
)
def test_a_pattern_in_no_namespace_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        pattern_in_namespace(text)
