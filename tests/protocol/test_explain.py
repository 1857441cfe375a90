"""`explain` over REST on a broker in the test's own process: what is answered, to whom, and in the middle of everything."""

from __future__ import annotations

from tests.support.memory_broker import memory_broker
from tests.support.recording_peer import RecordingPeer

TOPIC = "persistent://public/default/t"
AT = "/persistent/public/default/t"


async def test_a_subscription_of_which_nobody_waits_has_no_finding() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await broker.consumer(topic, "s", RecordingPeer())
        found = await broker.rest("GET", f"{AT}/subscription/s/explain")
        assert found.status == 200
        assert (found.json["waiting"], found.json["findings"]) == (False, [])
        assert found.json["subject"] == {"kind": "subscription", "type": "Shared", "consumers": 1, "backlogEntries": 0}


async def test_messages_without_a_consumer_are_found_in_the_subscription_and_in_its_topic() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        await broker.publish(topic, 3)
        found = (await broker.rest("GET", f"{AT}/subscription/s/explain")).json
        assert found["waiting"]
        assert [each["code"] for each in found["findings"]] == ["no-consumers"]
        assert found["findings"][0]["evidence"]["waitingEntries"] == 3
        of_topic = (await broker.rest("GET", f"{AT}/explain")).json
        assert of_topic["waiting"]
        assert [(each["subscription"], each["findings"][0]["code"]) for each in of_topic["subscriptions"]] == [
            ("s", "no-consumers")
        ]


async def test_what_does_not_exist_is_answered_404() -> None:
    async with memory_broker() as broker:
        assert (await broker.rest("GET", f"{AT}/explain")).status == 404
        assert (await broker.rest("GET", f"{AT}/subscription/s/explain")).status == 404
        await broker.topic(TOPIC)
        assert (await broker.rest("GET", f"{AT}/subscription/s/explain")).status == 404
