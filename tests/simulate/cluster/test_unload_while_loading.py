"""The unload of a bundle does not wait for a topic that waits for a system topic of the same bundle."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulate.cluster.cluster_simulation import ClusterSimulation

from pybroker.broker.policies.system_topic_policies import _Namespace

TOPIC = "/admin/v2/persistent/public/default/t"
LOOKUP = "/lookup/v2/topic/persistent/public/default/t"
NAMESPACE = "/admin/v2/namespaces/public/default"
SETTINGS = {
    "brokers": 2,
    "bookies": 3,
    "default_number_of_namespace_bundles": 1,
    "system_topic_enabled": True,
    "topic_level_policies_enabled": True,
}
LONGEST_S = 20.0


def test_unload_during_the_first_read_of_topic_policies_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = _Namespace._read_all

    async def late(self: _Namespace) -> None:
        await asyncio.sleep(1)
        await read_all(self)

    monkeypatch.setattr(_Namespace, "_read_all", late)

    async def scenario(cluster: ClusterSimulation) -> float:
        await cluster.start_all()
        while (await cluster.http("b0", "GET", LOOKUP))[0] != 200:  # noqa: ASYNC110 (a new cluster)
            await asyncio.sleep(0.1)
        loading = asyncio.create_task(cluster.http("b0", "PUT", f"{TOPIC}/subscription/s", "earliest"))
        await asyncio.sleep(0.2)
        assert not loading.done()
        begun_s = cluster.now_s
        await cluster.http("b1", "PUT", f"{NAMESPACE}/unload")
        took_s = cluster.now_s - begun_s
        await loading
        return took_s

    assert ClusterSimulation.run(1, scenario, SETTINGS).result < LONGEST_S
