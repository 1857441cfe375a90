"""Schema evolution: the changes that a table needs to store rows with other columns.

Pure: from two Arrow schemas, it returns a list of changes or raises EvolutionRefused. A table column that the rows lack
stays, and is null in new rows. Columns are compared by name. A rename must be declared, by an option or an alias in the
Avro schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from pybroker.columns.arrow_types import usual_type

MAX_TYPE_LENGTH = 40
"""Length of a type in a column name. The text of a struct type can be pages long."""


class EvolutionRefused(ValueError):
    """The table cannot store these rows. The text contains each column, the reason, and the possible remedies."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, which is null in all existing rows."""

    field: pa.Field


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A renamed column, which keeps its id and its values."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PromoteColumn:
    """A column with a wider type. Old files keep the narrower type, and readers widen it."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ChangeInside:
    """A struct, list or map whose nested fields change by the same rules as columns."""

    name: str
    type: pa.DataType


Step = AddColumn | RenameColumn | PromoteColumn | ChangeInside


def is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether table formats allow the change of a column from type `old` to `new`: int to long, float to double,
    or a decimal with more digits.
    """
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(new.bit_width > old.bit_width)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and new.precision > old.precision)
    return False


def steps_between(present: pa.Schema, wanted: pa.Schema, renames: dict[str, str]) -> list[Step]:
    """Return the changes with which a table with columns `present` can store rows with columns `wanted`. `renames` maps
    new names to old ones. Raises EvolutionRefused.
    """
    steps: list[Step] = []
    problems: list[str] = []
    old_names = {field.name: field for field in present}
    for field in wanted:
        old = renames.get(field.name)
        if field.name not in old_names and old is not None and old in old_names:
            steps.append(RenameColumn(old, field.name))
            before = old_names[old]
        elif field.name in old_names:
            before = old_names[field.name]
        else:
            steps.append(AddColumn(field.with_nullable(True)))
            continue
        _compare(field.name, before.type, field.type, steps, problems)
    renamed = {step.old for step in steps if isinstance(step, RenameColumn)}
    problems += _same_but_for_case([name for name in [*present.names, *wanted.names] if name not in renamed])
    if problems:
        raise EvolutionRefused(
            "the table cannot store these rows: "
            + "; ".join(dict.fromkeys(problems))
            + ". Write to another table (--table), omit the column (--columns), read values as bytes (--value-mode raw), or "
            "put these values into a new column (--on-incompatible new-column)"
        )
    return steps


def apart(name: str, kind: pa.DataType) -> str:
    """Return the name of an additional column for values of type `kind` that column `name` cannot store, such as
    `count__string`.
    """
    return f"{name}__{re.sub('[^0-9a-zA-Z]+', '_', str(kind)).strip('_')[:MAX_TYPE_LENGTH]}"


def _same_but_for_case(names: list[str]) -> list[str]:
    folded: dict[str, str] = {}
    return [
        f"columns {folded[name.casefold()]!r} and {name!r} differ in case only, which SQL engines cannot distinguish"
        for name in names
        if folded.setdefault(name.casefold(), name) != name
    ]


def _compare(name: str, old: pa.DataType, new: pa.DataType, steps: list[Step], problems: list[str]) -> None:
    if same_type(old, new) or is_widening(new, old):  # narrower values fit into the wider column
        return
    if is_widening(old, new):
        steps.append(PromoteColumn(name, new))
    elif pa.types.is_nested(old) and pa.types.is_nested(new) and old.id == new.id:
        inner: list[str] = []
        if _changes_inside(name, old, new, inner):
            steps.append(ChangeInside(name, new))
        problems.extend(inner)
    else:
        problems.append(f"column {name!r} is {old} and would become {new}, which loses or changes values")


def _changes_inside(path: str, old: pa.DataType, new: pa.DataType, problems: list[str]) -> bool:
    if pa.types.is_struct(old):
        changed = False
        parts = {old.field(i).name: old.field(i) for i in range(old.num_fields)}
        for index in range(new.num_fields):
            part = new.field(index)
            if part.name not in parts:
                changed = True
            else:
                changed |= _part_changes(f"{path}.{part.name}", parts[part.name].type, part.type, problems)
        return changed
    if pa.types.is_map(old):
        if not same_type(old.key_type, new.key_type):
            problems.append(f"the keys of {path!r} are {old.key_type} and would become {new.key_type}")
        return _part_changes(f"{path}.value", old.item_type, new.item_type, problems)
    return _part_changes(f"{path}.element", old.value_type, new.value_type, problems)


def _part_changes(path: str, old: pa.DataType, new: pa.DataType, problems: list[str]) -> bool:
    if same_type(old, new) or is_widening(new, old):
        return False
    if is_widening(old, new):
        return True
    if pa.types.is_nested(old) and old.id == new.id:
        return _changes_inside(path, old, new, problems)
    problems.append(f"{path!r} is {old} and would become {new}, which loses or changes values")
    return False


def same_type(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a table stores both types in the same way. Offset sizes, names of nested fields, and metadata do
    not matter.
    """
    return bool(usual_type(old) == usual_type(new))


def evolved(present: pa.Schema, steps: list[Step]) -> pa.Schema:
    """Return the columns after the changes `steps`, for formats without column ids (Delta, Parquet), in which columns
    keep their names.
    """
    fields = {field.name: field for field in present}
    for step in steps:
        if isinstance(step, AddColumn):
            fields[step.field.name] = step.field
        elif isinstance(step, RenameColumn):
            fields = {
                (step.new if name == step.old else name): (field.with_name(step.new) if name == step.old else field)
                for name, field in fields.items()
            }
        else:
            fields[step.name] = fields[step.name].with_type(step.type)
    return pa.schema(list(fields.values()))
