"""`explain` at any broker of a cluster, on modelled servers: it leads to the owner, or names the reason why it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.protocol.test_cluster import ADMIN, LOOKUP, NAMESPACE, TOPIC, look_up, rest
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, modelled_cluster, run_on_uvloop
from tests.support.shared_store import SharedSession
from tests.support.waiting import until

from pybroker.admin.explain import owner_to_explain
from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import LoadReport
from pybroker.cluster.membership.registration import Registration
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.cluster.ownership.owner_document import own_document
from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName

EXPLAIN = f"{ADMIN}/explain"


async def explained(broker: ClusterBroker, path: str = EXPLAIN) -> dict[str, Any]:
    status, document = await rest(broker, "GET", path)
    assert status == 200, document
    assert isinstance(document, dict)
    return document


async def only_finding(broker: ClusterBroker, path: str = EXPLAIN) -> dict[str, Any]:
    (finding,) = (await explained(broker, path))["findings"]
    assert isinstance(finding, dict)
    return finding


def ownership_of(broker: ClusterBroker) -> BundleOwnership:
    assert broker.service.ownership is not None
    return broker.service.ownership


def bundle_of(broker: ClusterBroker) -> NamespaceBundle:
    return ownership_of(broker).bundle_of(TopicName.parse(TOPIC))


def test_explain_at_any_broker_names_owner_bundle_and_reason() -> None:
    run_on_uvloop(_explain_at_any_broker())


async def _explain_at_any_broker() -> None:
    async with modelled_cluster() as cluster:
        leader, other = cluster.brokers
        assert await rest(other, "PUT", f"{ADMIN}/subscription/one") == (204, None)
        assert await rest(leader, "PUT", f"{NAMESPACE}/{bundle_of(leader).range}/unload") == (204, None)
        cluster.chosen = 1
        # Without an owner, the leader chooses one, and the answer is that of the owner.
        for broker in (other, leader):
            for path in (EXPLAIN, f"{ADMIN}/subscription/one/explain"):
                found = await explained(broker, path)
                owner = {"bundle": str(bundle_of(other)), "broker": other.registered.broker_id}
                assert (found["owner"], found["findings"]) == (owner, []), path
        status, location = await rest(leader, "GET", EXPLAIN, follows=False)
        assert (status, location) == (307, f"{other.registered.web_service_url}{EXPLAIN}?authoritative=true")
        # While its bundle is being transferred.
        continues = asyncio.Event()
        topics = ownership_of(other)._topics

        class _Slow:
            async def close(self, bundles: Collection[NamespaceBundle]) -> None:
                await continues.wait()
                await topics.close(bundles)

        ownership_of(other)._topics = _Slow()  # type: ignore[assignment]
        path = f"{NAMESPACE}/{bundle_of(other).range}/unload?destinationBroker={leader.registered.broker_id}"
        transfer = asyncio.create_task(rest(leader, "PUT", path))
        await until(lambda: not ownership_of(other).serves(bundle_of(other)))
        for broker in cluster.brokers:
            found = await explained(broker)
            assert [each["code"] for each in found["findings"]] == ["bundle-unloading"]
            assert found["owner"] == {"bundle": str(bundle_of(other)), "broker": None}
        continues.set()
        assert await transfer == (204, None)
        assert (await explained(other))["owner"]["broker"] == leader.registered.broker_id
        # No broker may have the bundle.
        assert await rest(leader, "PUT", f"{NAMESPACE}/unload") == (204, None)
        cluster.choose = _none  # type: ignore[method-assign]
        for each in cluster.brokers:
            ownership_of(each).registry.choose = _none  # type: ignore[attr-defined]
        for broker in cluster.brokers:
            finding = await only_finding(broker)
            assert finding["code"] == "bundle-without-owner"
            assert "isolation policies exclude all" in finding["sentence"]


def _none(_bundle: str) -> RegisteredBroker:
    raise ServiceNotReady("isolation policies exclude all brokers")


@asynccontextmanager
async def _server(answer: bytes) -> AsyncIterator[RegisteredBroker]:
    """A broker that answers each HTTP request with `answer`, or never if that is empty."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readline()
        if answer:
            writer.write(answer)
            writer.close()
        else:
            await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker_id = f"127.0.0.1:{port}"
    try:
        yield RegisteredBroker(broker_id, f"http://{broker_id}", "", "pulsar://127.0.0.1:1", "", version="4.2.4")
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _give_bundle(cluster: ModelledCluster, owner: RegisteredBroker, *, register: bool = True) -> None:
    session = SharedSession(cluster.tree)
    await session.put_for_session(bundle_of(cluster.brokers[0]).path, own_document(owner, "another"))
    if register:
        _register(cluster, owner)


def _register(cluster: ModelledCluster, broker: RegisteredBroker) -> None:
    for each in cluster.brokers:
        ownership_of(each).registry.brokers()[broker.broker_id] = broker  # type: ignore[index]


def test_explain_names_frozen_owner_and_frozen_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_to_explain, "PROBE_WAIT_S", 0.2)
    run_on_uvloop(_frozen())


async def _frozen() -> None:
    async with modelled_cluster() as cluster, _server(b"") as frozen:
        one, two = cluster.brokers
        _register(cluster, frozen)
        for each in cluster.brokers:
            ownership_of(each).registry.leader_id = frozen.broker_id  # type: ignore[attr-defined]
        finding = await only_finding(one)
        assert finding["code"] == "bundle-without-owner"
        assert f"broker {frozen.broker_id}, which must assign an owner to the bundle of" in finding["sentence"]
        await _give_bundle(cluster, frozen)
        for broker in (one, two):
            finding = await only_finding(broker)
            assert (finding["code"], finding["evidence"]["owner"]) == ("owner-not-answering", frozen.broker_id)
            assert finding["waits"]


def test_explain_names_java_owner() -> None:
    run_on_uvloop(_java_owner())


async def _java_owner() -> None:
    async with modelled_cluster() as cluster, _server(b"HTTP/1.1 404 Not Found\r\n\r\n") as java:
        one, _ = cluster.brokers
        await _give_bundle(cluster, java)
        registrations = {java.broker_id: Registration(java, LoadReport())}
        one.service.membership = SimpleNamespace(registrations=registrations, conflict="")  # type: ignore[assignment]
        try:
            finding = await only_finding(one)
        finally:
            one.service.membership = None
        assert (finding["code"], finding["evidence"]["version"]) == ("owner-without-explain", "4.2.4")
        assert not finding["waits"]


def test_explain_names_conflict_between_owner_and_document() -> None:
    run_on_uvloop(_conflict())


async def _conflict() -> None:
    async with modelled_cluster() as cluster:
        one, two = cluster.brokers
        await look_up(one, authoritative=True)
        assert await rest(one, "PUT", ADMIN) == (204, None)
        ownership = ownership_of(one)
        ownership._verify = _unnoticed  # type: ignore[method-assign, assignment]
        path = bundle_of(one).path
        await cluster.tree.values.delete(path)
        cluster.tree.note_deleted(path)
        finding = await only_finding(one)
        assert finding["code"] == "bundle-owner-conflict"
        assert "is missing" in finding["sentence"]
        await look_up(two, authoritative=True)
        finding = await only_finding(one)
        assert finding["evidence"]["documentOwner"] == two.registered.broker_service_url
        del ownership._verify
        ownership._document_changed(path)  # the broker notices: the other one explains the topic
        await until(lambda: not ownership.serves(bundle_of(one)))
        assert (await explained(one))["owner"]["broker"] == two.registered.broker_id
        assert (await rest(one, "GET", LOOKUP))[0] == 200


async def _unnoticed(_bundles: Collection[NamespaceBundle]) -> None:
    return


def test_explain_after_loss_of_half_of_the_brokers_names_them_until_sessions_end() -> None:
    run_on_uvloop(_half_lost())


async def _half_lost() -> None:
    async with modelled_cluster(4) as cluster:
        names = [f"orders-{index}" for index in range(16)]
        for index, name in enumerate(names):
            await look_up(cluster.brokers[index % 4], f"persistent://public/default/{name}", authoritative=True)
        path = "/admin/v2/persistent/public/default/{}"
        for name in names:
            assert await rest(cluster.brokers[0], "PUT", path.format(name)) == (204, None)
        victims, others = cluster.brokers[2:], cluster.brokers[:2]
        of_victims = {
            name: victim.registered.broker_id
            for victim in victims
            for name in names
            if f"persistent://public/default/{name}" in victim.service.loaded.persistent
        }
        assert len(set(of_victims.values())) == 2
        cluster.chosen = 1
        for victim in victims:
            await victim.kill()
        for broker in others:
            for name, owner in of_victims.items():
                finding = await only_finding(broker, f"{path.format(name)}/explain")
                assert (finding["code"], finding["evidence"]["owner"]) == ("owner-not-answering", owner)
        for victim in victims:
            await victim.store.end_past_sessions()
        for broker in others:
            for name in of_victims:
                found = await explained(broker, f"{path.format(name)}/explain")
                assert (found["owner"]["broker"], found["findings"]) == (others[1].registered.broker_id, [])
