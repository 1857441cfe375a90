from __future__ import annotations

from tests.unit.cluster.membership.members import Member, members, until

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport, ResourceUsage
from pybroker.cluster.membership.load_shedding_task import LoadSheddingTask, is_movable
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError
from pybroker.runtime.runtime import Runtime

MIB = 1 << 20


class Unloader:
    def __init__(self) -> None:
        self.unloaded: list[tuple[str, str, str]] = []
        self.error: Exception | None = None

    async def unload(self, bundle: str, owner: RegisteredBroker, destination: RegisteredBroker) -> None:
        if self.error is not None:
            raise self.error
        self.unloaded.append((bundle, owner.broker_id, destination.broker_id))


def use(member: Member, cpu: float, bundle_count: int) -> None:
    bundles = {f"public/default/{number}": BundleFigures(10, 20.0 * MIB) for number in range(bundle_count)}
    measured_ms = member.load.report.measured_ms + 1
    member.load.report = LoadReport(cpu=ResourceUsage(cpu, 100), bundles=bundles, measured_ms=measured_ms)


async def test_leader_has_bundles_of_the_most_used_broker_unloaded_to_another_one() -> None:
    async with members(2, load_balancer_report_update_min_interval_millis=0) as (first, second):
        use(second, 80, 8)
        await until(lambda: len(first.membership.registrations[second.id].report.bundles) == 8)
        unloader = Unloader()
        task = LoadSheddingTask(Runtime(BrokerConfig()), first.membership, unloader)
        await task.run_once()
        assert unloader.unloaded == [], "the first round has no history"
        await task.run_once()
        assert unloader.unloaded
        bundle = unloader.unloaded[0][0]
        assert unloader.unloaded[0][1:] == (second.id, first.id)
        assert (await first.membership.choose_broker(bundle)).broker_id == first.id
        assert first.membership.report().moved_total == len(unloader.unloaded)


async def test_shedding_is_for_the_leader_and_can_be_disabled_and_survives_a_refusal() -> None:
    async with members(2, load_balancer_report_update_min_interval_millis=0) as (first, second):
        use(second, 80, 8)
        await until(lambda: len(second.membership.registrations[second.id].report.bundles) == 8)
        await until(lambda: len(first.membership.registrations[second.id].report.bundles) == 8)
        unloader = Unloader()
        other = LoadSheddingTask(Runtime(BrokerConfig()), second.membership, unloader)
        disabled = LoadSheddingTask(
            Runtime(BrokerConfig(load_balancer_shedding_enabled=False)), first.membership, unloader
        )
        for task in (other, disabled):
            for _ in range(3):
                await task.run_once()
        assert unloader.unloaded == []
        unloader.error = AdminError(503, "busy")
        task = LoadSheddingTask(Runtime(BrokerConfig()), first.membership, unloader)
        for _ in range(2):
            await task.run_once()
        assert first.membership.report().moved_total == 0


def test_heartbeats_and_excluded_namespaces_are_not_moved() -> None:
    config = BrokerConfig(load_balancer_shedding_excluded_namespaces=("public/fixed",))
    assert is_movable("public/default/0x0_0x1", config)
    assert not is_movable("public/fixed/0x0_0x1", config)
    assert not is_movable("pulsar/host:8080/0x00000000_0xffffffff", config)
