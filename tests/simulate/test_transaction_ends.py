"""The end of a transaction in the middle of everything that can go wrong with it: it ends as was asked for, everywhere, once.

One transaction has sent a message to one topic and acknowledged one of another; the first end of it is disturbed, and asked for
again until it is answered, as clients do. More moments of each: TRANSACTION_ENDS_SEEDS (2).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.simulate.life import DIRECTORY
from tests.simulate.simulation import Simulation
from tests.simulate.test_simulation import opened, publish
from tests.simulate.wire import Wire, WireClosed
from tests.support.raw_client import encode, frame
from tests.support.transactions import entry_of, txn

from pybroker.model.txn_id import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
SEEDS = int(os.environ.get("TRANSACTION_ENDS_SEEDS", "2"))
SOURCE, SINK = "persistent://public/default/t", "persistent://public/default/out"
IDS = {"txnid_most_bits": 0, "txnid_least_bits": 1}
TXN = txn(1)
PARTICIPANTS = 2
ENDED = ("", "TransactionNotFound")
TEMPORARY = ("ServiceNotReady", "PersistenceError", "TooManyRequests")
ASK_AGAIN_S = 0.2
BEHIND_S = 3.0
"""What is written behind the answer is by then, but for snapshots of buffers."""
NOTICED_S = 3.0
"""How soon a broker sees that its disk is full, or has room again."""
ALL_COMES_S = 5.0
PATIENCE_S = 120.0
"""Of the simulation's time."""

Disturb = Callable[[Simulation, Awaitable[Any]], Awaitable[None]]
"""Given the simulation and the answer to the end."""


async def prepared(simulation: Simulation) -> Wire:
    """The connection that asks for the end."""
    await simulation.start()
    await publish(simulation, 0, 1)
    wire = await opened(simulation)
    subscription = {"topic": SOURCE, "subscription": "s", "subType": pb.CommandSubscribe.Shared, "consumer_id": 1}
    await answered(wire, Type.SUBSCRIBE, **subscription, initialPosition=pb.CommandSubscribe.Earliest)
    wire.send(frame(encode(Type.FLOW, consumer_id=1, messagePermits=10)))
    place = (await wire.receive()).command.message.message_id
    reading = {"topic": SINK, "subscription": "reads it", "subType": pb.CommandSubscribe.Shared, "consumer_id": 2}
    await answered(wire, Type.SUBSCRIBE, **reading, initialPosition=pb.CommandSubscribe.Earliest)
    await answered(wire, Type.PRODUCER, topic=SINK, producer_id=2, producer_name="p")
    await answered(wire, Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    await answered(wire, Type.NEW_TXN, tc_id=0, txn_ttl_seconds=3_600_000)
    await answered(wire, Type.ADD_PARTITION_TO_TXN, partitions=[SINK], **IDS)
    pair = pb.Subscription(topic=SOURCE, subscription="s")
    await answered(wire, Type.ADD_SUBSCRIPTION_TO_TXN, subscription=[pair], **IDS)
    wire.send(frame(encode(Type.SEND, producer_id=2, sequence_id=0, **IDS), entry_of(TXN, payload=b"m of it")))
    assert (await wire.receive()).command.type == Type.SEND_RECEIPT
    individual = pb.CommandAck.Individual
    await answered(
        wire,
        Type.ACK,
        consumer_id=1,
        ack_type=individual,
        message_id=[pb.MessageIdData.FromString(place.SerializeToString())],
        **IDS,
    )
    return wire


async def answered(wire: Wire, kind: Any, **fields: Any) -> None:
    error = await answer(wire, kind, **fields)
    assert error == "", error


async def answer(wire: Wire, kind: Any, **fields: Any) -> str:
    """The error of the answer, empty for none."""
    wire.send(frame(encode(kind, request_id=1, **fields)))
    while True:
        found = (await wire.receive()).command
        (inner,) = [inner for field, inner in found.ListFields() if field.name != "type"]
        if getattr(inner, "request_id", 0) == 1:  # else a message, or that a consumer or producer is closed
            is_error = found.type == Type.ERROR or (
                "error" in inner.DESCRIPTOR.fields_by_name and inner.HasField("error")
            )
            return str(pb.ServerError.Name(inner.error)) if is_error else ""


async def end(simulation: Simulation, wire: Wire | None, action: TxnAction) -> list[str]:
    """Ask until it has ended; the answers."""
    answers = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if wire is None:
                    wire = await opened(simulation)
                    await answered(wire, Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
                answers.append(await answer(wire, Type.END_TXN, txn_action=int(action), **IDS))
            except (WireClosed, ConnectionRefusedError):
                wire = None
            else:
                if answers[-1] in ENDED:
                    wire.close()
                    return answers
                assert answers[-1] in TEMPORARY, answers
            await asyncio.sleep(ASK_AGAIN_S)


async def is_over(simulation: Simulation) -> None:
    """No coordinator knows it any more: some may have been told after the end was answered, or never asked for again."""
    async with asyncio.timeout(PATIENCE_S):
        while any(len(each.state) for each in simulation.broker.transactions.running()):  # noqa: ASYNC110
            await asyncio.sleep(ASK_AGAIN_S)


async def seen(simulation: Simulation, topic: str, subscription: str) -> list[bytes]:
    """What a consumer gets."""
    wire = await opened(simulation)
    fields = {"topic": topic, "subscription": subscription, "subType": pb.CommandSubscribe.Shared, "consumer_id": 1}
    await answered(wire, Type.SUBSCRIBE, **fields, initialPosition=pb.CommandSubscribe.Earliest)
    wire.send(frame(encode(Type.FLOW, consumer_id=1, messagePermits=10)))
    await asyncio.sleep(ALL_COMES_S)
    found = []
    while (got := wire.take()) is not None:
        if got.command.type == Type.MESSAGE:
            found.append(got.payload[got.payload.rindex(b"m") :])
    wire.close()
    return found


async def ended_as(simulation: Simulation, action: TxnAction) -> None:
    """Everywhere, durably, and nothing is kept of it."""
    is_commit = action is TxnAction.COMMIT
    for _ in range(2):
        await is_over(simulation)
        assert await seen(simulation, SINK, "reads it") == [b"m of it"] * is_commit
        assert await seen(simulation, SOURCE, "s") == [b"m0"] * (not is_commit)
        for name in (SOURCE, SINK):
            topic = simulation.broker.loaded.persistent[name]
            buffer = topic.transactions.buffer
            assert buffer is None or not buffer.open
            assert topic.ledger.read_limit.limit is None
            assert not any(each.cursor.state.held.open for each in topic.subscriptions.values())
        assert not simulation.bugs, simulation.bugs
        await simulation.stop()
        await simulation.start()


def disturbed(seed: int, action: TxnAction, disturb: Disturb) -> Simulation:
    async def scenario(simulation: Simulation) -> None:
        wire = await prepared(simulation)
        ending = asyncio.ensure_future(end(simulation, wire, action))
        await disturb(simulation, ending)
        await ending
        await ended_as(simulation, action)

    return Simulation.run(seed, scenario)


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("is_power_loss", [False, True])
def test_a_crash_at_any_operation_of_the_disk_on_the_way(action: TxnAction, is_power_loss: bool) -> None:
    for operation in range(200):

        async def at(simulation: Simulation, ending: Awaitable[Any], number: int = operation) -> None:
            life = simulation.life
            assert life is not None
            simulation._crash_after(life, number, is_power_loss=is_power_loss)
            over = asyncio.ensure_future(life.over.wait())
            await asyncio.wait([over, ending], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            await asyncio.wait([over], timeout=BEHIND_S)
            if life.is_over:
                await simulation.start()
            life.disk.plan = None
            over.cancel()

        if not disturbed(operation, action, at).crashes:
            break
    assert 3 < operation < 199, "each of several operations"


async def called(simulation: Simulation, method: str, path: str, **query: str) -> None:
    """One call of the administration, again while it meets what makes it answer 409 or 503."""
    async with asyncio.timeout(PATIENCE_S):
        path = f"/admin/v2/persistent/public/default/{path}"
        while (await simulation.http(method, path, None, query))[0] in {409, 503}:  # noqa: ASYNC110
            await asyncio.sleep(ASK_AGAIN_S)


async def soon(simulation: Simulation) -> None:
    """At some moment while an end is under way."""
    await asyncio.sleep(simulation.chance("moments").choice((0, 0.001, 0.002, 0.005, 0.01)))


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("what", ["unload", "terminate"])
def test_a_topic_that_is_closed_or_terminated_on_the_way(action: TxnAction, what: str) -> None:
    async def fence(simulation: Simulation, _: Awaitable[Any]) -> None:
        await soon(simulation)
        method = "PUT" if what == "unload" else "POST"
        await asyncio.gather(called(simulation, method, f"out/{what}"), called(simulation, method, f"t/{what}"))

    for seed in range(SEEDS):
        disturbed(seed, action, fence)


@pytest.mark.parametrize("action", TxnAction)
def test_a_topic_that_is_deleted_on_the_way_takes_its_part_with_it_and_stops_no_other(action: TxnAction) -> None:
    for seed in range(SEEDS):

        async def scenario(simulation: Simulation) -> None:
            wire = await prepared(simulation)
            ending = asyncio.ensure_future(end(simulation, wire, action))
            await soon(simulation)
            await called(simulation, "DELETE", "out", force="true")
            await ending
            await is_over(simulation)
            assert await seen(simulation, SINK, "reads it") == []
            assert await seen(simulation, SOURCE, "s") == [b"m0"] * (action is TxnAction.ABORT)
            assert not simulation.bugs, simulation.bugs

        Simulation.run(seed, scenario)


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("moment", ["before it", "before its topics are told", "behind that"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_disk_that_is_full_delays_it_until_there_is_room(action: TxnAction, moment: str, is_killed: bool) -> None:
    async def fill(simulation: Simulation) -> None:
        assert simulation.life is not None
        disk = simulation.life.disk
        figures = disk.space(DIRECTORY)
        assert figures is not None
        disk.space = lambda _: figures._replace(free_bytes=0)  # type: ignore[assignment, method-assign]
        await asyncio.sleep(NOTICED_S)

    async def scenario(simulation: Simulation) -> None:
        wire = await prepared(simulation)
        end_participant, begun, told = simulation.broker.transactions._context.end_participant, 0, 0

        async def told_while_it_fills(*what: Any) -> None:
            nonlocal begun, told
            begun += 1
            if moment == "before its topics are told" and begun <= PARTICIPANTS:
                await fill(simulation) if begun == 1 else await asyncio.sleep(2 * NOTICED_S)
            await end_participant(*what)
            told += 1
            if moment == "behind that" and told == PARTICIPANTS:
                await fill(simulation)

        simulation.broker.transactions.find(0).endings._end_participant = told_while_it_fills
        if moment == "before it":
            await fill(simulation)
        ending = asyncio.ensure_future(end(simulation, wire, action))
        await asyncio.sleep(10 * NOTICED_S)
        assert any(each.what == "storage.full" for each in simulation.history)
        assert (moment == "before it") == (not begun)
        assert ending.done() == (moment == "behind that"), "what all know durably is not waited for"
        for said in ("transaction.removal_failed", "transaction.end_delayed", "storage.failed"):
            assert len([each for each in simulation.history if each.what == said]) <= 1, said
        if is_killed:
            await simulation.kill()
            await simulation.start()
        else:
            assert simulation.life is not None
            del simulation.life.disk.space
        await ending
        await ended_as(simulation, action)

    for seed in range(SEEDS // 2):
        Simulation.run(seed, scenario)
