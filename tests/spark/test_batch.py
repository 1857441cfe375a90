"""Batches read exactly what producers sent, in every way of reading and however they are cut."""

from typing import Any

import pulsar
import pytest
from tests.spark.sent import assert_same, publish, read
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", ["segment", "bulk", "broker"])
def test_every_way_of_reading_gives_what_was_sent(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str, mode: str
) -> None:
    sent = publish(client, topic, 500) + publish(client, topic, 50, 500, batched=False)
    rows = read(spark, broker, topic, readMode=mode).load().collect()
    assert_same(rows, sent)
    assert [row["value"] for row in rows[:3]] == [each.value for each in sent[:3]]
