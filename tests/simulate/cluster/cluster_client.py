"""A simulated client of a cluster: it looks topics up at any broker, follows redirects, and connects to each broker that it uses.

It comes back as official clients do: a producer or consumer that has lost its connection, or that the broker closes, is looked up
again, with longer and longer pauses when that fails. A connection without an answer in time is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.simulate.actors.client import _FIRST_WAIT_S, _LONGEST_WAIT_S, Client
from tests.simulate.actors.link import Command, Link, LinkLost, Refused, Type
from tests.simulate.actors.slots import Slot
from tests.simulate.tape import Tape
from tests.simulate.wire import Wire

from pybroker.transactions.coordinators import partition_of
from pybroker.wire import pulsar_api_pb2 as pb

MOST_REDIRECTS = 20
"""As in Java."""
NO_CONNECTION_S = 0.1
"""So long a client waits after it found no broker for a transaction coordinator."""
ANSWER_S = 15.0
"""So long a client waits for an answer, before it gives the connection up."""


class ClusterClient(Client):
    """`connect` makes a wire to the broker of a host, or raises ConnectionError."""

    def __init__(
        self, name: str, connect: Callable[[str], Awaitable[Wire]], tape_: Tape, chance: Random,
        wall_ms: Callable[[], int], topics: dict[str, dict[str, Any]], hosts: Sequence[str], *, may_ack_parts: bool = True,
        sending: asyncio.Event | None = None, acking: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            name, _no_connection, tape_, chance, wall_ms, topics, may_ack_parts=may_ack_parts, sending=sending
        )
        self.acking = acking or asyncio.Event()
        self._connect_to = connect
        self._hosts = list(hosts)
        self._locks = {host: asyncio.Lock() for host in hosts}
        self._by_host: dict[str, Link] = {}
        self._of_slot: dict[int, _Connection] = {}
        self._unanswered: dict[str, Link] = {}
        self._keeping_alive: asyncio.Task[None] | None = None

    async def __aexit__(self, *exc: object) -> None:
        self._is_ended = True
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()
        for slot in self.slots.values():
            slot.is_wanted = False
        for link in list(self._by_host.values()):
            link.cut()
        await super().__aexit__(*exc)

    def link_of(self, slot: Slot) -> Link | None:
        found = self._of_slot.get(slot.id)
        return None if found is None or found.link.is_lost else found.link

    def broker_of(self, slot: Slot) -> str:
        found = self._of_slot.get(slot.id)
        return "" if found is None else found.host

    # --- connections -------------------------------------------------------------------------------------------------

    async def _linked_to(self, host: str) -> Link:
        """Raises ConnectionError and LinkLost."""
        async with self._locks[host]:
            link = self._by_host.get(host)
            if link is not None and not link.is_lost:
                return link
            wire = await self._connect_to(host)
            self._links += 1
            hearer = _Connection(self, host)
            hearer.link = link = Link(f"{self.name}/{self._links}", wire, self.tape, self.name, hearer)
            self._work.create_task(link.read())
            try:
                async with asyncio.timeout(ANSWER_S):
                    await link.greet()
            except TimeoutError:
                link.cut()
                raise LinkLost from None
            except BaseException:
                link.cut()  # The producer or consumer that needs it is closed: no other one knows of it.
                raise
            self._by_host[host] = link
            return link

    async def _ask(self, link: Link, command: int, **fields: Any) -> Command:
        """Raises LinkLost when there is no answer in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await link.ask(command, **fields)
        except TimeoutError:
            link.cut()
            raise LinkLost from None

    async def _owner(self, topic: str) -> _Connection:
        """The connection to the broker that serves `topic`. Raises ConnectionError, LinkLost and Refused."""
        host, is_authoritative = self._chance.choice(self._hosts), False
        for _ in range(MOST_REDIRECTS):
            link = await self._linked_to(host)
            answer = await self._ask(link, Type.LOOKUP, topic=topic, authoritative=is_authoritative)
            found = answer.lookupTopicResponse
            host = urlsplit(found.brokerServiceUrl).hostname or ""
            if found.response == pb.CommandLookupTopicResponse.Connect:
                owner = await self._linked_to(host)
                hearer = owner._hearer
                assert isinstance(hearer, _Connection)
                return hearer
            is_authoritative = found.authoritative
        self.broken("lookup", f"the lookup of {topic} was redirected {MOST_REDIRECTS} times, last to {host}")
        raise LinkLost

    async def coordinator_link(self, coordinator: int, known: Link | None) -> Link:
        if known is not None and not known.is_lost:
            return known
        try:
            return (await self._owner(str(partition_of(coordinator)))).link
        except ConnectionError as error:
            await asyncio.sleep(NO_CONNECTION_S)
            raise LinkLost from error

    async def _keep_opening(self, slot: Slot) -> None:
        wait_s = _FIRST_WAIT_S
        while slot.is_wanted and not slot.is_open:
            try:
                found = self._of_slot[slot.id] = await self._owner(slot.topic)
                async with asyncio.timeout(ANSWER_S):
                    await slot.open()
            except TimeoutError:
                found.link.cut()
            except (ConnectionError, LinkLost):
                pass
            except Refused as refused:
                if slot.refuse(refused.error):
                    return
            else:
                return
            await asyncio.sleep(wait_s * (0.9 + 0.2 * self._chance.random()))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    # --- the script --------------------------------------------------------------------------------------------------

    async def _do_look_up(self, topic: str, count: int, pause_s: float) -> None:
        """Look topics up at one broker after the other, without using the answers."""
        for number in range(count):
            name = self.topic(topic, str(number))
            try:
                link = await self._linked_to(self._chance.choice(self._hosts))
                await self._ask(link, Type.LOOKUP, topic=name, authoritative=self._chance.random() < 0.2)
            except (ConnectionError, LinkLost, Refused):
                pass
            await asyncio.sleep(pause_s)

    async def _do_keep_alive(self, s: float) -> None:
        """From now on, give connections up whose broker does not answer a PING in this time."""
        self._keeping_alive = self._work.create_task(self._keep_alive(s))

    async def _keep_alive(self, patience_s: float) -> None:
        while not self._is_ended:
            asked = {host: link for host, link in self._by_host.items() if not link.is_lost}
            for host, link in asked.items():
                self._unanswered[host] = link
                link.send(Type.PING)
            await asyncio.sleep(patience_s)
            for host, link in asked.items():
                if self._unanswered.get(host) is link and not link.is_lost:
                    link.cut()

    def answered(self, host: str) -> None:
        """The broker of `host` has sent something."""
        self._unanswered.pop(host, None)

    async def _do_cut(self, *, silently: bool = False) -> None:
        links = [link for link in self._by_host.values() if not link.is_lost]
        if links:
            self._chance.choice(links).cut(silently=silently)
            await asyncio.sleep(0)


class _Connection:
    """Hears one connection, and tells only the producers and consumers that use it."""

    def __init__(self, client: ClusterClient, host: str) -> None:
        self.host = host
        self.link: Link
        self._client = client

    def _user(self, id_: int) -> Slot | None:
        slot = self._client._by_id.get(id_)
        return slot if slot is not None and self._client._of_slot.get(id_) is self else None

    def message(self, command: Command, entry: bytes) -> None:
        if self._user(command.message.consumer_id) is not None:
            self._client.message(command, entry)

    def receipt(self, command: Command) -> None:
        if self._user(command.send_receipt.producer_id) is not None:
            self._client.receipt(command)

    def send_error(self, command: Command) -> None:
        if self._user(command.send_error.producer_id) is not None:
            self._client.send_error(command)

    def closed_producer(self, producer_id: int) -> None:
        if self._user(producer_id) is not None:
            self._client.closed_producer(producer_id)

    def closed_consumer(self, consumer_id: int) -> None:
        if self._user(consumer_id) is not None:
            self._client.closed_consumer(consumer_id)

    def told(self, command: Command) -> None:
        self._client.answered(self.host)
        if command.type != Type.ACTIVE_CONSUMER_CHANGE or self._user(command.active_consumer_change.consumer_id):
            self._client.told(command)

    def link_lost(self) -> None:
        client = self._client
        for slot in list(client.slots.values()):
            if client._of_slot.get(slot.id) is self:
                slot.is_closed_early = not slot.is_open
                slot.lost("link")
                client._begin_opening(slot)


async def _no_connection() -> Any:
    raise AssertionError("a client of a cluster connects to a broker by its name")
