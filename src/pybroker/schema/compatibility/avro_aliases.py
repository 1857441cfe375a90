"""The names that a reader's aliases give to the writer's types and fields.

Nothing is rewritten: whoever compares asks here what a type or a field of the writer is called in the reader's words.
"""

from __future__ import annotations

from pybroker.schema.avro import AvroType, all_types


class ReaderAliases:
    """Aliases of one reader's schema, applied to one writer's schema."""

    def __init__(self, reader: AvroType | None) -> None:
        """Collect the aliases of a reader; None for a reader whose aliases play no part."""
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
        """The writer's fields in their order, by the reader's names."""
        renamed = self._fields.get(self.full_name(writer))
        if not renamed:
            return [avro_field.name for avro_field in writer.fields]
        return [renamed.get(avro_field.name, avro_field.name) for avro_field in writer.fields]

    def problem_with(self, writer: AvroType) -> str | None:
        """Why the aliases cannot be applied to a writer: two of its names would become one."""
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
