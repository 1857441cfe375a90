"""Texts become values, or are refused with a sentence that states the expected text."""

from typing import Any

import pytest

from pybroker.config import KEYS, BrokerConfig, ConfigError, KeyInfo, Value, ValueType, format_value, parse_value


def info(value_type: ValueType, default: Value = None, **details: Any) -> KeyInfo:
    return KeyInfo("someKey", "some_key", value_type, default, "A key.", **details)


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        (ValueType.INT, " 17 ", 17),
        (ValueType.INT, "-1", -1),
        (ValueType.FLOAT, "0.16", 0.16),
        (ValueType.FLOAT, "2", 2.0),
        (ValueType.BOOL, "TRUE", True),
        (ValueType.BOOL, "off", False),
        (ValueType.STR, "  a b ", "a b"),
        (ValueType.LIST, "a, b,,c ", ("a", "b", "c")),
        (ValueType.OPTIONAL_INT, "6650", 6650),
    ],
)
def test_a_text_becomes_the_value_it_means(value_type: ValueType, text: str, value: Value) -> None:
    parsed = parse_value(info(value_type), text, "a test")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("value_type", "default", "value"),
    [
        (ValueType.INT, 5, 5),
        (ValueType.BOOL, True, True),
        (ValueType.STR, "standalone", ""),
        (ValueType.LIST, ("a",), ()),
        (ValueType.OPTIONAL_INT, 6650, None),
    ],
)
def test_an_empty_text_means_not_set(value_type: ValueType, default: Value, value: Value) -> None:
    assert parse_value(info(value_type, default), "  ", "a test") == value


def test_an_empty_text_cannot_stand_for_one_of_several_words() -> None:
    assert parse_value(info(ValueType.STR, "sqlite", choices=("sqlite", "memory")), "", "a test") == "sqlite"


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        (ValueType.INT, "ten", "an integer"),
        (ValueType.INT, "1.5", "an integer"),
        (ValueType.FLOAT, "much", "a number"),
        (ValueType.FLOAT, "nan", "a number"),
        (ValueType.FLOAT, "inf", "a number"),
        (ValueType.BOOL, "maybe", "true or false"),
        (ValueType.OPTIONAL_INT, "none", "an integer or nothing"),
    ],
)
def test_a_refusal_names_key_value_type_and_origin(value_type: ValueType, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_value(info(value_type), text, "broker.conf line 3")
    assert str(refusal.value) == f"someKey cannot be '{text}': expected {expected} (broker.conf line 3)"


def test_a_number_outside_its_range_is_refused_with_the_range() -> None:
    port = info(ValueType.OPTIONAL_INT, minimum=0, maximum=65535)
    assert parse_value(port, "65535", "a test") == 65535
    with pytest.raises(ConfigError, match="expected an integer or nothing from 0 to 65535"):
        parse_value(port, "65536", "a test")
    with pytest.raises(ConfigError, match="expected an integer, 1 or more"):
        parse_value(info(ValueType.INT, minimum=1), "0", "a test")


def test_a_word_that_is_not_offered_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="expected one of sqlite, memory"):
        parse_value(info(ValueType.STR, choices=("sqlite", "memory")), "etcd", "a test")


def test_a_refusal_does_not_show_a_secret() -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_value(info(ValueType.INT, secret=True), "hunter2", "a test")
    assert "hunter2" not in str(refusal.value)


def test_every_default_survives_the_way_through_its_text() -> None:
    config = BrokerConfig()
    for key, known in KEYS.items():
        assert getattr(config, known.field) == known.default
        assert parse_value(known, format_value(known.default), key) == known.default


def test_every_key_has_a_sentence_of_documentation() -> None:
    for key, known in KEYS.items():
        assert known.doc.endswith("."), key
