"""What is known about one configuration key, and how its text becomes a value.

Owns the value types of `conf/broker.conf`. A text that does not fit is refused with the key, the text, the expected
type and its origin in one sentence. Which keys exist is the generated module's matter, where texts come from is
`parse`'s.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

Value = int | float | bool | str | tuple[str, ...] | None

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})


class ConfigError(Exception):
    """The configuration cannot be used; each problem is a line that says what to change and where."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Problems:
    """What is wrong with a configuration, found by checks that do not end at the first of them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep what a ConfigError inside says, and go on behind."""
        try:
            yield
        except ConfigError as error:
            self.found += (problem for problem in error.problems if problem not in self.found)

    def raise_any(self) -> None:
        """Raises ConfigError with all of them when there are any."""
        if self.found:
            raise ConfigError(*self.found)


class ValueType(StrEnum):
    """Type of a key's value; the names are those of the tags in `conf/broker.conf`."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"
    LIST = "list"
    OPTIONAL_INT = "opt int"


class KeyInfo(NamedTuple):
    """One key of `conf/broker.conf`: its field, its type and what may be done with it."""

    key: str
    field: str
    type: ValueType
    default: Value
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False
    secret: bool = False
    supported: bool = True

    @property
    def expectation(self) -> str:
        """What a value must look like, for an error message."""
        words = {
            ValueType.INT: "a whole number",
            ValueType.FLOAT: "a number",
            ValueType.BOOL: "true or false",
            ValueType.STR: "text",
            ValueType.LIST: "texts separated by commas",
            ValueType.OPTIONAL_INT: "a whole number or nothing",
        }[self.type]
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"{words} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{words}, {self.minimum:g} or more"
        return words


def parse_value(info: KeyInfo, text: str, origin: str) -> Value:
    """Return the value that `text` means for a key; `origin` names the place of the text in an error.

    An empty text means "not set": the default of a number or a flag, nothing for an optional one, an empty text or
    list otherwise. Pulsar's own files leave keys empty in that sense.
    """
    text = text.strip()
    if not text:
        return _value_when_empty(info)
    try:
        value = _convert(info.type, text)
    except ValueError:
        raise _refusal(info, text, origin) from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        too_small = info.minimum is not None and value < info.minimum
        too_large = info.maximum is not None and value > info.maximum
        if too_small or too_large or not math.isfinite(value):
            raise _refusal(info, text, origin)
    if info.choices and value not in info.choices:
        raise _refusal(info, text, origin)
    return value


def format_value(value: Value) -> str:
    """The text of a value as it would stand in the file."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _value_when_empty(info: KeyInfo) -> Value:
    match info.type:
        case ValueType.OPTIONAL_INT:
            return None
        case ValueType.LIST:
            return ()
        case ValueType.STR if not info.choices:
            return ""
        case _:
            return info.default


def _convert(value_type: ValueType, text: str) -> Value:
    match value_type:
        case ValueType.INT | ValueType.OPTIONAL_INT:
            return int(text)
        case ValueType.FLOAT:
            return float(text)
        case ValueType.LIST:
            return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)
        case ValueType.BOOL:
            lowered = text.lower()
            if lowered in TRUE_WORDS:
                return True
            if lowered in FALSE_WORDS:
                return False
            raise ValueError(text)
        case ValueType.STR:
            return text


def _refusal(info: KeyInfo, text: str, origin: str) -> ConfigError:
    shown = "(hidden)" if info.secret else repr(text)
    return ConfigError(f"{info.key} cannot be {shown}: expected {info.expectation} ({origin})")
