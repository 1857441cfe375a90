"""Requests as the Go admin client writes them: booleans as texts, empty texts for what is not set."""

from __future__ import annotations

import pytest
from tests.support.memory_broker import MemoryBroker

NAMESPACES = "/namespaces/public"
# What the Go admin client sends for a namespace of which the number of bundles alone is given.
UNSET = {
    "bundles": {"boundaries": None, "numBundles": 3},
    "replication_clusters": None,
    "antiAffinityGroup": "",
    "schema_compatibility_strategy": "",
    "schema_auto_update_compatibility_strategy": "",
    "subscription_auth_mode": "",
    "message_ttl_in_seconds": None,
}


async def test_a_namespace_is_made_from_empty_texts_where_nothing_is_set(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{NAMESPACES}/of-go", UNSET)).status == 204
    policies = (await broker.rest("GET", f"{NAMESPACES}/of-go")).json
    assert policies["bundles"]["numBundles"] == 3
    assert policies["subscription_auth_mode"] == "None"
    assert policies["schema_compatibility_strategy"] == "UNDEFINED"


async def test_a_word_that_no_enumeration_has_is_refused_still(broker: MemoryBroker) -> None:
    refused = await broker.rest("PUT", f"{NAMESPACES}/of-go", {"subscription_auth_mode": "prefix"})
    assert refused.status == 400


@pytest.mark.parametrize(("text", "is_required"), [("true", True), ("false", False)])
async def test_a_boolean_may_be_written_as_a_text(broker: MemoryBroker, text: str, is_required: bool) -> None:
    assert (await broker.rest("POST", f"{NAMESPACES}/default/encryptionRequired", text)).status == 204
    assert (await broker.rest("GET", f"{NAMESPACES}/default")).json["encryption_required"] is is_required


async def test_a_text_that_is_no_boolean_is_refused(broker: MemoryBroker) -> None:
    assert (await broker.rest("POST", f"{NAMESPACES}/default/encryptionRequired", "yes")).status == 400


async def test_a_partitioned_topic_that_is_not_persistent_is_unloaded_also_while_nobody_uses_it(
    broker: MemoryBroker,
) -> None:
    topic = "/non-persistent/public/default/idle"
    assert (await broker.rest("PUT", f"{topic}/partitions", 2)).status == 204
    assert (await broker.rest("PUT", f"{topic}/unload")).status == 204
    assert (await broker.rest("PUT", f"{topic}-partition-0/unload")).status == 404
