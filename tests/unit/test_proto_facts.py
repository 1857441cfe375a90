"""The generated protobuf module states exactly the facts of the wire: no field, number, type or default differs."""

from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from pybroker.wire import pulsar_api_pb2

FACTS = Path(__file__).parent / "data" / "protocol_facts.txt"
PACKAGE = "pulsar.proto."
SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def field_fact(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        kind = field.message_type.full_name.removeprefix(PACKAGE)
    elif field.enum_type is not None:
        kind = field.enum_type.full_name.removeprefix(PACKAGE)
    else:
        kind = SCALARS[field.type]
    label = "rep" if field.is_repeated else "req" if field.is_required else "opt"
    fact = f"{field.full_name.removeprefix(PACKAGE)} {field.number} {label} {kind}"
    if field.has_default_value:
        default = field.default_value
        if field.enum_type is not None:
            default = field.enum_type.values_by_number[default].name
        fact += f" = {str(default).lower() if isinstance(default, bool) else default}"
    return fact


def enum_fact(enum: EnumDescriptor) -> str:
    values = " ".join(f"{value.name}={value.number}" for value in enum.values)
    return f"{enum.full_name.removeprefix(PACKAGE)} {values}"


def message_facts(message: Descriptor) -> list[str]:
    facts = [field_fact(field) for field in message.fields] or [f"{message.name} (empty)"]
    return facts + [enum_fact(enum) for enum in message.enum_types]


def test_the_generated_module_states_the_facts_and_nothing_else() -> None:
    file = pulsar_api_pb2.DESCRIPTOR
    generated = [enum_fact(enum) for enum in file.enum_types_by_name.values()]
    for message in file.message_types_by_name.values():
        assert not message.nested_types, "the facts know no nested messages"
        generated += message_facts(message)

    facts = [line for line in FACTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(facts) == len(set(facts)) > 400
    assert sorted(generated) == sorted(facts)


def test_every_command_type_has_the_field_of_its_number() -> None:
    fields = pulsar_api_pb2.BaseCommand.DESCRIPTOR.fields_by_number
    types = pulsar_api_pb2.BaseCommand.DESCRIPTOR.enum_types_by_name["Type"].values_by_number
    # The number of the `type` field itself is 1, which no command uses.
    assert set(types) == set(fields) - {1}
