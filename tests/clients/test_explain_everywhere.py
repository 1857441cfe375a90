"""What the page of a topic calls a finding that waits is one everywhere: lists of topics, the console's overview, exit codes."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.commands import Run, runner, without_a_broker
from tests.support.explaining import TOPIC, Explained, explained, received
from tests.support.waiting import until

from pybroker.client import MessageConsumer, OutgoingMessage
from pybroker.errors import BrokerError

AT = "/persistent/public/default/t"
QUIET = "persistent://public/default/quiet"
LOUD = "persistent://public/default/loud"


@pytest.fixture
async def world() -> AsyncIterator[Explained]:
    async with explained(brokerDeleteInactiveTopicsEnabled=False) as running:
        yield running


@pytest.fixture
def run(
    world: Explained, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Run:
    without_a_broker(monkeypatch, str(tmp_path))
    monkeypatch.setenv("PULSAR_ADMIN_URL", world.broker.admin_url)
    return runner(capsysbinary)


async def some_keys_are_blocked(world: Explained) -> str:
    """13 of 40, while messages of the other keys are delivered."""
    before = await world.client.consumer(TOPIC, "s", kind="key_shared", name="before", from_earliest=True)
    producer = await world.client.producer(TOPIC, batching=False)
    for key in range(40):
        await producer.send(b"m", key=f"k{key}")
    held = await received(before, 40)
    after = await world.client.consumer(TOPIC, "s", kind="key_shared", name="after")
    for key in range(40):
        await producer.send(b"m", key=f"k{key}")
    blocked = world.subscription().dispatcher.waiting.waiting  # type: ignore[union-attr]
    await world.until(lambda: len(blocked) >= 13)
    by_key = {message.key: message for message in held}
    for key in [key for key in by_key if key is not None][:10]:  # type: ignore[assignment]
        await before.ack(by_key[key])  # type: ignore[index]  # some go on
    await read_all(after)
    return TOPIC


async def read_all(consumer: MessageConsumer) -> None:
    await consumer.receive(10)


async def a_silent_consumer_pins_the_backlog(world: Explained) -> str:
    await world.client.consumer(TOPIC, "s", kind="shared", name="hung", from_earliest=True)
    producer = await world.client.producer(TOPIC, batching=False)
    for _ in range(3):
        await producer.send(b"m")
    await world.until(lambda: world.subscription().unacked_messages == 3)
    await world.broker.clock.advance(minutes=5)
    return TOPIC


async def a_producer_is_refused(world: Explained) -> str:
    await world.done("POST", "/namespaces/public/default/maxProducersPerTopic", 1)
    await world.client.producer(TOPIC, name="first")
    with pytest.raises(BrokerError):
        await world.client.producer(TOPIC, name="second")
    return TOPIC


async def a_quota_is_exceeded(world: Explained) -> str:
    await (await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)).close()
    await world.client.consumer(TOPIC, "s", kind="shared", name="c", queue_messages=1000)
    producer = await world.client.producer(TOPIC, batching=False)
    await producer.send(bytes(5000))
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    await world.done("POST", f"{AT}/backlogQuota", quota)
    return TOPIC


async def a_producer_is_throttled(world: Explained) -> str:
    await (await world.client.producer(TOPIC)).close()
    await too_many(world, TOPIC)
    return TOPIC


async def another_topics_producer_holds_the_connection(world: Explained) -> str:
    await world.client.producer(TOPIC, name="held")
    await (await world.client.producer(LOUD)).close()
    await too_many(world, LOUD)
    return TOPIC


async def too_many(world: Explained, topic: str) -> None:
    await world.done("POST", "/" + topic.replace("://", "/") + "/publishRate", {"publishThrottlingRateInMsg": 1})
    await world.until(lambda: world.topic(topic).publish_throttle is not None)
    producer = await world.client.producer(topic, name="loud", batching=False)
    for _ in range(20):
        sent = asyncio.ensure_future(await producer.submit(OutgoingMessage(b"m")))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    throttle = world.topic(topic).publish_throttle
    await world.until(lambda: throttle is not None and any(map(len, throttle.limits)))


SITUATIONS: list[tuple[Callable[[Explained], Awaitable[str]], str, bool]] = [
    (some_keys_are_blocked, "key-drains", False),
    (a_silent_consumer_pins_the_backlog, "consumer-silent", False),
    (a_producer_is_refused, "producers-refused", True),
    (a_quota_is_exceeded, "backlog-quota", True),
    (a_producer_is_throttled, "publish-rate", True),
    (another_topics_producer_holds_the_connection, "connection-held", True),
]


@pytest.mark.parametrize(("make", "code", "is_blocked"), SITUATIONS, ids=[make.__name__ for make, _, _ in SITUATIONS])
async def test_lists_overview_and_exit_codes_agree_with_the_page_of_the_topic(
    world: Explained, run: Run, make: Callable[[Explained], Awaitable[str]], code: str, is_blocked: bool
) -> None:
    producer = await world.client.producer(QUIET)
    await producer.send(b"m")
    await producer.close()
    topic = await make(world)
    page = await world.explain(topic=topic)
    assert page["waiting"]
    of_subscriptions = [finding for each in page["subscriptions"] for finding in each["findings"]]
    assert code in [each["code"] for each in [*page["findings"], *of_subscriptions] if each["waits"]]
    assert (await asyncio.to_thread(run, "explain", topic)).code == 3

    overview = (await world.rest("GET", "/admin/v3/console/topics")).json
    row = next(each for each in overview["topics"] if each["name"] == topic)
    assert (row["standing"], row["blocked"]) == (0 if is_blocked else 1, int(is_blocked))
    quiet = next(each for each in overview["topics"] if each["name"] == QUIET)
    assert (quiet["standing"], quiet["blocked"]) == (0, 0)

    listed = await asyncio.to_thread(run, "explain", "--json")
    assert listed.code == 3
    found = {each["topic"]: each for each in listed.json["topics"]}
    assert found[topic]["finding"]["code"] == code
    assert QUIET not in found
    long = (await asyncio.to_thread(run, "topics", "--long", "--json")).json
    stuck = {each["topic"]: each["stuck"] for each in long}
    assert stuck[topic] == [code]
    assert stuck[QUIET] == []


async def test_explain_without_a_topic_lists_what_is_stuck_worst_first_and_in_pages(world: Explained, run: Run) -> None:
    ran = await asyncio.to_thread(run, "explain")
    assert (ran.code, ran.out) == (0, "Nothing is stuck on this broker.\n")
    for number, entries in enumerate((1, 5, 3)):
        topic = f"persistent://public/default/stuck-{number}"
        for name in ("a", "b"):
            await (await world.client.consumer(topic, name, kind="shared", from_earliest=True)).close()
        producer = await world.client.producer(topic, batching=False)
        for _ in range(entries):
            await producer.send(b"m")
    await a_producer_is_refused(world)
    await world.broker.clock.advance(seconds=3)  # a list is shared by all who ask within two seconds
    ran = await asyncio.to_thread(run, "explain")
    assert ran.code == 3
    assert ran.lines[0] == "4 topics are stuck on this broker"
    first, *blocks = ran.out.split("\n\n")[1:]
    assert first.startswith(f"{TOPIC}")
    names = [block.split()[0].rpartition("/")[2] for block in blocks]
    assert names == ["stuck-1", "stuck-2", "stuck-0"]
    assert "5 entries wait and no consumer has been connected" in " ".join(blocks[0].split())
    assert "1 more subscription is stuck." in " ".join(blocks[0].split())
    command = f"pybroker --url {world.broker.admin_url} explain persistent://public/default/stuck-1 a"
    assert blocks[0].splitlines()[-1].strip() == command
    assert (await asyncio.to_thread(run, "explain", "--limit", "1")).lines[-1] == "3 more: use --limit 4"
    second = (await world.rest("GET", "/admin/v3/explain?offset=1&limit=2")).json
    assert [each["topic"].rpartition("/")[2] for each in second["topics"]] == ["stuck-1", "stuck-2"]
    assert second["matching"] == 4
    assert (await asyncio.to_thread(run, "explain", "--consumer", "c")).code == 2


@pytest.mark.parametrize("name", ["a b'c\"$HOME`id`\n\t\u202e\\é-$(exit 1)", "--yes"])
async def test_a_pasted_command_works_in_a_shell_whatever_the_names_are_made_of(
    world: Explained, monkeypatch: pytest.MonkeyPatch, run: Run, name: str
) -> None:
    await (await world.client.consumer(TOPIC, name, kind="shared", from_earliest=True)).close()
    await (await world.client.consumer(TOPIC, "other", kind="shared", from_earliest=True)).close()
    await (await world.client.producer(TOPIC)).send(b"m")
    monkeypatch.setenv("PULSAR_TOKEN", "a-secret")
    ran = await asyncio.to_thread(run, "explain", "--", TOPIC, name)
    assert "a-secret" not in ran.out
    (command,) = [line.strip() for line in ran.lines if " skip " in line and "pybroker" in line]
    assert command.startswith(f'PULSAR_TOKEN="$PULSAR_TOKEN" pybroker --url {world.broker.admin_url} skip ')
    script = f'pybroker() {{ {shlex.quote(sys.executable)} -m pybroker "$@"; }}\n{command}'

    def in_a_shell() -> tuple[int, bytes]:
        """On a terminal, as a person does it."""
        ours, its = pty.openpty()
        with subprocess.Popen(["bash", "-c", script], stdin=its, stdout=its, stderr=its, close_fds=True) as shell:
            os.write(ours, b"yes\n")
            code = shell.wait(60)
        os.close(its)
        shown = os.read(ours, 10_000)
        os.close(ours)
        return code, shown

    code, shown = await asyncio.to_thread(in_a_shell)
    assert code == 0, shown
    assert b"This is irreversible" in shown
    await until(lambda: world.subscription(name).backlog_entries == 0)
    assert world.subscription("other").backlog_entries == 1
