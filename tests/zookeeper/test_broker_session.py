"""The session of a real broker process: its connection is frozen, the process is frozen, and its id is taken meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.frame_proxy import Direction, FrameProxy, frame_proxy
from tests.support.raw_client import RawClient
from tests.support.rest import Answer, call
from tests.support.zookeeper_server import free_port

from pybroker.metadata.broker_identity import BROKERS_PATH
from pybroker.zookeeper import ClientOptions, CreateMode, ServerAddresses, ZooKeeperClient

TIMEOUT_MS = 2000
TOPIC = "persistent://public/default/t"
CLOSE_SESSION = (-11).to_bytes(4, "big", signed=True)
DEADLINE_S = 60.0


class Story:
    """One broker whose connections to ZooKeeper go through a proxy, and a client of ZooKeeper beside it."""

    def __init__(self, proxy: FrameProxy, broker: BrokerProcess, direct: ZooKeeperClient) -> None:
        self.proxy = proxy
        self.broker = broker
        self.direct = direct
        self.id_path = f"{BROKERS_PATH}/127.0.0.1:{broker.ready['http_port']}"

    async def get(self, path: str) -> Answer:
        return await asyncio.to_thread(call, self.broker.http_url + path)

    async def ready_becomes(self, status: int, text: str = "") -> str:
        """Return the text of `/ready` when it has `status` and contains `text`."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = await self.get("/ready")
            if found.status == status and text in found.text:
                return found.text
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)

    async def owner(self) -> int:
        """Return the session that holds the broker's id; 0 without one."""
        stat = await self.direct.exists(self.id_path)
        return 0 if stat is None else stat.ephemeral_owner

    async def id_is_free(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.owner():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def findings(self) -> list[dict[str, Any]]:
        answer = await self.get("/admin/v2/persistent/public/default/t/explain")
        found: list[dict[str, Any]] = answer.json["findings"]
        return found

    def log(self) -> str:
        return self.broker.log.read_text()


@pytest.fixture
async def story(chroot: ServerAddresses, tmp_path: Path) -> AsyncIterator[Story]:
    async with frame_proxy(*chroot.servers[0]) as proxy:
        direct = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000))
        await direct.start(30)
        await direct.create("/admin/clusters/c1", b"{}", makes_parents=True)
        broker = BrokerProcess(
            tmp_path,
            {
                "metadataStoreUrl": f"zk:127.0.0.1:{proxy.port}{chroot.chroot}",
                "ledgerStore": "local",
                "clusterName": "c1",
                "advertisedAddress": "127.0.0.1",
                "metadataStoreSessionTimeoutMillis": str(TIMEOUT_MS),
                "metadataStoreOperationTimeoutSeconds": "1",
            },
        )
        broker.ready = {"broker_port": 0, "http_port": free_port()}  # the id of a broker needs a fixed port
        await asyncio.to_thread(broker.start)
        try:
            yield Story(proxy, broker, direct)
            assert await asyncio.to_thread(broker.stop) == 0
            assert "Traceback" not in broker.log.read_text()
        finally:
            if broker.process is not None:
                broker.process.send_signal(signal.SIGCONT)
            broker.kill()
            await direct.close()


async def publish(client: RawClient, first: int) -> list[dict[str, Any]]:
    return await asyncio.to_thread(client.publish, 1, 1, first)


async def test_loaded_topic_continues_without_metadata_and_explain_reports_it(story: Story) -> None:
    """Suspended, then lost: publishing continues, `explain` and `/ready` report it; the next session claims the id."""
    with closing(await asyncio.to_thread(RawClient, story.broker.url)) as client:
        await asyncio.to_thread(client.connect)
        await asyncio.to_thread(client.open_producer, TOPIC)
        assert await story.findings() == []
        first_session = await story.owner()
        assert first_session
        story.proxy.refuse()
        await story.ready_becomes(503, "is suspended")
        (finding,) = await story.findings()
        assert finding["code"] == "metadata-unreachable"
        assert "continues with the policies that the broker knows" in str(finding["sentence"])
        assert finding["waits"] is False
        assert isinstance(finding["since"], int)
        assert [each["type"] for each in await publish(client, 0)] == ["SEND_RECEIPT"]
        await story.ready_becomes(503, "is lost")
        (finding,) = await story.findings()
        assert finding["evidence"]["losses"] == 1
        assert [each["type"] for each in await publish(client, 1)] == ["SEND_RECEIPT"]
        metrics = (await story.get("/metrics")).text
        assert 'pybroker_metadata_session_losses_total{cluster="c1"} 1' in metrics
        await story.proxy.start()
        await story.ready_becomes(200)
        async with asyncio.timeout(DEADLINE_S):
            while await story.owner() in (0, first_session):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await story.findings() == []
        assert "broker_id.taken" not in story.log()


async def test_frozen_process_gives_up_its_session_before_it_uses_the_connection(story: Story) -> None:
    """The broker wakes with an answer in its socket and an id that another broker has taken: both count for nothing."""
    process = story.broker.process
    assert process is not None
    woken = False
    requests: list[bytes] = []
    old_connections = story.proxy.connections

    def record(direction: Direction, frame: bytes) -> bool:
        if woken and direction is Direction.REQUEST and story.proxy.connections == old_connections:
            requests.append(frame)
        return False

    story.proxy.cut_at = record
    first_session = await story.owner()
    watched = "/admin/clusters/c1"
    process.send_signal(signal.SIGSTOP)
    await story.direct.set(watched, b"{}")  # its event lies in the socket of the frozen process
    await story.id_is_free()
    other = json.dumps({"host": "other", "directoryId": "other"}).encode()
    await story.direct.create(story.id_path, other, CreateMode.EPHEMERAL)
    woken = True
    process.send_signal(signal.SIGCONT)
    reason = await story.ready_becomes(503, "another broker has taken the id")
    assert "'host': 'other'" in reason
    assert [frame for frame in requests if frame[4:8] != CLOSE_SESSION] == [], "no request in the lost session"
    lines = [line for line in story.log().splitlines() if "metadata_session." in line or "broker_id." in line]
    events = [each for line in lines for each in ("lost", "renewed", "taken") if f".{each}" in line]
    assert events == ["lost", "renewed", "taken"]
    assert (await story.direct.get(story.id_path))[0] == other
    await story.direct.delete(story.id_path)
    await story.ready_becomes(200)
    assert await story.owner() not in (0, first_session)
