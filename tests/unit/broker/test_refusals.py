"""What is remembered of producers that were refused: bounded, the latest first, forgotten when they are let in."""

import random

from pybroker.broker.context import publish_refusals
from pybroker.broker.context.publish_refusals import KEPT_MS, MAX_REFUSALS, MAX_REFUSALS_PER_TOPIC, MAX_TEXT, Refusals
from pybroker.errors import BrokerError, NotAllowedError, ProducerBusy, ProducerFenced


def note(noted: Refusals, producer: str, now_ms: int, error: BrokerError | None = None, topic: str = "t") -> None:
    noted.note(topic, producer, "/10.0.0.1:7", error or ProducerBusy("taken"), now_ms)


def test_who_is_refused_again_takes_one_place_and_is_counted() -> None:
    noted = Refusals()
    note(noted, "p", 1000)
    note(noted, "q", 2000)
    note(noted, "p", 3000, ProducerFenced("by q"))
    first, second = noted.of("t", 3000)
    assert (first.producer, first.error, first.text, first.count) == ("p", ProducerFenced, "by q", 2)
    assert (first.first_ms, first.last_ms) == (1000, 3000)
    assert second.producer == "q"


def test_messages_that_are_refused_are_told_apart_from_producers() -> None:
    noted = Refusals()
    note(noted, "p", 1000)
    noted.note("t", "p", "/10.0.0.1:7", NotAllowedError("too large"), 1001, is_of_messages=True, count=5)
    noted.admitted("t", "p", "/10.0.0.1:7")
    (left,) = noted.of("t", 1001)
    assert left.is_of_messages
    assert left.count == 5


def test_one_without_a_name_is_known_by_its_address_and_forgotten_when_it_is_let_in_under_any_name() -> None:
    noted = Refusals()
    note(noted, "", 1000)
    assert [each.producer for each in noted.of("t", 1000)] == [""]
    noted.admitted("t", "standalone-1-7", "/10.0.0.1:9")  # its client has connected again
    assert not noted.of("t", 1000)
    assert len(noted) == 0


def test_what_is_an_hour_old_or_of_a_deleted_topic_is_not_told() -> None:
    noted = Refusals()
    note(noted, "old", 0)
    note(noted, "new", KEPT_MS)
    assert [each.producer for each in noted.of("t", KEPT_MS + 1)] == ["new"]
    noted.forget("t")
    noted.forget("never heard of")
    assert not noted.of("t", KEPT_MS + 1)


def test_long_texts_and_names_are_cut() -> None:
    noted = Refusals()
    note(noted, "n" * 5000, 0, ProducerBusy("x" * 100_000))
    (found,) = noted.of("t", 0)
    assert len(found.text) == MAX_TEXT
    assert len(found.producer) == publish_refusals.MAX_NAME
    noted.admitted("t", "n" * 5000, "")
    assert len(noted) == 0


def test_however_many_are_refused_only_the_latest_are_kept() -> None:
    noted = Refusals()
    for index in range(MAX_REFUSALS_PER_TOPIC + 5):
        note(noted, f"p{index}", index)
    assert [each.producer for each in noted.of("t", 100)] == [f"p{index}" for index in range(20, 4, -1)]
    for index in range(MAX_REFUSALS + 7):
        note(noted, "p", index, topic=f"topic{index}")
        noted.check_invariants()
    assert len(noted) == MAX_REFUSALS
    assert not noted.of("t", 100)
    assert not noted.of("topic6", 100)
    assert noted.of("topic7", 100)


def test_any_order_of_notes_keeps_both_tables_alike() -> None:
    chance = random.Random(7)
    noted = Refusals()
    for step in range(3000):
        topic, name = f"t{chance.randrange(80)}", f"p{chance.randrange(30)}"
        what = chance.random()
        if what < 0.8:
            noted.note(topic, name, "/a", ProducerBusy("x"), step, is_of_messages=what < 0.2)
        elif what < 0.95:
            noted.admitted(topic, name, "/a")
        elif what < 0.97:
            noted.forget(topic)
        else:
            noted.of(topic, step + chance.randrange(2) * KEPT_MS)
        if step % 50 == 0:
            noted.check_invariants()
