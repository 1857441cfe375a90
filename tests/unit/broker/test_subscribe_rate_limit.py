"""How often one consumer may subscribe, and that what is remembered of them is bounded."""

from __future__ import annotations

from pybroker.broker.limits.subscribe_rate_limit import MAX_CONSUMERS, SubscribeRateLimit
from pybroker.model.policies import SubscribeRate


def test_each_consumer_has_a_rate_of_its_own() -> None:
    limit = SubscribeRateLimit(SubscribeRate(2, 10))
    assert [limit.admits("a", 0) for _ in range(3)] == [True, True, False]
    assert limit.admits("b", 0)
    assert not limit.admits("a", 4999)
    assert limit.admits("a", 5001)


def test_many_consumers_do_not_take_memory_for_ever() -> None:
    limit = SubscribeRateLimit(SubscribeRate(1, 1))
    for index in range(3 * MAX_CONSUMERS):
        assert limit.admits(index, index)
    assert not limit.admits(3 * MAX_CONSUMERS - 1, 3 * MAX_CONSUMERS)
