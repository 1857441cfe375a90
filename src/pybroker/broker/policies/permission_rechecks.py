"""Checks of open producers, consumers, topic list watchers and sessions after a change of permissions.

Operation: each change is counted first, so that a client that waits to be attached asks again. Then one task visits
everything that is open in the scope of the change (a namespace, a tenant, or all), and closes what the provider refuses
or gives no answer for. Changes of the same scope that wait for the task are one check.

Concurrency: `VISITORS` topics are checked at once. The caller of `run` waits for the end of its check, unless the
provider itself makes the check wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pybroker.runtime.tasks import all_results

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.model.names import NamespaceName, TopicName

VISITORS = 32
"""Topics for which questions are pending at a time."""
TOPICS_PER_TURN = 64
"""Topics between two yields to the event loop: about a millisecond of work."""
PATIENCE_S = 0.5
"""Time after which a caller does not wait for a check for which the provider has pending questions."""


class CheckedAgain(Protocol):
    """Owner of open sessions or watchers that require permissions."""

    async def close_revoked(self, scope: NamespaceName | str | None) -> None:
        """Close each session or watcher whose role has lost the required permission. `scope`: a namespace or a tenant;
        None for all.
        """


class _Topic(Protocol):
    """A loaded topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def is_fenced(self) -> bool: ...

    async def disconnect_revoked(self) -> None: ...


class PermissionRechecks:
    """Checks of one broker, each started by a change of permissions."""

    def __init__(self, broker_context: BrokerContext, loaded: LoadedTopics) -> None:
        self._broker_context = broker_context
        self._authorization = broker_context.authorization
        self._loaded = loaded
        self._others: list[CheckedAgain] = []
        self._waiting: dict[NamespaceName | str | None, asyncio.Future[None]] = {}
        self._is_running = False
        broker_context.authorization.recheck = self.begin

    def add(self, other: CheckedAgain) -> None:
        self._others.append(other)

    def begin(self, scope: NamespaceName | str | None = None) -> asyncio.Future[None] | None:
        """Begin the check after a change of permissions in `scope` (a namespace or a tenant; None for all). Return a
        future that completes at the end of the check; None if there is nothing to check.
        """
        if not self._authorization.enabled:
            return None
        self._authorization.changes.count += 1
        ended = self._waiting.get(scope)
        if ended is None:
            ended = self._waiting[scope] = asyncio.get_running_loop().create_future()
        if not self._is_running:
            self._is_running = self._broker_context.tasks.start(self._check_all(), "check of permissions")
        return ended if self._is_running else None

    async def run(self, scope: NamespaceName | str | None) -> None:
        """Check all producers, consumers, watchers and sessions in `scope` after a change of permissions. Return at the
        end of the check. If the authorization provider does not answer within `PATIENCE_S` seconds, return earlier;
        the check continues in the background.
        """
        ended = self.begin(scope)
        while ended is not None and not ended.done():
            await asyncio.wait([ended], timeout=PATIENCE_S)
            if self._authorization.questions.pending:
                return

    async def _check_all(self) -> None:
        try:
            while self._waiting:
                scope = next(iter(self._waiting))
                ended = self._waiting.pop(scope)
                try:
                    await self._check(scope)
                finally:
                    ended.set_result(None)
        finally:
            self._is_running = False
            for each in self._waiting.values():
                each.set_result(None)
            self._waiting.clear()

    async def _check(self, scope: NamespaceName | str | None) -> None:
        if scope is None:
            await self._authorization.learn_superusers_again()
        topics = self._topics(scope)
        checks = [self._visit(topics) for _ in range(VISITORS)]
        await all_results([*(other.close_revoked(scope) for other in self._others), *checks])

    def _topics(self, scope: NamespaceName | str | None) -> Iterator[_Topic]:
        for topic in self._loaded.all():
            if scope in (None, topic.name.namespace, topic.name.tenant) and not topic.is_fenced:
                yield topic

    async def _visit(self, topics: Iterator[_Topic]) -> None:
        for index, topic in enumerate(topics):
            if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not topic.is_fenced:
                await topic.disconnect_revoked()
