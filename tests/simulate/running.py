"""Runs a script in a simulation: the actors at the same time, then quiet, then what the judge looks at.

prepare   topics with their policies, and on some a subscription `keeper` that nobody touches
act       all actors, and nature's faults among them
settle    every fault has ended; consumers that are still there take and acknowledge all that comes
look      statistics and standstills while they are there: what still waits has to have a reason
drain     clients are gone; each subscription is read to its end by a consumer of the judge's own
look      once more: nobody is left, nothing waits
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.simulate import tape
from tests.simulate.actors.admin import Admin
from tests.simulate.actors.client import Client
from tests.simulate.actors.slots import ConsumerSlot, ProducerSlot
from tests.simulate.explaining import Explaining, findings_of
from tests.simulate.loop import WALL_START_MS
from tests.simulate.script import ADMIN, CLIENT, NATURE, ActorScript, Script
from tests.simulate.simulation import Simulation
from tests.simulate.tape import Tape

from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position

KEEPER = "keeper"
QUIET_S = 12.0
"""Who waits got nothing for so long: longer than any delay, election or retry that a script can bring about."""
SILENT_S = 200.0
"""The same where a connection was cut of which the broker learns only by its keep-alive."""
TOLD_S = 15.0
"""Within this all that take part in a transaction know of its end, once no fault keeps them from it."""
SENDING_S = 3.0
"""So long nature waits for somebody to send."""
READER_RETURN_S = 65.0
"""So long a reader's subscription waits for its reader after a seek, and a little more."""
TURN_S = 65.0
"""By then one of those who wait has got its turn."""
DRAIN_PERMITS = 1000


@dataclass
class Look:
    """What the broker says of its topics at one moment: `stats` by full name, and why subscriptions stand still."""

    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    standstills: dict[tuple[str, str], str] = field(default_factory=dict)
    hidden: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of each subscription's backlog, how many entries nobody gets: markers, and messages of aborted transactions."""
    explained: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """What `explain` says that each subscription waits for."""


@dataclass
class Run:
    """What there is to judge."""

    script: Script
    tape: Tape
    settled: Look = field(default_factory=Look)
    drained: Look = field(default_factory=Look)
    backlog_before_drain: dict[tuple[str, str], int] = field(default_factory=dict)
    attached: list[tuple[str, str, str]] = field(default_factory=list)
    """Topic, subscription and name of the consumers that clients have when they are settled."""
    finished: bool = False


async def run(simulation: Simulation, script: Script) -> Run:
    """From the first start of the simulation's broker on; it runs still afterwards, without clients."""
    found = Run(script, Tape(lambda: simulation.now_s, simulation.note))
    await simulation.start()
    await _Running(simulation, script, found).run()
    found.finished = True
    return found


class _Running:
    def __init__(self, simulation: Simulation, script: Script, found: Run) -> None:
        self.simulation = simulation
        self.script = script
        self.found = found
        self.tape = found.tape
        self.topics = {name: dict(facts) for name, facts in script.topics.items()}
        """As they are now: a partitioned topic may grow."""
        self.judge = Admin("judge", simulation.http, self.tape, self.topics)
        self.clients: list[Client] = []
        self.sending = asyncio.Event()
        steps = [step for actor in script.actors for step in actor.steps]
        self._quiet_s = SILENT_S if any(step.facts.get("silently") for step in steps) else QUIET_S
        # What nobody ends times out, and everybody is told, again and again.
        longest_s = max((step.facts["timeout_s"] for step in steps if step.do == "begin"), default=0)
        if longest_s:
            self._quiet_s = max(self._quiet_s, longest_s + TOLD_S)

    async def run(self) -> None:
        await self._prepare()
        clients = [self._client(each) for each in self.script.actors if each.kind == CLIENT]
        self.clients = [client for client, _ in clients]
        explaining = asyncio.create_task(Explaining(self.simulation, self.tape).watch())
        async with asyncio.TaskGroup() as everybody:
            for client in self.clients:
                await client.__aenter__()
            for client, actor in clients:
                everybody.create_task(client.run(actor.steps))
            for actor in self.script.actors:
                if actor.kind == ADMIN:
                    admin = Admin(actor.name, self.simulation.http, self.tape, self.topics)
                    everybody.create_task(admin.run(actor.steps, asyncio.sleep))
                elif actor.kind == NATURE:
                    everybody.create_task(self._nature(actor))
        self.tape.note("judge", tape.FAULT, how="all over", is_begin=False)
        await settle(self.clients, self._quiet_s)
        explaining.cancel()
        self.found.attached = [
            (slot.topic, slot.subscription, slot.name)
            for client in self.clients
            for slot in client.slots.values()
            if isinstance(slot, ConsumerSlot) and slot.is_open and slot.topic.startswith("persistent:")
        ]
        self.found.settled = await self._look()
        await self._let_waiters_in()
        for client in self.clients:
            for name in list(client.slots):
                await client._close(name)
            await client.__aexit__(None, None, None)
        await asyncio.sleep(READER_RETURN_S)
        await self._drain()
        await asyncio.sleep(1)
        self.found.drained = await self._look()

    async def _let_waiters_in(self) -> None:
        """Everybody else leaves, and who still waits for exclusive access gets it, one after the other."""
        waiting: dict[asyncio.Task[None], tuple[Client, str, ProducerSlot]] = {}
        for client in self.clients:
            for name, slot in client.slots.items():
                is_waiting = isinstance(slot, ProducerSlot) and slot.waits_for_its_turn
                if is_waiting and slot.task is not None and not slot.task.done():
                    waiting[slot.task] = (client, name, slot)  # type: ignore[assignment]
        if not waiting:
            return
        waiters = [slot for _, _, slot in waiting.values()]
        for client in self.clients:
            for name, slot in list(client.slots.items()):
                if slot not in waiters:
                    await client._close(name)
        while waiting:
            done, _ = await asyncio.wait(waiting, timeout=TURN_S, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done or waiting, key=lambda task: waiting[task][0].name):
                client, name, slot = waiting.pop(task)
                if not done:
                    client.note_waited(slot)
                await client._close(name)

    def _client(self, actor: ActorScript) -> tuple[Client, ActorScript]:
        return self._new_client(actor.name), actor

    def _new_client(self, name: str) -> Client:
        may_ack_parts = self.script.settings.get("acknowledgment_at_batch_index_level_enabled", False)
        return Client(
            name,
            self.simulation.connect,
            self.tape,
            self.simulation.chance(name),
            lambda: WALL_START_MS + int(self.simulation.now_s * 1000),
            self.topics,
            may_ack_parts=may_ack_parts,
            sending=self.sending,
        )

    async def _prepare(self) -> None:
        for topic, facts in self.script.topics.items():
            path = f"/persistent/public/default/{topic}"
            if facts.get("partitions"):
                await self.judge.call("PUT", f"{path}/partitions", facts["partitions"])
            else:
                await self.judge.call("PUT", path)
            if facts.get("deduplication"):
                await self.judge.call("POST", f"{path}/deduplicationEnabled", True)
            if facts.get("keeper"):
                await self.judge.call("PUT", f"{path}/subscription/{KEEPER}", "earliest")

        steps = [step for actor in self.script.actors for step in actor.steps]
        for topic in sorted({step.facts["topic"] for step in steps if step.do == "put_schema"}):
            await self.judge.call("PUT", f"/persistent/public/default/{topic}")

    async def _nature(self, actor: ActorScript) -> None:
        for step in actor.steps:
            facts = step.facts
            if step.do == "wait":
                await asyncio.sleep(facts["s"])
                continue
            if facts.get("while_sending"):
                await self._somebody_sends()
            self.tape.note(actor.name, tape.FAULT, how=step.do, is_begin=True)
            if step.do == "kill":
                await self.simulation.kill()
            elif step.do == "power_cut":
                await self.simulation.power_cut()
            elif step.do == "bad_disk":
                self.simulation.spoil_disk(facts["of"])
                await asyncio.sleep(facts["s"])
                self.simulation.spoil_disk("")
            elif step.do == "full_disk":
                self.simulation.fill_disk(True)
                await asyncio.sleep(facts["s"])
                self.simulation.fill_disk(False)
            elif self.clients:
                client = self.clients[facts.get("which", 0) % len(self.clients)]
                if client.link is not None:
                    if step.do == "stall":
                        client.link.stall()
                        await asyncio.sleep(facts["s"])
                    if client.link is not None:
                        client.link.cut(silently=facts.get("silently", False))
            if step.do in ("kill", "power_cut"):
                await asyncio.sleep(facts["down_s"])
                await self.simulation.start()
            self.tape.note(actor.name, tape.FAULT, how=step.do, is_begin=False)

    async def _somebody_sends(self) -> None:
        """Until a message is on its way that is not answered, or nobody has sent one for a while."""
        self.sending.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(SENDING_S):
                await self.sending.wait()

    # --- at rest -----------------------------------------------------------------------------------------------------

    def _all_topics(self) -> list[str]:
        return [name for topic in self.script.topics for name in self.judge.paths(topic)]

    async def _look(self) -> Look:
        look = Look()
        for name in self._all_topics():
            status, stats = await self.judge.call("GET", "/" + name.replace("://", "/") + "/stats")
            if status != 200:
                continue
            look.stats[name] = stats
            topic = self.simulation.broker.loaded.persistent.get(name)
            if topic is None:
                continue
            for subscription in topic.subscriptions.values():
                stall = subscription.stall
                look.standstills[name, subscription.name] = "" if stall is None else stall.blocked_reason.name
                look.hidden[name, subscription.name] = hidden_entries(subscription.cursor)
                findings = [each.code.value for each in findings_of(topic, subscription) if each.waits]
                look.explained[name, subscription.name] = findings
        return look

    async def _drain(self) -> None:
        """Read each subscription to its end, all of them at once; one client for each topic."""
        look = await self._look()
        for (topic, subscription), count in backlogs(look).items():
            self.found.backlog_before_drain[topic, subscription] = count - look.hidden.get((topic, subscription), 0)
        async with asyncio.TaskGroup() as everybody:
            for number, (topic, stats) in enumerate(look.stats.items()):
                everybody.create_task(self._drain_topic(number, topic, list(stats["subscriptions"])))

    async def _drain_topic(self, number: int, topic: str, subscriptions: list[str]) -> None:
        async with self._new_client(f"drain{number}") as client:
            for name in subscriptions:
                facts = {"subscription": name, "kind": "Exclusive"}
                await client._open(name, ConsumerSlot(client, client._new_id(), topic, facts))
            await settle([client], QUIET_S)
            for name in list(client.slots):
                await client._close(name)


def hidden_entries(cursor: ManagedCursor) -> int:
    """Return how many entries of the backlog no consumer gets."""
    ledger, state = cursor.ledger, cursor.state
    return sum(
        ledger.ledgers.has_entry(Position(ledger_id, entry_id)) and not state.is_deleted(ledger_id, entry_id)
        for ledger_id, entries in ledger.read_limit.hidden.items()
        for entry_id in entries
    )


async def settle(clients: list[Client], quiet_s: float) -> None:
    """Have producers answered; take and acknowledge whatever comes, with receipts, until nothing comes to anybody for a while."""
    async with asyncio.TaskGroup() as everybody:
        for client in clients:
            everybody.create_task(_producers_settled(client))
    loop = asyncio.get_running_loop()
    last_s = loop.time()

    async def take(client: Client) -> None:
        nonlocal last_s
        while True:
            for slot in client.slots.values():
                if isinstance(slot, ConsumerSlot):
                    slot.wanted_permits = DRAIN_PERMITS  # also of one that is just coming back
                    if slot.held and slot.is_open:
                        slot.acknowledge(list(slot.held), has_receipt=True)
                    slot.fill_permits()
            client.arrived.clear()
            await client.arrived.wait()
            last_s = loop.time()

    async with asyncio.TaskGroup() as everybody:
        taking = [everybody.create_task(take(client)) for client in clients]
        while (left_s := last_s + quiet_s - loop.time()) > 0:  # noqa: ASYNC110 (quiet is no event)
            await asyncio.sleep(left_s)
        for task in taking:
            task.cancel()


async def _producers_settled(client: Client) -> None:
    for name in list(client.slots):
        await client._do_flush(name)
        await client._settled(client.slots.get(name))


def backlogs(look: Look) -> dict[tuple[str, str], int]:
    """Entries that each subscription still has, as statistics say."""
    return {
        (topic, name): subscription["msgBacklog"]
        for topic, stats in look.stats.items()
        for name, subscription in stats["subscriptions"].items()
    }
