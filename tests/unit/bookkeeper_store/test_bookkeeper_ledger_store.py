"""The ledger store on the model of bookies, on virtual time: failures, owners, and the memory of appends in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.support.bookkeeper_store_model import ModelCluster
from tests.support.ledger_story import LoopClock
from tests.support.stepped_loop import SteppedLoop
from tests.unit.local_store.stores import Listener

from pybroker.bookkeeper.ledger_metadata import decode_metadata
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.errors import AppendUnknown, LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import LedgerPurpose
from pybroker.model.position import Position

OWNER = "/managed-ledgers/public/default/persistent/a%20topic"
Work = Callable[[ModelCluster, BookKeeperLedgerStore], Awaitable[None]]


def on_virtual_time(work: Work, seed: int = 1, *, max_in_flight_bytes: int | None = None) -> None:
    chance = Random(seed)
    loop = SteppedLoop(chance, 1000.0)

    async def run() -> None:
        cluster = ModelCluster(chance, is_quick=False)
        store = cluster.store(LoopClock(), max_in_flight_bytes)
        await work(cluster, store)
        await store.close()

    loop.run_until_complete(run())
    loop.close()


def test_custom_metadata_name_the_owner_as_pulsar_does() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        entries = await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        compacted = await store.create_ledger(LedgerPurpose.COMPACTED, OWNER, Position(7, 9))
        found = [decode_metadata(cluster.metadata.ledgers[each].value) for each in (entries, compacted)]
        assert found[0].custom == {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"public/default/persistent/a+topic",
        }
        assert found[1].custom == {
            "application": b"pulsar",
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": b"persistent://public/default/a topic",
            "pulsar/compactedTo": bytes.fromhex("080710093000"),
        }
        assert [each.digest_type.name for each in found] == ["CRC32C", "CRC32"]

    on_virtual_time(work)


@pytest.mark.parametrize("limit_bytes", [1, 100, 1_000])
def test_runs_beyond_the_limit_wait_and_complete_in_order(limit_bytes: int) -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener = Listener()
        ledgers = [await store.create_ledger(LedgerPurpose.ENTRIES, OWNER) for _ in range(3)]
        runs = [
            listener.append(store, ledger_id, 2 * number, [b"x" * 40, b"y" * 40])
            for number in range(20)
            for ledger_id in ledgers
        ]
        assert store.figures()["bookkeeper_in_flight_bytes"] <= limit_bytes + 80
        assert store.figures()["bookkeeper_waiting_runs"] > 0
        summaries = [await store.seal(ledger_id) for ledger_id in ledgers]
        assert [each.entry_count for each in summaries] == [40, 40, 40]
        completed = [run for ended, _ in listener.calls for run in ended]
        for ledger_id in ledgers:
            assert [each for each in completed if each.ledger_id == ledger_id] == [
                each for each in runs if each.ledger_id == ledger_id
            ]
        assert listener.errors == []
        assert store.figures()["bookkeeper_in_flight_bytes"] == store.figures()["bookkeeper_waiting_runs"] == 0

    on_virtual_time(work, max_in_flight_bytes=limit_bytes)


def test_entry_that_bookies_refuse_for_its_size_stores_nothing_of_its_run() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        with pytest.raises(StoreError, match="larger than"):
            listener.append(store, ledger_id, 0, [b"small", bytes(6 << 20)])
        listener.open_runs = 0
        listener.append(store, ledger_id, 0, [b"next"])
        await listener.settled()
        assert listener.errors == []
        assert (await store.seal(ledger_id)).entry_count == 1

    on_virtual_time(work)


def test_another_owner_recovers_the_ledger_and_later_appends_are_unknown() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        listener.append(store, ledger_id, 0, [b"a", b"b"])
        await listener.settled()
        other = cluster.store(LoopClock())
        recovered = await other.recover(ledger_id)
        assert recovered.entry_count == 2
        listener.append(store, ledger_id, 2, [b"c"])
        listener.append(store, ledger_id, 3, [b"d"])
        await listener.settled()
        assert [type(each) for each in listener.errors] == [AppendUnknown] * len(listener.errors)
        listener.append(store, ledger_id, 4, [b"e"])
        await listener.settled()
        assert await store.seal(ledger_id) == recovered
        assert (await store.read(ledger_id, 0, 10, 1000)).payloads == [b"a", b"b"]
        listener.append(store, ledger_id, 5, [b"f"])
        await listener.settled()
        assert isinstance(listener.errors[-1], LedgerFenced)
        await other.close()

    for seed in range(20):
        on_virtual_time(work, seed)


def test_lost_quorum_ends_appends_as_unknown_and_sealing_decides_them() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        listener.append(store, ledger_id, 0, [b"a"])
        await listener.settled()
        for bookie_id in list(cluster.network.bookies)[:2]:
            cluster.network.kill(bookie_id)
        listener.append(store, ledger_id, 1, [b"b", b"c"])
        await listener.settled()
        assert [type(each) for each in listener.errors] == [AppendUnknown]
        with pytest.raises(StoreError, match="bookies"):
            await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        assert (await store.seal(ledger_id)).entry_count == 1
        cluster.network.repair()
        await asyncio.sleep(1)  # the client tries failed bookies again
        again = await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        listener.append(store, again, 0, [b"b", b"c"])
        await store.flush()
        assert (await store.read(ledger_id, 0, 5, 100)).payloads == [b"a"]
        assert (await store.read(again, 0, 5, 100)).payloads == [b"b", b"c"]

    for seed in range(20):
        on_virtual_time(work, seed)


def test_ledger_deleted_by_another_owner_is_reported() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        listener.append(store, ledger_id, 0, [b"a"])
        await listener.settled()
        await cluster.metadata.delete(ledger_id)
        with pytest.raises(NoSuchLedger):
            await store.seal(ledger_id)

    on_virtual_time(work)


def test_reads_of_an_open_ledger_follow_its_ensembles() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        for number in range(30):
            if number % 10 == 5:
                cluster.network.repair()
                await asyncio.sleep(1)
                cluster.network.kill(list(cluster.network.bookies)[number // 10])
            listener.append(store, ledger_id, number, [b"%d" % number])
            await listener.settled()
            assert (await store.read(ledger_id, number, 1, 100)).payloads == [b"%d" % number]
        found = await store.read(ledger_id, 0, 30, 1000)
        assert found.payloads == [b"%d" % number for number in range(len(found.payloads))]

    for seed in range(10):
        on_virtual_time(work, seed)
