"""Parser of Avro schemas: from JSON to a graph of types, with the checks of Avro's Java library.

No library is used, because hostile definitions need bounded time and stack, and because Pulsar accepts invalid field
defaults until a reader needs them.

Invariants of a parsed type: every reference is resolved, so the graph may have cycles. A union contains no union, and
no two branches of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pybroker.schema.json_text import JsonValue, canonical_json, parse_json
from pybroker.schema.schema_data import InvalidSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
_ORDERS = frozenset({"ascending", "descending", "ignore"})
_MAX_FIXED_BYTES = 2**31 - 1
MAX_NAME_LENGTH = 1024
"""Limit of a name with its namespace, because each reference may repeat it."""
_PLACE_HEAD = 80
_PLACE_TAIL = 120
"""Maximum length of a location in error texts."""
# Keys that Avro defines. All other keys are properties, which are part of the schema.
_TYPE_KEYS = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "items", "values", "size", "symbols"},
)
_FIELD_KEYS = frozenset({"name", "type", "doc", "default", "order", "aliases"})


class NoDefault:
    """Marks a field without a default, as opposed to a null default."""


NO_DEFAULT = NoDefault()


@dataclass(eq=False, slots=True)
class AvroField:
    """A record field. Its type is in the record's `children` at the same index."""

    name: str
    default: JsonValue | NoDefault
    order: str
    aliases: tuple[str, ...]
    properties: str


@dataclass(eq=False, slots=True)
class AvroType:
    """An Avro type. Compared by identity: all references to a named type share one object."""

    kind: str
    name: str = ""
    children: list[AvroType] = field(default_factory=list)  # items, values, branches, or the types of the fields
    fields: tuple[AvroField, ...] = ()
    symbols: dict[str, None] = field(default_factory=dict)  # in order
    enum_default: str | None = None  # replaces symbols unknown to a reader
    size_bytes: int = 0
    aliases: tuple[str, ...] = ()
    properties: str = ""

    @property
    def simple_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        """Return the display name: `int`, `record R`, `union of null, int`."""
        if self.kind == "union":
            return (
                "union of " + ", ".join(str(branch) for branch in self.children[:8]) if self.children else "empty union"
            )
        return f"{self.kind} {self.name}" if self.kind in NAMED else self.kind


def parse_avro(data: bytes) -> AvroType:
    """Parse an Avro schema definition. Raises InvalidSchema with the location of the first error."""
    parser = _Parser()
    root: list[AvroType] = []
    parser.attach(root, parse_json(data), "", "schema")
    parser.finish()
    return root[0]


def all_types(root: AvroType) -> Iterator[AvroType]:
    seen = {id(root)}
    waiting = [root]
    while waiting:
        avro_type = waiting.pop()
        yield avro_type
        for child in avro_type.children:
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


class _Parser:
    """State of one parse. Each method appends its result to the list passed to it. `where` is the location for errors."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        # References to later definitions: the list and index to fill, namespace, name, location.
        self._open_references: list[tuple[list[AvroType], int, str, str, str]] = []
        self._unions: list[tuple[AvroType, str]] = []

    def attach(self, into: list[AvroType], value: JsonValue, namespace: str, where: str) -> None:
        if isinstance(value, str):
            self._attach_named(into, value, namespace, where)
        elif isinstance(value, list):
            self._attach_union(into, value, namespace, where)
        elif isinstance(value, dict):
            self._attach_object(into, value, namespace, where)
        else:
            raise InvalidSchema(
                f"{where}: the type {canonical_json(value)[:40]} is invalid: a type must be a string, an array "
                "or an object"
            )

    def finish(self) -> None:
        for into, index, namespace, name, where in self._open_references:
            full_name = _in_namespace(name, namespace)
            if full_name not in self._named:
                raise InvalidSchema(f"{where}: unknown type {full_name!r}")
            into[index] = self._named[full_name]
        for union, where in self._unions:
            seen: set[str] = set()
            for branch in union.children:
                key = branch.name or branch.kind
                if key in seen:
                    raise InvalidSchema(f"{where}: the type {branch} occurs twice in the union")
                seen.add(key)

    def _attach_named(self, into: list[AvroType], name: str, namespace: str, where: str, properties: str = "") -> None:
        if name in PRIMITIVES:
            into.append(AvroType(name, properties=properties))
            return
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidSchema(f"{where}: the name has {len(name)} characters; the maximum is {MAX_NAME_LENGTH}")
        known = self._named.get(_in_namespace(name, namespace)) or self._named.get(name)
        if known is None:
            self._open_references.append((into, len(into), namespace, name, where))
        into.append(known or AvroType("unresolved"))

    def _attach_union(self, into: list[AvroType], value: list[JsonValue], namespace: str, where: str) -> None:
        union = AvroType("union")
        into.append(union)
        self._unions.append((union, where))
        for index, branch in enumerate(value):
            if isinstance(branch, list):
                raise InvalidSchema(f"{where}: a union contains another union directly")
            self.attach(union.children, branch, namespace, _place(f"{where}|{index}"))

    def _attach_object(self, into: list[AvroType], value: dict[str, JsonValue], namespace: str, where: str) -> None:
        kind = value.get("type")
        if not isinstance(kind, str):
            raise InvalidSchema(f"{where}: the value of `type` is not a string")
        properties = _properties(value, _TYPE_KEYS)
        if kind in {"array", "map"}:
            key, mark = ("items", "[]") if kind == "array" else ("values", "{}")
            if key not in value:
                raise InvalidSchema(f"{where}: the {kind} has no `{key}`")
            container = AvroType(kind, properties=properties)
            into.append(container)
            self.attach(container.children, value[key], namespace, _place(where + mark))
        elif kind in {"record", "error", "enum", "fixed"}:
            into.append(self._define(kind.replace("error", "record"), value, namespace, where))
        else:
            self._attach_named(into, kind, namespace, where, properties)

    def _define(self, kind: str, value: dict[str, JsonValue], namespace: str, where: str) -> AvroType:
        name = _full_name(value, namespace, where)
        inner_namespace = name.rpartition(".")[0]
        avro_type = AvroType(
            kind,
            name,
            aliases=_aliases(value, inner_namespace, where),
            # In an enum, `default` is defined by Avro. In a record, it is a property.
            properties=_properties(value, _TYPE_KEYS | {"default"} if kind == "enum" else _TYPE_KEYS),
        )
        if kind == "enum":
            avro_type.symbols = _symbols(value, where)
            default = value.get("default")
            avro_type.enum_default = default if isinstance(default, str) else None
        elif kind == "fixed":
            avro_type.size_bytes = _size_bytes(value, where)
        known = self._named.setdefault(name, avro_type)
        if known is not avro_type:
            # Some writers repeat a definition instead of its name.
            if kind == "record" or canonical_text(known) != canonical_text(avro_type):
                raise InvalidSchema(f"{where}: {name!r} is defined twice")
            return known
        if kind == "record":
            self._read_fields(avro_type, value, inner_namespace, where)
        return avro_type

    def _read_fields(self, record: AvroType, value: dict[str, JsonValue], namespace: str, where: str) -> None:
        entries = value.get("fields")
        if not isinstance(entries, list):
            raise InvalidSchema(f"{where}: record {record.name} has no `fields` array")
        fields: dict[str, AvroField] = {}
        for entry in entries:
            if not isinstance(entry, dict):
                raise InvalidSchema(f"{where}: a field of record {record.name} is not an object")
            name = entry.get("name")
            if not isinstance(name, str) or not _is_name(name):
                raise InvalidSchema(f"{where}: illegal field name {canonical_json(name)[:60]} in record {record.name}")
            place = _place(f"{where}.{name}")
            if name in fields:
                raise InvalidSchema(f"{place}: the field is defined twice")
            if "type" not in entry:
                raise InvalidSchema(f"{place}: the field has no `type`")
            fields[name] = AvroField(
                name,
                entry.get("default", NO_DEFAULT),
                _order(entry, place),
                _alias_list(entry, place),
                _properties(entry, _FIELD_KEYS),
            )
            self.attach(record.children, entry["type"], namespace, place)
        record.fields = tuple(fields.values())


def _place(where: str) -> str:
    return where if len(where) <= _PLACE_HEAD + _PLACE_TAIL else f"{where[:_PLACE_HEAD]}...{where[-_PLACE_TAIL:]}"


def _in_namespace(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _properties(value: dict[str, JsonValue], reserved: frozenset[str]) -> str:
    properties = {key: item for key, item in value.items() if key not in reserved}
    return canonical_json(properties) if properties else ""


def _is_name(text: str) -> bool:
    """Return whether the text is a name for Avro's Java library: letters of any script, digits, `_`, and `$` as in
    generated class names.
    """
    if not text or not (text[0].isalpha() or text[0] in "_$"):
        return False
    return all(character.isalnum() or character in "_$" for character in text)


def _full_name(value: dict[str, JsonValue], namespace: str, where: str) -> str:
    name = value.get("name")
    if not isinstance(name, str):
        raise InvalidSchema(f"{where}: the {value['type']} has no `name`")
    own_namespace = value.get("namespace")
    if "." not in name:
        space = own_namespace if isinstance(own_namespace, str) else namespace
    else:
        space, _, name = name.rpartition(".")
    return _checked_name(name, space, where)


def _checked_name(name: str, space: str, where: str) -> str:
    full_name = f"{space}.{name}" if space else name
    if len(full_name) > MAX_NAME_LENGTH:
        raise InvalidSchema(f"{where}: the name has {len(full_name)} characters; the maximum is {MAX_NAME_LENGTH}")
    if not all(_is_name(part) for part in full_name.split(".")):
        raise InvalidSchema(f"{where}: illegal name {full_name[:80]!r}")
    if full_name in PRIMITIVES:
        raise InvalidSchema(f"{where}: {name!r} is the name of a primitive type")
    return full_name


def _aliases(value: dict[str, JsonValue], namespace: str, where: str) -> tuple[str, ...]:
    names = []
    for alias in _alias_list(value, where):
        space, _, simple = alias.rpartition(".")
        names.append(_checked_name(simple, space if "." in alias else namespace, where))
    return tuple(names)


def _alias_list(value: dict[str, JsonValue], where: str) -> tuple[str, ...]:
    if "aliases" not in value:
        return ()
    aliases = value["aliases"]
    if not isinstance(aliases, list):
        raise InvalidSchema(f"{where}: `aliases` is not an array")
    names = [alias for alias in aliases if isinstance(alias, str)]
    if len(names) != len(aliases):
        raise InvalidSchema(f"{where}: a value in `aliases` is not a string")
    return tuple(names)


def _symbols(value: dict[str, JsonValue], where: str) -> dict[str, None]:
    symbols = value.get("symbols")
    if not isinstance(symbols, list):
        raise InvalidSchema(f"{where}: the enum has no `symbols` array")
    seen: dict[str, None] = {}
    for symbol in symbols:
        if not isinstance(symbol, str) or not _is_name(symbol):
            raise InvalidSchema(f"{where}: illegal enum symbol {canonical_json(symbol)[:60]}")
        if symbol in seen:
            raise InvalidSchema(f"{where}: enum symbol {symbol!r} occurs twice")
        seen[symbol] = None
    default = value.get("default")
    if isinstance(default, str) and default not in seen:
        raise InvalidSchema(f"{where}: the enum's default {default!r} is not one of its symbols")
    return seen


def _size_bytes(value: dict[str, JsonValue], where: str) -> int:
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_FIXED_BYTES:
        raise InvalidSchema(f"{where}: the size of a fixed type must be an integer from 0 to {_MAX_FIXED_BYTES}")
    return size


def _order(entry: dict[str, JsonValue], where: str) -> str:
    order = entry.get("order", "ascending")
    if not isinstance(order, str) or order.lower() not in _ORDERS:
        raise InvalidSchema(f"{where}: `order` must be one of {', '.join(sorted(_ORDERS))}")
    return order.lower()


def canonical_text(root: AvroType) -> str:
    """Return a text that is equal for definitions that Avro considers equal.

    It includes names, types, ordered fields with default and sort order, symbols, sizes and properties (also logical
    types). It excludes documentation, aliases, enum defaults and JSON formatting.
    """
    parts: list[str] = []
    written: dict[int, int] = {}
    waiting: list[AvroType | str] = [root]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        number = written.get(id(item))
        if number is not None:
            parts.append(f"({item.kind} #{number})")
            continue
        parts.append(f"({item.kind} {item.name}{item.properties}")
        waiting.append(")")
        if item.kind in NAMED:
            written[id(item)] = len(written)
        if item.kind == "enum":
            parts.append(" " + " ".join(item.symbols))
        elif item.kind == "fixed":
            parts.append(f" {item.size_bytes}")
        for index in range(len(item.children) - 1, -1, -1):
            waiting.append(item.children[index])
            if item.fields:
                waiting.append(_canonical_field(item.fields[index]))
    return "".join(parts)


def _canonical_field(avro_field: AvroField) -> str:
    default = "" if isinstance(avro_field.default, NoDefault) else "=" + canonical_json(avro_field.default)
    return f" {avro_field.name} {avro_field.order}{avro_field.properties}{default}:"
