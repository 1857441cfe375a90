"""Transactions whose coordinator and topic have different brokers, on modelled servers."""

from __future__ import annotations

import asyncio

from tests.protocol.test_cluster import TOPIC, look_up
from tests.support.modelled_cluster import modelled_cluster, run_on_uvloop
from tests.support.waiting import until

from pybroker.client import connect
from pybroker.model.names import TopicName
from pybroker.transactions.coordinators import partition_of


def test_commit_waits_for_topic_whose_bundle_moves() -> None:
    """The former owner refuses the end while it releases the bundle. The coordinator repeats it at the next owner."""
    run_on_uvloop(_commit_during_move())


async def _commit_during_move() -> None:
    async with modelled_cluster(transaction_coordinator_enabled=True) as cluster:
        one, two = cluster.brokers
        for number in range(16):
            await look_up(one, str(partition_of(number)), authoritative=True)
        await look_up(two, TOPIC, authoritative=True)
        urls = ",".join(each.registered.broker_service_url for each in cluster.brokers).replace(",pulsar://", ",")
        async with connect(urls) as client:
            consumer = await client.consumer(TOPIC, "s")
            producer = await client.producer(TOPIC)
            transaction = await client.transaction(timeout_s=60)
            await producer.send(b"moved", transaction=transaction)
            ownership = two.service.ownership
            assert ownership is not None
            bundle, session = ownership.bundle_of(TopicName.parse(TOPIC)), ownership.held.session
            version = ownership.held.begin_release(bundle)
            assert version is not None
            await ownership._topics.fence([bundle])
            committing = asyncio.create_task(transaction.commit())
            coordinator = one.service.transactions.find(transaction.id.most)

            def is_refused() -> bool:
                ending = coordinator.endings.find(transaction.id)
                return ending is not None and ending.attempts > 1

            await until(lambda: committing.done() or is_refused(), 0.01)
            assert not committing.done()
            await ownership._topics.close([bundle])
            await ownership._withdraw(bundle, session, version)
            ownership.held.released(bundle, session)
            await committing
            assert (await consumer.receive(20)).value == b"moved"
