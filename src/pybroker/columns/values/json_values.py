"""Conversion of single JSON values to column values, for defaults and for rows that Arrow's JSON reader rejects.

As lenient as Jackson in the Java client: accepts numbers as text, whole numbers with a decimal point, and numbers and
booleans as strings. Bytes are base64; dates and timestamps are the numbers of their Avro type, or ISO texts. Absent
fields are null; unknown fields are skipped.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from pybroker.columns.values.avro_columns import AvroColumns, Logical, logical_of, unit_of
from pybroker.schema.avro import AvroType

Convert: TypeAlias = Callable[[Any], Any]

MAX_NUMBER_TEXT = 400
"""Maximum characters of a number in a text, because Python's conversion takes quadratic time."""
_SHOWN = 40


class Unfit(ValueError):
    """A JSON value does not fit its column."""


def value_from_json(avro_type: AvroType, value: Any, *, is_default: bool = False) -> Any:
    """Convert a JSON value to the column value of an Avro type. Raises Unfit if the value does not have this type.
    `is_default`: the value is a default in a schema, in which a text represents bytes by its characters (ISO 8859-1),
    not by base64.
    """
    return converter(avro_type, AvroColumns(), is_default=is_default)(value)


def converter(avro_type: AvroType, columns: AvroColumns, *, is_default: bool = False) -> Convert:
    """Return a function that converts a JSON value of an Avro type to a value for Arrow, or raises Unfit. Call
    `AvroColumns.type_of` first: it checks the type.
    """
    kind = avro_type.kind
    if kind == "record":
        return _record(avro_type, columns, is_default)
    if kind == "array":
        return _array(converter(avro_type.children[0], columns, is_default=is_default))
    if kind == "map":
        return _map(converter(avro_type.children[0], columns, is_default=is_default))
    if kind == "union":
        return _union(avro_type, columns, is_default)
    return _leaf(avro_type, is_default)


def _leaf(avro_type: AvroType, is_default: bool) -> Convert:
    logical = logical_of(avro_type)
    kind = avro_type.kind
    if logical.name == "decimal":
        return _default_decimal(logical) if is_default else _decimal(logical)
    if logical.name == "date":
        return _date
    if unit_us := unit_of(logical):
        return _timestamp(unit_us)
    if kind in {"bytes", "fixed"} and logical.name != "uuid":
        return _latin if is_default else _base64
    return {
        "null": _null,
        "boolean": _boolean,
        "int": _whole(32),
        "long": _whole(64),
        "float": _float,
        "double": _float,
    }.get(kind, _text)


def _shown(value: Any) -> str:
    return (
        f"{value!r}"[:_SHOWN]
        if isinstance(value, (str, bool, int, float, Decimal))
        else f"of type {type(value).__name__}"
    )


def _null(value: Any) -> None:
    if value is not None:
        raise Unfit(f"the schema requires null, but the JSON value is {_shown(value)}")


def _boolean(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if value in {"true", "false"} if isinstance(value, str) else False:
        return bool(value == "true")
    raise Unfit(f"the JSON value {_shown(value)} is not a boolean")


def _number(value: Any, expected: str) -> Any:
    if isinstance(value, str) and len(value) <= MAX_NUMBER_TEXT:
        text = value.strip()
        try:
            return int(text) if text.lstrip("+-").isdecimal() else Decimal(text)
        except (ValueError, InvalidOperation):
            raise Unfit(f"the JSON value {_shown(value)} is not {expected}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Unfit(f"the JSON value {_shown(value)} is not {expected}")
    return value


def _whole(bits: int) -> Convert:
    expected = "an int" if bits == 32 else "a long"
    largest = 1 << (bits - 1)

    def convert(value: Any) -> int | None:
        if value is None:
            return None
        if type(value) is not int:
            value = _number(value, expected)
            if not isinstance(value, int):
                if not math.isfinite(value) or abs(value) >= 1 << 64 or value != int(value):
                    raise Unfit(f"the JSON value {_shown(value)} is not {expected}")
                value = int(value)
        if not -largest <= value < largest:
            raise Unfit(f"the JSON value {_shown(value)} does not fit into {expected} ({bits} bits)")
        return int(value)

    return convert


def _float(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    try:
        return float(_number(value, "a number"))
    except OverflowError:
        raise Unfit("the number is too large for a double") from None


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, Decimal)):
        return str(value)
    raise Unfit(f"the JSON value {_shown(value)} is not a text")


def _base64(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise Unfit(f"the JSON value {_shown(value)} does not represent bytes")
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise Unfit(f"the JSON value {_shown(value)} is not base64, which is required for bytes") from None


def _latin(value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return str(value).encode("latin-1")
    except UnicodeEncodeError:
        raise Unfit(f"the JSON value {_shown(value)} does not represent bytes") from None


def _decimal(logical: Logical) -> Convert:
    expected = f"a decimal({logical.precision}, {logical.scale})"

    def convert(value: Any) -> Decimal | None:
        if value is None:
            return None
        number = _number(value, expected)
        try:
            exact = Decimal(repr(number) if isinstance(number, float) else number)
        except InvalidOperation:
            raise Unfit(f"the JSON value {_shown(value)} is not {expected}") from None
        _, digits, exponent = exact.normalize().as_tuple() if exact.is_finite() else (0, (), "n")
        if not isinstance(exponent, int) or -exponent > logical.scale:
            raise Unfit(f"the JSON value {_shown(value)} is not {expected}")
        if any(digits) and len(digits) + exponent > logical.precision - logical.scale:
            raise Unfit(f"the JSON value {_shown(value)} is not {expected}")
        return exact

    return convert


def _default_decimal(logical: Logical) -> Convert:
    def convert(value: Any) -> Decimal | None:
        raw = _latin(value)
        if raw is None:
            return None
        unscaled = int.from_bytes(raw[:17], "big", signed=True)
        if len(raw) > 16 or abs(unscaled) >= 10**logical.precision:
            raise Unfit("the default of the schema has too many digits for a decimal")
        return Decimal(unscaled).scaleb(-logical.scale)

    return convert


def _date(value: Any) -> Any:
    if isinstance(value, str) and "-" in value[1:]:
        try:
            return date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
        except ValueError:
            raise Unfit(f"the JSON value {_shown(value)} is not a date") from None
    return _whole(32)(value)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp(unit_us: int) -> Convert:
    whole = _whole(64)

    def convert(value: Any) -> int | None:
        if isinstance(value, str) and "-" in value[1:]:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise Unfit(f"the JSON value {_shown(value)} is not a timestamp") from None
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
            return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        number = whole(value)
        if number is None:
            return None
        micros = int(number) * unit_us
        if not -(1 << 63) <= micros < 1 << 63:
            raise Unfit(f"the timestamp {_shown(value)} does not fit into 64 bits of microseconds")
        return micros

    return convert


def _array(item: Convert) -> Convert:
    def convert(value: Any) -> list[Any] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            raise Unfit(f"the JSON value {_shown(value)} is not an array")
        return [item(each) for each in value]

    return convert


def _map(item: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Unfit(f"the JSON value {_shown(value)} is not a map")
        return [(key, item(each)) for key, each in value.items()]

    return convert


def _record(avro_type: AvroType, columns: AvroColumns, is_default: bool) -> Convert:
    fields = [
        (each.name, converter(child, columns, is_default=is_default))
        for each, child in zip(avro_type.fields, avro_type.children, strict=True)
    ]

    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Unfit(f"the JSON value {_shown(value)} is not a record")
        return {name: field_value(name, item, value) for name, item in fields}

    return convert


def field_value(name: str, convert: Convert, record: dict[str, Any]) -> Any:
    try:
        return convert(record.get(name))
    except Unfit as error:
        raise Unfit(f"{name}: {error}") from None


def _union(union: AvroType, columns: AvroColumns, is_default: bool) -> Convert:
    column = columns.union_of(union)
    converters = [converter(branch, columns, is_default=is_default) for branch in column.branches]
    if not converters:
        return _null
    if len(converters) == 1:
        return converters[0]
    if not column.is_struct:  # int and long, or float and double
        return _float if column.type == "double" else _whole(64)
    kinds = [_JSON_KINDS.get(branch.kind, (str,)) for branch in column.branches]

    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        reasons = []
        # A branch of the same JSON kind precedes branches that need conversion.
        ranked = sorted(range(len(kinds)), key=lambda index: type(value) not in kinds[index])
        for index in ranked:
            try:
                return {f"member{index}": converters[index](value)}
            except Unfit as error:
                reasons.append(str(error))
        raise Unfit(f"the JSON value {_shown(value)} fits no branch of the union ({reasons[0]})")

    return convert


_JSON_KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, Decimal),
    "double": (float, Decimal),
    "record": (dict,),
    "map": (dict,),
    "array": (list,),
}
