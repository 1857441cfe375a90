"""Descriptions of configuration keys, conversion of texts to values, and the base class of a typed configuration.

The generated module `broker_config` lists the keys; `parse` reads the sources.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, dataclass_transform

Value = int | float | bool | str | tuple[str, ...] | None

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})


class ConfigError(Exception):
    """Invalid configuration. Each problem is one line with the key, the required change and the location."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Problems:
    """Collects problems, so that checks continue after the first one."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self.found += (problem for problem in error.problems if problem not in self.found)

    def raise_any(self) -> None:
        if self.found:
            raise ConfigError(*self.found)


class ValueType(StrEnum):
    """The type of a key's value, as named in `conf/broker.conf`."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"
    LIST = "list"
    OPTIONAL_INT = "opt int"


class KeyInfo(NamedTuple):
    """The description of one key of `conf/broker.conf`."""

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
        words = {
            ValueType.INT: "an integer",
            ValueType.FLOAT: "a number",
            ValueType.BOOL: "true or false",
            ValueType.STR: "text",
            ValueType.LIST: "a comma-separated list",
            ValueType.OPTIONAL_INT: "an integer or nothing",
        }[self.type]
        if self.choices:
            named = ", ".join(choice for choice in self.choices if choice)
            return f"one of {named}, or nothing" if "" in self.choices else f"one of {named}"
        if self.minimum is not None and self.maximum is not None:
            return f"{words} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{words}, {self.minimum:g} or more"
        return words


_TYPES: dict[object, ValueType] = {
    int: ValueType.INT,
    float: ValueType.FLOAT,
    bool: ValueType.BOOL,
    str: ValueType.STR,
    tuple[str, ...]: ValueType.LIST,
    int | None: ValueType.OPTIONAL_INT,
}
"""The value type of each annotation in a `Settings` class."""


class _Declared(NamedTuple):
    """Arguments of `setting`."""

    key: str
    default: Value
    doc: str
    facts: dict[str, Any]


def setting(key: str, *, default: Value, doc: str, **facts: Any) -> Any:
    """Declare a field of a `Settings` class. The annotation gives the type; `facts` are other attributes of KeyInfo."""
    return _Declared(key, default, doc, facts)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Settings:
    """Base of a frozen configuration class with fields declared by `setting`.

    It has no repr, which could show secrets in logs.
    """

    INFOS: ClassVar[tuple[KeyInfo, ...]] = ()
    """In declaration order."""
    _defaults: ClassVar[dict[str, Value]] = {}

    def __init_subclass__(cls) -> None:
        declared = {name: found for name, found in vars(cls).items() if isinstance(found, _Declared)}
        annotations = cls.__annotations__
        cls.INFOS = tuple(
            KeyInfo(found.key, name, _TYPES[annotations[name]], found.default, found.doc, **found.facts)
            for name, found in declared.items()
        )
        cls._defaults = {info.field: info.default for info in cls.INFOS}
        for name in declared:
            delattr(cls, name)

    def __init__(self, **values: Value) -> None:
        if unknown := values.keys() - self._defaults.keys():
            raise TypeError(f"{type(self).__name__} has no settings {sorted(unknown)}")
        self.__dict__.update(self._defaults)
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Value) -> NoReturn:
        raise AttributeError(
            f"{name} cannot be set: a configuration never changes after its creation; create another configuration with the "
            "new value"
        )

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**self.__dict__, **changes})


def parse_value(info: KeyInfo, text: str, origin: str) -> Value:
    """Convert the text of a configuration key to its value. Raises ConfigError for an invalid value; the error contains
    `origin`, the location of the text.

    As in Pulsar's files, an empty text means "not set": the default of a number or flag, None for an optional key,
    otherwise an empty string or list.
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
        case ValueType.STR if not info.choices or "" in info.choices:
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
