"""The compatibility strategies of schemas, and which new schemas they accept. Pure; start with `check`.

| Strategy | The new schema must | compared with |
|---|---|---|
| ALWAYS_COMPATIBLE | - | nothing |
| ALWAYS_INCOMPATIBLE | be the newest one | the newest |
| BACKWARD | read what the older one wrote | the newest |
| FORWARD | be readable with the older one | the newest |
| FULL | do both | the newest |
| ..._TRANSITIVE | the same | all |

The rules apply to definitions of AVRO and JSON. PROTOBUF_NATIVE must keep the name of its root message, and the two
sides of KEY_VALUE are compared separately. For all other types only the type is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from pybroker.schema.avro import AvroType, parse_avro
from pybroker.schema.compatibility.avro_resolution import Problem, find_problem
from pybroker.schema.key_value import KeyValueSchema, split_key_value
from pybroker.schema.protobuf_native import root_message_name
from pybroker.schema.schema_data import Incompatible, InvalidSchema, SchemaData, SchemaType


class CompatibilityStrategy(StrEnum):
    """The required relation of a new schema to the existing ones."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self in _TRANSITIVE

    @property
    def new_reads_existing(self) -> bool:
        return self in _NEW_READS

    @property
    def existing_reads_new(self) -> bool:
        return self in _EXISTING_READS


_TRANSITIVE = frozenset(strategy for strategy in CompatibilityStrategy if strategy.value.endswith("_TRANSITIVE"))
_NEW_READS = frozenset(
    strategy for strategy in CompatibilityStrategy if strategy.value.startswith(("BACKWARD", "FULL"))
)
_EXISTING_READS = frozenset(
    strategy for strategy in CompatibilityStrategy if strategy.value.startswith(("FORWARD", "FULL"))
)


def check(strategy: CompatibilityStrategy, existing: Sequence[SchemaData], new: SchemaData) -> None:
    """Raise Incompatible, with the reason, unless the strategy accepts `new` after the versions `existing` (oldest
    first). `new` must have passed `validate`; otherwise this raises InvalidSchema.
    """
    if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE or not existing:
        return
    if strategy.is_transitive:
        compared = existing
    else:
        compared = existing[-1:]
        # Identical bytes are not a new schema, even if the KEY_VALUE properties name another type.
        if (compared[0].type, compared[0].data) == (new.type, new.data):
            return
    for older in reversed(compared):
        if older.type is not new.type:
            raise Incompatible(_type_change("schema type", older, new, strategy))
    _check_definitions(strategy, compared, new, "")


def _check_definitions(
    strategy: CompatibilityStrategy, existing: Sequence[SchemaData], new: SchemaData, side: str
) -> None:
    """Compare definitions of the same type. `side` prefixes the error text for one side of a KEY_VALUE schema."""
    if new.type is SchemaType.EXTERNAL:
        return  # the definition is outside the broker
    if new.type is SchemaType.KEY_VALUE:
        _check_key_value(strategy, existing, new, side)
    elif strategy is CompatibilityStrategy.ALWAYS_INCOMPATIBLE:
        raise Incompatible(
            f"{side}the strategy {strategy} permits no schema that differs from the topic's existing schema"
        )
    elif new.type in {SchemaType.AVRO, SchemaType.JSON}:
        _check_avro(strategy, existing, new, side)
    elif new.type is SchemaType.PROTOBUF_NATIVE:
        _check_root_message(strategy, existing, new, side)


def _check_key_value(
    strategy: CompatibilityStrategy, existing: Sequence[SchemaData], new: SchemaData, side: str
) -> None:
    sides = split_key_value(new)
    older_sides = [_existing_sides(older) for older in existing]
    for older in reversed(older_sides):
        for name, before, after in (("key", older.key, sides.key), ("value", older.value, sides.value)):
            if before.type is not after.type:
                raise Incompatible(_type_change(f"{side}{name}: schema type", before, after, strategy))
    _check_definitions(strategy, [older.key for older in older_sides], sides.key, f"{side}key: ")
    _check_definitions(strategy, [older.value for older in older_sides], sides.value, f"{side}value: ")


def _check_avro(strategy: CompatibilityStrategy, existing: Sequence[SchemaData], new: SchemaData, side: str) -> None:
    new_type = parse_avro(new.data)
    for number in range(len(existing), 0, -1):
        for problem, new_reads in _avro_problems(strategy, _existing_type(existing[number - 1]), new_type):
            rule = f"{strategy}, schema {number} of {len(existing)}" if strategy.is_transitive else strategy.value
            raise Incompatible(side + _text_of(problem, rule, new_reads=new_reads))


def _avro_problems(
    strategy: CompatibilityStrategy, existing: AvroType, new: AvroType
) -> Iterator[tuple[Problem, bool]]:
    """Yield each problem between two types, and whether the new type is the reader."""
    if strategy.new_reads_existing:
        problem = find_problem(reader=new, writer=existing)
        if problem is not None:
            yield problem, True
    if strategy.existing_reads_new:
        problem = find_problem(reader=existing, writer=new)
        if problem is not None:
            yield problem, False


def _check_root_message(
    strategy: CompatibilityStrategy, existing: Sequence[SchemaData], new: SchemaData, side: str
) -> None:
    name = root_message_name(new.data)
    for older in reversed(existing):
        try:
            older_name = root_message_name(older.data)
        except InvalidSchema as error:
            raise Incompatible(_unreadable(error)) from error
        if older_name != name:
            raise Incompatible(
                f"{side}the name of the root message was changed from {older_name} to {name}, which {strategy} "
                "does not allow"
            )


def _existing_type(schema: SchemaData) -> AvroType:
    try:
        return parse_avro(schema.data)
    except InvalidSchema as error:
        raise Incompatible(_unreadable(error)) from error


def _existing_sides(schema: SchemaData) -> KeyValueSchema:
    try:
        return split_key_value(schema)
    except InvalidSchema as error:
        raise Incompatible(_unreadable(error)) from error


def _unreadable(error: InvalidSchema) -> str:
    return f"the existing schema cannot be read: {error}"


def _type_change(what: str, existing: SchemaData, new: SchemaData, strategy: CompatibilityStrategy) -> str:
    allowed = CompatibilityStrategy.ALWAYS_COMPATIBLE
    return f"{what}: existing {existing.type.name}, new {new.type.name}: the change needs the strategy {allowed} ({strategy})"


def _text_of(problem: Problem, rule: str, *, new_reads: bool) -> str:
    place = f'field "{problem.path}"' if problem.path else "schema"
    reader, writer = ("new", "existing") if new_reads else ("existing", "new")
    return f"{place}: reader ({reader}) {problem.reader}, writer ({writer}) {problem.writer}: {problem.rule} ({rule})"
