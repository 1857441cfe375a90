"""Entry filters on live topics: what is accepted, rejected, looked at later, and filters that fail or do not exist."""

from __future__ import annotations

from typing import ClassVar

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker import entry_filters
from pybroker.broker.delivery import filter_chain
from pybroker.broker.entry_filters import AvailableFilters, EntryFilter, FilteredEntry, Verdict
from pybroker.broker.topic.topic import Topic
from pybroker.config import ConfigError
from pybroker.model.position import Position

TOPIC = "persistent://public/default/t"
NAME = f"{__name__}:ByKey"


class ByKey(EntryFilter):
    """Rejects the key `no`; puts `later` off until the test opens the gate; fails for `bad`."""

    is_open: ClassVar[bool] = False

    def judge(self, entry: FilteredEntry) -> Verdict:
        assert entry.topic == TOPIC
        assert entry.subscription == "s"
        if entry.metadata.partition_key == "bad" and not ByKey.is_open:
            raise ValueError("cannot read this")
        if entry.metadata.partition_key == "later" and not ByKey.is_open:
            return Verdict.RESCHEDULE
        return Verdict.REJECT if entry.metadata.partition_key == "no" else Verdict.ACCEPT


class NoFilter:
    """Something else."""


@pytest.fixture(autouse=True)
def _closed_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByKey, "is_open", False)
    monkeypatch.setattr(filter_chain, "RESCHEDULE_S", 0.01)


async def delivered(broker: MemoryBroker, kind: str, keys: list[str]) -> tuple[Topic, RecordingPeer, list[Position]]:
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer, kind)
    return topic, peer, await broker.publish(topic, len(keys), keys)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
async def test_what_is_rejected_is_acknowledged_and_nobody_gets_it(kind: str) -> None:
    async with memory_broker(entry_filter_names=(NAME,)) as broker:
        topic, peer, positions = await delivered(broker, kind, ["a", "no", "b", "no"])
        await broker.until(lambda: len(peer.delivered) == 2)
        subscription = topic.subscriptions["s"]
        assert peer.delivered == [positions[0], positions[2]]
        assert subscription.cursor.backlog_entries == 2
        counters = subscription.counters
        assert (counters.filter_processed, counters.filter_accepted, counters.filter_rejected) == (4, 2, 2)


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("key", ["later", "bad"])
async def test_what_is_put_off_comes_later_and_the_others_go_on(key: str, kind: str) -> None:
    async with memory_broker(entry_filter_names=(NAME,)) as broker:
        topic, peer, positions = await delivered(broker, kind, ["a", key, "b"])
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rescheduled > 2)
        assert peer.delivered == [positions[0], positions[2]]
        ByKey.is_open = True
        await broker.until(lambda: len(peer.delivered) == 3)
        assert peer.delivered[-1] == positions[1]


async def test_what_only_a_filter_puts_off_waits_for_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_chain, "RESCHEDULE_S", 3600)
    async with memory_broker(entry_filter_names=(NAME,)) as broker:
        topic, peer, _ = await delivered(broker, "Shared", ["a", "later"])
        await broker.until(
            lambda: topic.subscriptions["s"].counters.filter_rescheduled > 0 and len(peer.delivered) == 1
        )
        (consumer,) = topic.subscriptions["s"].consumers
        consumer.state.permits = 0
        for query, expected in (("", ["entry-filter"]), ("?consumer=c", ["entry-filter", "held-by-consumer"])):
            answer = await broker.rest("GET", f"/persistent/public/default/t/subscription/s/explain{query}")
            assert [each["code"] for each in answer.json["findings"]] == expected


async def test_with_one_active_consumer_nothing_overtakes_what_is_put_off() -> None:
    async with memory_broker(entry_filter_names=(NAME,)) as broker:
        topic, peer, positions = await delivered(broker, "Exclusive", ["a", "no", "later", "b"])
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rescheduled > 2)
        assert peer.delivered == positions[:1]
        ByKey.is_open = True
        await broker.until(lambda: len(peer.delivered) == 3)
        assert peer.delivered == [positions[0], *positions[2:]]


def test_a_filter_that_cannot_be_loaded_is_a_fault_of_the_configuration() -> None:
    for name, reason in (
        ("no.such.module:Filter", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:NoFilter", "is no"),
        ("unknown", "no entry point"),
    ):
        with pytest.raises(ConfigError, match=reason):
            AvailableFilters([name])


class Everything(EntryFilter):
    """Rejects all."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        return Verdict.REJECT


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if these were entry points."""
    monkeypatch.setattr(entry_filters, "_entry_point_names", lambda: frozenset(names))
    monkeypatch.setattr(entry_filters, "_load", lambda _: Everything())


NAMESPACE_FILTERS = "/namespaces/public/default/entryFilters"
TOPIC_FILTERS = "/persistent/public/default/t/entryFilters"


async def test_policies_name_filters_in_place_of_the_configurations_while_clients_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, "everything")
    async with memory_broker(allow_override_entry_filters=True) as broker:
        topic, peer, _ = await delivered(broker, "Shared", ["a"])
        await broker.until(lambda: len(peer.delivered) == 1)
        assert (await broker.rest("POST", NAMESPACE_FILTERS, {"entryFilterNames": "everything"})).status == 204
        await broker.publish(topic, 3)
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rejected == 3)
        assert (await broker.rest("DELETE", NAMESPACE_FILTERS)).status == 204
        await broker.publish(topic, 1)
        await broker.until(lambda: len(peer.delivered) == 2)
        assert (await broker.rest("POST", TOPIC_FILTERS, {"entryFilterNames": "everything"})).status == 204
        await broker.publish(topic, 2)
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rejected == 5)
        assert len(peer.delivered) == 2


async def test_without_permission_to_override_policies_are_kept_and_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "everything")
    async with memory_broker() as broker:
        assert (await broker.rest("POST", NAMESPACE_FILTERS, {"entryFilterNames": "everything"})).status == 204
        topic, peer, _ = await delivered(broker, "Shared", ["a"])
        await broker.until(lambda: len(peer.delivered) == 1)
        config = "/brokers/configuration/allowOverrideEntryFilters/true"
        assert (await broker.rest("POST", config)).status == 200
        await broker.until(lambda: not broker.service.broker_context.tasks)  # It is applied.
        await broker.publish(topic, 1)
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rejected == 1)


async def test_what_was_put_off_goes_at_once_when_its_filter_is_taken_away() -> None:
    async with memory_broker(entry_filter_names=(NAME,)) as broker:
        topic, peer, positions = await delivered(broker, "Exclusive", ["later", "b"])
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rescheduled > 0)
        broker.service.broker_context.entry_filters.configure(())
        topic.policies_changed()
        await broker.until(lambda: peer.delivered == positions)


async def test_only_filters_that_are_there_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(entry_filter_names=(NAME,), allow_override_entry_filters=True) as broker:
        for names in (f"{NAME},{__name__}:Everything", "everything", "", " , "):
            for path in (NAMESPACE_FILTERS, TOPIC_FILTERS):
                await broker.topic(TOPIC)
                assert (await broker.rest("POST", path, {"entryFilterNames": names})).status == 400
        assert (await broker.rest("POST", NAMESPACE_FILTERS, {"entryFilterNames": NAME})).status == 204


async def test_a_filter_that_is_not_there_any_more_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "everything")
    async with memory_broker(allow_override_entry_filters=True) as broker:
        assert (await broker.rest("POST", NAMESPACE_FILTERS, {"entryFilterNames": "everything"})).status == 204
        installed(monkeypatch)
        broker.service.broker_context.entry_filters = AvailableFilters(())
        topic, peer, _ = await delivered(broker, "Shared", ["a"])
        await broker.until(lambda: topic.subscriptions["s"].counters.filter_rescheduled > 0)
        assert not peer.delivered


async def test_topics_of_the_broker_itself_are_not_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    async with memory_broker(entry_filter_names=("everything",)) as broker:
        assert (await broker.rest("GET", "/brokers/health")).status == 200
