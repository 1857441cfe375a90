from __future__ import annotations

import json
from functools import partial

from tests.unit.cluster.membership.members import Member, members, until

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport
from pybroker.cluster.load_balance.stored_averages import BROKER_AVERAGES, broker_path, bundle_path
from pybroker.cluster.membership.bundle_split_task import BundleSplitTask
from pybroker.cluster.membership.stored_load_data import StoredLoadData
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError
from pybroker.metadata.resources import Resources
from pybroker.runtime.runtime import Runtime

FULL = "public/default/0x00000000_0x40000000"
OTHER = "public/default/0x40000000_0x80000000"
BUSY = BundleFigures(10, 10, topic_count=5000)


class Splitter:
    def __init__(self) -> None:
        self.split_bundles: list[tuple[str, str, bool]] = []
        self.error: Exception | None = None

    async def split(self, bundle: str, owner: RegisteredBroker, *, unload: bool) -> None:
        if self.error is not None:
            raise self.error
        self.split_bundles.append((bundle, owner.broker_id, unload))


def report(member: Member, **bundles: BundleFigures) -> None:
    names = {"full": FULL, "other": OTHER}
    found = {names[name]: figures for name, figures in bundles.items()}
    member.load.report = LoadReport(bundles=found, measured_ms=member.load.report.measured_ms + 1)


async def resources_of(member: Member) -> Resources:
    resources = Resources(member.store, 4)
    await resources.load()
    await resources.bootstrap("c1")
    return resources


def task_of(member: Member, resources: Resources, splitter: Splitter, **settings: object) -> BundleSplitTask:
    runtime = Runtime(BrokerConfig(**settings))  # type: ignore[arg-type]
    stored = StoredLoadData(runtime, member.membership, member.store)
    return BundleSplitTask(runtime, member.membership, resources, stored, splitter)


async def test_leader_has_overloaded_bundles_split_by_their_owner() -> None:
    async with members(2, load_balancer_report_update_min_interval_millis=0) as (first, second):
        resources = await resources_of(first)
        report(second, full=BUSY, other=BUSY._replace(topic_count=1))
        await until(lambda: FULL in first.membership.registrations[second.id].report.bundles)
        splitter = Splitter()
        await first.store.put(bundle_path(FULL), b"{}")
        task = task_of(first, resources, splitter)
        await task.run_once()
        await task.run_once()
        assert splitter.split_bundles == [(FULL, second.id, True)], "each report is checked once"
        assert first.membership.report().split_total == 1
        assert await first.store.get(bundle_path(FULL)) is None
        stays = task_of(first, resources, splitter, load_balancer_auto_unload_split_bundles_enabled=False)
        await stays.run_once()
        assert splitter.split_bundles[1:] == [(FULL, second.id, False)]


async def test_split_is_for_the_leader_of_several_brokers_and_can_be_disabled_and_survives_a_refusal() -> None:
    async with members(2, load_balancer_report_update_min_interval_millis=0) as (first, second):
        resources = await resources_of(first)
        report(first, full=BUSY)
        await until(lambda: FULL in first.membership.registrations[first.id].report.bundles)
        await until(lambda: FULL in second.membership.registrations[first.id].report.bundles)
        splitter = Splitter()
        await task_of(second, resources, splitter).run_once()
        for setting in ("load_balancer_enabled", "load_balancer_auto_bundle_split_enabled"):
            await task_of(first, resources, splitter, **{setting: False}).run_once()
        assert splitter.split_bundles == []
        splitter.error = AdminError(503, "busy")
        await task_of(first, resources, splitter).run_once()
        assert first.membership.report().split_total == 0
        splitter.error = None
        await second.membership.leave()
        await until(lambda: len(first.membership.registrations) == 1)
        await task_of(first, resources, splitter).run_once()
        assert splitter.split_bundles == []


async def test_averages_of_a_leader_are_continued_by_the_next_one() -> None:
    async with members(2, load_balancer_report_update_min_interval_millis=0) as (first, second):
        for rate in (100, 200, 300):
            report(second, full=BundleFigures(rate, 1000))
            await until(partial(_has_rate, first, second, rate))
        runtime = Runtime(BrokerConfig())
        stored = [StoredLoadData(runtime, each.membership, each.store) for each in (first, second)]
        for each in stored:
            await each.announce()
        await first.store.put(broker_path("gone:1"), b"{}")
        await first.store.put(bundle_path(OTHER), b"{}")
        for each in stored:
            await each.write_once()  # the second one is no leader
        value = await first.store.get(bundle_path(FULL))
        assert value is not None
        assert json.loads(value.value)["longTermData"]["numSamples"] == 3
        assert await first.store.get(bundle_path(OTHER)) is None, "no broker reports it"
        assert await first.store.children(BROKER_AVERAGES) == sorted([first.id, second.id])
        sums = await first.store.get(broker_path(second.id))
        assert sums is not None
        assert json.loads(sums.value)["longTermMsgRateIn"] == 200
        second.membership.averages.forget(FULL)
        await first.kill()
        first.store.expire()
        await until(second.membership.elected.is_set)
        await stored[1].continue_averages()
        assert second.membership.averages.of(FULL).long.samples >= 3


def _has_rate(member: Member, reporting: Member, rate: float) -> bool:
    figures = member.membership.registrations[reporting.id].report.bundles.get(FULL)
    return figures is not None and figures.message_rate_in == rate
