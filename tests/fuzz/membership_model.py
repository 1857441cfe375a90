"""Random walks of a cluster's members: sessions that end, killed and restarted brokers, Java brokers, junk, deleted values.

The oracle checks, in every iteration of the event loop, that at most one broker is the leader, and after each step, when the
brokers had time to settle, what the documents of the store say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random

from tests.support.shared_memory_store import SessionStore, SharedTree
from tests.unit.cluster.membership.members import Member, leaders, register_java, short_pauses

from pybroker.cluster.membership.leader_rules import LEADER, encoded_leader
from pybroker.cluster.membership.registration import BROKERS, registration_path
from pybroker.errors import StoreError

MEMBERS = 3
JAVA = 9
BUNDLES = [f"public/default/0x{number}0000000_0x{number + 1}0000000" for number in range(6)]
SETTLE_S = 5.0


class World:
    """A cluster and its oracle."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tree = SharedTree(seed)
        self.operator = self.tree.session()
        self.members: dict[int, Member] = {}
        self.dead: dict[int, SessionStore] = {}
        self.left: set[int] = set()
        self.java: SessionStore | None = None
        self.failure = ""
        self.is_tampered = False

    # --- steps -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        number = self._absent()
        if number is not None:
            member = Member(self.tree, number, load_balancer_report_update_min_interval_millis=0)
            await member.start(SETTLE_S)
            self.members[number] = member
            self.dead.pop(number, None)

    async def kill(self) -> None:
        number = self._present()
        if number is not None:
            member = self.members.pop(number)
            self.left.discard(number)
            await member.kill()
            self.dead[number] = member.store

    async def lose_session(self) -> None:
        number = self._present()
        if number is not None:
            store = self.members[number].store
            store.lose()
            if self.random.random() < 0.5:
                store.expire()
                await self._pause()
            store.renew()

    async def leave(self) -> None:
        number = self._present()
        if number is not None:
            await self.members[number].membership.leave()
            self.left.add(number)

    async def stop(self) -> None:
        number = self._present()
        if number is not None:
            member = self.members.pop(number)
            if number not in self.left:
                await member.membership.leave()
            self.left.discard(number)
            await member.kill()
            member.store.expire()

    async def java_joins(self) -> None:
        if self.java is None:
            self.java = self.tree.session()
            await register_java(self.java, JAVA)
            if self.random.random() < 0.7:
                await self._java_stands(self.java)

    async def _java_stands(self, java: SessionStore) -> None:
        for _ in range(200):
            try:
                await java.put_for_session(LEADER, encoded_leader(f"host-{JAVA}:8080", f"http://host-{JAVA}:8080"))
            except StoreError:
                await asyncio.sleep(0.002)
            else:
                return

    async def java_ends(self) -> None:
        if self.java is not None:
            java, self.java = self.java, None
            java.killed()
            java.expire()

    async def write_junk(self) -> None:
        value = self.random.choice([b"", b"{", b"{}", b'{"cpu":[]}', b"\xff"])
        await self.operator.put(f"{BROKERS}/junk-{self.random.randrange(3)}:1", value)

    async def delete_registration(self) -> None:
        number = self._present()
        if number is not None:
            await self.operator.delete(registration_path(self.members[number].id))

    async def delete_leader(self) -> None:
        """The present leader hears of it a moment later, when another broker may already lead."""
        self.is_tampered = True
        await self.operator.delete(LEADER)

    async def change_load(self) -> None:
        number = self._present()
        if number is not None:
            self.members[number].load.set(cpu=self.random.randrange(90), x=self.random.randrange(1000))

    async def choose(self) -> None:
        """Lookups at the leader: a decision is repeated while its broker is registered and the bundle unowned."""
        leading = next((each for each in self.members.values() if each.membership.is_leader()), None)
        if leading is None or not leading.membership.brokers():
            return  # the registration of the only broker was just deleted
        chosen = {bundle: (await leading.membership.choose_broker(bundle)).broker_id for bundle in BUNDLES}
        assert set(chosen.values()) <= leading.membership.brokers().keys(), (
            f"{chosen} has brokers that are not registered"
        )
        again = {bundle: (await leading.membership.choose_broker(bundle)).broker_id for bundle in BUNDLES}
        assert again == chosen, "a decision changed without a reason"
        bundle = self.random.choice(BUNDLES)
        if self.random.random() < 0.5:
            owner = self.operator
            await owner.put(f"/namespace/{bundle}", b"{}")
            await self._until(lambda: leading.membership.assignment.open_count == len(self._open(leading)))
            await owner.delete(f"/namespace/{bundle}")
            await self._until(lambda: not leading.membership.assignment.has_decision(bundle))

    async def choose_many(self) -> None:
        """Fresh bundles at the same time are divided among the brokers with equal loads."""
        leading = next((each for each in self.members.values() if each.membership.is_leader()), None)
        if leading is None or not leading.membership.brokers():
            return
        namespace = f"public/fresh-{self.random.randrange(10**9)}"
        found = [(await leading.membership.choose_broker(f"{namespace}/{number}")).broker_id for number in range(12)]
        registered = leading.membership.brokers()
        usable = [each for each in registered if leading.membership.registrations[each].report.usage_share <= 0.85]
        for broker_id in usable:
            assert found.count(broker_id) >= 12 // len(registered), f"{found} for {usable}"

    # --- the oracle --------------------------------------------------------------------------------------------------

    def _open(self, member: Member) -> list[str]:
        assignment = member.membership.assignment
        return [bundle for bundle in assignment._decisions if f"/namespace/{bundle}" not in self.tree.values]

    def check_always(self) -> None:
        found = leaders(list(self.members.values()))
        if len(found) > 1 and not self.is_tampered and not self.failure:
            self.failure = f"two leaders: {found}"

    async def settle(self) -> None:
        """Sessions of killed brokers end, then all must agree with the store."""
        for store in self.dead.values():
            store.expire()
        await self._until(lambda: not self._difference(), self._difference)
        self.is_tampered = False

    def _difference(self) -> str:
        present = {number: each for number, each in self.members.items() if number not in self.left}
        expected = {each.id for each in present.values()} | ({f"host-{JAVA}:8080"} if self.java is not None else set())
        stored = {
            path.removeprefix(f"{BROKERS}/")
            for path in self.tree.values
            if path.startswith(f"{BROKERS}/") and "junk" not in path
        }
        if stored != expected:
            return f"registered are {sorted(stored)}, expected {sorted(expected)}"
        for member in self.members.values():
            if set(member.membership.brokers()) != expected:
                return f"{member.id} sees {sorted(member.membership.brokers())}, expected {sorted(expected)}"
        leading = leaders(list(self.members.values()))
        found = self.tree.values.get(LEADER)
        if self.java is not None and leading:
            return f"{leading} lead beside a Java broker"
        if self.java is None and present and len(leading) != 1:
            return f"leaders are {leading}"
        if leading:
            data = json.loads(found.value) if found is not None else {}
            if data.get("brokerId") != leading[0]:
                return f"the leader's value is {data}, and {leading} leads"
        if not present and self.java is None and found is not None:
            return "a leader's value without brokers"
        for member in self.members.values():
            stored_id = None if found is None else json.loads(found.value)["brokerId"]
            if member.membership.leader_id != stored_id:
                return f"{member.id} takes {member.membership.leader_id} for the leader"
        return ""

    async def _until(self, condition: Callable[[], bool], text: Callable[[], str] = lambda: "not settled") -> None:
        for _ in range(600):
            self.check_always()
            assert not self.failure, self.failure
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(text())

    async def _pause(self) -> None:
        for _ in range(self.random.randrange(20)):
            self.check_always()
            await asyncio.sleep(0)

    def _present(self) -> int | None:
        return self.random.choice(sorted(self.members)) if self.members else None

    def _absent(self) -> int | None:
        absent = sorted(set(range(MEMBERS)) - self.members.keys())
        return self.random.choice(absent) if absent else None

    async def close(self) -> None:
        for member in self.members.values():
            await member.membership.close()


STEPS: tuple[Callable[[World], object], ...] = (
    World.start,
    World.start,
    World.start,
    World.kill,
    World.lose_session,
    World.leave,
    World.stop,
    World.java_joins,
    World.java_ends,
    World.java_ends,
    World.write_junk,
    World.delete_registration,
    World.delete_leader,
    World.change_load,
    World.choose,
    World.choose,
    World.choose,
    World.choose_many,
)


async def run_walk(seed: int, steps: list[int]) -> None:
    """Perform `steps`, indices into STEPS. Some follow each other without a pause."""
    world = World(seed)
    async with short_pauses():
        watching = asyncio.create_task(_watch(world))
        try:
            await world.start()
            for step in steps:
                await STEPS[step](world)  # type: ignore[misc]
                if world.random.random() < 0.6:
                    await world.settle()
                else:
                    await world._pause()
            await world.settle()
            assert not world.failure, world.failure
        finally:
            watching.cancel()
            await world.close()


async def _watch(world: World) -> None:
    while True:
        world.check_always()
        await asyncio.sleep(0)
