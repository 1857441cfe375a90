"""Compaction of one topic: start, result of the last run, and deletion of the compacted view.

The durable subscription `__compaction` marks the position up to which the topic is compacted, so that later entries are
not trimmed. The first compaction creates it; deleting it deletes the view. At most one compaction of a topic runs at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pybroker.compaction.compactor import THREAD_COST_BYTES, Compactor, Progress
from pybroker.compaction.messages import Batch, opening_cost, read_entry
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION, read_view
from pybroker.errors import BrokerError, StoreError
from pybroker.model.counters import LATENCY_BOUNDS_MS, Buckets
from pybroker.model.position import EARLIEST, Position
from pybroker.model.system_topics import COMPACTED
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.topic.subscription_registry import SubscriptionRegistry
    from pybroker.managed_ledger.managed_ledger import ManagedLedger


class CompactionStatus(StrEnum):
    """Status of the last compaction, named as in the REST API."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionCounters:
    """Counters since the topic was loaded. Fields that start with `last_` describe the last compaction."""

    succeeded: int = 0
    failed: int = 0
    removed_messages: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    running_ms: int = 0
    write_latency_ms: Buckets = field(default_factory=lambda: Buckets(LATENCY_BOUNDS_MS))
    last_removed_messages: int = 0
    last_succeeded_ms: int = 0
    last_failed_ms: int = 0
    last_duration_ms: int = 0

    @property
    def has_run(self) -> bool:
        return bool(self.succeeded or self.failed)


class TopicCompaction:
    """Compaction of one topic."""

    def __init__(self, topic: TopicContext, ledger: ManagedLedger, registry: SubscriptionRegistry) -> None:
        self._topic = topic
        self._ledger = ledger
        self._registry = registry
        self.status = CompactionStatus.NOT_RUN
        self.last_error = ""
        self.counters = CompactionCounters()
        self._alone = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._last_index_of = (-1, -1)  # ledger of the view, index of the last message of its last entry

    @property
    def is_running(self) -> bool:
        return self.status is CompactionStatus.RUNNING

    @property
    def has_failed(self) -> bool:
        return self.status is CompactionStatus.ERROR

    def start(self) -> bool:
        """Start a compaction up to the current last entry, in the background. Return False if one is running."""
        if self.status is CompactionStatus.RUNNING:
            return False
        self.status = CompactionStatus.RUNNING
        self._topic.tasks.start(self._run(), "compact")
        return True

    async def _run(self) -> None:
        topic = self._topic
        broker_context = topic.broker_context
        started_ms = broker_context.runtime.clock.monotonic_ms()
        config = broker_context.runtime.config
        compactor = Compactor(
            self._ledger,
            broker_context.ledgers.store,
            broker_context.runtime.clock,
            broker_context.runtime.memory,
            keeps_messages_without_key=config.topic_compaction_retain_null_key,
            read_timeout_s=config.broker_service_compaction_phase_one_loop_time_in_seconds,
        )
        error, is_fault, drops = "the compaction was cancelled", False, self._ledger.compacted_drops
        try:
            async with broker_context.compaction_slot, self._alone:
                drops = self._ledger.compacted_drops
                await self._compact(compactor)
            error = ""
        except (BrokerError, StoreError, TimeoutError) as failure:
            error = str(failure) or type(failure).__name__
            is_fault = not topic.is_fenced and self._ledger.compacted_drops == drops
        finally:
            took_ms = int(broker_context.runtime.clock.monotonic_ms() - started_ms)
            self._count(compactor.progress, took_ms, error, is_fault=is_fault)

    async def _compact(self, compactor: Compactor) -> None:
        topic = self._topic
        if self._registry.subscriptions.get(COMPACTION_SUBSCRIPTION) is None:
            await self._registry.create_if_missing(COMPACTION_SUBSCRIPTION, EARLIEST, {})
        end = self._ledger.read_limit.last_readable(self._ledger.ledgers)
        view = self._ledger.compacted
        if not self._ledger.ledgers.has_entry(end) or (view is not None and end <= view.horizon):
            return  # No entries were added since the last compaction.
        logs.info("compaction.started", topic=topic.name, end=end, view=None if view is None else view.ledger)
        await compactor.run(end)
        # Only now that the view is stored may the source entries be trimmed.
        subscription = self._registry.subscriptions.get(COMPACTION_SUBSCRIPTION)
        if subscription is not None:
            await subscription.cursor.expire_to(end)

    def _count(self, progress: Progress, took_ms: int, error: str, *, is_fault: bool) -> None:
        counters, now_ms = self.counters, self._topic.runtime.clock.wall_ms()
        counters.removed_messages += progress.removed_messages
        counters.read_bytes += progress.read_bytes
        counters.written_bytes += progress.written_bytes
        counters.running_ms += took_ms
        for latency_ms in progress.write_latencies_ms:
            counters.write_latency_ms.add(latency_ms)
        counters.last_removed_messages, counters.last_duration_ms = progress.removed_messages, took_ms
        self.last_error = error
        if error and not is_fault:
            self.status = CompactionStatus.NOT_RUN
            logs.info("compaction.given_up", topic=self._topic.name, took_ms=took_ms, reason=error)
        elif error:
            self.status = CompactionStatus.ERROR
            counters.failed += 1
            counters.last_failed_ms = now_ms
            logs.error("compaction.failed", topic=self._topic.name, took_ms=took_ms, error=error)
        else:
            self.status = CompactionStatus.SUCCESS
            counters.succeeded += 1
            counters.last_succeeded_ms = now_ms
            logs.info(
                "compaction.finished",
                topic=self._topic.name,
                took_ms=took_ms,
                read_entries=progress.read_entries,
                written_entries=progress.written_entries,
                keys=progress.key_count,
                removed_messages=progress.removed_messages,
            )

    async def start_if_due(self) -> None:
        """Start a compaction if the size of the uncompacted entries exceeds the policy's threshold. Raises StoreError."""
        topic = self._topic
        threshold_bytes = topic.policies.compaction_threshold
        is_always_compacted = topic.name.local_name in COMPACTED
        if (threshold_bytes <= 0 and not is_always_compacted) or self.status is CompactionStatus.RUNNING:
            return
        present = self._registry.subscriptions.get(COMPACTION_SUBSCRIPTION)
        size_bytes = self._ledger.size_bytes if present is None else (await present.cursor.backlog()).size_bytes
        if size_bytes > max(0, threshold_bytes):
            self.start()

    async def drop(self) -> None:
        """Stop a running compaction, and delete the compacted view. Raises StoreError."""
        await self._ledger.drop_compacted()

    @asynccontextmanager
    async def dropped(self) -> AsyncIterator[None]:
        """Delete the compacted view, and prevent compactions within this context. Raises StoreError."""
        self._ledger.interrupt_compaction()
        async with self._alone:  # Compactions that begin from now on wait for this lock.
            await self.drop()
            yield

    async def last_message(self) -> tuple[Position, int] | None:
        """Return the position of the last message in the compacted view, and its index in a batch or -1. An empty view
        has position EARLIEST and index -1. Raises StoreError.

        Return None if there is no view, or the topic has later entries: then the last message of the topic is also the
        last one for consumers with `readCompacted`.
        """
        ledger = self._ledger
        while (view := ledger.compacted) is not None:
            last = ledger.read_limit.last_visible(ledger.ledgers)
            if ledger.ledgers.has_entry(last) and last > view.horizon:
                return None
            if not view.entries:
                return EARLIEST, -1
            try:
                entry = (await read_view(self._topic.broker_context.ledgers.store, view, view.entries - 1, 1, 0))[0]
            except StoreError:
                if ledger.compacted is view:
                    raise
                continue  # A compaction has replaced the view.
            return entry.position, await self._last_index(view.ledger, entry.payload)
        return None

    async def _last_index(self, view_ledger_id: int, entry: bytes) -> int:
        async with self._looking:
            if self._last_index_of[0] != view_ledger_id:
                if opening_cost(entry) >= THREAD_COST_BYTES:
                    index = await asyncio.to_thread(_last_left, entry)
                else:
                    index = _last_left(entry)
                self._last_index_of = (view_ledger_id, index)
            return self._last_index_of[1]


def _last_left(entry: bytes) -> int:
    content = read_entry(entry)
    if isinstance(content, Batch):
        return max((index for index, message in enumerate(content.messages) if not message.is_removed), default=-1)
    return -1
