"""Schemas: versions, what is the same, what fits by which rule, who is let in, and what a deletion leaves."""

import json
from typing import Any, get_args

from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema
from tests.differential.harness import Run, scenario
from tests.support.raw_client import RawClient, Type
from tests.support.schemas import NEEDS_MORE, V1, V2, body, key_value, record, wire

from pybroker.admin.policies.policy_values import SchemaStrategy

STRATEGIES = tuple(each for each in get_args(SchemaStrategy) if each != "UNDEFINED")
PRIMITIVES = ("None", "String", "Bool", "Int8", "Int16", "Int32", "Int64", "Float", "Double", "Date", "Time")
MORE_PRIMITIVES = ("Timestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime", "External")


class Place:
    """A namespace of the run's own, and a topic there."""

    def __init__(self, run: Run, name: str = "topic") -> None:
        self.run = run
        self.namespace = f"public/{run.token}"
        self.local_name = name
        self.topic = f"persistent://{self.namespace}/{name}"
        self.schemas = f"/admin/v2/schemas/{self.namespace}/{name}"
        run.http("PUT", f"/admin/v2/namespaces/{self.namespace}", ..., "application/json")

    def set(self, policy: str, value: object, method: str = "POST") -> None:
        """Set a policy of the namespace, for topics that are not loaded yet: they find what a GET shows."""
        path = f"/admin/v2/namespaces/{self.namespace}/{policy}"
        self.run.rest_status(f"{policy} {value}", method, path, value)
        said = json.dumps(value).encode()
        assert self.run.wait_until(lambda: self.run.http("GET", path, ..., "application/json")[2] == said)

    def rest(self, label: str, method: str, path: str, given: Any = ...) -> None:
        self.run.rest(label, method, f"{self.schemas}/{path}", given)

    def status(self, label: str, method: str, path: str, given: Any = ...) -> None:
        self.run.rest_status(label, method, f"{self.schemas}/{path}", given)

    def versions(self, label: str = "versions") -> None:
        _, _, data = self.run.http("GET", f"{self.schemas}/schemas", ..., "application/json")
        found = json.loads(data)["getSchemaResponses"]
        self.run.step(label, [[each["version"], each["type"], each["data"]] for each in found])


def outcome(reply: dict[str, Any]) -> str:
    """The version, else how the request ended; texts are each broker's own."""
    failed = reply.get("error") or reply.get("error_code")
    return str(failed or reply.get("schema_version", reply["type"]))


def produce(run: Run, raw: RawClient, place: Place, label: str, producer_id: int, schema: Any = None) -> None:
    fields = {} if schema is None else {"schema": schema}
    run.step(label, outcome(raw.open_producer(place.topic, producer_id, **fields)))


def consume(run: Run, raw: RawClient, place: Place, label: str, consumer_id: int, schema: Any = None) -> None:
    fields = {} if schema is None else {"schema": schema}
    run.step(label, outcome(raw.subscribe(place.topic, consumer_id, "Shared", **fields)))


@scenario
def schemas_over_rest(run: Run) -> None:
    """Register, show, find and delete versions over REST, on a topic that does not exist."""
    place = Place(run)
    for path in ("schema", "schema/0", "schemas", "metadata"):
        place.rest(f"none: {path}", "GET", path)
    place.rest("none: version", "POST", "version", body(V1))
    place.rest("none: compatibility", "POST", "compatibility", body(V1))
    for label, text in (("first", V1), ("again", V1), ("second", V2), ("the first again", V1)):
        place.rest(label, "POST", "schema", body(text, owner="me"))
    for path in ("schema", "schema/0", "schema/1", "schema/2", "schema/-1", "schemas", "metadata"):
        place.rest(path, "GET", path)
    place.rest("version of the second", "POST", "version", body(V2))
    place.rest("version of another", "POST", "version", body(NEEDS_MORE))
    place.rest("delete", "DELETE", "schema")
    for path in ("schema", "schema/0", "schema/2", "schemas", "metadata"):
        place.rest(f"deleted: {path}", "GET", path)
    place.rest("delete again", "DELETE", "schema")
    place.rest("another type", "POST", "schema", body("", "STRING"))
    place.rest("shown", "GET", "schema")
    place.rest("delete by force", "DELETE", "schema?force=true")
    place.rest("anew", "POST", "schema", body(V1))


@scenario
def schemas_refused_over_rest(run: Run) -> None:
    """Schemas that do not fit and bodies that are none: statuses."""
    place = Place(run)
    place.status("first", "POST", "schema", body(V1))
    for label, given in (
        ("needs more", body(NEEDS_MORE)),
        ("another type", body("", "STRING")),
        ("unparsable", body("{")),
        ("client's type", body("", "AUTO_CONSUME")),
        ("list", []),
    ):
        place.status(label, "POST", "schema", given)
    place.status("compatibility", "POST", "compatibility", body(NEEDS_MORE))
    place.status("compatibility of what fits", "POST", "compatibility", body(V2))
    place.versions()
    run.rest_status("no such namespace", "POST", "/admin/v2/schemas/public/nosuch/t/schema", body(V1))


@scenario
def schemas_unknown_in_requests(run: Run) -> None:
    """Type names that there are not, and properties that are missing."""
    place = Place(run)
    place.status("unknown type", "POST", "schema", body("", "NOSUCH"))
    place.status("small letters", "POST", "schema", body(V1, "avro"))
    place.status("no type", "POST", "schema", {"schema": V1})
    place.status("no schema", "POST", "schema", {"type": "AVRO"})
    place.status("no key and value", "POST", "schema", body("x", "KEY_VALUE"))
    place.versions()


@scenario
def schemas_of_producers(run: Run) -> None:
    """PRODUCER with schemas: registered, known, refused, plain, and GET_SCHEMA of what is there then."""
    place = Place(run)
    with run.raw() as raw:
        run.step("none", outcome(raw.request(Type.GET_SCHEMA, topic=place.topic)))
        for index, (label, schema) in enumerate(
            (
                ("first", wire("Avro", V1)),
                ("second", wire("Avro", V2)),
                ("first again", wire("Avro", V1, owner="me")),
                ("needs more", wire("Avro", NEEDS_MORE)),
                ("text", wire("String")),
                ("bytes", wire("None")),
                ("unparsable", wire("Avro", "{")),
                ("client's type", wire("AutoConsume")),
                ("plain", None),
            )
        ):
            produce(run, raw, place, label, index, schema)
        produce(run, raw, place, "the same id", 1, wire("String"))
        run.step("newest", raw.request(Type.GET_SCHEMA, topic=place.topic))
        for version in (0, 1, 7):
            reply = raw.request(Type.GET_SCHEMA, topic=place.topic, schema_version=version.to_bytes(8))
            run.step(f"version {version}", reply)
        run.step("empty version", outcome(raw.request(Type.GET_SCHEMA, topic=place.topic, schema_version=b"")))
        run.step("of a partition", outcome(raw.request(Type.GET_SCHEMA, topic=place.topic + "-partition-3")))
        place.versions()


@scenario
def schemas_at_first_message(run: Run) -> None:
    """GET_OR_CREATE_SCHEMA, by which a producer registers what its first message has."""
    place = Place(run)
    with run.raw() as raw:

        def ask(label: str, schema: Any) -> None:
            run.step(label, outcome(raw.request(Type.GET_OR_CREATE_SCHEMA, topic=place.topic, schema=schema)))

        ask("no topic", wire("Avro", V1))
        raw.open_producer(place.topic)
        for label, schema in (
            ("bytes", wire("None")),
            ("first", wire("Avro", V1)),
            ("second", wire("Avro", V2)),
            ("first again", wire("Avro", V1)),
            ("needs more", wire("Avro", NEEDS_MORE)),
            ("unparsable", wire("Avro", "{")),
            ("client's type", wire("AutoConsume")),
        ):
            ask(label, schema)
        place.versions()


@scenario
def schemas_of_consumers(run: Run) -> None:
    """SUBSCRIBE with schemas: the first on an idle topic registers, later ones must read what is there."""
    idle, used, filled = Place(run, "idle"), Place(run, "used"), Place(run, "filled")
    with run.raw() as raw:
        for index, (label, schema) in enumerate(
            (
                ("any", wire("AutoConsume")),
                ("first", wire("Avro", V1)),
                ("second", wire("Avro", V2)),
                ("needs more", wire("Avro", NEEDS_MORE)),
                ("text", wire("String")),
                ("bytes", wire("None")),
                ("plain", None),
            )
        ):
            consume(run, raw, idle, f"idle: {label}", index, schema)
        idle.versions()
        consume(run, raw, used, "used: plain", 20)
        consume(run, raw, used, "used: with schema", 21, wire("Avro", V1))
        used.versions("used: versions")
        raw.open_producer(filled.topic, 1)
        consume(run, raw, filled, "producer there: with schema", 30, wire("Avro", V1))
        raw.publish(1, 1)
        raw.request(Type.CLOSE_PRODUCER, producer_id=1)
        consume(run, raw, filled, "messages there: with schema", 31, wire("String"))
        produce(run, raw, filled, "messages there: producer", 2, wire("Avro", V1))
        filled.versions("filled: versions")


@scenario
def schemas_by_strategy(run: Run) -> None:
    """The eight rules: the same walk of producers and consumers by each of them."""
    place = Place(run)
    walk = (V1, NEEDS_MORE, V1, record(), record(("id", "string"), ("d", "int", 1)), V2)
    for strategy in STRATEGIES:
        place = Place(run, strategy)
        place.set("schemaCompatibilityStrategy", strategy, "PUT")
        with run.raw() as raw:
            producers = [
                outcome(raw.open_producer(place.topic, index, schema=wire("Avro", each)))
                for index, each in enumerate(walk)
            ]
            consumers = [
                outcome(raw.subscribe(place.topic, index, "Shared", schema=wire("Avro", each)))
                for index, each in enumerate(walk)
            ]
            run.step(f"{strategy}: producers", producers)
            run.step(f"{strategy}: consumers", consumers)
            run.step(f"{strategy}: text", outcome(raw.open_producer(place.topic, 50, schema=wire("String"))))
            place.versions(f"{strategy}: versions")


@scenario
def schemas_of_older_policies(run: Run) -> None:
    """The rule by its older name, over the newer one's default and under the newer one."""
    place = Place(run)
    for index, name in enumerate(("AutoUpdateDisabled", "Backward", "AlwaysCompatible")):
        place.set("schemaAutoUpdateCompatibilityStrategy", name, "PUT")
        topic = Place(run, name)
        with run.raw() as raw:
            produce(run, raw, topic, f"{name}: first", 2 * index, wire("Avro", NEEDS_MORE))
            produce(run, raw, topic, f"{name}: fewer fields", 2 * index + 1, wire("Avro", V1))
        topic.rest(f"{name}: compatibility", "POST", "version", body(V1))
    place.set("schemaCompatibilityStrategy", "FULL_TRANSITIVE", "PUT")
    place.rest("both set", "POST", "compatibility", body(V1))


@scenario
def schemas_without_automatic_updates(run: Run) -> None:
    """Where clients may not add versions: what REST registers lets them in."""
    place = Place(run)
    path = f"/admin/v2/namespaces/{place.namespace}/isAllowAutoUpdateSchema"
    run.rest("not set", "GET", path)
    place.set("isAllowAutoUpdateSchema", False)
    run.rest("set", "GET", path)
    with run.raw() as raw:
        produce(run, raw, place, "unknown", 1, wire("Avro", V1))
        consume(run, raw, place, "unknown consumer", 1, wire("Avro", V1))
        run.step(
            "at first message",
            outcome(raw.request(Type.GET_OR_CREATE_SCHEMA, topic=place.topic, schema=wire("String"))),
        )
        place.rest("by REST", "POST", "schema", body(V1))
        produce(run, raw, place, "known", 1, wire("Avro", V1))
        produce(run, raw, place, "second", 2, wire("Avro", V2))
        consume(run, raw, place, "consumer that fits", 2, wire("Avro", V2))
        consume(run, raw, place, "consumer that does not", 3, wire("Avro", NEEDS_MORE))
        place.versions()


@scenario
def schemas_enforced(run: Run) -> None:
    """Where schemas are enforced: producers without one, before the topic has one, then, and after its deletion."""
    place = Place(run)
    place.set("schemaValidationEnforced", True)
    with run.raw() as raw:
        produce(run, raw, place, "no schema yet", 1)
        produce(run, raw, place, "first schema", 2, wire("Avro", V1))
        raw.send_message(1, 0)
        run.step("who is there", raw.reply()["type"])
        produce(run, raw, place, "plain", 3)
        produce(run, raw, place, "bytes", 4, wire("None"))
        consume(run, raw, place, "plain consumer", 1)
        place.rest("delete", "DELETE", "schema")
        produce(run, raw, place, "plain after the deletion", 5)


@scenario
def schemas_deleted_under_clients(run: Run) -> None:
    """A deletion while clients are there: they stay, nothing is found, and the next version goes on."""
    place = Place(run)
    with run.raw() as raw:
        produce(run, raw, place, "first", 1, wire("Avro", V1))
        consume(run, raw, place, "consumer", 1, wire("Avro", V1))
        place.rest("delete", "DELETE", "schema")
        run.step("newest", raw.request(Type.GET_SCHEMA, topic=place.topic))
        run.step("version 0", outcome(raw.request(Type.GET_SCHEMA, topic=place.topic, schema_version=bytes(8))))
        raw.send_message(1, 0)
        run.step("who is there", raw.reply()["type"])
        consume(run, raw, place, "another consumer", 2, wire("Avro", V1))
        produce(run, raw, place, "text", 2, wire("String"))
        consume(run, raw, place, "text consumer", 3, wire("String"))
        place.versions()


@scenario
def schemas_of_deleted_topics(run: Run) -> None:
    """Deleting a topic, a partition and a partitioned topic: what becomes of the schema."""
    plain, parted = Place(run, "plain"), Place(run, "parted")
    topics = f"/admin/v2/persistent/{plain.namespace}"
    run.rest_status("make partitions", "PUT", f"{topics}/parted/partitions", 2)
    with run.raw() as raw:
        produce(run, raw, plain, "plain", 1, wire("Avro", V1))
        for index in range(2):
            name = f"{parted.topic}-partition-{index}"
            run.step(f"partition {index}", outcome(raw.open_producer(name, 2 + index, schema=wire("Avro", V1))))
    run.rest_status("delete the plain one", "DELETE", f"{topics}/plain?force=true")
    plain.rest("its schema", "GET", "schema")
    run.rest_status("delete a partition", "DELETE", f"{topics}/parted-partition-0?force=true")
    parted.versions("versions then")
    run.rest_status("delete the partitioned one", "DELETE", f"{topics}/parted/partitions?force=true")
    parted.rest("its schema then", "GET", "schema")
    parted.rest("nothing is left", "GET", "metadata")


@scenario
def schemas_of_all_types(run: Run) -> None:
    """Types without a definition, with one that they may not have, and as REST names them."""
    with run.raw() as raw:
        for index, kind in enumerate((*PRIMITIVES, *MORE_PRIMITIVES)):
            place = Place(run, kind)
            produce(run, raw, place, kind, index, wire(kind, owner="me"))
            place.rest(f"{kind} over REST", "GET", "schema")
        for index, kind in enumerate(("String", "Int32", "Json", "Protobuf", "ProtobufNative")):
            place = Place(run, f"{kind}-defined")
            produce(run, raw, place, f"{kind} that is no definition", 50 + index, wire(kind, "x"))
            place.versions(f"{kind} then")


@scenario
def schemas_of_keys_and_values(run: Run) -> None:
    """KEY_VALUE in both encodings: side by side, over REST, and texts that are none."""
    for encoding in ("INLINE", "SEPARATED"):
        place = Place(run, encoding)
        with run.raw() as raw:
            for index, (label, key, text) in enumerate(
                (
                    ("first", "STRING", V1),
                    ("second", "STRING", V2),
                    ("needs more", "STRING", NEEDS_MORE),
                    ("another key", "INT32", record(("id", "string"), ("d", "int", 1))),
                )
            ):
                schema = key_value(key, "", "AVRO", text, encoding)
                produce(run, raw, place, f"{encoding}: {label}", index, schema)
        place.versions(f"{encoding}: versions")
        text = json.dumps({"key": "", "value": json.loads(V1)})
        properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": encoding}
        given = {"type": "KEY_VALUE", "schema": text, "properties": properties}
        place.rest(f"{encoding}: by REST", "POST", "schema", given)
        place.rest(f"{encoding}: its version", "POST", "version", given)
        place.versions(f"{encoding}: versions then")


class Order(Record):
    id = String(required=True)
    count = Integer(required=True)


@scenario
def schemas_of_the_official_client(run: Run) -> None:
    """Records and texts of the official client: what is stored of them, and what comes out."""
    client = run.client()
    for schema, value in (
        (AvroSchema(Order), Order(id="a", count=1)),
        (JsonSchema(Order), Order(id="b", count=2)),
        (StringSchema(), "grüße"),
    ):
        kind = type(schema).__name__
        place = Place(run, kind)
        consumer = run.attempt(
            f"{kind}: subscribe",
            lambda place=place, schema=schema: client.subscribe(place.topic, "s", schema=schema),  # type: ignore[misc]
        )
        producer = run.attempt(
            f"{kind}: produce",
            lambda place=place, schema=schema: client.create_producer(place.topic, schema=schema),  # type: ignore[misc]
        )
        producer.send(value)
        found = run.receive(consumer, 1)
        run.step(f"{kind}: payloads", [[each.data().hex(), each.schema_version()] for each in found])
        place.versions(f"{kind}: versions")
