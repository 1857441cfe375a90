"""The condition of bookies, on the model of bookies and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.support.bookkeeper_store_model import ModelCluster
from tests.support.ledger_story import LoopClock
from tests.support.stepped_loop import SteppedLoop
from tests.unit.local_store.stores import Listener

from pybroker.bookkeeper_store.bookie_watch import FORGET_MS, MAX_GONE
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.ledgers.bookie_report import BookieCondition
from pybroker.ledgers.ledger_store import LedgerPurpose
from pybroker.runtime import logs

OWNER = "/managed-ledgers/public/default/persistent/t"
Work = Callable[[ModelCluster, BookKeeperLedgerStore], Awaitable[None]]
USABLE, READ_ONLY = BookieCondition.USABLE, BookieCondition.READ_ONLY


def on_virtual_time(work: Work) -> None:
    chance = Random(1)
    loop = SteppedLoop(chance, 1000.0)

    async def run() -> None:
        cluster = ModelCluster(chance, is_quick=False)
        store = cluster.store(LoopClock())
        store.watch.start()
        await work(cluster, store)
        await store.close()

    loop.run_until_complete(run())
    loop.close()


def conditions(store: BookKeeperLedgerStore) -> list[str]:
    return [each.condition.value for each in store.bookies().bookies]


def test_all_bookies_are_usable_and_their_begin_is_unknown() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        report = store.bookies()
        assert [(each.condition, each.since_ms) for each in report.bookies] == [(USABLE, None)] * 3
        assert (report.needed, report.writable_count, report.refusal, report.unusable) == (2, 3, None, [])

    on_virtual_time(work)


def test_frozen_bookie_is_unreachable_until_a_probe_is_answered() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        listener, ledger_id = Listener(), await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)
        frozen = store._open[ledger_id].writer.ensemble[0]
        listener.append(store, ledger_id, 0, [b"a"])
        await listener.settled()
        cluster.network.frozen.add(frozen)
        listener.append(store, ledger_id, 1, [b"b", b"c"])
        await asyncio.sleep(2)
        wait = store.append_wait(ledger_id)
        assert wait is not None
        assert (wait.entry_count, wait.ack_quorum, frozen in wait.ensemble) == (2, 2, True)
        assert store.figures()["bookkeeper_slow_ledgers"] == 1
        assert store.figures()["bookkeeper_oldest_append_seconds"] >= 1.9
        await listener.settled()  # another bookie replaces it
        assert store.append_wait(ledger_id) is None
        (unusable,) = store.bookies().unusable
        assert (unusable.bookie_id, unusable.condition.value) == (frozen, "unreachable")
        assert "no response to an add request" in unusable.failure
        statistics = store.client_statistics()
        assert (statistics.ensemble_changes, statistics.operations["ADD_ENTRY"].succeeded.count) == (1, 3)
        began_ms = unusable.since_ms
        await asyncio.sleep(20)
        (unusable,) = store.bookies().unusable
        assert unusable.since_ms == began_ms
        cluster.network.thaw(frozen)
        await asyncio.sleep(12)
        assert conditions(store) == ["usable"] * 3

    on_virtual_time(work)


def test_too_few_writable_bookies_are_reported_once_and_their_return_too(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logs, level, lambda event, **_: events.append(event))

    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        first, second, _ = cluster.network.bookies
        await asyncio.sleep(2)
        cluster.network.kill(first)
        await asyncio.sleep(5)
        assert conditions(store) == ["unregistered", "usable", "usable"]
        cluster.network.bookies[second].is_read_only = True
        await asyncio.sleep(5)
        report = store.bookies()
        assert report.refusal is not None
        assert "needs 2 bookies" in report.refusal
        assert "1 of 3 are writable" in report.refusal
        assert [each.bookie_id for each in report.unusable] == [first, second]
        cluster.network.repair()
        await asyncio.sleep(5)
        assert store.bookies().refusal is None

    on_virtual_time(work)
    assert events == [
        "bookie.not_usable",
        "bookie.not_usable",
        "bookies.too_few",
        "bookie.usable",
        "bookie.usable",
        "bookies.sufficient",
    ]


def test_number_of_remembered_bookies_is_limited() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        network = cluster.network
        bookie = next(iter(network.bookies.values()))
        for number in range(3 * MAX_GONE):
            network.bookies[f"late-{number}"] = bookie
            store.watch.check()
            del network.bookies[f"late-{number}"]
        assert len(store.bookies().bookies) == 3 + MAX_GONE

    on_virtual_time(work)


def test_bookie_that_left_is_forgotten_after_a_day() -> None:
    async def work(cluster: ModelCluster, store: BookKeeperLedgerStore) -> None:
        gone = next(iter(cluster.network.bookies))
        store.watch.check()
        cluster.network.kill(gone)
        store.watch.check()
        (known,) = [each for each in store.bookies().bookies if each.bookie_id == gone]
        store.watch._known[gone] = store.watch._known[gone]._replace(since_ms=(known.since_ms or 0) - FORGET_MS - 1)
        assert len(store.bookies().bookies) == 2

    on_virtual_time(work)
