"""Schemas over REST: statuses and bodies, what is stored, who may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker
from tests.support.rest import call
from tests.support.schemas import NEEDS_MORE, V1, V2, body

from pybroker.broker.policies.policy_events import event_schema
from pybroker.model.names import TopicName
from pybroker.model.system_topics import change_events
from pybroker.schema.history import version_from_bytes

SCHEMAS = "/schemas/public/default/t"


async def post(broker: MemoryBroker, given: dict[str, Any], call_name: str = "schema") -> tuple[int, Any]:
    answer = await broker.rest("POST", f"{SCHEMAS}/{call_name}", given)
    return answer.status, answer.json


async def test_a_topic_without_schemas(broker: MemoryBroker) -> None:
    for path in ("schema", "schema/0"):
        found = await broker.rest("GET", f"{SCHEMAS}/{path}")
        assert (found.status, found.json) == (404, {"reason": "Schema not found"})
    assert (await broker.rest("GET", f"{SCHEMAS}/schemas")).json == {"getSchemaResponses": []}
    nothing = await broker.rest("GET", f"{SCHEMAS}/metadata")
    assert (nothing.status, nothing.text) == (200, "")
    assert await post(broker, body(V1), "version") == (200, {"version": -1})
    fits = {"schemaCompatibilityStrategy": "FULL", "compatibility": True}
    assert await post(broker, body(V1), "compatibility") == (202, fits)
    assert await broker.service.directory.list(TopicName.parse("t").namespace, None) == []


async def test_versions_are_registered_and_shown(broker: MemoryBroker) -> None:
    for text, version in ((V1, 0), (V1, 0), (V2, 1), (V1, 0)):
        assert await post(broker, body(text, owner="me")) == (200, {"version": {"version": version}})
    shown = (await broker.rest("GET", f"{SCHEMAS}/schema")).json
    expected = {"version": 1, "type": "AVRO", "timestamp": START_MS, "data": V2, "properties": {"owner": "me"}}
    assert shown == expected
    assert (await broker.rest("GET", f"{SCHEMAS}/schema/0")).json["data"] == V1
    everything = (await broker.rest("GET", f"{SCHEMAS}/schemas")).json["getSchemaResponses"]
    assert [each["version"] for each in everything] == [0, 1]
    assert await post(broker, body(V2), "version") == (200, {"version": 1})
    metadata = (await broker.rest("GET", f"{SCHEMAS}/metadata")).json
    newest = metadata["info"]
    if broker.service.broker_context.ledgers.store.has_pulsar_layout:
        assert newest["ledgerId"] > metadata["index"][0]["ledgerId"] >= 0
        assert newest == {"ledgerId": newest["ledgerId"], "entryId": 0, "version": 1}
    else:
        assert newest == {"ledgerId": -1, "entryId": -1, "version": 1}
    assert [each["version"] for each in metadata["index"]] == [0, 1]


@pytest.mark.parametrize("version", ["9", "-1", "x", "9999999999999999999999"])
async def test_a_version_that_never_was_is_not_found(broker: MemoryBroker, version: str) -> None:
    await post(broker, body(V1))
    assert (await broker.rest("GET", f"{SCHEMAS}/schema/{version}")).status == 404


async def test_what_does_not_fit_is_refused_with_the_reason(broker: MemoryBroker) -> None:
    await post(broker, body(V1))
    status, refused = await post(broker, body(NEEDS_MORE))
    assert status == 409
    assert "count" in refused["reason"]
    status, refused = await post(broker, body(NEEDS_MORE), "compatibility")
    assert status == 500
    assert "count" in refused["reason"]
    assert (await post(broker, body("", "STRING")))[0] == 409


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (body("{"), 422),
        (body("", "AUTO_CONSUME"), 422),
        (body("", "AUTO_PUBLISH"), 422),
        (body("", "NOSUCH"), 422),
        (body(V1, "avro"), 422),
        (body("x", "STRING"), 422),
        (body("x", "KEY_VALUE"), 422),
        ({"type": "AVRO"}, 400),
        ({"schema": V1}, 400),
        ({}, 400),
        ([], 400),
        (None, 400),
    ],
)
async def test_what_is_no_schema_is_refused(broker: MemoryBroker, given: Any, status: int) -> None:
    assert (await broker.rest("POST", f"{SCHEMAS}/schema", given)).status == status
    assert (await broker.rest("GET", f"{SCHEMAS}/schema")).status == 404


@pytest.mark.parametrize("given", [{"type": "AVRO", "schema": V1}, {**body(V1), "properties": None, "extra": 1}])
async def test_properties_may_be_left_out_and_others_are_ignored(broker: MemoryBroker, given: dict[str, Any]) -> None:
    assert (await post(broker, given))[0] == 200
    assert (await broker.rest("GET", f"{SCHEMAS}/schema")).json["properties"] == {}


async def test_bytes_are_read_back_as_no_type(broker: MemoryBroker) -> None:
    assert (await post(broker, body("", "BYTES")))[0] == 200
    assert (await broker.rest("GET", f"{SCHEMAS}/schema")).json["type"] == "NONE"


async def test_keys_and_values_are_one_json_object(broker: MemoryBroker) -> None:
    types = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"}
    text = json.dumps({"key": "", "value": json.loads(V1)})
    assert (await post(broker, {"type": "KEY_VALUE", "schema": text, "properties": types}))[0] == 200
    shown = (await broker.rest("GET", f"{SCHEMAS}/schema")).json
    assert (json.loads(shown["data"]), shown["properties"]) == (json.loads(text), types)
    assert await post(broker, {"type": "KEY_VALUE", "schema": shown["data"], "properties": {}}) == (
        200,
        {"version": {"version": 0}},
    )


async def test_a_deletion_takes_a_version_and_hides_all_before_it(broker: MemoryBroker) -> None:
    await post(broker, body(V1))
    assert (await broker.rest("DELETE", f"{SCHEMAS}/schema")).json == {"version": 1}
    assert [(await broker.rest("GET", f"{SCHEMAS}/schema{at}")).status for at in ("", "/0", "/1")] == [404] * 3
    assert (await broker.rest("GET", f"{SCHEMAS}/schemas")).json == {"getSchemaResponses": []}
    assert (await broker.rest("GET", f"{SCHEMAS}/metadata")).json["info"]["version"] == 1
    assert (await broker.rest("DELETE", f"{SCHEMAS}/schema")).json == {"version": 2}
    assert await post(broker, body("", "STRING")) == (200, {"version": {"version": 3}})


async def test_a_forced_deletion_begins_anew(broker: MemoryBroker) -> None:
    await post(broker, body(V1))
    assert (await broker.rest("DELETE", f"{SCHEMAS}/schema?force=true")).json == {"version": -1}
    assert (await broker.rest("GET", f"{SCHEMAS}/metadata")).text == ""
    assert await post(broker, body("", "STRING")) == (200, {"version": {"version": 0}})


async def test_a_partition_has_the_schemas_of_its_topic(broker: MemoryBroker) -> None:
    await post(broker, body(V1))
    partition = f"{SCHEMAS}-partition-4/schema"
    assert (await broker.rest("GET", partition)).json["version"] == 0
    assert (await broker.rest("DELETE", f"{partition}?force=true")).status == 200
    assert (await broker.rest("GET", f"{SCHEMAS}/schema")).status == 404


async def test_nothing_is_kept_for_a_namespace_that_does_not_exist(broker: MemoryBroker) -> None:
    missing = "/schemas/public/nosuch/t"
    for method, path in (("POST", "schema"), ("POST", "compatibility"), ("DELETE", "schema")):
        assert (await broker.rest(method, f"{missing}/{path}", body(V1))).status == 404, path
    assert (await broker.rest("GET", f"{missing}/schema")).status == 404


@pytest.mark.parametrize(
    ("policies", "strategy"),
    [
        ((), "FULL"),
        ((("PUT", "/namespaces/public/default/schemaAutoUpdateCompatibilityStrategy", "Forward"),), "FORWARD"),
        ((("PUT", "/namespaces/public/default/schemaCompatibilityStrategy", "BACKWARD"),), "BACKWARD"),
        ((("PUT", "/persistent/public/default/t/schemaCompatibilityStrategy", "FULL_TRANSITIVE"),), "FULL_TRANSITIVE"),
    ],
)
async def test_the_rule_is_the_topics_else_the_namespaces_else_the_brokers(
    broker: MemoryBroker, policies: tuple[tuple[str, str, str], ...], strategy: str
) -> None:
    await broker.topic("persistent://public/default/t")
    for method, path, value in policies:
        assert (await broker.rest(method, path, value)).status == 204
    assert (await post(broker, body(V1), "compatibility"))[1]["schemaCompatibilityStrategy"] == strategy


@pytest.mark.parametrize("configured", ["UNDEFINED", "FORWARD_TRANSITIVE"])
async def test_the_brokers_rules_are_configured(configured: str) -> None:
    settings = {
        "schema_compatibility_strategy": configured,
        "system_topic_schema_compatibility_strategy": "BACKWARD",
    }
    async with memory_broker(None, **settings) as broker:  # type: ignore[arg-type]
        found = await post(broker, body(V1), "compatibility")
        assert found[1]["schemaCompatibilityStrategy"] == configured.replace("UNDEFINED", "FULL")
        path = "/schemas/public/default/__change_events/compatibility"
        assert (await broker.rest("POST", path, body(V1))).json["schemaCompatibilityStrategy"] == "BACKWARD"


async def test_a_namespace_that_says_nothing_shows_whether_the_broker_lets_clients_add_versions() -> None:
    async with memory_broker(None, is_allow_auto_update_schema_enabled=False) as broker:
        path = "/namespaces/public/default"
        assert (await broker.rest("GET", f"{path}/isAllowAutoUpdateSchema")).json is False
        assert (await broker.rest("GET", path)).json["is_allow_auto_update_schema"] is False
        assert (await broker.rest("POST", f"{path}/isAllowAutoUpdateSchema", True)).status == 204
        assert (await broker.rest("GET", f"{path}/isAllowAutoUpdateSchema")).json is True
        assert (await broker.rest("GET", path)).json["is_allow_auto_update_schema"] is True


async def test_change_events_have_their_schema(broker: MemoryBroker) -> None:
    await broker.topic("persistent://public/default/t")
    assert (await broker.rest("POST", "/persistent/public/default/t/maxConsumers", 3)).status == 204
    name = change_events(TopicName.parse("t").namespace)
    await broker.until(lambda: str(name) in broker.service.loaded.persistent)
    await broker.until(lambda: broker.service.loaded.persistent[str(name)].counters.messages_in > 0)
    shown = (await broker.rest("GET", "/schemas/public/default/__change_events/schemas")).json["getSchemaResponses"]
    assert [(each["version"], each["type"]) for each in shown] == [(version_from_bytes(bytes(8)), "AVRO")]
    assert shown[0]["data"].encode() == event_schema().data
    assert shown[0]["data"].startswith('{"type":"record","name":"PulsarEvent"')


async def test_operations_are_among_the_metrics(broker: MemoryBroker) -> None:
    await post(broker, body(V1))
    await post(broker, body(NEEDS_MORE))
    page = await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics/")
    labels = '{cluster="standalone",namespace="public/default"}'
    lines = page.text.splitlines()
    for line in (
        f"pulsar_schema_put_ops_latency_count{labels} 1",
        f"pulsar_schema_compatible_total{labels} 0",
        f"pulsar_schema_incompatible_total{labels} 1",
        f"pulsar_schema_get_ops_failed_total{labels} 0",
    ):
        assert line in lines
