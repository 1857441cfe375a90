"""Key_Shared while something is stuck, counted in messages: how much of the others' arrives, and that all does in the end."""

import json
import time
from typing import Any

from tests.differential.harness import Run, scenario
from tests.support.takers import HIGH_HALF, LOW_HALF, Taker, numbers_by_key, publish_numbers, taken_by_all

from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.model.hashing import key_hash

MESSAGES = 24_000
STILL_S = 5.0
"""When nothing has come for so long, nothing comes."""
TIMEOUT_S = 120.0
CANDIDATES = [f"held-{index}" for index in range(60)]


def wait_until_still(takers: list[Taker], wanted: int) -> int:
    """How many have arrived, once all that are wanted have, or nothing comes any more."""
    deadline_s = time.monotonic() + TIMEOUT_S
    count, since_s = -1, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        before, count = count, sum(taker.count for taker in takers)
        if count >= wanted:
            break
        if count != before:
            since_s = now_s
        elif now_s - since_s > STILL_S:
            break
        time.sleep(0.1)
    return count


def draining_of(run: Run, topic: str, name: str) -> dict[int, int]:
    """Hashes that drain at that consumer, with its unacknowledged messages of each."""
    status, _, body = run.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats", ..., "")
    assert status == 200
    rows: list[dict[str, Any]] = json.loads(body)["subscriptions"]["s"]["consumers"]
    (row,) = (row for row in rows if row["consumerName"] == name)
    return {each["hash"]: each["unackMsgs"] for each in row["drainingHashes"]}


def record_end(run: Run, takers: list[Taker], keys: list[str]) -> None:
    """Whether everything has arrived, once and in the order of each key."""
    run.step("everything once and in order", taken_by_all(takers) == numbers_by_key(keys))


@scenario
def key_shared_stuck_keys(run: Run) -> None:
    """Six draining keys with half of the traffic: how many messages of the other keys arrive; then all, when they are free."""
    topic = run.topic()
    first = Taker(run.client(), topic, "first", 1000)
    publish_numbers(run.client(), topic, CANDIDATES)
    held = run.receive(first.consumer, len(CANDIDATES))
    others = [Taker(run.client(), topic, f"other-{index}", 1000) for index in range(2)]
    takers = [first, *others]
    try:
        draining = draining_of(run, topic, "first")
        hashes = ConsistentHashSelector(1).sticky_hashes([key_hash(key.encode()) for key in CANDIDATES])
        stuck = [key for key, each in zip(CANDIDATES, hashes, strict=True) if each in draining][:6]
        run.step("stuck", stuck)
        for message in held:
            if message.partition_key() not in stuck:
                first.consumer.acknowledge(message)
        for taker in takers:
            taker.start()
        keys = [stuck[index // 2 % 6] if index % 2 else f"key-{index % 997}" for index in range(MESSAGES)]
        publish_numbers(run.client(), topic, keys)
        run.step("messages of the other keys", wait_until_still(takers, MESSAGES // 2))
        for message in held:
            if message.partition_key() in stuck:
                first.consumer.acknowledge(message)
        run.step("when the keys are free", wait_until_still(takers, MESSAGES))
    finally:
        for taker in takers:
            taker.stop()
    record_end(run, takers, keys)


@scenario
def key_shared_stuck_consumer(run: Run) -> None:
    """A consumer that takes nothing of its half: how much of the other half arrives; then all, when it takes what it has."""
    topic = run.topic()
    keys = [f"key-{index % 1999}" for index in range(MESSAGES)]
    low = sum((key_hash(key.encode()) % 65_536 or 1) <= LOW_HALF[0][1] for key in keys)
    stuck = Taker(run.client(), topic, "stuck", 10, LOW_HALF)
    live = Taker(run.client(), topic, "live", 1000, HIGH_HALF)
    try:
        live.start()
        publish_numbers(run.client(), topic, keys)
        run.step("of the other half", {"due": MESSAGES - low, "arrived": wait_until_still([live], MESSAGES - low)})
        stuck.start()
        run.step("when it takes", wait_until_still([live, stuck], MESSAGES))
    finally:
        stuck.stop()
        live.stop()
    record_end(run, [live, stuck], keys)
