"""Loading of persistent topics. Concurrent requests share one load per topic; a queue limits concurrent loads.

At most `maxConcurrentTopicLoadRequest` topics are loaded concurrently for clients; system topics, and topics that the
broker itself needs, are loaded immediately. A load never waits for an operation on a partitioned topic or namespace,
because these operations wait for loads; the load fails with TopicChanging, and the request retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.context import added_entry_metadata
from pybroker.broker.context.while_served import while_served
from pybroker.broker.topic.topic import Topic
from pybroker.broker.transactions import transaction_recovery
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.errors import ServiceNotReady, StoreError, TopicChanging, TopicNotFound
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.metadata import metadata_paths
from pybroker.model.position import EARLIEST
from pybroker.model.system_topics import COMPACTED, is_system_topic
from pybroker.runtime import logs
from pybroker.waiting.keyed_lock import KeyedLock

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.context.presence import Presence
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.lifecycle.topic_closing import TopicClosing
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
    from pybroker.managed_ledger.managed_ledger import ManagedLedger
    from pybroker.model.names import TopicName


WAITS = "waits for a load slot (maxConcurrentTopicLoadRequest)"
CLOSES = "waits until its unload or deletion is complete"
OPENS = "opens its ledgers and cursors"
RECOVERS = "recovers its transactions"
LOOKS_UP = "looks up its policies"


class LoadUnderWay(NamedTuple):
    """Progress of one load: start in milliseconds since 1970, current step, and number of waiting requests (`waiters`).

    `replay`: entries that were read again to restore transactions, and their approximate total.
    """

    since_ms: int
    step: str
    waiters: int
    before: int
    replay: tuple[int, int] | None


class _Load:
    __slots__ = ("has_begun", "loaded", "may_create", "name", "replay", "since_ms", "step", "waiters")

    def __init__(self, name: TopicName, may_create: bool, loaded: asyncio.Future[Topic], since_ms: int) -> None:
        self.name = name
        self.may_create = may_create
        self.loaded = loaded
        self.since_ms = since_ms
        self.waiters = 0
        self.has_begun = False
        self.step = WAITS
        self.replay = transaction_recovery.Progress()


class TopicLoading:
    """Queue and executor of topic loads."""

    def __init__(
        self,
        broker_context: BrokerContext,
        presence: Presence,
        loaded: LoadedTopics,
        directory: TopicDirectory,
        closing: TopicClosing,
        creation: TopicCreation,
    ) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._ledgers = broker_context.ledgers
        self._presence = presence
        self._topics = loaded.persistent
        self._directory = directory
        self._closing = closing
        self._creation = creation
        self._loads: dict[str, _Load] = {}
        self._queue: dict[str, _Load] = {}  # the loads that have not begun
        self._creating: KeyedLock[str] = KeyedLock()

    def __len__(self) -> int:
        return len(self._loads)

    def names(self) -> list[TopicName]:
        """Return the names of topics that are being loaded or wait to be loaded."""
        return [load.name for load in self._loads.values()]

    def under_way(self, name: TopicName) -> LoadUnderWay | None:
        load = self._loads.get(str(name))
        if load is None:
            return None
        replay = (load.replay.entries, load.replay.all_entries) if load.step == RECOVERS else None
        before = 0 if load.has_begun else list(self._queue).index(str(name))
        return LoadUnderWay(load.since_ms, load.step, load.waiters, before, replay)

    # --- load --------------------------------------------------------------------------------------------------------

    async def load(self, name: TopicName, may_create: bool, *, in_turn: bool) -> Topic:
        """Load the topic and return it. `in_turn`: the load is for a client and waits in the queue; otherwise it starts
        at once.

        Raises TopicNotFound, ServiceNotReady, NotAllowedError, StoreError, and TopicChanging if the topic would be
        created while its namespace or partitioned topic is changing.
        """
        key = str(name)
        while True:
            topic = self._topics.get(key)
            if topic is not None and not topic.is_fenced:
                return topic
            if self._broker_context.ownership is not None:
                await self._broker_context.ownership.settled(name)
                self._broker_context.ownership.require_served(name)
            load = self._loads.get(key)
            is_own = load is None
            if load is None:
                loaded: asyncio.Future[Topic] = asyncio.get_running_loop().create_future()
                since_ms = self._runtime.clock.wall_ms()
                load = self._loads[key] = self._queue[key] = _Load(name, may_create, loaded, since_ms)
                self._begin_next()
            # System topics do not wait: the loads that have begun may need them, such as `__change_events` for policies.
            if (not in_turn or is_system_topic(name)) and not load.has_begun:
                self._begin(load)
            load.waiters += 1
            try:
                topic = await asyncio.shield(load.loaded)
                if not topic.is_fenced:
                    return topic
            except (TopicNotFound, TopicChanging) as error:
                # The failed attempt was made for another request, which perhaps could not create the topic.
                if is_own or (in_turn and isinstance(error, TopicChanging)) or not (may_create or not load.may_create):
                    raise
            finally:
                load.waiters -= 1
                if not load.waiters and not load.has_begun:
                    self._give_up(load)

    def _begin_next(self) -> None:
        limit = self._runtime.config.max_concurrent_topic_load_request
        while self._queue and len(self._loads) - len(self._queue) < limit:
            self._begin(next(iter(self._queue.values())))

    def _begin(self, load: _Load) -> None:
        load.has_begun = True
        del self._queue[str(load.name)]
        if self._presence.is_closing:  # No task is started any more.
            del self._loads[str(load.name)]
            load.loaded.set_exception(ServiceNotReady("the broker is starting or stopping, try again"))
            load.loaded.exception()  # mark as retrieved: there may be no waiter
        else:
            self._broker_context.tasks.start(self._load(load), f"load {load.name}")

    def _give_up(self, load: _Load) -> None:
        del self._queue[str(load.name)], self._loads[str(load.name)]
        load.loaded.cancel()

    async def _load(self, load: _Load) -> None:
        name, key, loading = load.name, str(load.name), load.loaded
        started_ms = self._runtime.clock.monotonic_ms()
        ledger: ManagedLedger | None = None
        try:
            async with asyncio.timeout(self._runtime.config.topic_load_timeout_seconds) as deadline:
                load.step = CLOSES
                await self._closing.closed(key)
                if (fenced := self._topics.get(key)) is not None:
                    # A topic of a lost session waits for its closing, and its bundle belongs to this broker again.
                    await self._closing.unload(fenced)
                load.step = OPENS
                ledger = await self._open_ledger(name, load.may_create)
                await self._keep_for_compaction(name, ledger)
                await added_entry_metadata.restore(ledger, self._broker_context.added_metadata)
                load.step = RECOVERS
                buffer = await self._recover_transactions(load, ledger, deadline)
                load.step = LOOKS_UP
                # Read last; the topic is registered in the same event loop iteration, so no policy change is lost.
                async with asyncio.timeout(self._runtime.config.topic_load_timeout_seconds):
                    reading = self._broker_context.resources.topic_policies_in_force(name.partitioned_name)
                    policies = await while_served(self._broker_context.ownership, name, reading)
            if self._broker_context.ownership is not None:
                # The bundle may have been unloaded or lost meanwhile.
                self._broker_context.ownership.require_served(name)
            topic = self._topics[key] = Topic(
                self._broker_context, name, ledger, policies, self._closing.start_unload, buffer
            )
            self._runtime.stats.topic_loads += 1
            took_ms = self._runtime.clock.monotonic_ms() - started_ms
            self._runtime.stats.topic_load_ms.add(took_ms)
            self._runtime.slow_operations.took("topic-load", took_ms, topic=key)
            logs.info(
                "topic.loaded",
                topic=key,
                subscriptions=len(topic.subscriptions),
                took_ms=round(took_ms, 1),
            )
            loading.set_result(topic)
        except BaseException as error:
            self._runtime.stats.topic_load_failures += 1
            try:
                await _close(ledger)  # Closed before the next attempt, which would otherwise find it open.
            finally:
                if isinstance(error, asyncio.CancelledError):
                    loading.cancel()
                else:
                    is_late = isinstance(error, TimeoutError)
                    refusal = ServiceNotReady(f"topic {name} could not be loaded in time, try again")
                    loading.set_exception(refusal if is_late else error)
                    loading.exception()  # mark as retrieved: there may be no waiter
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            del self._loads[key]
            self._begin_next()

    async def _recover_transactions(
        self, load: _Load, ledger: ManagedLedger, deadline: asyncio.Timeout
    ) -> TransactionBuffer | None:
        java_transactions_from = self._broker_context.java_transactions_from
        if java_transactions_from is not None and TRANSACTIONS_CURSOR not in ledger.cursors:
            start = await java_transactions_from(load.name)
            if start is not None:
                deadline.reschedule(None)  # All entries may have to be read, once: explain shows how far it is.
                await transaction_recovery.adopt(self._ledgers, ledger, start)
        max_open = self._runtime.config.max_open_transactions_per_topic
        return await transaction_recovery.recover(ledger, self._runtime.clock, max_open, load.replay)

    async def _keep_for_compaction(self, name: TopicName, ledger: ManagedLedger) -> None:
        """Create the cursor of the compaction of a system topic, as in Pulsar. Readers have no durable cursor, so entries
        that have not been compacted would be deleted with their ledger.
        """
        if name.local_name in COMPACTED and COMPACTION_SUBSCRIPTION not in ledger.cursors:
            start = ledger.position_before(EARLIEST)
            await self._ledgers.create_cursor(ledger, COMPACTION_SUBSCRIPTION, start, {})

    async def _open_ledger(self, name: TopicName, may_create: bool) -> ManagedLedger:
        path = metadata_paths.managed_ledger(name)
        existing = await self._ledgers.open_existing(path)
        if existing is not None:
            return existing
        if not may_create:
            raise TopicNotFound(f"Topic {name} not found")
        self._creation.require_automatic(name)
        async with self._creation.room(name, 1), self._creating.held(str(name)):
            existed = await self._ledgers.exists(path)
            ledger = await self._ledgers.open(path)
        if not existed:
            self._directory.created(name)
        return ledger

    # --- creation ----------------------------------------------------------------------------------------------------

    async def make(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        """Create the topic `name` without loading it. Return False if it exists. The caller has checked that its creation
        is allowed.
        """
        key = str(name)
        while self._closing.is_being_closed(key) or self._creating.is_held(key):
            await self._closing.closed(key)
            await self._creating.passed(key)
        # From now on, a lookup finds the topic created.
        if key in self._topics or not await self._ledgers.create(metadata_paths.managed_ledger(name), properties):
            return False
        self._directory.created(name)
        return True

    async def settled(self, name: TopicName) -> None:
        key = str(name)
        while self._closing.is_being_closed(key) or key in self._loads:
            await self._closing.closed(key)
            if load := self._loads.get(key):
                if not load.has_begun:
                    self._begin(load)
                await asyncio.wait([load.loaded])


async def _close(ledger: ManagedLedger | None) -> None:
    if ledger is None:
        return
    try:
        await ledger.close()
    except StoreError as error:
        logs.error("topic.close_failed", managed_ledger=ledger.name, error=str(error))
