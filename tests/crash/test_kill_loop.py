"""Twenty times `kill -9` under mixed load: nothing receipted is lost, no receipted acknowledgement is undone.

Small ledgers and frequent checkpoints, so that the kills come in the middle of rollovers, checkpoints and their commits.
"""

import contextlib
import logging
import threading
from pathlib import Path
from random import Random

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.crash.mixed_load import (
    PERMITS,
    SUBSCRIPTION,
    AckingConsumer,
    BatchIndexAcks,
    CumulativeAcks,
    IndividualAcks,
    Message,
    OfficialProducer,
    Promises,
    RawProducer,
    Worker,
    messages_of,
)
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient

from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.long
logger = logging.getLogger(__name__)

KILLS = 20
TIMEOUT_S = 60.0
SETTINGS = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "checkpointMaxBytes": str(1 << 20),
    "checkpointMaxEntries": "2000",
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
NAMES = ("individual", "cumulative", "batch-index", "holes")


class Cycle:
    """All clients between two kills."""

    def __init__(self, url: str, promises: dict[str, Promises], number: int) -> None:
        self._client = new_client(url)
        seeds = Random(number)
        consumers: list[tuple[type[AckingConsumer], str, str]] = [
            (IndividualAcks, "individual", "Shared"),
            (IndividualAcks, "individual", "Shared"),
            (CumulativeAcks, "cumulative", "Exclusive"),
            (BatchIndexAcks, "batch-index", "Shared"),
            (IndividualAcks, "holes", "Exclusive"),
        ]
        self._workers: list[Worker] = [
            kind(promises[name], url, sub_type, Random(seeds.random())) for kind, name, sub_type in consumers
        ]
        self._official = [
            OfficialProducer(promises["individual"], self._client, f"single-{number}", batching=False),
            OfficialProducer(promises["cumulative"], self._client, f"batched-{number}", batching=True),
        ]
        self._workers += self._official
        self._workers += [
            RawProducer(promises["batch-index"], url, f"raw-batched-{number}", batching=True),
            RawProducer(promises["holes"], url, f"raw-{number}", batching=False),
            RawProducer(promises["individual"], url, f"raw-single-{number}", batching=False),
        ]
        for worker in self._workers:
            worker.start()

    def end(self) -> None:
        """The broker is dead: all clients end, and what they were told before is noted."""
        for producer in self._official:
            producer.stop()
        with contextlib.suppress(pulsar.PulsarException):  # it would say goodbye to a broker that is no more
            self._client.close()
        for worker in self._workers:
            worker.join()


def test_twenty_kills_under_mixed_load(tmp_path: Path) -> None:
    chance = Random(4)
    process = BrokerProcess(tmp_path, SETTINGS).start()
    promises = {name: Promises(f"persistent://public/default/{name}") for name in NAMES}
    try:
        create_audits(process.url, promises)
        for number in range(KILLS):
            cycle = Cycle(process.url, promises, number)
            wait_for_progress(promises, chance.randrange(50, 1500))
            process.kill()
            cycle.end()
            broken = [what for each in promises.values() for what in each.broken]
            assert not broken, f"cycle {number}: {broken[:5]}"
            process.start()
        for each in promises.values():
            check_order(each)
            check_nothing_lost(process.url, each)
            check_acknowledgements(process.url, each)
            logger.info("%s: %d messages and %d acks receipted", each.topic, len(each.receipted), len(each.acked))
            assert len(each.receipted) > KILLS, "there was load"
            assert len(each.acked) > KILLS, "there were acknowledgements"
    finally:
        process.stop()


def create_audits(url: str, promises: dict[str, Promises]) -> None:
    """Subscriptions from the start on: one for the work, and one that keeps everything, for the check at the end."""
    client = new_client(url)
    for each in promises.values():
        for name in (SUBSCRIPTION, "audit"):
            client.subscribe(each.topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()


def wait_for_progress(promises: dict[str, Promises], least: int) -> None:
    """Until every topic has got so many promises."""
    before = {name: each.progress() for name, each in promises.items()}
    pause = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.005)):
        if all(each.progress() - before[name] >= least for name, each in promises.items()):
            return
        assert not any(each.broken for each in promises.values()), [each.broken[:3] for each in promises.values()]
        pause.wait(0.005)
    raise AssertionError({name: each.progress() - before[name] for name, each in promises.items()})


def check_order(promises: Promises) -> None:
    """Each producer's receipted messages lie in the order in which they were sent."""
    for producer, bodies in promises.sent.items():
        positions = [promises.receipted[body] for body in bodies if body in promises.receipted]
        assert positions == sorted(set(positions)), producer


def check_nothing_lost(url: str, promises: Promises) -> None:
    """A subscription that has acknowledged nothing gets every receipted message, at its position, once."""
    client = new_client(url)
    consumer = client.subscribe(promises.topic, "audit", receiver_queue_size=5000)
    missing = dict(promises.receipted)
    seen: list[Message] = []
    while missing:
        message = consumer.receive(int(TIMEOUT_S * 1000))
        where = message.message_id()
        seen.append((where.ledger_id(), where.entry_id(), where.batch_index()))
        due = missing.pop(message.data(), None)
        assert due is None or due == seen[-1], message.data()
    assert seen == sorted(set(seen))
    client.close()


def check_acknowledgements(url: str, promises: Promises) -> None:
    """The subscription gets what was never acknowledged, and nothing that was receipted as acknowledged."""
    owed = {message for message in promises.receipted.values() if promises.is_owed(message)}
    client = RawClient(url)
    client.connect()
    client.subscribe(promises.topic, sub_type="Exclusive", subscription=SUBSCRIPTION)
    client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=PERMITS)
    while owed:
        reply = client.reply(TIMEOUT_S)
        assert reply["type"] == "MESSAGE", f"{len(owed)} messages do not come: {sorted(owed)[:3]}, {reply}"
        messages = messages_of(reply)
        owed.difference_update(messages)
        for message in messages:
            promises.delivered(message)
        client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=len(messages))
    client.close()
    assert not promises.broken, promises.broken[:5]
