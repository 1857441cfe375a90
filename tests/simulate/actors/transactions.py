"""The transactions of a simulated client: opened, joined by topics and subscriptions, and ended, as official clients do it.

A client that lost its connection asks again for the end of a transaction that it has asked for before; everything else of it fails
then. What nobody ends times out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulate import tape
from tests.simulate.actors.link import Command, Link, LinkLost, Refused, Type

from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from tests.simulate.actors.client import Client

END_S = 60.0
"""Who asks for an end gives up after so long."""
_ASK_AGAIN_S = 0.2
_TEMPORARY = (
    "PersistenceError",
    "ServiceNotReady",
    "TooManyRequests",
    "MetadataError",
    "TransactionCoordinatorNotFound",
)
MADE_UP = 1 << 40
"""An id that no coordinator has given."""
Bits = tuple[int, int]


@dataclass
class Txn:
    """One transaction, as its client knows it. `id` is (most, least)."""

    id: Bits
    topics: set[str] = field(default_factory=set)
    subscriptions: set[tuple[str, str]] = field(default_factory=set)


def bits(txn: Bits | None) -> dict[str, int]:
    """What a command says of its transaction."""
    return {} if txn is None else {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}


class Transactions:
    """Owned by its client; scripts know transactions by names of their own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._by_name: dict[str, Txn] = {}
        self._greeted: dict[int, Link] = {}
        """The connection over which each coordinator is known."""

    def find(self, name: str | None) -> Txn | None:
        return None if name is None else self._by_name.get(name)

    async def _coordinated(self, coordinator: int) -> Link:
        """A connection over which that coordinator is known. Raises LinkLost and Refused."""
        link = await self._client.coordinator_link(coordinator, self._greeted.get(coordinator))
        if self._greeted.get(coordinator) is not link:
            await self._client._ask(link, Type.TC_CLIENT_CONNECT_REQUEST, tc_id=coordinator)
            self._greeted[coordinator] = link
        return link

    async def _ask(self, coordinator: int, command: int, **fields: Any) -> Command:
        """Raises LinkLost and Refused."""
        link = await self._coordinated(coordinator)
        try:
            return await self._client._ask(link, command, **fields)
        except Refused as refused:
            if refused.error == "TransactionCoordinatorNotFound":
                self._greeted.pop(coordinator, None)
            raise

    async def begin(self, txn: str, coordinator: int, timeout_s: float) -> None:
        """Open one. Raises LinkLost and Refused; what is open under that name is left to itself, also then."""
        self._by_name.pop(txn, None)
        await self._coordinated(coordinator)
        asked_s = asyncio.get_running_loop().time()
        answer = await self._ask(coordinator, Type.NEW_TXN, tc_id=coordinator, txn_ttl_seconds=int(timeout_s * 1000))
        found = answer.newTxnResponse
        opened = Txn((found.txnid_most_bits, found.txnid_least_bits))
        self._by_name[txn] = opened
        self._client.tape.note(self._client.name, tape.TXN_OPENED, txn=opened.id, timeout_s=timeout_s, asked_s=asked_s)

    async def join_topic(self, txn: Txn, topic: str) -> None:
        """Before anything is sent there. Raises LinkLost and Refused."""
        if topic not in txn.topics:
            await self._ask(txn.id[0], Type.ADD_PARTITION_TO_TXN, partitions=[topic], **bits(txn.id))
            txn.topics.add(topic)

    async def join_subscription(self, txn: Txn, topic: str, subscription: str) -> None:
        """Before anything is acknowledged there. Raises LinkLost and Refused."""
        if (topic, subscription) not in txn.subscriptions:
            pair = pb.Subscription(topic=topic, subscription=subscription)
            await self._ask(txn.id[0], Type.ADD_SUBSCRIPTION_TO_TXN, subscription=[pair], **bits(txn.id))
            txn.subscriptions.add((topic, subscription))

    async def end(self, txn: str, *, is_commit: bool) -> None:
        """Ask until somebody says what became of it."""
        found = self._by_name.get(txn)
        if found is None:
            return
        client = self._client
        facts: dict[str, Any] = {"txn": found.id, "is_commit": is_commit}
        try:
            async with asyncio.timeout(END_S):
                while True:
                    try:
                        await self._coordinated(found.id[0])
                        client.tape.note(client.name, tape.TXN_ENDING, **facts)
                        await self._ask(found.id[0], Type.END_TXN, txn_action=int(not is_commit), **bits(found.id))
                    except LinkLost:
                        client.tape.note(client.name, tape.TXN_NOT_ANSWERED, **facts)
                    except Refused as refused:
                        client.tape.note(client.name, tape.TXN_ENDED, **facts, error=refused.error)
                        if refused.error not in _TEMPORARY:
                            return
                    else:
                        client.tape.note(client.name, tape.TXN_ENDED, **facts, error="")
                        return
                    await asyncio.sleep(_ASK_AGAIN_S)
        except TimeoutError:
            client.broken("in time", f"the end of transaction {found.id} was not known after {END_S:.0f} s")

    async def forge(self, txn: str, *, is_commit: bool, of_subscription: bool, is_made_up: bool) -> None:
        """Say to one that takes part what only a coordinator may say. Raises LinkLost and Refused."""
        found = self._by_name.get(txn)
        if found is None:
            return
        client, id_ = self._client, found.id
        if is_made_up:
            id_ = (id_[0], MADE_UP + id_[1])
        link = await client.linked()
        common: dict[str, Any] = {"txn_action": int(not is_commit), **bits(id_)}
        if of_subscription and found.subscriptions:
            topic, subscription = min(found.subscriptions)
            client.tape.note(client.name, tape.TXN_FORGED, txn=id_, topic=topic, subscription=subscription)
            pair = pb.Subscription(topic=topic, subscription=subscription)
            await link.ask(Type.END_TXN_ON_SUBSCRIPTION, subscription=pair, **common)
        elif found.topics:
            topic = min(found.topics)
            client.tape.note(client.name, tape.TXN_FORGED, txn=id_, topic=topic, subscription=None)
            await link.ask(Type.END_TXN_ON_PARTITION, topic=topic, **common)
