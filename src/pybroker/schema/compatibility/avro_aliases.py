"""Names of the writer's types and fields according to the reader's aliases.

Schemas are not rewritten: the comparison looks up each name of the writer here.
"""

from __future__ import annotations

from pybroker.schema.avro import AvroType, all_types


class ReaderAliases:
    """Aliases of one reader's schema, applied to one writer's schema."""

    def __init__(self, reader: AvroType | None) -> None:
        """Collect the aliases of a reader; None if no aliases apply."""
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
        """Return the writer's fields in order, by the reader's names."""
        renamed = self._fields.get(self.full_name(writer))
        if not renamed:
            return [avro_field.name for avro_field in writer.fields]
        return [renamed.get(avro_field.name, avro_field.name) for avro_field in writer.fields]

    def problem_with(self, writer: AvroType) -> str | None:
        """Return why the aliases cannot be applied to a writer: two of its names would become equal."""
        if not self._types and not self._fields:
            return None
        for avro_type in all_types(writer):
            if avro_type.kind == "record":
                twice = _first_repeated(self.field_names(avro_type))
                if twice:
                    return f"aliases give two fields of the writer's record {avro_type.name} the name {twice!r}"
            elif avro_type.kind == "union":
                twice = _first_repeated([self.full_name(branch) for branch in avro_type.children if branch.name])
                if twice:
                    return f"aliases give two branches of a union of the writer the name {twice!r}"
        return None


def _first_repeated(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
