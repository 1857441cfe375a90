"""The first events of a client, kind and topic are logged in each interval; a summary counts the others."""

from __future__ import annotations

from pybroker.runtime.repeated_events import MAX_KEYS, MAX_SUMMARIES, OTHER, ClientId, RepeatedEvents

CLIENT = ClientId("10.0.0.1", "shop")


def test_first_events_of_client_kind_and_topic_are_logged_and_others_counted() -> None:
    events = RepeatedEvents(2)
    assert [events.add(CLIENT, "producer.created", "a") for _ in range(5)] == [True, True, False, False, False]
    assert events.add(CLIENT, "producer.created", "b")
    assert events.add(CLIENT, "consumer.created", "a")
    assert events.add(ClientId("10.0.0.2", "shop"), "producer.created", "a")
    assert events.add(ClientId("10.0.0.1", "billing"), "producer.created", "a")
    (summary,) = events.end_interval()
    assert (summary.client, dict(summary.unlogged)) == (CLIENT, {"producer.created": 3})


def test_next_interval_starts_from_zero_and_quiet_interval_has_no_summary() -> None:
    events = RepeatedEvents(1)
    events.add(CLIENT, "connection.opened")
    assert events.end_interval() == []
    assert events.add(CLIENT, "connection.opened")
    assert not events.add(CLIENT, "connection.opened")
    assert len(events.end_interval()) == 1
    assert events.end_interval() == []


def test_zero_means_no_limit() -> None:
    events = RepeatedEvents(0)
    assert all(events.add(CLIENT, "connection.opened") for _ in range(1000))
    assert events.end_interval() == []


def test_log_lines_are_bounded_for_any_number_of_clients() -> None:
    events = RepeatedEvents(2)
    clients = [ClientId(f"host-{number}", "") for number in range(2 * MAX_KEYS)]
    logged = sum(events.add(client, "connection.closed") for client in clients for _ in range(3))
    assert logged == 2 * MAX_KEYS + 2
    summaries = events.end_interval()
    assert len(summaries) == MAX_SUMMARIES
    assert summaries[-1].client == ClientId(OTHER, OTHER)
    assert logged + sum(summary.unlogged.total() for summary in summaries) == 6 * MAX_KEYS


def test_events_of_a_client_with_very_many_topics_are_counted() -> None:
    events = RepeatedEvents(2)
    logged = sum(events.add(CLIENT, "producer.created", f"t-{number}") for number in range(MAX_KEYS + 10))
    assert logged == MAX_KEYS + 2
    assert sum(summary.unlogged.total() for summary in events.end_interval()) == 8
