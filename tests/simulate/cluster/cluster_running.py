"""Runs a script in a simulated cluster: actors and faults at the same time, then quiet, then what the judge looks at.

prepare   topics, and on most of them a subscription `keeper` that nobody touches
act       all actors, and nature's faults among them
resume    every fault has ended: within a bounded time each client is attached again, and each message is answered
settle    consumers that are still there take and acknowledge all that comes
look      owners, lookups, statistics and policies at all brokers
drain     clients are gone; each subscription is read to its end by a consumer of the judge's own
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

from tests.simulate import tape
from tests.simulate.actors.link import LinkLost, Refused, Type
from tests.simulate.actors.slots import ConsumerSlot, ProducerSlot
from tests.simulate.cluster.cluster_admin import ClusterAdmin
from tests.simulate.cluster.cluster_client import ClusterClient
from tests.simulate.cluster.cluster_drawing import OWNER
from tests.simulate.cluster.cluster_simulation import SESSION_MS, ClusterSimulation, zookeeper_host
from tests.simulate.cluster.policy_watch import PolicyWatch
from tests.simulate.life import HTTP_PORT
from tests.simulate.loop import WALL_START_MS
from tests.simulate.running import KEEPER, TOLD_S, Look, Run, backlogs, hidden_entries, settle
from tests.simulate.script import ADMIN, CLIENT, NATURE, ActorScript, Script
from tests.simulate.tape import Tape

from pybroker.cluster.membership.registration import registration_path
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

QUIET_S = 8.0
"""Consumers got nothing for so long."""
RESUME_S = SESSION_MS / 1000 + 20.0
"""By then every client is attached again after the last fault: a session, time-outs of bookies and clients, and pauses."""
SENDING_S = 3.0
"""So long nature waits for a client that sends or acknowledges."""
PREPARE_S = 60.0
"""Within this time a new cluster accepts topics."""


async def run_cluster(cluster: ClusterSimulation, script: Script) -> Run:
    """From the first start of the brokers on; they run still afterwards, without clients."""
    found = Run(script, Tape(lambda: cluster.now_s, cluster.note))
    await cluster.start_all()
    await _Running(cluster, script, found).run()
    found.finished = True
    return found


class _Running:
    def __init__(self, cluster: ClusterSimulation, script: Script, found: Run) -> None:
        self.cluster = cluster
        self.script = script
        self.found = found
        self.tape = found.tape
        self.topics = {name: dict(facts) for name, facts in script.topics.items()}
        self.judge = self._admin("judge")
        self.policies = PolicyWatch(cluster, found.tape, self.judge.paths)
        self.clients: list[ClusterClient] = []
        self.sending = asyncio.Event()
        self.acking = asyncio.Event()
        self.down: set[str] = set()
        """Hosts whose broker is not started again."""

    async def run(self) -> None:
        await self._prepare()
        clients = [(self._client(each.name), each) for each in self.script.actors if each.kind == CLIENT]
        self.clients = [client for client, _ in clients]
        steps = [step for actor in self.script.actors for step in actor.steps]
        has_policies = any(step.do == "set_policy" for step in steps)
        watching = asyncio.create_task(self.policies.watch()) if has_policies else None
        async with asyncio.TaskGroup() as group:
            for client, actor in clients:
                await client.__aenter__()
                group.create_task(client.run(actor.steps))
            for actor in self.script.actors:
                if actor.kind == ADMIN:
                    admin = self._admin(actor.name)
                    admin.watch = self.policies
                    group.create_task(admin.run(actor.steps, asyncio.sleep))
                elif actor.kind == NATURE:
                    group.create_task(self._nature(actor))
            group.create_task(self._resume(len(clients)))
        longest_s = max((step.facts["timeout_s"] for step in steps if step.do == "begin"), default=0)
        quiet_s = longest_s + TOLD_S if longest_s else QUIET_S
        await settle(self.clients, quiet_s)  # type: ignore[arg-type]
        if watching is not None:
            watching.cancel()
        self.found.attached = [
            (slot.topic, slot.subscription, slot.name)
            for client in self.clients
            for slot in client.slots.values()
            if isinstance(slot, ConsumerSlot) and slot.is_open
        ]
        self.found.settled = await self._look()
        await self.policies.look_at_rest()
        self._look_at_members()
        await self._look_at_owners()
        for client in self.clients:
            for name in list(client.slots):
                await client._close(name)
            await client.__aexit__(None, None, None)
        await self._drain()
        await asyncio.sleep(1)
        self.found.drained = await self._look()

    def _client(self, name: str) -> ClusterClient:
        return ClusterClient(
            name,
            self.cluster.connect,
            self.tape,
            self.cluster.chance(name),
            lambda: WALL_START_MS + int(self.cluster.now_s * 1000),
            self.topics,
            list(self.cluster.hosts),
            may_ack_parts=self.script.settings.get("acknowledgment_at_batch_index_level_enabled", False),
            sending=self.sending,
            acking=self.acking,
        )

    def _admin(self, name: str) -> ClusterAdmin:
        chance = self.cluster.chance(name)

        async def http(method: str, path: str, body: object = None, query: object = None) -> object:
            hosts = [each for each in self.cluster.hosts if each not in self.down]
            return await self.cluster.http(chance.choice(hosts), method, path, body, query)  # type: ignore[arg-type]

        return ClusterAdmin(name, http, self.tape, self.topics)  # type: ignore[arg-type]

    async def _prepare(self) -> None:
        try:
            async with asyncio.timeout(PREPARE_S):
                await self._create_topics()
        except TimeoutError as error:
            raise AssertionError(f"a new cluster did not create topics in {PREPARE_S:.0f} s") from error

    async def _create_topics(self) -> None:
        for topic, facts in self.script.topics.items():
            path = f"/persistent/public/default/{topic}"
            partitions = facts.get("partitions")
            await self._until_done("PUT", f"{path}/partitions" if partitions else path, partitions or None)
            if facts.get("keeper"):
                await self._until_done("PUT", f"{path}/subscription/{KEEPER}", "earliest")

    async def _until_done(self, method: str, path: str, body: object) -> None:
        while True:
            status, _ = await self.judge.call(method, path, body)
            if status in (200, 204, 409):
                return
            await asyncio.sleep(0.2)

    # --- faults ------------------------------------------------------------------------------------------------------

    async def _nature(self, actor: ActorScript) -> None:
        for step in actor.steps:
            facts = step.facts
            if step.do == "wait":
                await asyncio.sleep(facts["s"])
                continue
            given = {key: each for key, each in facts.items() if key != "moment"}
            await self._until(*facts["moment"])
            if given.get("host") == OWNER:
                given["host"] = self._owner()
            self.tape.note(actor.name, tape.FAULT, is_begin=True, how=step.do, host=given.get("host"))
            await getattr(self, f"_{step.do}")(**given)
            self.tape.note(actor.name, tape.FAULT, is_begin=False, how=step.do, host=given.get("host"))

    async def _until(self, does: str, after_s: float) -> None:
        """Wait until a client sends or acknowledges, if one does soon, and a little longer."""
        event = {"sends": self.sending, "acknowledges": self.acking}.get(does)
        if event is not None:
            event.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SENDING_S):
                    await event.wait()
        await asyncio.sleep(after_s)

    def _owner(self) -> str:
        owners = self.cluster.owners(self._all_topics()[0])
        return owners[0].partition(".")[0] if owners else next(iter(self.cluster.hosts))

    async def _kill(self, host: str, s: float, *, stays_down: bool) -> None:
        if stays_down and len(self.down) < len(self.cluster.hosts) - 1:
            self.down.add(host)
        self.cluster.kill(host)
        await asyncio.sleep(s)
        await self._start(host)

    async def _start(self, host: str) -> None:
        if host not in self.down:
            await self.cluster.start(host)

    async def _stop(self, host: str, s: float) -> None:
        await self.cluster.stop(host)
        await asyncio.sleep(s)
        await self._start(host)

    async def _freeze(self, host: str, s: float) -> None:
        self.cluster.freeze(host)
        await asyncio.sleep(s)
        self.cluster.thaw(host)

    async def _cut_zookeeper(self, host: str, s: float) -> None:
        self.cluster.zookeeper.freeze(zookeeper_host(host), s)
        await asyncio.sleep(s)

    async def _drop_zookeeper(self, host: str, s: float) -> None:
        self.cluster.zookeeper.cut(zookeeper_host(host))

    async def _lose_answers(self, s: float, count: int) -> None:
        self.cluster.zookeeper.lost_answers += count

    async def _zookeeper_restart(self, s: float) -> None:
        self.cluster.zookeeper.refuse(s)
        await asyncio.sleep(s)

    async def _cut_clients(self, host: str, s: float) -> None:
        network = self.cluster.hosts[host].network
        network.partition()
        await asyncio.sleep(s)
        network.heal()

    async def _cut_bookies(self, host: str, s: float, bookies: int) -> None:
        model = self.cluster.bookies
        model.separate(host, list(model.bookies)[:bookies])
        await asyncio.sleep(s)
        model.unite(host)

    async def _kill_bookie(self, bookie: int, s: float) -> None:
        model = self.cluster.bookies
        name = list(model.bookies)[bookie]
        model.kill(name)
        await asyncio.sleep(s)
        model.start(name)

    async def _freeze_bookie(self, bookie: int, s: float) -> None:
        model = self.cluster.bookies
        name = list(model.bookies)[bookie]
        model.frozen.add(name)
        await asyncio.sleep(s)
        model.thaw(name)

    # --- after the faults --------------------------------------------------------------------------------------------

    async def _resume(self, clients: int) -> None:
        """When nature is through: all clients are attached again in time. Clients act on meanwhile."""
        natures = [actor.name for actor in self.script.actors if actor.kind == NATURE]
        steps = sum(step.do != "wait" for actor in self.script.actors if actor.kind == NATURE for step in actor.steps)
        while sum(event.what == tape.FAULT and not event.facts["is_begin"] for event in self.tape.events) < steps:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.cluster.zookeeper.lost_answers = 0
        assert natures or not steps
        async with asyncio.TaskGroup() as group:
            for host in self.cluster.hosts:
                group.create_task(self._start(host))
        self.tape.note("judge", tape.FAULT, how="all over", is_begin=False)
        began_s = self.cluster.now_s
        late = self._late()
        while late and self.cluster.now_s < began_s + RESUME_S:
            await asyncio.sleep(0.2)
            late = self._late()
        for text in late:
            self.tape.note("judge", tape.BROKEN, rule="in time", text=f"{text} {RESUME_S:.0f} s after the last fault")

    def _late(self) -> list[str]:
        """Producers and consumers that clients want, and that are not attached, or not answered."""
        late: list[str] = []
        for client in self.clients:
            for slot in client.slots.values():
                if not slot.is_wanted or (slot.busy_since_s is not None and not slot.is_open):
                    continue  # Another consumer has the subscription.
                if not slot.is_open:
                    late.append(f"{client.name}.{slot.id} is not attached to {slot.topic}")
                elif isinstance(slot, ProducerSlot) and slot.pending:
                    late.append(
                        f"{client.name}.{slot.id} has {len(slot.pending)} messages without receipts on {slot.topic}"
                    )
        return late

    # --- at rest -----------------------------------------------------------------------------------------------------

    def _all_topics(self) -> list[str]:
        return [name for topic in self.script.topics for name in self.judge.paths(topic)]

    async def _look(self) -> Look:
        look = Look()
        for name in self._all_topics():
            status, stats = await self.judge.call("GET", "/" + name.replace("://", "/") + "/stats")
            if status != 200:
                self.tape.note("judge", tape.BROKEN, rule="owners", text=f"statistics of {name}: {status} {stats}")
                continue
            look.stats[name] = stats
            for life in self.cluster.lives_now:
                assert life.service is not None
                topic = life.service.loaded.persistent.get(name)
                for subscription in () if topic is None else topic.subscriptions.values():
                    stall = subscription.stall
                    look.standstills[name, subscription.name] = "" if stall is None else stall.blocked_reason.name
                    look.hidden[name, subscription.name] = hidden_entries(subscription.cursor)
        return look

    def _look_at_members(self) -> None:
        """Each broker is registered in its present session, and all know one leader."""
        nodes, lives = self.cluster.zookeeper.tree.nodes, self.cluster.lives_now
        for life in lives:
            node = nodes.get(registration_path(f"{life.host.name}:{HTTP_PORT}"))
            if node is None or node.owner != life.session_id:
                self.tape.note("judge", tape.BROKEN, rule="members", text=f"{life.name} is not registered")
        leaders = [life.name for life in lives if life.membership.is_leader()]
        known = {life.membership.leader_id for life in lives}
        if len(leaders) != 1 or known != {f"{leaders[0].partition('.')[0]}:{HTTP_PORT}"}:
            text = f"the leaders are {leaders}, the brokers know {known}"
            self.tape.note("judge", tape.BROKEN, rule="members", text=text)

    async def _look_at_owners(self) -> None:
        """Each topic has one owner, which alone has it loaded, and to which all brokers lead."""
        async with self._client("asker") as asker:
            for name in self._all_topics():
                owners = self.cluster.owners(name)
                if len(owners) != 1:
                    text = f"{name} has the owners {owners}"
                    self.tape.note("judge", tape.BROKEN, rule="owners", text=text)
                    continue
                for life in self.cluster.lives_now:
                    assert life.service is not None
                    if name in life.service.loaded.persistent and life.name != owners[0]:
                        text = f"{life.name} has loaded {name}, which {owners[0]} owns"
                        self.tape.note("judge", tape.BROKEN, rule="owners", text=text)
                    await self._look_up(asker, name, life.host.name, owners[0].partition(".")[0])

    async def _look_up(self, asker: ClusterClient, topic: str, host: str, owner: str) -> None:
        try:
            link = await asker._linked_to(host)
            answer = await asker._ask(link, Type.LOOKUP, topic=topic)
        except (LinkLost, Refused, ConnectionError) as error:
            said = f"failed: {error!r}"
        else:
            found = answer.lookupTopicResponse
            leads_to = urlsplit(found.brokerServiceUrl).hostname
            if found.response == pb.CommandLookupTopicResponse.Connect and leads_to == owner:
                return
            said = f"leads to {leads_to} ({pb.CommandLookupTopicResponse.LookupType.Name(found.response)})"
        text = f"a lookup of {TopicName.parse(topic)} at {host} {said}; {owner} owns it"
        self.tape.note("judge", tape.BROKEN, rule="lookup", text=text)

    async def _drain(self) -> None:
        look = await self._look()
        for key, count in backlogs(look).items():
            self.found.backlog_before_drain[key] = count - look.hidden.get(key, 0)
        async with asyncio.TaskGroup() as group:
            for number, (topic, stats) in enumerate(look.stats.items()):
                group.create_task(self._drain_topic(number, topic, list(stats["subscriptions"])))

    async def _drain_topic(self, number: int, topic: str, subscriptions: list[str]) -> None:
        async with self._client(f"drain{number}") as client:
            for name in subscriptions:
                facts = {"subscription": name, "kind": "Exclusive"}
                await client._open(name, ConsumerSlot(client, client._new_id(), topic, facts))
            await settle([client], QUIET_S)
            for name in list(client.slots):
                await client._close(name)
