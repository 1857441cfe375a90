"""Avro schema resolution: whether a reader's schema can read data written with another schema.

The rules are the same as in Avro's Java library, on which clients rely, even where the specification is stricter:

* Records match under any name; in a reader's union the same full name is preferred, then the same structure.
* Names of enums and fixed types must be equal without their namespaces.
* An enum of the reader may lack symbols of the writer; reading such a value then fails.
* Logical types are ignored. A default is checked only if it is needed.

Each pair of records is compared once, so self-referential schemas terminate. The number of steps is limited; above the
limit the pair counts as unreadable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pybroker.schema.avro import NAMED, AvroField, AvroType, NoDefault, all_types, canonical_text
from pybroker.schema.compatibility.avro_default import DefaultCheck

_MAX_STEPS = 200_000
_MAX_MATCHING_DEPTH = 50

# For each reader type, the other writer types that it can read.
_PROMOTIONS: dict[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why reading fails, with the first location at which it fails."""

    path: str  # fields joined by dots, `[]` items, `{}` map values, empty for the root
    reader: str
    writer: str
    rule: str


class _TooComplex(Exception):
    """The comparison exceeds its limit of steps or nesting."""


def find_problem(reader: AvroType, writer: AvroType) -> Problem | None:
    """Return why a consumer with the schema `reader` cannot read all data of the schema `writer`; None if it can."""
    try:
        return _Resolution(reader, writer).find_problem()
    except _TooComplex as error:
        return Problem("", str(reader), str(writer), str(error))


class _Resolution:
    """One comparison. Pairs are compared breadth first, so that the first problem is the least nested."""

    def __init__(self, reader: AvroType, writer: AvroType) -> None:
        self._reader = reader
        self._writer = writer
        # Without a change of the schema, its aliases must not rename its own fields.
        self._aliases = _ReaderAliases(None if canonical_text(reader) == canonical_text(writer) else reader)
        self._defaults = DefaultCheck()
        self._waiting: deque[tuple[AvroType, AvroType, str]] = deque()
        self._compared: set[tuple[int, int]] = set()
        self._matching: dict[tuple[int, int], bool] = {}
        self._steps = 0

    def find_problem(self) -> Problem | None:
        renaming = self._aliases.problem_with(self._writer)
        if renaming:
            return Problem("", str(self._reader), str(self._writer), renaming)
        self._waiting.append((self._reader, self._writer, ""))
        while self._waiting:
            reader, writer, path = self._waiting.popleft()
            self._spend(1)
            problem = self._compare(reader, writer, path)
            if problem is not None:
                return problem
        return None

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise _TooComplex(f"the schemas are too complex: their comparison takes more than {_MAX_STEPS} steps")

    def _compare(self, reader: AvroType, writer: AvroType, path: str) -> Problem | None:
        if writer.kind == "union":
            self._queue_branches(reader, writer, path)
            return None
        rule = self._own_problem(reader, writer)
        if rule is not None:
            return Problem(path, str(reader), str(writer), rule)
        if reader.kind == "union":
            branch = self._matching_branch(reader, writer, 0)
            assert branch is not None, "a pair without a problem has a branch"
            self._waiting.append((branch, writer, path))
        elif reader.kind == "record":
            return self._compare_fields(reader, writer, path)
        elif reader.kind in {"array", "map"}:
            mark = "[]" if reader.kind == "array" else "{}"
            self._waiting.append((reader.children[0], writer.children[0], path + mark))
        return None

    def _queue_branches(self, reader: AvroType, writer: AvroType, path: str) -> None:
        """Queue the branches of a writer's union, which must all be readable. Unions of equal structure are compared
        branch by branch.
        """
        if self._same_structure(reader, writer):
            pairs = zip(reader.children, writer.children, strict=True)
            self._waiting.extend((reader_branch, branch, path) for reader_branch, branch in pairs)
        else:
            self._waiting.extend((reader, branch, path) for branch in writer.children)

    def _compare_fields(self, reader: AvroType, writer: AvroType, path: str) -> Problem | None:
        key = (id(reader), id(writer))
        if key in self._compared:
            return None
        self._compared.add(key)
        self._spend(len(reader.fields) + len(writer.fields))
        written = self._written_types(writer)
        for avro_field, avro_type in zip(reader.fields, reader.children, strict=True):
            place = f"{path}.{avro_field.name}" if path else avro_field.name
            if avro_field.name in written:
                self._waiting.append((avro_type, written[avro_field.name], place))
                continue
            problem = self._defaults.problem_of_field(avro_field, avro_type)
            if problem is not None:
                has_none = isinstance(avro_field.default, NoDefault)
                rule = "the reader's field has no default" if has_none else problem
                return Problem(place, str(avro_type), "without the field", rule)
        return None

    def _written_types(self, writer: AvroType) -> dict[str, AvroType]:
        """Return the types of a writer's fields, by the names that the reader's aliases give them."""
        return dict(zip(self._aliases.field_names(writer), writer.children, strict=True))

    def _own_problem(self, reader: AvroType, writer: AvroType, depth: int = 0) -> str | None:
        if writer.kind == "union":
            return None
        if writer.kind == reader.kind:
            if writer.kind in {"enum", "fixed"} and self._aliases.simple_name(writer) != reader.simple_name:
                return f"the names of the {writer.kind} types differ"
            if writer.size_bytes != reader.size_bytes:
                return f"the sizes differ: {reader.size_bytes} and {writer.size_bytes} bytes"
            return None
        if reader.kind == "union":
            found = self._matching_branch(reader, writer, depth) is not None
            return None if found else f"no branch of the reader's union accepts {writer}"
        if reader.kind in _PROMOTIONS.get(writer.kind, ()):
            return None
        return f"no promotion from {writer.kind} to {reader.kind}"

    def _matching_branch(self, union: AvroType, writer: AvroType, depth: int) -> AvroType | None:
        self._spend(len(union.children))
        by_structure: AvroType | None = None
        for branch in union.children:
            if branch.kind != writer.kind:
                continue
            if branch.kind not in NAMED or branch.name == self._aliases.full_name(writer):
                return branch
            if branch.kind == "record" and self._records_match(branch, writer, depth):
                same_name = branch.simple_name == self._aliases.simple_name(writer)
                by_structure = branch if by_structure is None or same_name else by_structure
        if by_structure is not None:
            return by_structure
        promotions = _PROMOTIONS.get(writer.kind, ())
        return next((branch for branch in union.children if branch.kind in promotions), None)

    def _records_match(self, reader: AvroType, writer: AvroType, depth: int) -> bool:
        """Return whether no field is missing and the field types match. Deeper levels do not affect the choice of a
        branch.
        """
        if depth > _MAX_MATCHING_DEPTH:
            raise _TooComplex(
                f"the schemas are too complex: records in unions are nested deeper than {_MAX_MATCHING_DEPTH} levels"
            )
        key = (id(reader), id(writer))
        if key not in self._matching:
            self._matching[key] = True  # assumed by nested requests for the same pair
            self._spend(len(reader.fields) + len(writer.fields))
            written = self._written_types(writer)
            self._matching[key] = all(
                self._field_matches(avro_field, avro_type, written, depth)
                for avro_field, avro_type in zip(reader.fields, reader.children, strict=True)
            )
        return self._matching[key]

    def _field_matches(self, avro_field: AvroField, reader: AvroType, written: dict[str, AvroType], depth: int) -> bool:
        writer = written.get(avro_field.name)
        if writer is None:
            return not isinstance(avro_field.default, NoDefault)
        if reader.kind == writer.kind == "record":
            return self._has_all_fields(reader, writer)
        return self._own_problem(reader, writer, depth + 1) is None

    def _has_all_fields(self, reader: AvroType, writer: AvroType) -> bool:
        self._spend(len(reader.fields) + len(writer.fields))
        names = set(self._aliases.field_names(writer))
        return all(field.name in names or not isinstance(field.default, NoDefault) for field in reader.fields)

    def _same_structure(self, reader: AvroType, writer: AvroType) -> bool:
        """Compare without namespaces, defaults and properties."""
        waiting = [(reader, writer)]
        seen: set[tuple[int, int]] = set()
        while waiting:
            one, other = waiting.pop()
            self._spend(1 + len(one.symbols) + len(one.children))
            if one.kind != other.kind or len(one.children) != len(other.children):
                return False
            if one.kind in NAMED:
                if (id(one), id(other)) in seen:
                    continue
                seen.add((id(one), id(other)))
                if not self._same_named(one, other):
                    return False
            waiting.extend(zip(one.children, other.children, strict=True))
        return True

    def _same_named(self, reader: AvroType, writer: AvroType) -> bool:
        return (
            reader.simple_name == self._aliases.simple_name(writer)
            and reader.size_bytes == writer.size_bytes
            and tuple(reader.symbols) == tuple(writer.symbols)
            and [avro_field.name for avro_field in reader.fields] == self._aliases.field_names(writer)
        )


class _ReaderAliases:
    """The reader's aliases, applied to names of the writer's types and fields. Schemas are not changed."""

    def __init__(self, reader: AvroType | None) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        for avro_type in all_types(reader) if reader is not None else ():
            for alias in avro_type.aliases:
                self._types[alias] = avro_type.name
            for avro_field in avro_type.fields:
                for alias in avro_field.aliases:
                    self._fields.setdefault(avro_type.name, {})[alias] = avro_field.name

    def full_name(self, writer: AvroType) -> str:
        return self._types.get(writer.name, writer.name)

    def simple_name(self, writer: AvroType) -> str:
        return self.full_name(writer).rpartition(".")[2]

    def field_names(self, writer: AvroType) -> list[str]:
        """Return the names of the writer's fields in order, after the reader's aliases."""
        renamed = self._fields.get(self.full_name(writer))
        if not renamed:
            return [avro_field.name for avro_field in writer.fields]
        return [renamed.get(avro_field.name, avro_field.name) for avro_field in writer.fields]

    def problem_with(self, writer: AvroType) -> str | None:
        """Return the reason why the reader's aliases cannot be applied to `writer`; None if they can: no two of its
        names become equal.
        """
        if not self._types and not self._fields:
            return None
        for avro_type in all_types(writer):
            if avro_type.kind == "record":
                twice = _first_repeated(self.field_names(avro_type))
                if twice:
                    return f"aliases rename two fields of the writer's record {avro_type.name} to {twice!r}"
            elif avro_type.kind == "union":
                twice = _first_repeated([self.full_name(branch) for branch in avro_type.children if branch.name])
                if twice:
                    return f"aliases rename two branches of a writer's union to {twice!r}"
        return None


def _first_repeated(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
