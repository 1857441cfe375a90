"""An administrator of a simulated cluster: it asks any broker, and moves bundles."""

from __future__ import annotations

from typing import Any

from tests.simulate.actors.admin import Admin
from tests.simulate.actors.client import NAMESPACE

from pybroker.cluster.ownership.namespace_bundle import bundle_of_topic
from pybroker.model.names import TopicName
from pybroker.transactions.coordinators import partition_of


class ClusterAdmin(Admin):
    """Runs one script."""

    async def _bundle_of(self, topic: str) -> str | None:
        status, found = await self.call("GET", f"/namespaces/{NAMESPACE}/bundles")
        if status != 200:
            return None
        return str(bundle_of_topic(TopicName.parse(self.paths(topic)[0]), found["boundaries"]).range)

    async def _of_bundle(self, topic: str, what: str, **query: Any) -> None:
        bundle = await self._bundle_of(topic)
        if bundle is not None:
            await self.call("PUT", f"/namespaces/{NAMESPACE}/{bundle}/{what}", **query)

    async def _do_unload_bundle(self, topic: str) -> None:
        await self._of_bundle(topic, "unload")

    async def _do_transfer(self, topic: str, to: str) -> None:
        await self._of_bundle(topic, "unload", destinationBroker=f"{to}:8080")

    async def _do_split(self, topic: str, *, unload: bool) -> None:
        await self._of_bundle(topic, "split", unload=unload)

    async def _do_move_coordinator(self, coordinator: int, to: str) -> None:
        """Unload the bundle of a transaction coordinator, or transfer it to the broker `to`."""
        partition = partition_of(coordinator)
        status, found = await self.call("GET", f"/namespaces/{partition.namespace}/bundles")
        if status == 200:
            bundle = bundle_of_topic(partition, found["boundaries"]).range
            query = {"destinationBroker": f"{to}:8080"} if to else {}
            await self.call("PUT", f"/namespaces/{partition.namespace}/{bundle}/unload", **query)
