"""Leases of readers, in times that the test passes."""

import random

import pytest

from pybroker.broker.context.read_leases import SWEEP_EVERY_MS, LeaseOwner, ReadLeases, TooManyLeases
from pybroker.waiting.fair_shares import Holder

ONE, TWO = LeaseOwner("one", None), LeaseOwner("two", "role")
TOPIC = "persistent://a/b/c"
ANY = Holder("role admin", is_operator=True)


def test_the_lowest_lease_holds_and_ends_by_itself() -> None:
    leases = ReadLeases(2, 10)
    assert leases.hold(TOPIC, ONE, 5, 100, 1000, now_ms=0, holder=ANY) == 100
    assert leases.hold(TOPIC, TWO, 3, 50, 1000, now_ms=0, holder=ANY) == 50
    assert leases.held_from(TOPIC, 49) == 3
    assert leases.held_from(TOPIC, 50) == 5
    assert leases.held_from(TOPIC, 100) is None
    assert len(leases) == 0


def test_a_renewed_lease_lasts_and_one_that_stays_in_its_place_ends_all_the_same() -> None:
    leases = ReadLeases(2, 10)
    for now_ms in range(0, 950, 50):
        assert leases.hold(TOPIC, ONE, 5, 100, 1000, now_ms, ANY) == 100
    assert leases.hold(TOPIC, ONE, 5, 100, 1000, 960, ANY) == 40
    assert leases.held_from(TOPIC, 999) == 5
    assert leases.held_from(TOPIC, 1000) is None
    assert leases.hold(TOPIC, ONE, 5, 100, 1000, 1000, ANY) == 100  # a new one


def test_a_lease_that_moves_on_begins_anew() -> None:
    leases = ReadLeases(2, 10)
    leases.hold(TOPIC, ONE, 5, 100, 150, 0, ANY)
    assert leases.hold(TOPIC, ONE, 6, 100, 150, 90, ANY) == 100
    assert leases.held_from(TOPIC, 160) == 6


def test_leases_of_a_topic_and_of_all_are_limited_and_ended_ones_make_room() -> None:
    leases = ReadLeases(1, 2)
    leases.hold(TOPIC, ONE, 5, 100, 9000, 0, ANY)
    with pytest.raises(TooManyLeases, match="maxReadLeasesPerTopic"):
        leases.hold(TOPIC, TWO, 5, 100, 9000, 0, ANY)
    leases.hold("t2", ONE, 5, 2000, 9000, 0, ANY)
    with pytest.raises(TooManyLeases, match="maxReadLeases"):
        leases.hold("t3", ONE, 5, 100, 9000, 99, ANY)
    with pytest.raises(TooManyLeases, match="maxReadLeases"):
        leases.hold("t3", ONE, 5, 100, 9000, 100, ANY)  # it was looked for ended ones a moment ago
    leases.hold("t3", ONE, 5, 100, 9000, 99 + SWEEP_EVERY_MS, ANY)
    assert leases.held_from("t2", 1999) == 5


def test_who_gives_back_ends_only_his_own() -> None:
    leases = ReadLeases(2, 10)
    leases.hold(TOPIC, ONE, 5, 100, 1000, 0, ANY)
    leases.hold(TOPIC, TWO, 6, 100, 1000, 0, ANY)
    assert leases.give_back(LeaseOwner("one", "role"), [TOPIC]) == []
    assert leases.give_back(ONE, leases.topics_of(ONE)) == [TOPIC]
    assert leases.held_from(TOPIC, 1) == 6
    assert leases.topics() == [TOPIC]


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_that_of_the_leases(seed: int) -> None:
    rng = random.Random(seed)
    leases, now_ms = ReadLeases(4, 12), 0.0
    for _ in range(300):
        now_ms += rng.random() * 20
        topic, owner = f"t{rng.randrange(5)}", LeaseOwner(str(rng.randrange(6)), None)
        action = rng.randrange(3)
        if action == 0:
            leases.give_back(owner, [topic])
        elif action == 1:
            held = leases.held_from(topic, now_ms)
            assert held == min((each.ledger_id for each in leases.on(topic, now_ms)), default=None)
        else:
            try:
                leases.hold(topic, owner, rng.randrange(9), 50, 100, now_ms, ANY)
            except TooManyLeases:
                assert len(leases.on(topic, now_ms)) >= 4 or len(leases) >= 12
        assert len(leases) == sum(len(found) for found in leases._by_topic.values()) <= 12
