"""Schemas as commands carry them: registered, checked and found again; what a refusal leaves behind."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call
from tests.support.schemas import NEEDS_MORE, V1, V2, body, key_value, record, wire

NAMESPACE = "public/schemas"
PRIMITIVES = (
    ("None", "NONE"),
    ("String", "STRING"),
    ("Bool", "BOOLEAN"),
    ("Int8", "INT8"),
    ("Int16", "INT16"),
    ("Int32", "INT32"),
    ("Int64", "INT64"),
    ("Float", "FLOAT"),
    ("Double", "DOUBLE"),
    ("Date", "DATE"),
    ("Time", "TIME"),
    ("Timestamp", "TIMESTAMP"),
    ("Instant", "INSTANT"),
    ("LocalDate", "LOCAL_DATE"),
    ("LocalTime", "LOCAL_TIME"),
    ("LocalDateTime", "LOCAL_DATE_TIME"),
    ("External", "EXTERNAL"),
)
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("schemas"))
    with process.running():
        assert call(f"{process.http_url}/admin/v2/namespaces/{NAMESPACE}", "PUT").status == 204
        yield process
    assert "Traceback" not in process.log.read_text()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    found = RawClient(broker.url)
    found.connect()
    yield found
    found.close()


class Place:
    """A topic of the test's own, by its name, and what REST says of it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.http_url = broker.http_url
        self.local_name = f"topic-{next(_serial)}"
        self.name = f"persistent://{NAMESPACE}/{self.local_name}"

    def rest(self, method: str, path: str, given: object = None) -> Any:
        answer = call(f"{self.http_url}/admin/v2/schemas/{NAMESPACE}/{self.local_name}/{path}", method, body=given)
        return answer.json if answer.status == 200 else answer.status

    def versions(self) -> list[tuple[int, str]]:
        return [(each["version"], each["type"]) for each in self.rest("GET", "schemas")["getSchemaResponses"]]

    def set(self, policy: str, value: object, method: str = "POST") -> None:
        path = f"{self.http_url}/admin/v2/persistent/{NAMESPACE}/{self.local_name}/{policy}"
        assert call(path, method, body=value).status == 204


@pytest.fixture
def place(broker: BrokerProcess) -> Place:
    return Place(broker)


@pytest.fixture
def namespace(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of the namespace's policies; those that tests here change are unset at the end."""
    path = f"{broker.http_url}/admin/v2/namespaces/{NAMESPACE}"
    yield path
    call(f"{path}/isAllowAutoUpdateSchema", "POST", body=True)
    call(f"{path}/schemaValidationEnforced", "POST", body=False)
    call(f"{path}/schemaCompatibilityStrategy", "PUT", body="UNDEFINED")


def version(reply: dict[str, Any]) -> int | str:
    """The version that an answer names, -1 for none; else its error."""
    failed = reply.get("error") or reply.get("error_code")
    if failed is not None:
        return str(failed)
    data = base64.b64decode(reply["schema_version"])
    return int.from_bytes(data) if data else -1


def get(client: RawClient, topic: str, number: int | None = None) -> dict[str, Any]:
    asked = {} if number is None else {"schema_version": number.to_bytes(8)}
    return client.request(Type.GET_SCHEMA, topic=topic, **asked)


def get_or_create(client: RawClient, topic: str, schema: Any) -> int | str:
    return version(client.request(Type.GET_OR_CREATE_SCHEMA, topic=topic, schema=schema))


def test_producers_register_versions_and_find_them_again(client: RawClient, place: Place) -> None:
    schemas = [wire("Avro", text) for text in (V1, V2, V1)]
    found = [version(client.open_producer(place.name, index, schema=each)) for index, each in enumerate(schemas)]
    assert found == [0, 1, 0]
    assert place.versions() == [(0, "AVRO"), (1, "AVRO")]


def test_a_producer_that_does_not_fit_is_refused_with_what_differs(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, 1, schema=wire("Avro", V1))
    refused = client.open_producer(place.name, 2, schema=wire("Avro", NEEDS_MORE))
    assert refused["error"] == "IncompatibleSchema"
    assert '"count"' in refused["message"]
    assert "FULL" in refused["message"]
    assert version(client.open_producer(place.name, 3, schema=wire("String"))) == "IncompatibleSchema"
    assert place.versions() == [(0, "AVRO")]
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V2))) == 1  # its id is free again


def test_a_repeated_request_gets_the_first_answer(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, 1, schema=wire("Avro", V1))
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V2))) == 1
    assert version(client.open_producer(place.name, 2, schema=wire("String"))) == 1


def test_a_producer_without_a_schema_has_no_version(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, 1, schema=wire("Avro", V1))
    assert version(client.open_producer(place.name, 2)) == -1


@pytest.mark.parametrize(("kind", "shown"), PRIMITIVES)
def test_types_without_a_definition(client: RawClient, place: Place, kind: str, shown: str) -> None:
    assert version(client.open_producer(place.name, 1, schema=wire(kind, owner="me"))) == 0
    found = get(client, place.name)
    assert found["schema"] == {
        "name": f"{NAMESPACE}/{place.local_name}",
        "schema_data": "",
        "type": kind,
        "properties": [{"key": "owner", "value": "me"}],
    }
    assert place.versions() == [(0, shown)]


@pytest.mark.parametrize("kind", ["Avro", "Json", "Protobuf", "ProtobufNative"])
@pytest.mark.parametrize("definition", ["", "{", "7", '{"type": "nosuch"}'])
def test_a_definition_that_is_none_is_refused(client: RawClient, place: Place, kind: str, definition: str) -> None:
    schema = wire(kind, definition)
    client.open_producer(place.name, 1)
    assert version(client.open_producer(place.name, 2, schema=schema)) == "IncompatibleSchema"
    assert client.subscribe(place.name, schema=schema)["error"] == "IncompatibleSchema"
    assert get_or_create(client, place.name, schema) == "IncompatibleSchema"
    assert place.versions() == []


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_keys_and_values(client: RawClient, place: Place, encoding: str) -> None:
    def opened(number: int, key: str, definition: str) -> int | str:
        schema = key_value(key, "", "AVRO", definition, encoding)
        return version(client.open_producer(place.name, number, schema=schema))

    assert opened(1, "STRING", V1) == 0
    assert opened(2, "STRING", V2) == 1
    assert opened(3, "STRING", NEEDS_MORE) == "IncompatibleSchema"
    assert opened(4, "INT32", record(("id", "string"), ("more", "string", ""))) == "IncompatibleSchema"
    shown = place.rest("GET", "schema/0")
    assert (shown["type"], shown["properties"]["kv.encoding.type"]) == ("KEY_VALUE", encoding)
    assert place.rest("POST", "version", body(shown["data"], "KEY_VALUE")) == {"version": -1}  # other bytes
    assert get(client, place.name, 1)["schema"]["type"] == "KeyValue"


def test_client_side_types_are_never_registered(client: RawClient, place: Place) -> None:
    assert version(client.open_producer(place.name, 1, schema=wire("AutoConsume"))) == "IncompatibleSchema"
    assert client.subscribe(place.name, schema=wire("AutoConsume"))["type"] == "SUCCESS"
    assert place.versions() == []


# --- look ------------------------------------------------------------------------------------------------------------


def test_versions_are_found_by_number_and_the_newest_without(client: RawClient, place: Place) -> None:
    for index, text in enumerate((V1, V2)):
        client.open_producer(place.name, index, schema=wire("Json", text))
    newest, first = get(client, place.name), get(client, place.name, 0)
    assert [version(each) for each in (newest, first)] == [1, 0]
    assert base64.b64decode(first["schema"]["schema_data"]).decode() == V1
    assert version(get(client, place.name, 2)) == "TopicNotFound"
    assert version(get(client, place.name + "-partition-7")) == 1
    assert version(get(client, place.name.replace("persistent", "non-persistent"))) == 1


@pytest.mark.parametrize("data", [b"", b"\0", bytes(7)])
def test_a_version_of_too_few_bytes_is_refused(client: RawClient, place: Place, data: bytes) -> None:
    found = client.request(Type.GET_SCHEMA, topic=place.name, schema_version=data)
    assert found["error_code"] == "IncompatibleSchema"


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x7f" + bytes(7)])
def test_a_version_that_never_was_is_not_found(client: RawClient, place: Place, data: bytes) -> None:
    client.open_producer(place.name, schema=wire("String"))
    assert version(client.request(Type.GET_SCHEMA, topic=place.name, schema_version=data)) == "TopicNotFound"


def test_a_topic_without_a_schema_has_none_to_show(client: RawClient, place: Place) -> None:
    assert version(get(client, place.name)) == "TopicNotFound"
    client.open_producer(place.name)
    assert version(get(client, place.name)) == "TopicNotFound"
    assert version(client.request(Type.GET_SCHEMA, topic="persistent://x")) == "InvalidTopicName"


def test_a_producer_registers_with_its_first_message(client: RawClient, place: Place) -> None:
    assert get_or_create(client, place.name, wire("Avro", V1)) == "TopicNotFound"
    client.open_producer(place.name)
    assert get_or_create(client, place.name, wire("Avro", V1)) == 0
    assert get_or_create(client, place.name, wire("Avro", V2)) == 1
    assert get_or_create(client, place.name, wire("Avro", V1)) == 0
    assert get_or_create(client, place.name, wire("Avro", NEEDS_MORE)) == "IncompatibleSchema"
    assert get_or_create(client, place.name, wire("None")) == -1


# --- consumers -------------------------------------------------------------------------------------------------------


def test_the_first_consumer_of_an_idle_topic_registers(client: RawClient, place: Place) -> None:
    assert client.subscribe(place.name, 1, "Shared", schema=wire("AutoConsume"))["type"] == "SUCCESS"
    assert client.subscribe(place.name, 2, "Shared", schema=wire("Avro", V1))["type"] == "SUCCESS"
    assert place.versions() == [(0, "AVRO")]


@pytest.mark.parametrize("user", ["consumer", "producer", "message"])
def test_a_schema_cannot_come_with_a_consumer_to_a_topic_that_is_used_without(
    client: RawClient, place: Place, user: str
) -> None:
    if user == "consumer":
        client.subscribe(place.name, 1, "Shared")
    else:
        client.open_producer(place.name, 1)
        if user == "message":
            client.publish(1, 1)
            client.request(Type.CLOSE_PRODUCER, producer_id=1)
    refused = client.subscribe(place.name, 2, "Shared", subscription="other", schema=wire("Avro", V1))
    assert refused["error"] == "IncompatibleSchema"
    assert place.versions() == []
    subscriptions = f"{place.http_url}/admin/v2/persistent/{NAMESPACE}/{place.local_name}/subscriptions"
    assert "other" not in call(subscriptions).json


def test_a_consumer_must_read_the_newest_version_and_registers_none(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, schema=wire("Avro", V1))
    fits = record(("id", "string"), ("more", "int", 1))
    for index, text in enumerate((V1, V2, fits)):
        assert client.subscribe(place.name, index, "Shared", schema=wire("Avro", text))["type"] == "SUCCESS"
    refused = client.subscribe(place.name, 9, "Shared", schema=wire("Avro", NEEDS_MORE))
    assert refused["error"] == "IncompatibleSchema"
    assert "count" in refused["message"]
    assert client.subscribe(place.name, 9, "Shared")["type"] == "SUCCESS"
    assert place.versions() == [(0, "AVRO")]


# --- policies --------------------------------------------------------------------------------------------------------


def test_without_automatic_updates_only_known_schemas_come_in(client: RawClient, place: Place, namespace: str) -> None:
    call(f"{namespace}/isAllowAutoUpdateSchema", "POST", body=False)
    assert version(client.open_producer(place.name, 1, schema=wire("Avro", V1))) == "IncompatibleSchema"
    assert client.subscribe(place.name, 1, "Shared", schema=wire("Avro", V1))["error"] == "IncompatibleSchema"
    assert place.rest("POST", "schema", body(V1)) == {"version": {"version": 0}}
    assert version(client.open_producer(place.name, 1, schema=wire("Avro", V1))) == 0
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V2))) == "IncompatibleSchema"
    assert client.subscribe(place.name, 1, "Shared", schema=wire("Avro", V2))["type"] == "SUCCESS"


def test_where_schemas_are_enforced_producers_need_one_once_the_topic_has_one(
    client: RawClient, place: Place, namespace: str
) -> None:
    call(f"{namespace}/schemaValidationEnforced", "POST", body=True)
    assert version(client.open_producer(place.name, 1)) == -1
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V1))) == 0
    assert client.publish(1, 1)[0]["type"] == "SEND_RECEIPT"  # who is there stays
    assert version(client.open_producer(place.name, 3)) == "IncompatibleSchema"
    assert get_or_create(client, place.name, wire("None")) == "IncompatibleSchema"
    assert client.subscribe(place.name, 1, "Shared")["type"] == "SUCCESS"
    place.rest("DELETE", "schema")
    assert version(client.open_producer(place.name, 3)) == -1


def test_a_topic_can_have_a_rule_of_its_own(client: RawClient, place: Place, namespace: str) -> None:
    call(f"{namespace}/schemaCompatibilityStrategy", "PUT", body="ALWAYS_INCOMPATIBLE")
    assert version(client.open_producer(place.name, 1, schema=wire("Avro", V1))) == 0
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V2))) == "IncompatibleSchema"
    place.set("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", "PUT")
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V2))) == 1
    assert version(client.open_producer(place.name, 3, schema=wire("String"))) == 2
    assert client.subscribe(place.name, 1, "Shared", schema=wire("Int8"))["type"] == "SUCCESS"


def test_the_older_name_of_the_rule_counts_where_the_newer_is_not_set(
    client: RawClient, place: Place, namespace: str
) -> None:
    path = f"{namespace}/schemaAutoUpdateCompatibilityStrategy"
    call(path, "PUT", body="Backward")
    client.open_producer(place.name, 1, schema=wire("Avro", NEEDS_MORE))
    assert version(client.open_producer(place.name, 2, schema=wire("Avro", V1))) == 1
    assert version(client.open_producer(place.name, 3, schema=wire("Avro", record(("z", "int"))))) == (
        "IncompatibleSchema"
    )


# --- deletion --------------------------------------------------------------------------------------------------------


def test_a_topic_whose_schema_was_deleted_is_usable(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, 1, schema=wire("Avro", V1))
    assert place.rest("DELETE", "schema") == {"version": 1}
    newest = get(client, place.name)
    assert (version(newest), newest["schema"]["type"]) == (1, "None")
    assert [version(get(client, place.name, number)) for number in (0, 1)] == ["TopicNotFound"] * 2
    assert client.publish(1, 1)[0]["type"] == "SEND_RECEIPT"
    assert version(client.open_producer(place.name, 2, schema=wire("String"))) == 2
    assert client.subscribe(place.name, 1, schema=wire("String"))["type"] == "SUCCESS"


def test_a_topic_that_is_deleted_leaves_no_schema(client: RawClient, place: Place) -> None:
    client.open_producer(place.name, 1, schema=wire("Avro", V1))
    client.request(Type.CLOSE_PRODUCER, producer_id=1)
    path = f"{place.http_url}/admin/v2/persistent/{NAMESPACE}/{place.local_name}"
    assert call(f"{path}?force=true", "DELETE").status == 204
    assert place.rest("GET", "schema") == 404
    assert version(client.open_producer(place.name, 2, schema=wire("String"))) == 0


def test_partitions_share_a_schema_that_goes_with_the_last_of_them(client: RawClient, place: Place) -> None:
    path = f"{place.http_url}/admin/v2/persistent/{NAMESPACE}/{place.local_name}"
    assert call(f"{path}/partitions", "PUT", body=2).status == 204
    assert version(client.open_producer(f"{place.name}-partition-0", 1, schema=wire("Avro", V1))) == 0
    assert version(client.open_producer(f"{place.name}-partition-1", 2, schema=wire("Avro", V1))) == 0
    assert version(client.open_producer(f"{place.name}-partition-1", 3, schema=wire("String"))) == "IncompatibleSchema"
    assert call(f"{path}-partition-0?force=true", "DELETE").status == 204
    assert place.versions() == [(0, "AVRO")]
    assert call(f"{path}/partitions?force=true", "DELETE").status == 204
    assert place.versions() == []


def test_a_namespace_that_is_deleted_leaves_no_schema(broker: BrokerProcess) -> None:
    namespace = f"{broker.http_url}/admin/v2/namespaces/public/short-lived"
    schema = f"{broker.http_url}/admin/v2/schemas/public/short-lived/never-made/schema"
    call(namespace, "PUT")
    assert call(schema, "POST", body=body("", "STRING")).status == 200
    assert call(namespace, "DELETE").status == 204
    call(namespace, "PUT")
    assert call(schema).status == 404
