from __future__ import annotations

from typing import cast

from tests.unit.admin.fake_broker import FakeBroker

from pybroker.admin.stats.resource_usage import UNKNOWN_LIMIT, ResourceMeter, Usage
from pybroker.broker.service import BrokerService
from pybroker.config import BrokerConfig


def test_a_share_of_an_unknown_limit_is_nothing() -> None:
    assert Usage(50, 200).percent == 25
    assert Usage(50, UNKNOWN_LIMIT).percent == 0


def test_messages_in_memory_are_measured_against_both_limits() -> None:
    broker = FakeBroker(BrokerConfig(max_message_publish_buffer_size_in_mb=63))
    broker.runtime.memory.publishes.count(16 * 1024 * 1024)
    meter = ResourceMeter(cast(BrokerService, broker))
    meter.sample(5, 0)
    assert meter.direct_memory == Usage(16, 64)
    assert meter.sampled_wall_ms == 5
    assert meter.direct_memory.percent == 25


def test_a_second_sample_at_once_divides_by_nothing() -> None:
    meter = ResourceMeter(cast(BrokerService, FakeBroker(BrokerConfig())))
    meter.sample(1, 10)
    meter.sample(1, 10)
    assert meter.bandwidth_in.usage == 0
