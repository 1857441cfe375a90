"""No key stops another, with the official client: what cannot go waits, however much it is, and everything else arrives."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import admin, new_client, path_of, receive_all, running_with_client, until
from tests.support.broker_process import BrokerProcess
from tests.support.takers import HIGH_HALF, LOW_HALF, Taker, numbers_by_key, publish_numbers, taken_by_all

from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.model.hashing import key_hash

LITTLE_ROOM = {"keySharedLookAheadMaxBytesPerSubscription": "20000"}
"""Bytes: what is stuck in these tests takes many times as much."""
DEFAULT_ROOM: dict[str, str] = {}
ARRIVAL_TIMEOUT_S = 90.0
MESSAGES = 8_000


@contextmanager
def stopping(*takers: Taker) -> Iterator[None]:
    try:
        yield
    finally:
        for taker in takers:
            taker.stop()
            taker.client.close()


def subscription_of(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    stats: dict[str, Any] = admin(broker, "GET", f"{path_of(topic)}/stats").json
    found: dict[str, Any] = stats["subscriptions"]["s"]
    return found


def is_once_and_in_order(taken: dict[str, list[int]]) -> bool:
    return all(numbers == sorted(set(numbers)) for numbers in taken.values())


@pytest.mark.parametrize("settings", [DEFAULT_ROOM, LITTLE_ROOM], ids=["room for all", "little room"])
def test_draining_keys_with_half_of_traffic_block_no_other_key(
    tmp_path: Path, topic: str, settings: dict[str, str]
) -> None:
    with running_with_client(tmp_path, **settings) as (broker, client):
        first = Taker(new_client(broker.url), topic, "first", 1000)
        candidates = [f"held-{index}" for index in range(60)]
        publish_numbers(client, topic, candidates)
        held = receive_all(first.consumer, len(candidates))
        others = [Taker(new_client(broker.url), topic, f"other-{index}", 1000) for index in range(2)]
        with stopping(first, *others):
            rows = {row["consumerName"]: row for row in subscription_of(broker, topic)["consumers"]}
            draining = {each["hash"] for each in rows["first"]["drainingHashes"]}
            hashes = ConsistentHashSelector(1).sticky_hashes([key_hash(key.encode()) for key in candidates])
            stuck = [key for key, each in zip(candidates, hashes, strict=True) if each in draining][:6]
            assert len(stuck) == 6
            for message in held:
                if message.partition_key() not in stuck:
                    first.consumer.acknowledge(message)
            for taker in (first, *others):
                taker.start()
            keys = [stuck[index // 2 % 6] if index % 2 else f"key-{index % 997}" for index in range(MESSAGES)]
            publish_numbers(client, topic, keys)
            until(lambda: first.count + others[0].count + others[1].count >= MESSAGES // 2, ARRIVAL_TIMEOUT_S)
            shown = subscription_of(broker, topic)["lookAhead"]
            assert {each["consumer"] for each in shown["hashes"]} == {"first"}
            assert {each["reason"] for each in shown["hashes"]} == {"consumer still drains the hash"}
            if settings is LITTLE_ROOM:
                assert shown["sizeBytes"] <= 20_000 + 2_000
                assert shown["hashesSetAside"] == 6
            else:
                assert shown["entries"] == MESSAGES // 2
                assert shown["hashesSetAside"] == 0
            assert not shown["isFull"]
            for message in held:
                if message.partition_key() in stuck:
                    first.consumer.acknowledge(message)
            until(lambda: first.count + others[0].count + others[1].count >= MESSAGES, ARRIVAL_TIMEOUT_S)
            assert "lookAhead" not in subscription_of(broker, topic)
            assert taken_by_all([first, *others]) == numbers_by_key(keys)


def test_consumer_without_capacity_blocks_no_other_across_restart(tmp_path: Path, topic: str) -> None:
    keys = [f"key-{index % 1999}" for index in range(MESSAGES)]
    low = {key for key in set(keys) if (key_hash(key.encode()) % 65_536 or 1) <= LOW_HALF[0][1]}
    expected = numbers_by_key(keys)
    of_live = sum(len(numbers) for key, numbers in expected.items() if key not in low)
    with running_with_client(tmp_path, **LITTLE_ROOM) as (broker, client):
        dead = Taker(new_client(broker.url), topic, "dead", 10, LOW_HALF)
        live = Taker(new_client(broker.url), topic, "live", 1000, HIGH_HALF)
        with stopping(dead, live):
            live.start()
            publish_numbers(client, topic, keys)
            until(lambda: live.count >= of_live, ARRIVAL_TIMEOUT_S)
            shown = subscription_of(broker, topic)["lookAhead"]
            assert {each["consumer"] for each in shown["hashes"]} == {"dead"}
            assert {each["reason"] for each in shown["hashes"]} == {"consumer cannot receive messages now"}
            assert shown["hashesSetAside"] > 900
            # Acknowledgements are on their way for a while: the client sends them together.
            until(lambda: subscription_of(broker, topic)["msgBacklog"] == len(keys) - of_live)
            assert broker.stop() == 0
            broker.start()
            dead.start()
            until(lambda: dead.count >= len(keys) - of_live, ARRIVAL_TIMEOUT_S)
            # Once acknowledged before the restart, it does not come again.
            assert {key: numbers for key, numbers in expected.items() if key not in low} == live.taken
            assert {key: list(dict.fromkeys(numbers)) for key, numbers in dead.taken.items()} == {
                key: numbers for key, numbers in expected.items() if key in low
            }


@pytest.mark.long
def test_million_messages_wait_within_limit_and_arrive_once_in_order(tmp_path: Path, topic: str) -> None:
    keys = [f"key-{index % 1999}" for index in range(1_000_000)]
    with running_with_client(tmp_path) as (broker, client):
        dead = Taker(new_client(broker.url), topic, "dead", 10, LOW_HALF)
        live = Taker(new_client(broker.url), topic, "live", 1000, HIGH_HALF)
        with stopping(dead, live):
            live.start()
            publish_numbers(client, topic, keys)
            low = sum((key_hash(key.encode()) % 65_536 or 1) <= LOW_HALF[0][1] for key in keys)
            until(lambda: live.count >= len(keys) - low, 600)
            shown = subscription_of(broker, topic)["lookAhead"]
            assert shown["sizeBytes"] <= shown["maxSizeBytes"] + 320_000
            dead.start()
            until(lambda: dead.count >= low, 600)
            assert is_once_and_in_order(live.taken)
            assert is_once_and_in_order(dead.taken)
            assert dead.count + live.count == len(keys)
