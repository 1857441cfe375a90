"""An administrator of a simulated cluster: it asks any broker, moves bundles, and sets policies of topics."""

from __future__ import annotations

from typing import Any

from tests.simulate import tape
from tests.simulate.actors.admin import Admin
from tests.simulate.actors.client import NAMESPACE
from tests.simulate.cluster.policy_watch import PolicyWatch
from tests.simulate.cluster.policy_writes import POLICIES, read_value

from pybroker.cluster.ownership.namespace_bundle import bundle_of_topic
from pybroker.model.names import TopicName
from pybroker.transactions.coordinators import partition_of


class ClusterAdmin(Admin):
    """Runs one script."""

    watch: PolicyWatch | None = None
    """Checks the policies that the administrator reads."""

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

    # --- policies of topics ------------------------------------------------------------------------------------------

    def _policy_path(self, topic: str, policy: str) -> str:
        """Of the partitioned topic, since partitions have no policies of their own."""
        return f"/persistent/{NAMESPACE}/{topic}/{policy}"

    async def _do_set_policy(self, topic: str, policy: str, value: int | None) -> None:
        """Set the policy; remove it if `value` is None."""
        self._tokens += 1
        token, path = f"{self.name}-{self._tokens}", self._policy_path(topic, policy)
        self._tape.note(self.name, tape.POLICY_SETTING, token=token, topic=topic, policy=policy, value=value)
        if value is None:
            status, _ = await self.call("DELETE", path)
        elif (body := POLICIES[policy].body(value)) is not None:
            status, _ = await self.call("POST", path, body)
        else:
            status, _ = await self.call("POST", path, **{policy: value})
        self._tape.note(self.name, tape.POLICY_SET, token=token, status=status)

    async def _do_get_policy(self, topic: str, policy: str) -> None:
        asked_s = self._tape.now_s
        status, found = await self.call("GET", self._policy_path(topic, policy))
        if self.watch is not None and status in (200, 204):
            self.watch.answered(self.name, topic, policy, read_value(found), asked_s)
