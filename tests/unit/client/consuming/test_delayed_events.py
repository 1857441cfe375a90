"""Order of the events of a consumer while data keys are opened in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.credentials import private_pem, public_pem, rsa_key

from pybroker.client.consuming.delayed_events import DelayedEvents
from pybroker.client.frames import Event, ReceivedEntry
from pybroker.client.message import OutgoingMessage
from pybroker.client.message_crypto import MessageCrypto
from pybroker.client.producing.packing import Packing, pack_batch, pack_one
from pybroker.encryption.crypto_key_reader import CryptoKeyReader, PublicKey
from pybroker.encryption.payload_encryption import PayloadEncryptor
from pybroker.runtime.tasks import TaskOwner
from pybroker.wire import pulsar_api_pb2 as pb

END = pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC)


class Keys(CryptoKeyReader):
    def __init__(self) -> None:
        self.calls = 0

    def public_key(self, name: str) -> PublicKey | None:
        return PublicKey(public_pem(rsa_key()))

    def private_key(self, name: str, metadata: object) -> bytes | None:
        self.calls += 1
        if name == "raises":
            raise KeyError(name)
        return private_pem(rsa_key()) if name == "k" else None


class World:
    def __init__(self) -> None:
        self.keys = Keys()
        self.thread = ThreadPoolExecutor(1)
        self.tasks = TaskOwner("test")
        self.handled: list[tuple[Event, int]] = []
        self.events = DelayedEvents(MessageCrypto(self.keys, self.thread), self.tasks, self.handle)

    def handle(self, event: Event, data_keys: Sequence[Any]) -> None:
        self.handled.append((event, len(data_keys)))

    async def settle(self) -> None:
        while len(self.tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def entry(number: int, encryptor: PayloadEncryptor | None = None, count: int = 0) -> ReceivedEntry:
    packing = Packing("p", encryptor=encryptor)
    message = OutgoingMessage(b"%d" % number)
    if count:
        data = pack_batch(packing, [message] * count, range(count), 1, None).data
    else:
        data = pack_one(packing, message, number, 1).data
    return ReceivedEntry(0, 1, number, 0, data)


def encryptor(name: str = "k") -> PayloadEncryptor:
    return PayloadEncryptor({name: PublicKey(public_pem(rsa_key()))})


async def test_event_without_encryption_is_handled_immediately() -> None:
    world = World()
    events: list[Event] = [entry(1), END, ReceivedEntry(0, 1, 1, 0, b"damaged")]
    for event in events:
        world.events.received(event)
    assert world.handled == [(event, 0) for event in events]


async def test_events_wait_in_order_for_the_first_data_key() -> None:
    world, first, second = World(), encryptor(), encryptor()
    events: list[Event] = [entry(1, first), entry(2), entry(3, second), END, entry(4, first)]
    for event in events:
        world.events.received(event)
    assert world.handled == []
    await world.settle()
    assert world.handled == list(zip(events, [1, 0, 1, 0, 1], strict=True))
    world.events.received(again := entry(5, second))
    assert world.handled[-1] == (again, 1)  # its data key is cached
    assert world.keys.calls == 2


@pytest.mark.parametrize("name", ["unknown", "raises"])
async def test_entry_without_key_is_handled_without_data_keys(name: str) -> None:
    world = World()
    events: list[Event] = [entry(1, encryptor(name)), entry(2, encryptor())]
    for event in events:
        world.events.received(event)
    await world.settle()
    assert world.handled == list(zip(events, [0, 1], strict=True))


async def test_dropped_entries_are_not_handled_and_other_events_are() -> None:
    world, data_key = World(), encryptor()
    for event in (entry(1, data_key), END, entry(2, data_key, count=3)):
        world.events.received(event)
    assert world.events.drop_entries() == 4
    world.events.received(late := entry(3, data_key))
    await world.settle()
    assert world.handled == [(END, 0), (late, 1)]


async def test_nothing_is_handled_after_clear() -> None:
    world = World()
    world.events.received(entry(1, encryptor()))
    world.events.received(END)
    world.events.clear()
    await world.settle()
    assert world.handled == []
    world.events.received(END)
    assert world.handled == [(END, 0)]
