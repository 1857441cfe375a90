"""The console's side in the broker: its files, its lists, and live figures for several who look at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import Answer, call

from pybroker.admin.console.console_pages import DIRECTORY, MEDIA_TYPES
from pybroker.admin.console.live import KEPT_POINTS
from pybroker.model.names import TopicName
from pybroker.model.policies import AuthAction, NamespacePolicies

TOPIC = "persistent://public/default/t"
CONSOLE = "/admin/v3/console"
LIVE_TOPIC = f"{CONSOLE}/live/persistent/public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(console_sample_interval_ms=100) as running:
        yield running


async def get(broker: MemoryBroker, path: str, headers: dict[str, str] | None = None) -> Answer:
    return await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}{path}", "GET", headers=headers)


async def head_of(broker: MemoryBroker, path: str, *lines: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, without following anything."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", "host: localhost", "connection: close", *lines, "", ""]).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), {line.partition(": ")[0]: line.partition(": ")[2] for line in rest}, body


class Look:
    """A connection on which live figures come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0

    async def event(self) -> tuple[str, Any]:
        """The next one; its name and its data."""
        name = ""
        async with asyncio.timeout(10):
            while True:
                line = (await self.reader.readline()).decode().strip()
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    return name, json.loads(line.removeprefix("data: "))

    async def point(self) -> list[float]:
        """The newest of the next ones."""
        while True:
            name, data = await self.event()
            assert name in {"begin", "points"}, (name, data)
            if name == "points":
                newest: list[float] = data[-1]
                return newest


@asynccontextmanager
async def looking(broker: MemoryBroker, path: str) -> AsyncIterator[Look]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode())
    look = Look(reader, writer)
    look.status = int((await reader.readline()).split()[1])
    try:
        yield look
    finally:
        writer.close()


# --- files -----------------------------------------------------------------------------------------------------------


async def test_every_file_is_served_with_its_type_and_the_rules_of_a_browser(broker: MemoryBroker) -> None:
    names = [path.name for path in DIRECTORY.iterdir()]
    assert {Path(name).suffix for name in names} <= set(MEDIA_TYPES)
    for path in ["/console/", "/console", "/docs", *(f"/console/{name}" for name in names)]:
        status, headers, body = await head_of(broker, path)
        assert (status, headers["x-content-type-options"], headers["referrer-policy"]) == (
            200,
            "nosniff",
            "no-referrer",
        )
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert body
        assert headers["content-type"].partition(";")[0] in {each.partition(";")[0] for each in MEDIA_TYPES.values()}


async def test_a_file_that_the_browser_has_is_not_sent_again(broker: MemoryBroker) -> None:
    _, headers, _ = await head_of(broker, "/console/app.js")
    status, _, body = await head_of(broker, "/console/app.js", f"if-none-match: {headers['etag']}")
    assert (status, body, headers["cache-control"]) == (304, b"", "no-cache")


@pytest.mark.parametrize("path", ["/console/nothing.js", "/console/..%2fapp.py", "/console/%2e%2e", "/console/a/b"])
async def test_nothing_but_the_files_is_served(broker: MemoryBroker, path: str) -> None:
    assert (await get(broker, path)).status == 404


async def test_a_browser_is_led_to_the_console_and_others_are_not(broker: MemoryBroker) -> None:
    status, headers, _ = await head_of(broker, "/", "accept: text/html,*/*")
    assert (status, headers["location"]) == (302, "/console/")
    assert (await get(broker, "/")).json == {"reason": "No such path: /"}


async def test_the_console_can_be_switched_off() -> None:
    async with memory_broker(console_enabled=False) as broker:
        for path in ("/console/", "/console/app.js", "/docs"):
            assert (await get(broker, path)).status == 404
        assert (await head_of(broker, "/", "accept: text/html"))[0] == 404
        assert (await get(broker, "/openapi.json")).status == 200


async def test_files_load_nothing_from_elsewhere_and_make_no_markup_from_texts() -> None:
    for path in DIRECTORY.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path.name
        assert "https://" not in text, path.name
        if path.suffix in {".js", ".html"}:
            for word in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "cookie",
            ):
                assert word not in text, (path.name, word)
        if path.suffix == ".html":
            assert " style=" not in text
            assert "onclick" not in text


# --- rights ----------------------------------------------------------------------------------------------------------


SECURED: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": ("token",),
    "authorization_enabled": True,
    "super_user_roles": frozenset({"admin"}),
    "token_secret_key": "data:;base64,MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "console_sample_interval_ms": 100,
}


def token(role: str, **claims: Any) -> dict[str, str]:
    import jwt

    return {"Authorization": f"Bearer {jwt.encode({'sub': role, **claims}, b'01234567890123456789012345678901')}"}


async def test_files_need_no_credentials_and_figures_need_their_right() -> None:
    async with memory_broker(**SECURED) as broker:
        assert (await get(broker, "/console/app.js")).status == 200
        assert (await get(broker, "/docs")).status == 200
        assert (await head_of(broker, "/", "accept: text/html"))[0] == 302
        for path in ("/", "/openapi.json", f"{CONSOLE}/topics", f"{CONSOLE}/rights", "/console/a/b", LIVE_TOPIC):
            assert (await get(broker, path)).status == 401, path
        events = {"Accept": "text/event-stream", **token("reader")}
        for path in (f"{CONSOLE}/broker", f"{CONSOLE}/live", LIVE_TOPIC, f"{LIVE_TOPIC}/subscription/s"):
            assert (await get(broker, path, events)).status == 401, path


async def test_each_is_told_his_rights_and_shown_the_topics_that_he_may_list() -> None:
    async with memory_broker(**SECURED) as broker:
        await broker.service.resources.create_namespace(
            TopicName.parse("persistent://public/other/t").namespace, NamespacePolicies()
        )

        def grant(policies: NamespacePolicies) -> None:
            policies.auth_policies.namespace_auth["reader"] = [AuthAction.CONSUME]

        await broker.service.resources.update_namespace(TopicName.parse(TOPIC).namespace, grant)
        for name in (TOPIC, "persistent://public/other/t"):
            await broker.topic(name)
        shown = (await get(broker, f"{CONSOLE}/topics", token("reader"))).json
        assert ([each["name"] for each in shown["topics"]], shown["all"], shown["sums"]["producers"]) == ([TOPIC], 1, 0)
        assert (await get(broker, f"{CONSOLE}/topics", token("admin"))).json["all"] == 2
        assert (await get(broker, f"{CONSOLE}/topics", token("nobody"))).json["topics"] == []
        rights = (await get(broker, f"{CONSOLE}/rights?topic={TOPIC}&subscription=s", token("reader"))).json
        assert rights == {
            "authentication": True,
            "authorization": True,
            "superuser": False,
            "role": "reader",
            "topic": {"lookup": True, "produce": False, "consume": True, "administer": False},
        }


async def test_a_look_ends_with_the_right_and_with_the_credentials() -> None:
    async with memory_broker(**SECURED) as broker:
        await broker.topic(TOPIC)

        def grant(policies: NamespacePolicies) -> None:
            policies.auth_policies.namespace_auth["reader"] = [AuthAction.CONSUME]

        def revoke(policies: NamespacePolicies) -> None:
            policies.auth_policies.namespace_auth.clear()

        namespace = TopicName.parse(TOPIC).namespace
        await broker.service.resources.update_namespace(namespace, grant)
        expiry_s = broker.clock.now_ms // 1000 + 100
        for headers, ends in (
            (token("reader"), lambda: broker.service.resources.update_namespace(namespace, revoke)),
            (token("admin", exp=expiry_s), None),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(
                f"GET {LIVE_TOPIC} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
                f"authorization: {headers['Authorization']}\r\n\r\n".encode()
            )
            look = Look(reader, writer)
            await look.point()
            if ends is not None:
                await ends()  # type: ignore[no-untyped-call]
            else:
                broker.clock.now_ms = expiry_s * 1000 - 10_000
                name = "points"
                while name == "points":
                    name, data = await look.event()
                assert (name, data) == ("challenge", {"expiresAt": expiry_s * 1000})
                broker.clock.now_ms = expiry_s * 1000
            name = "points"
            while name == "points":
                name, data = await look.event()
            assert name == "end"
            assert "expired" in data["reason"] or "neither" in data["reason"]
            writer.close()


# --- lists -----------------------------------------------------------------------------------------------------------


async def test_topics_are_searched_sorted_and_paged_where_they_are(broker: MemoryBroker) -> None:
    topics = [await broker.topic(f"persistent://public/default/order-{index}") for index in range(5)]
    await broker.topic("persistent://public/default/invoice")
    consumer = await broker.consumer(topics[3], "s", RecordingPeer())
    await broker.publish(topics[3], 3)
    await broker.until(lambda: consumer.state.unacked_messages == 3)
    found = (await get(broker, f"{CONSOLE}/topics?search=ORDER+default&sort=backlog&order=desc&limit=2")).json
    assert [each["name"][-7:] for each in found["topics"]] == ["order-3", "order-0"]
    assert (found["matching"], found["all"], found["isCut"]) == (5, 6, False)
    first = found["topics"][0]
    assert (first["backlog"], first["unacked"], first["consumers"], first["subscriptions"]) == (3, 3, 1, 1)
    rest = (await get(broker, f"{CONSOLE}/topics?search=order&offset=3&limit=50")).json["topics"]
    assert [each["name"][-7:] for each in rest] == ["order-3", "order-4"]


@pytest.mark.parametrize("query", ["sort=nothing", "limit=0", "limit=501", "offset=-1", "search=" + "x" * 201])
async def test_a_list_that_makes_no_sense_is_refused(broker: MemoryBroker, query: str) -> None:
    assert (await get(broker, f"{CONSOLE}/topics?{query}")).status == 400


async def test_what_is_stuck_is_listed_for_who_may_list_and_consume() -> None:
    async with memory_broker(**SECURED) as broker:

        def grant(policies: NamespacePolicies) -> None:
            policies.auth_policies.namespace_auth["reader"] = [AuthAction.CONSUME]
            policies.auth_policies.namespace_auth["writer"] = [AuthAction.PRODUCE]

        await broker.service.resources.update_namespace(TopicName.parse(TOPIC).namespace, grant)
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        url = f"http://127.0.0.1:{broker.port}/topics/persistent/public/default/t"
        body = {"messages": [{"payload": "m"}] * 3}
        assert (await asyncio.to_thread(call, url, "POST", headers=token("admin"), body=body)).status == 200
        stuck = f"{CONSOLE.removesuffix('/console')}/explain"
        for role, names in (("admin", [TOPIC]), ("reader", [TOPIC]), ("writer", []), ("nobody", [])):
            shown = (await get(broker, stuck, token(role))).json
            assert [each["topic"] for each in shown["topics"]] == names, role
            assert shown["matching"] == len(names)
        (row,) = (await get(broker, f"{stuck}?search=DEFAULT+t", token("admin"))).json["topics"]
        assert (row["subscription"], row["backlog"], row["finding"]["code"]) == ("s", 3, "no-consumers")
        assert (await get(broker, f"{stuck}?search=other", token("admin"))).json["topics"] == []
        assert (await get(broker, f"{stuck}?limit=501", token("admin"))).status == 400


async def test_a_list_of_too_many_topics_says_so() -> None:
    async with memory_broker(console_max_topics=2) as broker:
        for index in range(3):
            await broker.topic(f"persistent://public/default/{index}")
        shown = (await get(broker, f"{CONSOLE}/topics")).json
        assert (shown["isCut"], shown["all"]) == (True, 2)


async def test_the_broker_says_what_its_memory_is_used_for(broker: MemoryBroker) -> None:
    shown = (await get(broker, f"{CONSOLE}/broker")).json
    assert {"reads", "answers", "lists"} <= {each["part"] for each in shown["memory"]}
    assert {each["key"] for each in shown["limits"]} >= {"brokerMaxConnections", "consoleMaxLiveConnections"}
    assert shown["unready"] == ""
    assert not {"diskBytes", "diskFreeBytes"} & shown.keys(), "its stores are in memory"


# --- live ------------------------------------------------------------------------------------------------------------


async def test_figures_rise_with_what_happens_and_all_who_look_see_the_same(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    console = broker._server.console
    assert not console.sampler.is_running
    async with looking(broker, LIVE_TOPIC) as one, looking(broker, LIVE_TOPIC) as other:
        name, begun = await one.event()
        assert (name, begun["intervalMs"], begun["fields"][:2]) == ("begin", 100, ["time", "messagesIn"])
        await broker.publish(topic, 5)
        backlog = begun["fields"].index("storageBytes")
        while not (await one.point())[backlog]:
            pass
        while not (await other.point())[backlog]:
            pass
        assert console.sampler.streams == 2
    await broker.until(lambda: not console.sampler.streams)
    await broker.until(lambda: not console.sampler.is_running)
    assert not broker.service.runtime.memory.answers.used_bytes


async def test_a_look_at_a_topic_that_is_unloaded_loads_nothing_and_goes_on_when_it_is_back(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    async with looking(broker, LIVE_TOPIC) as look:
        assert len(await look.point()) > 1
        await broker.service.topics.unload(topic)
        while len(await look.point()) > 1:
            pass
        assert not broker.service.loaded.persistent.get(TOPIC)
        await broker.topic(TOPIC)
        while len(await look.point()) == 1:
            pass


async def test_a_look_at_a_subscription_goes_on_when_it_is_deleted() -> None:
    async with memory_broker(system_topic_enabled=False) as broker:  # so no other topic has a consumer
        topic = await broker.topic(TOPIC)
        await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
        async with looking(broker, f"{LIVE_TOPIC}/subscription/s") as look, looking(broker, f"{CONSOLE}/live") as whole:
            _, begun = await look.event()
            point = dict(zip(begun["fields"], await look.point(), strict=True))
            assert (point["permits"], point["consumers"]) == (1000, 1)
            assert (await whole.point())[5] == 1
            topic.subscriptions["s"].close_consumers()
            await topic.delete_subscription(topic.subscriptions["s"])
            while len(await look.point()) > 1:
                pass


async def test_live_points_of_the_broker_have_its_own_cpu_and_are_sampled_only_while_watched(
    broker: MemoryBroker,
) -> None:
    sampler = broker._server.console.sampler
    async with looking(broker, f"{CONSOLE}/live") as look:
        _, begun = await look.event()
        cpu, disk = begun["fields"].index("cpuPercent"), begun["fields"].index("diskFreeBytes")
        first = await look.point()
        assert first[cpu] is None, "there is no point before it"
        assert first[disk] is None
        while not (await look.point())[cpu]:
            sum(range(1_000_000))  # the broker runs in this process
    await broker.until(lambda: not sampler.is_running)


async def test_too_many_who_look_are_told_the_limit() -> None:
    limited = memory_broker(console_max_live_connections=1)
    async with limited as broker, looking(broker, f"{CONSOLE}/live") as look:
        await look.point()
        refused = await get(broker, f"{CONSOLE}/live", {"Accept": "text/event-stream"})
        assert (refused.status, "consoleMaxLiveConnections" in refused.text) == (503, True)
        assert (await get(broker, f"{CONSOLE}/live")).status == 406


async def test_who_does_not_read_is_owed_no_more_than_is_kept_and_is_cut_in_the_end() -> None:
    async with memory_broker(console_sample_interval_ms=100, http_write_timeout_ms=500) as broker:
        sampler = broker._server.console.sampler
        async with looking(broker, f"{CONSOLE}/live") as look:
            await look.point()
            (watched,) = sampler._watched.values()
            watched.points.extend((1.0, (1.0,) * 5000) for _ in range(KEPT_POINTS))
            watched.count += 100 * KEPT_POINTS  # far more than it has been told
            assert len(watched.since(1)) == KEPT_POINTS
            await broker.until(lambda: not sampler.streams)


async def test_a_fault_while_measuring_costs_a_point_and_ends_no_look(broker: MemoryBroker) -> None:
    topic = await broker.topic(TOPIC)
    sampler = broker._server.console.sampler
    async with looking(broker, LIVE_TOPIC) as look:
        await look.point()
        subscriptions, topic.subscriptions = topic.subscriptions, None  # type: ignore[assignment]
        await broker.until(lambda: broker.service.runtime.stats.bugs > 0)
        topic.subscriptions = subscriptions
        assert len(await look.point()) > 1
    await broker.until(lambda: not sampler.is_running)


async def test_a_look_ends_when_the_broker_stops() -> None:
    async with memory_broker(console_sample_interval_ms=60_000) as broker, looking(broker, f"{CONSOLE}/live") as look:
        await look.point()
        await broker._server.close(deadline_s=5)
        assert await look.event() == ("end", {"reason": "the broker is stopping"})


async def test_many_come_and_go_at_once_and_nothing_is_left(broker: MemoryBroker) -> None:
    await broker.topic(TOPIC)

    async def come_and_go(index: int) -> None:
        path = (f"{CONSOLE}/live", LIVE_TOPIC, f"{LIVE_TOPIC}/subscription/s")[index % 3]
        async with looking(broker, path) as look:
            if index % 2:
                await look.point()

    async with asyncio.TaskGroup() as group:
        for index in range(40):
            group.create_task(come_and_go(index))
    sampler = broker._server.console.sampler
    await broker.until(lambda: not sampler.is_running)
    assert (sampler.streams, sampler._watched) == (0, {})
