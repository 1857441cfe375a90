"""WebSocket sessions at a broker of a cluster that does not own their topic."""

from __future__ import annotations

from tests.protocol.test_cluster import ADMIN, owner, rest
from tests.support.modelled_cluster import modelled_cluster, run_on_uvloop
from tests.support.websockets import session

TOPIC = "persistent/public/default/orders"


def test_sessions_use_topic_at_its_owner_and_follow_it() -> None:
    run_on_uvloop(_sessions_use_topic_at_its_owner())


async def _sessions_use_topic_at_its_owner() -> None:
    async with modelled_cluster(web_socket_service_enabled=True) as cluster:
        asked, other = cluster.brokers
        cluster.chosen = 1
        url = asked.registered.web_service_url
        async with (
            session(url, f"v2/consumer/{TOPIC}/s") as consumer,
            session(url, f"v2/producer/{TOPIC}") as producer,
        ):
            await producer.publish(b"one")
            await consumer.ack(await consumer.receive())
            assert owner(cluster) is other
            status, stats = await rest(asked, "GET", "/admin/v2/proxy-stats/stats")
            assert (status, len(stats["persistent://public/default/orders"]["producerStats"])) == (200, 1)
            cluster.chosen = 0
            assert (await rest(asked, "PUT", f"{ADMIN}/unload"))[0] == 204
            await producer.publish(b"two")
            assert await consumer.payload() == b"two"
