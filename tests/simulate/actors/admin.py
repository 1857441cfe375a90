"""An administrator of a simulated run: one HTTP request after the other, each noted with its answer.

What loses, repeats or reorders messages by right is noted as disturbing before it is asked for, and as over when it is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.simulate import tape
from tests.simulate.actors.client import NAMESPACE
from tests.simulate.script import Step
from tests.simulate.tape import Tape

Call = Callable[..., Awaitable[tuple[int, Any]]]
_ROOT = "/admin/v2"
_TRANSACTIONS = "/admin/v3/transactions"
GROWN = 3
"""Partitions of a topic that has grown."""
OF_SUBSCRIPTION = ("delete_subscription", "skip", "skip_all", "reset_cursor", "expire", "create_subscription")


class Admin:
    """Runs one script. `http` is the simulation's; ConnectionError from it means that the broker is gone."""

    def __init__(self, name: str, http: Call, tape_: Tape, topics: dict[str, dict[str, Any]]) -> None:
        self.name = name
        self._http = http
        self._tape = tape_
        self._topics = topics
        self._tokens = 0

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        """One request below `/admin/v2`, or of a whole path; status 0 when the broker went away meanwhile."""
        whole = path if path.startswith("/admin/") else _ROOT + path
        self._tape.note(self.name, tape.HTTP, method=method, path=path, is_begin=True)
        try:
            status, found = await self._http(
                method, whole, body, {name: str(value).lower() for name, value in query.items()}
            )
        except (ConnectionError, EOFError):
            status, found = 0, None
        self._tape.note(
            self.name, tape.HTTP, method=method, path=path, is_begin=False, status=status,
            **({"answer": found} if status >= 400 else {}),
        )  # fmt: skip
        return status, found

    async def run(self, steps: tuple[Step, ...], sleep: Callable[[float], Awaitable[None]]) -> None:
        for step in steps:
            if step.do == "wait":
                await sleep(step.facts["s"])
            else:
                await getattr(self, f"_do_{step.do}")(**step.facts)

    # --- where -------------------------------------------------------------------------------------------------------

    def paths(self, topic: str) -> list[str]:
        """Full names of a topic, or of its partitions."""
        partitions = self._topics.get(topic, {}).get("partitions", 0)
        full = f"persistent://{NAMESPACE}/{topic}"
        return [f"{full}-partition-{index}" for index in range(partitions)] if partitions else [full]

    def _path(self, topic: str) -> str:
        """Of the topic or, of a partitioned one, a partition of it."""
        return "/" + self.paths(topic)[0].replace("://", "/")

    async def _disturb(
        self,
        topic: str | None,
        subscription: str | None,
        how: str,
        method: str,
        path: str,
        body: Any = None,
        **query: Any,
    ) -> None:
        self._tokens += 1
        token = f"{self.name}-{self._tokens}"
        full = None if topic is None else self.paths(topic)[0]
        self._tape.note(self.name, tape.DISTURBING, token=token, topic=full, subscription=subscription, how=how)
        status, _ = await self.call(method, path, body, **query)
        if status and not (how == "expiry" and status < 300):
            self._tape.note(self.name, tape.DISTURBED, token=token, is_done=status < 300)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _do_unload(self, topic: str) -> None:
        await self.call("PUT", f"{self._path(topic)}/unload")

    async def _do_namespace_unload(self, topic: str) -> None:
        await self.call("PUT", f"/namespaces/{NAMESPACE}/unload")

    async def _do_stats(self, topic: str) -> None:
        await self.call("GET", f"{self._path(topic)}/stats")

    async def _do_internal_stats(self, topic: str) -> None:
        await self.call("GET", f"{self._path(topic)}/internalStats")

    async def _do_topics(self, topic: str) -> None:
        await self.call("GET", f"/persistent/{NAMESPACE}")

    async def _do_partitions(self, topic: str) -> None:
        await self.call("GET", f"/persistent/{NAMESPACE}/{topic}/partitions")

    async def _do_grow(self, topic: str) -> None:
        facts = self._topics.get(topic, {})
        if facts.get("partitions"):
            status, _ = await self.call("POST", f"/persistent/{NAMESPACE}/{topic}/partitions", GROWN)
            if status == 204:
                facts["partitions"] = GROWN

    async def _do_delete_topic(self, topic: str, force: bool) -> None:
        await self._disturb(topic, None, "delete topic", "DELETE", self._path(topic), force=force)

    async def _do_terminate(self, topic: str) -> None:
        await self.call("POST", f"{self._path(topic)}/terminate")

    async def _do_trim(self, topic: str) -> None:
        await self.call("POST", f"{self._path(topic)}/trim")

    async def _do_compact(self, topic: str) -> None:
        await self.call("PUT", f"{self._path(topic)}/compaction")

    async def _do_truncate(self, topic: str) -> None:
        await self._disturb(topic, None, "truncate", "DELETE", f"{self._path(topic)}/truncate")

    async def _do_create_subscription(self, topic: str, subscription: str) -> None:
        await self.call("PUT", f"{self._path(topic)}/subscription/{subscription}", "earliest")

    async def _do_delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        path = f"{self._path(topic)}/subscription/{subscription}"
        await self._disturb(topic, subscription, "delete subscription", "DELETE", path, force=force)

    async def _do_skip(self, topic: str, subscription: str, count: int) -> None:
        path = f"{self._path(topic)}/subscription/{subscription}/skip/{count}"
        await self._disturb(topic, subscription, "skip", "POST", path)

    async def _do_skip_all(self, topic: str, subscription: str) -> None:
        path = f"{self._path(topic)}/subscription/{subscription}/skip_all"
        await self._disturb(topic, subscription, "skip all", "POST", path)

    async def _do_clear_backlog(self, topic: str) -> None:
        await self._disturb(None, None, "clear backlog", "POST", f"/namespaces/{NAMESPACE}/clearBacklog")

    async def _do_reset_cursor(self, topic: str, subscription: str) -> None:
        path = f"{self._path(topic)}/subscription/{subscription}/resetcursor/0"
        await self._disturb(topic, subscription, "reset", "POST", path)

    async def _do_expire(self, topic: str, subscription: str, count: int) -> None:
        path = f"{self._path(topic)}/subscription/{subscription}/expireMessages/{count}"
        await self._disturb(topic, subscription, "expire", "POST", path)

    async def _do_abort_txn(self, which: int) -> None:
        """One of those that are open, for its client."""
        status, found = await self.call("GET", f"{_TRANSACTIONS}/slowTransactions/0")
        if status != 200 or not found:
            return
        most, least = list(found)[which % len(found)].strip("()").split(",")
        facts = {"txn": (int(most), int(least)), "is_commit": False}
        self._tape.note(self.name, tape.TXN_ENDING, **facts)
        status, _ = await self.call("POST", f"{_TRANSACTIONS}/abortTransaction/{int(most)}/{int(least)}")
        if status == 204:
            self._tape.note(self.name, tape.TXN_ENDED, **facts, error="")

    async def _do_transactions(self, topic: str) -> None:
        name = self._path(topic).removeprefix("/persistent")
        for path in ("coordinatorStats", "coordinatorInternalStats/0", f"transactionBufferStats{name}"):
            await self.call("GET", f"{_TRANSACTIONS}/{path}")

    async def _do_grow_coordinators(self) -> None:
        await self.call("POST", f"{_TRANSACTIONS}/transactionCoordinator/replicas", 17)

    async def _do_peek(self, topic: str, subscription: str) -> None:
        await self.call("GET", f"{self._path(topic)}/subscription/{subscription}/position/1")

    async def _do_retention(self, topic: str, count: int) -> None:
        body = {"retentionTimeInMinutes": count, "retentionSizeInMB": count}
        await self.call("POST", f"{self._path(topic)}/retention", body)

    async def _do_ttl(self, topic: str, count: int) -> None:
        """From now on messages may go at any time."""
        path = f"{self._path(topic)}/messageTTL"
        await self._disturb(topic, None, "expiry", "POST", path, messageTTL=count)

    async def _do_max_consumers(self, topic: str, count: int) -> None:
        await self.call("POST", f"{self._path(topic)}/maxConsumers", count + 5)

    async def _do_unacked_limit(self, topic: str, count: int) -> None:
        await self.call("POST", f"{self._path(topic)}/maxUnackedMessagesOnConsumer", count)

    async def _do_dispatch_rate(self, topic: str) -> None:
        body = {"dispatchThrottlingRateInMsg": 50, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
        await self.call("POST", f"{self._path(topic)}/dispatchRate", body)
