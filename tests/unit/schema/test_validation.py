"""Requirements of each type on its definition. Hostile definitions are refused in bounded time and stack."""

import base64
import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from pybroker.schema.compatibility import CompatibilityStrategy, check
from pybroker.schema.identity import schema_digest
from pybroker.schema.json_text import MAX_DEFINITION_BYTES, MAX_NESTING
from pybroker.schema.key_value import join_key_value, split_key_value
from pybroker.schema.protobuf_native import root_message_name
from pybroker.schema.schema_data import (
    PRIMITIVE_TYPES,
    Incompatible,
    InvalidSchema,
    SchemaData,
    SchemaType,
    schema_type_named,
)
from pybroker.schema.validation import validate
from pybroker.wire import pulsar_api_pb2 as pb

EMPTY_RECORD = b'{"type":"record","name":"R","fields":[]}'


MANY, LONG = 3_000, "n" * 300_000
LONG_AND_MANY: dict[str, Any] = {
    "property": {
        "type": "record",
        "name": "R",
        "note": LONG,
        "fields": [{"name": f"f{index}", "type": "R"} for index in range(MANY)],
    },
    "place": {
        "type": "record",
        "name": "R",
        "fields": [
            {
                "name": LONG,
                "type": {
                    "type": "record",
                    "name": "S",
                    "fields": [{"name": f"f{index}", "type": f"u{index}"} for index in range(MANY)],
                },
            }
        ],
    },
}


def refusal(schema: SchemaData) -> str:
    with pytest.raises(InvalidSchema) as refused:
        validate(schema)
    return str(refused.value)


def avro(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode())


def test_the_types_have_the_numbers_of_the_protocol() -> None:
    numbers = {name.upper().replace("_", ""): number for name, number in pb.Schema.Type.items()}
    renamed = {"BOOLEAN": "BOOL"}
    ours = {renamed.get(each.name, each.name).replace("_", ""): each.value for each in SchemaType}
    assert ours == numbers


@pytest.mark.parametrize("name", ["AUTO", "AUTO_CONSUME", "AUTO_PUBLISH", "FOO", "avro", ""])
def test_a_name_that_no_stored_schema_has_is_refused(name: str) -> None:
    with pytest.raises(InvalidSchema, match=r"a broker cannot store schemas of type|unknown schema type"):
        schema_type_named(name)


def test_bytes_is_another_name_of_none() -> None:
    assert schema_type_named("BYTES") is SchemaType.NONE
    assert schema_type_named("KEY_VALUE") is SchemaType.KEY_VALUE


@pytest.mark.parametrize("schema_type", sorted(PRIMITIVE_TYPES))
def test_a_primitive_type_has_no_definition(schema_type: SchemaType) -> None:
    validate(SchemaData(schema_type))
    assert "have no definition" in refusal(SchemaData(schema_type, b"x"))


def test_none_and_external_may_define_anything() -> None:
    validate(SchemaData(SchemaType.NONE, b"\xff"))
    validate(SchemaData(SchemaType.EXTERNAL, b"\xff"))


def test_clients_resolve_auto_consume_themselves() -> None:
    assert "a broker cannot store schemas of type" in refusal(SchemaData(SchemaType.AUTO_CONSUME))


def test_a_union_at_the_top_is_refused_for_avro_alone() -> None:
    assert "must not be a union" in refusal(avro(["null", "int"]))
    validate(SchemaData(SchemaType.JSON, b'["null","int"]'))
    validate(SchemaData(SchemaType.PROTOBUF, b'["null","int"]'))


PROPERTIES = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "value.schema.properties": '{"a":"b"}'}


class TestKeyValue:
    def test_both_sides_are_taken_apart(self) -> None:
        schema = SchemaData(SchemaType.KEY_VALUE, join_key_value(b"", EMPTY_RECORD), PROPERTIES)
        validate(schema)
        sides = split_key_value(schema)
        assert sides.key == SchemaData(SchemaType.STRING)
        assert sides.value == SchemaData(SchemaType.AVRO, EMPTY_RECORD, {"a": "b"})

    def test_a_side_without_type_is_plain_bytes_and_one_without_definition_empty(self) -> None:
        sides = split_key_value(SchemaData(SchemaType.KEY_VALUE, b"\xff" * 8))
        assert (sides.key, sides.value) == (SchemaData(SchemaType.NONE), SchemaData(SchemaType.NONE))

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "ends before the length of the key"),
            (b"\0\0\0\0", "ends before the length of the value"),
            (b"\0\0\0\x09ab", "should have 9 bytes, but only 2 follow"),
            (b"\xff\xff\xff\xfe\0\0\0\0", "should have -2 bytes"),
            (b"\x7f\xff\xff\xff" + b"\0" * 8, "should have 2147483647 bytes"),
            (bytes(9), "1 unexpected bytes after"),
        ],
    )
    def test_wrong_lengths_are_refused(self, data: bytes, reason: str) -> None:
        assert reason in refusal(SchemaData(SchemaType.KEY_VALUE, data))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"key.schema.type": "FOO"}, "unknown schema type"),
            ({"key.schema.type": "AUTO_CONSUME"}, "a broker cannot store schemas of type"),
            ({"key.schema.type": "AVRO"}, "KEY_VALUE: AVRO: the definition of the schema is not JSON"),
            ({"value.schema.type": "STRING"}, "KEY_VALUE: STRING: schemas of this type have no definition"),
            ({"key.schema.properties": "x"}, "not JSON"),
            ({"key.schema.properties": "[]"}, "not a JSON object"),
        ],
    )
    def test_each_side_must_be_valid(self, changes: dict[str, str], reason: str) -> None:
        data = join_key_value(b"", EMPTY_RECORD)
        assert reason in refusal(SchemaData(SchemaType.KEY_VALUE, data, PROPERTIES | changes))

    def test_key_values_nest_a_few_levels(self) -> None:
        schema = SchemaData(SchemaType.KEY_VALUE, join_key_value(b"", b""))
        for _ in range(7):
            properties = {"key.schema.type": "KEY_VALUE", "key.schema.properties": json.dumps(schema.properties)}
            schema = SchemaData(SchemaType.KEY_VALUE, join_key_value(schema.data, b""), properties)
        validate(schema)
        properties = {"key.schema.type": "KEY_VALUE", "key.schema.properties": json.dumps(schema.properties)}
        deeper = SchemaData(SchemaType.KEY_VALUE, join_key_value(schema.data, b""), properties)
        assert "nested deeper than 8" in refusal(deeper)


def file(
    name: str, *messages: DescriptorProto, imports: tuple[str, ...] = (), package: str = "p"
) -> FileDescriptorProto:
    return FileDescriptorProto(name=name, package=package, dependency=imports, message_type=messages)


def native(*files: FileDescriptorProto, **changes: Any) -> SchemaData:
    document = {
        "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode(),
        "rootMessageTypeName": "p.M",
        "rootFileDescriptorName": "f.proto",
    } | changes
    return SchemaData(SchemaType.PROTOBUF_NATIVE, json.dumps(document).encode())


MESSAGE = DescriptorProto(name="M", nested_type=[DescriptorProto(name="N")])


class TestProtobufNative:
    @pytest.mark.parametrize(("name", "full_name"), [("p.M", "p.M"), ("M", "p.M"), ("p.M.N", "p.M.N")])
    def test_the_root_message_is_found(self, name: str, full_name: str) -> None:
        schema = native(file("f.proto", MESSAGE), rootMessageTypeName=name, extra=1)
        validate(schema)
        assert root_message_name(schema.data) == full_name

    def test_imports_may_come_in_any_order(self) -> None:
        field = FieldDescriptorProto(name="o", number=1, label=1, type=11, type_name=".q.O")  # type: ignore[arg-type]
        importing = file("f.proto", DescriptorProto(name="M", field=[field]), imports=("g.proto",))
        imported = file("g.proto", DescriptorProto(name="O"), package="q")
        validate(native(importing, imported))
        assert "imported by the schema, but missing" in refusal(native(importing))

    def test_files_that_import_each_other_are_refused(self) -> None:
        one = file("f.proto", MESSAGE, imports=("g.proto",))
        other = file("g.proto", imports=("f.proto",))
        assert "imports itself" in refusal(native(one, other))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"rootMessageTypeName": "p.X"}, "no message 'p.X'"),
            ({"rootMessageTypeName": ""}, "is missing, empty or not a string"),
            ({"rootMessageTypeName": ".p.M"}, "no message"),
            ({"rootFileDescriptorName": "x.proto"}, "not among its descriptors"),
            ({"rootFileDescriptorName": None}, "is missing, empty or not a string"),
            ({"fileDescriptorSet": "!!"}, "fileDescriptorSet"),
            ({"fileDescriptorSet": "//8="}, "fileDescriptorSet"),
        ],
    )
    def test_a_wrong_document_is_refused(self, changes: dict[str, Any], reason: str) -> None:
        assert reason in refusal(native(file("f.proto", MESSAGE), **changes))

    def test_descriptors_that_protobuf_refuses_are_refused(self) -> None:
        twice = [FieldDescriptorProto(name=name, number=1, label=1, type=5) for name in ("a", "b")]  # type: ignore[arg-type]
        assert "f.proto" in refusal(native(file("f.proto", DescriptorProto(name="M", field=twice))))
        assert "not a JSON object" in refusal(SchemaData(SchemaType.PROTOBUF_NATIVE, b"[]"))


class TestHostileDefinitions:
    """Each of these would exhaust stack, memory or time of a parser without limits."""

    @pytest.mark.parametrize(("opening", "closing"), [('{"type":"array","items":', "}"), ("[", "]")])
    def test_deep_nesting_is_refused(self, opening: str, closing: str) -> None:
        for depth in (MAX_NESTING + 1, 10_000):
            text = opening * depth + '"int"' + closing * depth
            assert "nested deeper" in refusal(SchemaData(SchemaType.AVRO, text.encode()))
        assert "nested deeper" in refusal(SchemaData(SchemaType.AVRO, opening.encode() * 10_000))

    def test_the_deepest_nesting_that_is_accepted_needs_no_more_stack_than_there_is(self) -> None:
        depth = MAX_NESTING
        schema = SchemaData(SchemaType.JSON, ('{"type":"array","items":' * depth + '"int"' + "}" * depth).encode())
        validate(schema)
        schema_digest(schema)
        other = SchemaData(SchemaType.JSON, schema.data.replace(b"int", b"long"))
        check(CompatibilityStrategy.BACKWARD, [schema], other)

    def test_a_huge_definition_is_refused_unread(self) -> None:
        symbols = ",".join(f'"S{number}"' for number in range(200_000))
        text = f'{{"type":"enum","name":"E","symbols":[{symbols}]}}'
        assert len(text) > MAX_DEFINITION_BYTES
        assert "the limit of" in refusal(SchemaData(SchemaType.AVRO, text.encode()))

    @pytest.mark.parametrize("text", ['"' + "\\" * 500_001, "/*" * 500_000, "//" * 500_000, '"/*', "[" * 1_000_000])
    def test_text_that_does_not_end_is_refused_in_linear_time(self, text: str) -> None:
        refusal(SchemaData(SchemaType.AVRO, text.encode()))

    def test_a_number_without_end_is_refused(self) -> None:
        refusal(avro({"type": "fixed", "name": "F", "size": 10**4000}))
        refusal(SchemaData(SchemaType.AVRO, b"1" * 100_000))

    def test_names_that_no_encoding_has_are_refused_or_kept(self) -> None:
        refusal(SchemaData(SchemaType.AVRO, b'{"type":"fixed","name":"\\ud800","size":1}'))
        schema = SchemaData(SchemaType.AVRO, b'{"type":"string","note":"\\ud800"}')
        validate(schema)
        schema_digest(schema)

    def test_a_refusal_quotes_no_more_than_a_thousand_characters(self) -> None:
        for name in ("R" * 500_000, "R" * 1000):
            assert len(refusal(avro({"type": "record", "name": name}))) < 1200
        assert (
            len(refusal(avro({"type": "record", "name": "R", "fields": [{"name": "f" * 9000, "type": "no"}]}))) < 1200
        )

    @pytest.mark.parametrize("name", ["property", "place"])
    def test_nothing_long_is_repeated_for_each_that_is_short(self, name: str) -> None:
        """Thousands of references to, or inside of, a long definition: gigabytes, if each were copied."""
        definition, memory = LONG_AND_MANY[name], 0
        tracemalloc.start()
        try:
            with contextlib.suppress(InvalidSchema):
                validate(avro(definition))
            schema_digest(avro(definition))
            memory = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert memory < 100 * 1024 * 1024

    def test_a_long_chain_of_references_needs_no_stack(self) -> None:
        def chain(leaf: str, length: int = 5000) -> SchemaData:
            types: list[Any] = [
                {"type": "record", "name": f"R{number}", "fields": [{"name": "n", "type": f"R{number + 1}"}]}
                for number in range(length)
            ]
            types.append({"type": "record", "name": f"R{length}", "fields": [{"name": "n", "type": leaf}]})
            return SchemaData(SchemaType.JSON, json.dumps(types).encode())

        validate(chain("int"))
        schema_digest(chain("int"))
        with pytest.raises(Incompatible):
            check(CompatibilityStrategy.BACKWARD, [chain("int")], chain("string"))

    def test_a_comparison_that_would_take_too_long_is_refused(self) -> None:
        def union(prefix: str) -> SchemaData:
            branches = [{"type": "fixed", "name": f"{prefix}{number}", "size": 1} for number in range(3000)]
            return SchemaData(SchemaType.JSON, json.dumps(branches).encode())

        with pytest.raises(Incompatible, match=r"no branch|more than \d+ steps"):
            check(CompatibilityStrategy.BACKWARD, [union("A")], union("B"))
        reversed_union = json.loads(union("A").data)[::-1]
        with pytest.raises(Incompatible, match=r"more than \d+ steps"):
            check(
                CompatibilityStrategy.BACKWARD,
                [union("A")],
                SchemaData(SchemaType.JSON, json.dumps(reversed_union).encode()),
            )

    def test_renamed_records_that_match_through_unions_without_end_are_refused(self) -> None:
        def chain(prefix: str, *, in_unions: bool) -> SchemaData:
            """Return nested records: at each level, the reader must test whether its branch fits."""
            records: list[Any] = []
            for number in range(500):
                following = f"{prefix}{number + 1}"
                fields = [{"name": "n", "type": [following] if in_unions else following}]
                records.append({"type": "record", "name": f"{prefix}{number}", "fields": fields})
            records.append({"type": "record", "name": f"{prefix}500", "fields": []})
            first = {"name": "first", "type": [f"{prefix}0"] if in_unions else f"{prefix}0"}
            others = {"name": "others", "type": records}
            return avro({"type": "record", "name": "Root", "fields": [first, others]})

        writer, reader = chain("A", in_unions=False), chain("B", in_unions=True)
        validate(writer)
        validate(reader)
        with pytest.raises(Incompatible, match="deeper than"):
            check(CompatibilityStrategy.BACKWARD, [writer], reader)

    def test_defaults_that_refer_to_each_other_are_checked_once_each(self) -> None:
        """Each level's default refers twice to the next level's: 2^200 checks without a cache."""
        inner: Any = "int"
        for number in range(40, 0, -1):
            second = "int" if number == 40 else f"D{number + 1}"
            default: Any = 1 if number == 40 else {}
            fields = [{"name": name, "type": kind, "default": default} for name, kind in (("a", inner), ("b", second))]
            inner = {"type": "record", "name": f"D{number}", "fields": fields}
        old = avro({"type": "record", "name": "R", "fields": []})
        new = avro({"type": "record", "name": "R", "fields": [{"name": "d", "type": inner, "default": {}}]})
        check(CompatibilityStrategy.BACKWARD, [old], new)

    def test_a_default_that_contains_itself_is_refused(self) -> None:
        node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "N", "default": {}}]}
        old = avro({"type": "record", "name": "R", "fields": []})
        new = avro({"type": "record", "name": "R", "fields": [{"name": "d", "type": node, "default": {}}]})
        with pytest.raises(Incompatible, match="contains itself"):
            check(CompatibilityStrategy.BACKWARD, [old], new)


def test_what_pythons_client_sends_with_texts_is_a_definition_of_none() -> None:
    validate(SchemaData(SchemaType.STRING, b"null"))
    for schema_type, data in ((SchemaType.STRING, b"{}"), (SchemaType.INT32, b"null")):
        with pytest.raises(InvalidSchema):
            validate(SchemaData(schema_type, data))
