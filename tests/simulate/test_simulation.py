"""The simulation itself: clients, crashes, and that a seed says everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

from tests.simulate.leftovers import after_clients, after_stop
from tests.simulate.simulation import Simulation
from tests.simulate.wire import Frame, Wire
from tests.support.raw_client import encode, frame

from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
TOPIC = "persistent://public/default/t"


async def opened(simulation: Simulation) -> Wire:
    wire = await simulation.connect()
    wire.send(frame(encode(Type.CONNECT, client_version="test", protocol_version=21)))
    assert (await wire.receive()).command.type == Type.CONNECTED
    return wire


async def asked(wire: Wire, command_type: Any, **fields: Any) -> Frame:
    wire.send(frame(encode(command_type, request_id=1, **fields)))
    return await wire.receive()


def message(sequence_id: int, payload: bytes) -> bytes:
    meta = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1).SerializeToString()
    tail = len(meta).to_bytes(4, "big") + meta + payload
    return frame(encode(Type.SEND, producer_id=1, sequence_id=sequence_id), tail)


async def publish(simulation: Simulation, first: int, count: int) -> list[tuple[int, int]]:
    """What was receipted, where."""
    wire = await opened(simulation)
    assert (await asked(wire, Type.PRODUCER, topic=TOPIC, producer_id=1)).command.type == Type.PRODUCER_SUCCESS
    for number in range(first, first + count):
        wire.send(message(number, b"m%d" % number))
    receipts = [(await wire.receive()).command.send_receipt.message_id for _ in range(count)]
    wire.close()
    return [(each.ledgerId, each.entryId) for each in receipts]


async def received(simulation: Simulation, count: int) -> list[bytes]:
    wire = await opened(simulation)
    subscribe = {"topic": TOPIC, "subscription": "s", "subType": pb.CommandSubscribe.Exclusive, "consumer_id": 1}
    answer = await asked(wire, Type.SUBSCRIBE, **subscribe, initialPosition=pb.CommandSubscribe.Earliest)
    assert answer.command.type == Type.SUCCESS
    wire.send(frame(encode(Type.FLOW, consumer_id=1, messagePermits=100)))
    found: list[Any] = []
    while len(found) < count:
        got = await wire.receive()
        if got.command.type == Type.MESSAGE:
            found.append(got.payload.rpartition(b"m")[2])
    wire.close()
    return found


async def lives(simulation: Simulation) -> None:
    """Messages, a crash of each kind, and everything is there."""
    await simulation.start()
    places = await publish(simulation, 0, 20)
    await simulation.kill()
    await simulation.start()
    places += await publish(simulation, 20, 20)
    await simulation.power_cut()
    await simulation.start()
    assert len(set(places)) == 40
    assert await received(simulation, 40) == [b"%d" % number for number in range(40)]
    status, stats = await simulation.http("GET", "/admin/v2/persistent/public/default/t/stats")
    assert status == 200
    assert stats["subscriptions"]["s"]["msgBacklog"] == 40
    await asyncio.sleep(1)
    life = simulation.life
    assert life is not None
    assert after_clients(life) == []
    await simulation.stop()
    assert after_stop(life) == []


def test_broker_starts_again_after_kills_and_power_cuts() -> None:
    for seed in range(20):
        simulation = Simulation.run(seed, lives)
        assert not simulation.bugs
        assert simulation.crashes >= 2


def test_leftovers_of_clients_and_broker_are_found() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.start()
        wire = await opened(simulation)
        await asked(wire, Type.PRODUCER, topic=TOPIC, producer_id=1)
        assert simulation.life is not None
        assert any("producer" in line for line in after_clients(simulation.life))
        assert any("connection" in line for line in after_clients(simulation.life))
        assert simulation.life is not None
        assert any("task" in line for line in after_stop(simulation.life))

    Simulation.run(1, scenario)


def test_same_seed_gives_same_bytes_at_same_times() -> None:
    assert Simulation.run(3, lives).digest == Simulation.run(3, lives).digest
    assert Simulation.run(3, lives).digest != Simulation.run(4, lives).digest


def test_other_process_gives_same_bytes_for_any_hash_seed() -> None:
    command = (
        "from tests.simulate.test_simulation import Simulation, lives; "
        "print(*(Simulation.run(seed, lives).digest for seed in range(4)))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(set(found[0].split())) == 4
