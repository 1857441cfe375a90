"""The console's calls about a cluster, on modelled servers."""

from __future__ import annotations

from tests.protocol.test_cluster import ADMIN, NAMESPACE, TOPIC, look_up, rest
from tests.support.modelled_cluster import modelled_cluster, run_on_uvloop

BASE = "/admin/v3/console/cluster"


def test_console_lists_brokers_and_bundles_and_acts_at_any_broker() -> None:
    run_on_uvloop(_console())


async def _console() -> None:
    async with modelled_cluster(has_membership=True) as cluster:
        one, two = cluster.brokers
        status, shown = await rest(two, "GET", BASE)
        assert (status, shown["isShared"], shown["own"]) == (200, True, two.registered.broker_id)
        assert shown["leader"] == one.registered.broker_id
        assert [each["id"] for each in shown["brokers"]] == sorted(
            each.registered.broker_id for each in cluster.brokers
        )
        assert all(each["isPybroker"] and each["usagePercent"] >= 0 for each in shown["brokers"])
        assert await rest(one, "PUT", ADMIN) == (204, None)
        bundle = str((await rest(one, "GET", "/lookup/v2/topic/persistent/public/default/orders/bundle"))[1])

        async def owner() -> str | None:
            status, page = await rest(two, "GET", f"{BASE}/bundles?search=public/default%20{bundle}")
            assert status == 200
            (row,) = page["bundles"]
            assert row["range"] == bundle
            return row["owner"]  # type: ignore[no-any-return]

        for destination in (two, one, two):
            broker_id = destination.registered.broker_id
            path = f"{BASE}/public/default/{bundle}/unload?destinationBroker={broker_id}"
            assert await rest(one, "PUT", path, follows=False) == (204, None)
            assert await owner() == broker_id
            for broker in cluster.brokers:
                found = (await rest(broker, "GET", f"{BASE}/owner/persistent/public/default/orders"))[1]
                url = destination.registered.web_service_url
                assert found == {"isHere": broker is destination, "broker": broker_id, "webUrl": url}
        assert await rest(one, "PUT", f"{BASE}/public/default/{bundle}/unload", follows=False) == (204, None)
        assert await owner() is None
        await look_up(one, TOPIC)
        assert await rest(one, "PUT", f"{BASE}/public/default/{bundle}/split", follows=False) == (204, None)
        assert (await rest(two, "GET", f"{BASE}/bundles?search=public/default%20{bundle}"))[1]["matching"] == 0
        status, _ = await rest(one, "PUT", f"{BASE}/public/default/{bundle}/split")
        assert status == 412, "the bundle does not exist any more"
        assert (await rest(one, "GET", f"{NAMESPACE}/topics"))[1] == [TOPIC]
        assert (await rest(one, "GET", f"{BASE}/bundles?limit=0"))[0] == 400
