"""Clients that do not read share the memory of outboxes, and pause no other client."""

from __future__ import annotations

from pybroker.memory.memory_budget import MemoryBudget
from pybroker.server.outbox_shares import OutboxShares


def shares_of(limit_bytes: int, max_bytes: int) -> OutboxShares[str]:
    budget: MemoryBudget[object] = MemoryBudget(2 * limit_bytes)
    return OutboxShares(budget.add_part("outboxes", limit_bytes // 2, limit_bytes), max_bytes)


def test_one_alone_may_fill_its_outbox_up_to_the_bound_of_a_connection() -> None:
    shares = shares_of(1000, 100)
    assert shares.report("a", 99)
    assert not shares.report("a", 100)


def test_one_alone_never_takes_all_there_is() -> None:
    shares = shares_of(1000, 1000)
    assert shares.report("a", 249)
    assert not shares.report("a", 250)


def test_above_half_those_stop_that_have_more_than_their_share() -> None:
    shares = shares_of(1000, 1000)
    for name in "abcd":
        shares.report(name, 160)
    assert not shares.report("a", 200), "a fifth of all, as one more may come"
    assert shares.report("b", 199)


def test_when_nothing_is_free_all_stop_that_have_something_unsent_and_nobody_else() -> None:
    shares = shares_of(1000, 1000)
    for name in "abcde":
        shares.report(name, 240)
    assert not shares.report("f", 1)
    assert shares.report("g", 0)


def test_what_is_taken_by_the_client_is_free_for_others() -> None:
    shares = shares_of(1000, 1000)
    for name in "abcde":
        shares.report(name, 240)
    for name in "abcde":
        assert shares.report(name, 0)
    assert len(shares) == 0
    assert shares.report("f", 200)
