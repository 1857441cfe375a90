"""Subscriptions over REST: which there are, making, deleting, their properties, and where they begin."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker
from tests.support.recording_peer import RecordingPeer

from pybroker.model.position import Position

NAME = "persistent://public/default/t"
PATH = "/persistent/public/default/t"


def id_of(position: Position, **more: Any) -> dict[str, object]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, **more}


async def test_subscriptions_are_made_listed_and_deleted(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{PATH}/subscription/a%2Fb")).status == 204, "makes the topic as well"
    assert (await broker.rest("PUT", f"{PATH}/subscription/a%2Fb")).status == 409
    assert (await broker.rest("GET", f"{PATH}/subscriptions")).json == ["a/b"]
    assert (await broker.rest("DELETE", f"{PATH}/subscription/a%2Fb")).status == 204
    assert (await broker.rest("DELETE", f"{PATH}/subscription/a%2Fb")).status == 404
    assert (await broker.rest("GET", f"{PATH}/subscriptions")).json == []


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("a%252Fb", "a/b"),
        ("with%2Bspace", "with space"),
        ("with+space", "with space"),
        ("a%252Bb", "a+b"),
        ("per%2525cent", "per%cent"),
        ("per%25cent", "per%cent"),
        ("%25E6%2597%25A5", "日"),
        ("%E6%97%A5", "日"),
    ],
)
async def test_the_name_of_a_subscription_may_be_encoded_twice(broker: MemoryBroker, sent: str, name: str) -> None:
    assert (await broker.rest("PUT", f"{PATH}/subscription/{sent}")).status == 204
    assert (await broker.rest("GET", f"{PATH}/subscriptions")).json == [name]
    assert (await broker.rest("DELETE", f"{PATH}/subscription/{sent}")).status == 204


async def test_the_ends_of_a_topic_have_names(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 3)
    path = f"{PATH}/subscription/s"
    assert (await broker.rest("PUT", path, "earliest")).status == 204
    for method, way, end, status, unread in (
        ("POST", "/resetcursor", "latest", 204, 0),
        ("POST", "/resetcursor", "earliest", 204, 3),
        ("POST", "/expireMessages", "earliest", 204, 3),
        ("POST", "/expireMessages", "latest", 409, 3),
        ("POST", "/analyzeBacklog", "earliest", 200, 3),
        ("POST", "/resetcursor", "Latest", 400, 3),
        ("POST", "/resetcursor", "", 400, 3),
        ("POST", "/resetcursor", None, 400, 3),
    ):
        answer = await broker.rest(method, path + way, end)
        unread_now = topic.subscriptions["s"].cursor.backlog_entries
        assert (answer.status, unread_now) == (status, unread), (way, end)


async def test_a_subscription_begins_where_it_is_told_to(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    positions = await broker.publish(topic, 5)
    latest = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}
    for name, body, unread in (
        ("none", None, 0),
        ("latest", latest, 0),
        ("earliest", {"ledgerId": -1, "entryId": -1}, 5),
        ("third", id_of(positions[2]), 3),
        ("behind-third", id_of(positions[2], isExcluded=True), 2),
        ("behind-last", id_of(positions[4], isExcluded=True), 0),
    ):
        assert (await broker.rest("PUT", f"{PATH}/subscription/{name}", body)).status == 204
        assert topic.subscriptions[name].cursor.backlog_entries == unread, name


async def test_a_subscription_with_consumers_is_deleted_by_force_only(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer)
    assert (await broker.rest("DELETE", f"{PATH}/subscription/s")).status == 412
    assert (await broker.rest("DELETE", f"{PATH}/subscription/s?force=true")).status == 204
    assert (peer.closed_consumers, topic.subscriptions) == ([1], {})


async def test_properties_are_those_of_the_last_call(broker: MemoryBroker) -> None:
    body = {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}
    await broker.rest("PUT", f"{PATH}/subscription/s", body)
    assert (await broker.rest("GET", f"{PATH}/subscription/s/properties")).json == {"a": "b"}
    assert (await broker.rest("PUT", f"{PATH}/subscription/s/properties", {"c": "d"})).status == 204
    assert (await broker.rest("GET", f"{PATH}/subscription/s/properties")).json == {"c": "d"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/persistent/public/default/missing/subscriptions", 404),
        ("GET", "/persistent/public/default/missing/lastMessageId", 404),
        ("GET", "/non-persistent/public/default/t/lastMessageId", 404),
        ("PUT", "/persistent/public/missing/t/subscription/s", 404),
        ("PUT", "/non-persistent/public/default/t/subscription/s", 400),
        ("DELETE", "/persistent/public/default/missing/subscription/s", 404),
        ("GET", "/persistent/public/default/missing/subscription/s/properties", 404),
    ],
)
async def test_what_cannot_be_done_is_refused_with_pulsars_status(
    broker: MemoryBroker, method: str, path: str, status: int
) -> None:
    answer = await broker.rest(method, path)
    assert answer.status == status
    assert answer.json["reason"]
