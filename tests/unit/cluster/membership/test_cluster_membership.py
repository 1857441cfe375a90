from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.shared_memory_store import SharedTree
from tests.unit.cluster.membership.members import (
    Member,
    broker,
    java_registration,
    leaders,
    members,
    register_java,
    short_pauses,
    until,
)

from pybroker.broker.explain.membership import explain_membership
from pybroker.cluster.membership.leader_rules import LEADER
from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, registration_path
from pybroker.errors import ServiceNotReady, StoreError
from pybroker.metadata import metadata_paths
from pybroker.model.findings import Code

EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
BUNDLE = "public/default/0x00000000_0x40000000"


async def test_members_list_each_other_and_agree_on_one_leader() -> None:
    async with members(3) as found:
        ids = {member.id for member in found}
        for member in found:
            assert set(member.membership.brokers()) == ids
        await until(lambda: all(member.membership.leader() for member in found))
        assert leaders(found) == ["host-0:8080"]
        assert {member.membership.leader() for member in found} == {found[0].broker}


async def test_registration_has_what_java_brokers_need() -> None:
    async with members(1) as (member,):
        stored = await member.store.get(registration_path(member.id))
        assert stored is not None
        data = json.loads(stored.value)
        assert data["loadManagerClassName"] == MODULAR_LOAD_MANAGER
        assert data["webServiceUrl"] == "http://host-0:8080"
        assert data["pulsarServiceUrl"] == "pulsar://host-0:6650"
        assert data["cpu"] == {"usage": 10, "limit": 100}
        assert data["lastUpdate"] > 0
        assert data["startTimestamp"] > 0


async def test_leader_of_a_killed_broker_is_replaced_when_its_session_ends() -> None:
    async with members(3) as found:
        await found[0].kill()
        await asyncio.sleep(0.05)
        assert leaders(found[1:]) == []
        found[0].store.expire()
        await until(lambda: len(leaders(found[1:])) == 1)
        await until(lambda: all(len(each.membership.brokers()) == 2 for each in found[1:]))


async def test_lost_session_ends_the_leadership_at_once_and_the_next_one_registers_again() -> None:
    async with members(2) as found:
        first, second = found
        first.store.lose()
        assert not first.membership.is_leader()
        assert not first.membership.is_registered
        first.store.expire()
        await until(lambda: leaders(found) == [second.id])
        first.store.renew()
        await until(lambda: first.membership.is_registered)
        await until(lambda: len(second.membership.brokers()) == 2)
        assert leaders(found) == [second.id]


async def test_leaving_broker_deletes_its_registration_and_another_one_becomes_leader() -> None:
    async with members(2) as (first, second):
        await first.membership.leave()
        assert first.id not in {path.rpartition("/")[2] for path in first.store._values}
        await until(second.membership.is_leader)
        assert set(second.membership.brokers()) == {second.id}
        await asyncio.sleep(0.05)
        assert set(second.membership.brokers()) == {second.id}, "it does not come back"


async def test_deleted_registration_is_created_again() -> None:
    async with members(2) as (first, second):
        path, tree = registration_path(first.id), second.store._tree
        await second.store.delete(path)
        await until(lambda: tree.owners.get(path) is first.store)
        await until(lambda: first.id in second.membership.brokers())
        assert first.membership.is_registered


async def test_replaced_leader_is_followed() -> None:
    async with members(2) as (first, second):
        foreign = json.dumps({"brokerId": second.id, "serviceUrl": "http://host-1:8080"}).encode()
        await first.store.put(LEADER, b"x")
        await until(lambda: first.membership.leader_id == "")
        assert not first.membership.is_leader()
        assert first.membership.leader() is None
        await first.store.put(LEADER, foreign)
        await until(lambda: second.membership.is_leader() or second.membership.leader_id == second.id)


async def test_broker_does_not_stand_while_a_java_broker_is_registered() -> None:
    tree = SharedTree()
    java = tree.session()
    async with short_pauses():
        await register_java(java, 7)
        member = Member(tree, 0)
        await member.start()
        await asyncio.sleep(0.05)
        assert not member.membership.is_leader()
        assert set(member.membership.brokers()) == {member.id, broker(7).broker_id}
        java.expire()
        await until(member.membership.is_leader)
        await member.membership.close()


async def test_leader_resigns_when_a_java_broker_joins() -> None:
    async with members(2) as found:
        java = found[0].store._tree.session()
        await register_java(java, 7)
        await until(lambda: leaders(found) == [])
        await until(lambda: all(each.membership.leader_id is None for each in found))
        assert await java.get(LEADER) is None, "Java brokers elect one of them"


async def test_setting_permits_the_leadership_beside_java_brokers() -> None:
    async with members(1, load_balancer_leader_beside_java_brokers=True) as (member,):
        await register_java(member.store._tree.session(), 7)
        await until(lambda: len(member.membership.brokers()) == 2)
        await asyncio.sleep(0.03)
        assert member.membership.is_leader()


@pytest.mark.parametrize("name", [EXTENSIBLE, "com.example.OwnLoadManager"])
async def test_broker_refuses_to_join_under_another_load_manager(name: str) -> None:
    tree = SharedTree()
    await register_java(tree.session(), 7, loadManagerClassName=name)
    member = Member(tree, 0)
    with pytest.raises(StoreError, match=f"uses the load manager {name.rpartition('.')[2]}"):
        await member.start(deadline_s=60)
    assert await member.store.get(registration_path(member.id)) is None
    await member.membership.close()


async def test_broker_refuses_its_own_other_load_manager() -> None:
    member = Member(SharedTree(), 0, load_manager_class_name=EXTENSIBLE)
    with pytest.raises(StoreError, match="joins clusters with"):
        await member.start(deadline_s=60)
    await member.membership.close()


async def test_brokers_before_pulsar_3_name_no_class() -> None:
    tree = SharedTree()
    await register_java(tree.session(), 7, loadManagerClassName=None)
    member = Member(tree, 0)
    await member.start()
    assert member.membership.load_manager_problem() is None
    await member.membership.close()


async def test_address_of_another_broker_is_refused() -> None:
    tree = SharedTree()
    await register_java(tree.session(), 7, pulsarServiceUrl="pulsar://host-0:6650")
    member = Member(tree, 0)
    with pytest.raises(StoreError, match="registered with an address of this broker"):
        await member.start()
    await member.membership.close()


async def test_start_waits_for_the_end_of_an_earlier_broker_at_the_address() -> None:
    async with short_pauses():
        tree = SharedTree()
        java = tree.session()
        await register_java(java, 0)
        member = Member(tree, 0)
        starting = asyncio.create_task(member.start(deadline_s=10))
        await asyncio.sleep(0.03)
        assert not starting.done()
        java.expire()
        await starting
        assert member.membership.is_registered
        await member.membership.close()


async def test_registration_of_an_earlier_process_is_replaced() -> None:
    async with members(1) as (member,):
        tree = member.store._tree
        await member.kill()
        again = Member(tree, 0)
        await again.start()
        assert again.membership.is_registered
        await until(again.membership.is_leader)
        member.store.expire()
        await asyncio.sleep(0.03)
        assert again.membership.is_registered
        assert await again.store.get(registration_path(again.id)) is not None
        await again.membership.close()


JUNK = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"webServiceUrl":1}', b"[" * 10_000]


@pytest.mark.parametrize("value", JUNK, ids=range(len(JUNK)))
async def test_junk_registration_is_left_out_and_harms_no_other(value: bytes) -> None:
    async with members(2) as (first, second):
        await first.store.put("/loadbalance/brokers/junk:1", value)
        await until(lambda: "junk:1" in first.membership.unusable)
        assert set(first.membership.brokers()) == {first.id, second.id}
        assert (await first.membership.choose_broker(BUNDLE)).broker_id in {first.id, second.id}
        await first.store.delete("/loadbalance/brokers/junk:1")
        await until(lambda: not first.membership.unusable)


async def test_load_is_stored_again_after_a_change_of_ten_percent_and_never_sooner_than_the_minimum() -> None:
    async with members(1, load_balancer_report_update_min_interval_millis=0) as (member,):
        puts = member.store.puts
        member.load.set(cpu=15)
        await asyncio.sleep(0.06)
        assert member.store.puts == puts, "5 percentage points"
        member.load.set(cpu=25)
        await until(lambda: member.store.puts == puts + 1)
        member.load.set(cpu=25, a=10)
        await until(lambda: member.store.puts == puts + 2)
        await until(lambda: member.membership.registrations[member.id].report.bundles.keys() == {"public/default/a"})
    async with members(1, load_balancer_report_update_min_interval_millis=60_000) as (member,):
        puts = member.store.puts
        member.load.set(cpu=90)
        await asyncio.sleep(0.06)
        assert member.store.puts == puts


async def test_sixteen_new_bundles_are_divided_evenly_before_any_report() -> None:
    async with members(4) as found:
        leader = found[0].membership
        chosen = [(await leader.choose_broker(f"public/default/{number}")).broker_id for number in range(16)]
        assert sorted(chosen.count(member.id) for member in found) == [4, 4, 4, 4]
        again = [(await leader.choose_broker(f"public/default/{number}")).broker_id for number in range(16)]
        assert again == chosen, "a decision is repeated until the bundle is acquired"


async def test_decision_ends_with_the_acquisition_or_the_broker() -> None:
    async with members(2) as (first, second):
        leader = first.membership
        chosen = (await leader.choose_broker(BUNDLE)).broker_id
        await first.store.put_for_session(f"/namespace/{BUNDLE}", b"{}")
        await until(lambda: leader.assignment.open_count == 0)
        await first.store.delete(f"/namespace/{BUNDLE}")
        await until(lambda: not leader.assignment.has_decision(BUNDLE))
        for number in range(8):
            await leader.choose_broker(f"public/default/{number}")
        await second.membership.leave()
        await until(lambda: second.id not in leader.brokers())
        others = {(await leader.choose_broker(f"public/default/{number}")).broker_id for number in range(8)}
        assert others == {first.id}
        assert chosen in {first.id, second.id}


async def test_isolation_policy_restricts_the_choice_and_a_damaged_one_changes_nothing() -> None:
    async with members(3) as found:
        leader, store = found[0].membership, found[0].store
        policy = {
            "namespaces": ["public/default"],
            "primary": ["host-2"],
            "secondary": [],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
        }
        path = metadata_paths.isolation_policies("c1")
        await store.put(path, json.dumps({"p": policy}).encode())
        await until(lambda: leader._placement.placement().isolation)
        assert {(await leader.choose_broker(f"public/default/{n}")).broker_id for n in range(6)} == {found[2].id}
        others = {(await leader.choose_broker(f"a/b/{n}")).broker_id for n in range(6)}
        assert others == {found[0].id, found[1].id}
        await store.put(path, b"{")
        await asyncio.sleep(0.03)
        assert (await leader.choose_broker("public/default/x")).broker_id == found[2].id
        await found[2].membership.leave()
        await until(lambda: found[2].id not in leader.brokers())
        with pytest.raises(ServiceNotReady, match="isolation policies"):
            await leader.choose_broker("public/default/y")


async def test_heartbeat_bundle_belongs_to_its_broker() -> None:
    async with members(2) as (first, second):
        bundle = f"pulsar/{second.id}/0x00000000_0xffffffff"
        assert (await first.membership.choose_broker(bundle)).broker_id == second.id
        with pytest.raises(ServiceNotReady, match="not registered"):
            await first.membership.choose_broker("pulsar/gone:8080/0x00000000_0xffffffff")


async def test_unreachable_store_is_retried() -> None:
    async with members(1) as (member,):
        member.store.is_reachable = False
        member.store.renew()
        await asyncio.sleep(0.03)
        assert not member.membership.is_registered
        member.store.is_reachable = True
        await until(lambda: member.membership.is_registered)
        await until(member.membership.is_leader)


async def test_java_registration_is_read_with_its_load() -> None:
    async with members(1) as (member,):
        java = member.store._tree.session()
        stats = {"public/default/a": {"msgRateIn": 5.0, "msgThroughputIn": "NaN", "topics": 2}}
        listeners = {"internal": {"brokerServiceUrl": "pulsar://host-7:6650"}, "x": {"brokerServiceUrl": 5}}
        broker_id = await register_java(java, 7, lastStats=stats, advertisedListeners=listeners)
        await until(lambda: broker_id in member.membership.brokers())
        found = member.membership.registrations[broker_id]
        assert found.report.cpu.share == 0.05
        assert found.report.bandwidth_out.share == 0
        assert found.report.bundles["public/default/a"].message_rate == 5
        assert set(found.broker.advertised_listeners) == {"internal"}
        assert not found.is_pybroker
        assert json.loads(java_registration(7))["lastStats"] == {}


async def test_start_repeats_the_registration_when_the_session_ends_meanwhile() -> None:
    async with short_pauses():
        member = Member(SharedTree(), 0)
        member.store.lose()
        starting = asyncio.create_task(member.start(deadline_s=10))
        await asyncio.sleep(0.02)
        assert not starting.done()
        member.store.renew()
        await starting
        await until(member.membership.is_leader)
        await member.membership.close()


async def test_clock_of_another_broker_that_is_ahead_is_reported() -> None:
    async with members(1) as (member,):
        java = member.store._tree.session()
        broker_id = await register_java(java, 7, lastUpdate=member.membership._runtime.clock.wall_ms() + 60_000)
        await until(lambda: broker_id in member.membership.brokers())
        assert 50_000 < member.membership.report().clock_differences_ms[broker_id] <= 60_000
        (finding,) = explain_membership(member.membership.report())
        assert finding.code is Code.CLOCK_SKEW
