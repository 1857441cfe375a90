"""Deduplication of the messages of one topic, with its durable state. Policies switch it on and off at run time.

The properties of the cursor `pulsar.dedup` contain the highest persisted sequence id of each producer, up to the
cursor's mark-delete position (a snapshot). When the topic is loaded, later entries are read again, so the cursor
protects them from trimming. A snapshot is written after a number of entries, after some time, and when the topic is
closed; it is durable before the mark-delete position moves.

Operation: one task follows the policies and retries after store errors. Until the sequence ids are recovered, no new
producer is reported as ready, and messages of connected producers wait in their connections. Consumers are not
affected. When deduplication is switched off, the cursor is deleted.

Receipts for duplicates follow the receipts of their producer's messages in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING

from pybroker.broker.limits.publish_rate_limit import WaitingPublishers
from pybroker.broker.publishing.deduplication import NO_SEQUENCE_ID, Accepted, Deduplication, Verdict
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.publish_checks import rows
from pybroker.errors import DamagedEntries, NoSuchLedger, PersistenceError, ProducerBusy, ServiceNotReady, StoreError
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_ENTRIES
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.model.system_topics import is_system_topic
from pybroker.runtime import logs
from pybroker.wire.entry_metadata import stored_sequence_id

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

DEDUPLICATION_CURSOR = "pulsar.dedup"
SNAPSHOT_PAUSE_MS = 1000
"""Minimum time between snapshots that are due by number of entries, because they would dominate the work at high rates."""
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0
"""First and longest retry delay after a store error. Publishers wait meanwhile."""
REPLAY_SLICE_MS = 1.0
_REPLAY_SLICE_ENTRIES = 64  # entries between two checks of the clock
_REPLICATOR_PREFIX = "pulsar.repl"
_NOT_STORED_ID = -1  # ledger and entry id of a receipt for a duplicate
_MS_PER_MINUTE = 60_000
_BEING_STORED = "Cannot determine whether the message is a duplicate at this time: reconnect and send it again"
_BEHIND_FAILURE = "An earlier message was not stored: reconnect and send both again"


class DeduplicationStatus(StrEnum):
    """Status of deduplication, as shown in statistics."""

    DISABLED = "Disabled"
    INITIALIZED = "Initialized"
    RECOVERING = "Recovering"
    ENABLED = "Enabled"
    REMOVING = "Removing"
    FAILED = "Failed"


class TopicDeduplication:
    """Deduplication of one topic. `known` is None while deduplication is off."""

    def __init__(
        self,
        topic: TopicContext,
        ledger: ManagedLedger,
        attached: Collection[str],
        append: Callable[[Producer, SendRun, Accepted], bool],
        hold: Callable[[WaitingPublishers | None], None],
    ) -> None:
        """`append` passes messages to the ledger; if the ledger refuses them, `append` sends the error and returns
        False. `hold` makes publishers wait in the given queue; None releases them.
        """
        self.status = DeduplicationStatus.DISABLED
        self.known: Deduplication | None = None
        self._topic = topic
        self._ledger = ledger
        self._attached = attached
        self._append_to_ledger = append
        self._hold = hold
        self._is_holding = False
        self.replayed_entries = 0
        """Entries that the recovery has read so far, of about `replay_entries`."""
        self.replay_entries = 0
        self.recovering_since_ms = 0.0
        """Start of the recovery, by the monotonic clock; 0 before it."""
        self.last_error = ""
        self._is_following = False
        self._entries_behind = 0  # stored since the last snapshot
        self._snapshot_at_ms = 0.0  # start time of the last snapshot
        self._is_snapshot_due = False
        self._saving = asyncio.Lock()
        self.waiting: list[asyncio.Event] = []
        """Requests that wait for messages in flight; `landed` resumes them."""
        if ledger.cursors.get(DEDUPLICATION_CURSOR) is not None:
            self.status = DeduplicationStatus.REMOVING  # unless deduplication is wanted

    @property
    def cursor(self) -> ManagedCursor | None:
        return self._ledger.cursors.get(DEDUPLICATION_CURSOR)

    @property
    def is_recovering(self) -> bool:
        return self._is_holding

    # --- on and off --------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        topic = self._topic
        is_wanted = topic.policies.deduplication and not is_system_topic(topic.name)
        if is_wanted and self.known is None:
            self.known = Deduplication()
            self.status = DeduplicationStatus.INITIALIZED
            self._is_holding = True
            self._hold(WaitingPublishers(topic.runtime.clock))
        elif not is_wanted and self.known is not None:
            self.known = None
            self.status = DeduplicationStatus.REMOVING
            self._release()
        if self.status not in {DeduplicationStatus.DISABLED, DeduplicationStatus.ENABLED} and not self._is_following:
            self._is_following = True
            topic.tasks.start(self._follow(), "deduplication")

    def _release(self) -> None:
        if self._is_holding:
            self._is_holding = False
            self._hold(None)
        self._tell()

    async def _follow(self) -> None:
        topic, failures = self._topic, 0
        while self.status not in {DeduplicationStatus.DISABLED, DeduplicationStatus.ENABLED}:
            try:
                if self.known is None:
                    await self._remove()
                else:
                    await self._recover(self.known)
                failures = 0
                self.last_error = ""
            except StoreError as error:
                failures += 1
                self.status = DeduplicationStatus.FAILED
                self.last_error = str(error)
                logs.error("deduplication.failed", topic=topic.name, failures=failures, error=str(error))
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 16)))
            except Exception as bug:  # noqa: BLE001  (the topic's fault boundary)
                logs.error("deduplication.failed", topic=topic.name, exc_info=bug)
                topic.fail(bug)
                return
        self._is_following = False

    async def _remove(self) -> None:
        self.status = DeduplicationStatus.REMOVING
        cursor = self.cursor
        if cursor is not None:
            async with self._saving:
                await self._topic.broker_context.ledgers.delete_cursor(self._ledger, cursor)
        if self.known is None:
            self.status = DeduplicationStatus.DISABLED
            self._entries_behind = 0
            logs.info("deduplication.disabled", topic=self._topic.name)

    async def _recover(self, known: Deduplication) -> None:
        topic, ledger = self._topic, self._ledger
        started_ms = self.recovering_since_ms = topic.runtime.clock.monotonic_ms()
        self.replayed_entries = self.replay_entries = 0
        cursor = self.cursor
        if cursor is None:
            last = ledger.ledgers.last_position
            cursor = await topic.broker_context.ledgers.create_cursor(ledger, DEDUPLICATION_CURSOR, last, {})
        if self.known is known:
            self.status = DeduplicationStatus.RECOVERING
        # Entries that are being stored were not checked. All later ones are.
        await self._until(lambda: not ledger.pending_entries or self.known is not known)
        for name, sequence_id in cursor.properties.items():
            known.found(name, int(sequence_id))
        replayed = await self._replay(known, cursor)
        if self.known is not known:
            return  # It was disabled since, and perhaps enabled again.
        self.status = DeduplicationStatus.ENABLED
        self._entries_behind += replayed
        self._snapshot_at_ms = topic.runtime.clock.monotonic_ms()
        took_ms = round(self._snapshot_at_ms - started_ms, 1)
        logs.info("deduplication.enabled", topic=topic.name, producers=len(known), replayed=replayed, took_ms=took_ms)
        self._release()

    async def _replay(self, known: Deduplication, cursor: ManagedCursor) -> int:
        ledger, clock = self._ledger, self._topic.runtime.clock
        position, entries = cursor.first_unacked_position, 0
        self.replay_entries = cursor.backlog_entries
        slice_ends_ms = clock.monotonic_ms() + REPLAY_SLICE_MS
        while self.known is known and ledger.ledgers.has_entry(position := ledger.ledgers.normalize(position)):
            try:
                run = await ledger.read_if_there(position, READ_AHEAD_ENTRIES, READ_AHEAD_BYTES)
            except DamagedEntries as damage:
                position = self._behind(position, damage.last_entry_id, damage)
                continue
            except NoSuchLedger as damage:
                position = self._behind(position, ledger.ledgers.entry_count_of(position.ledger_id) - 1, damage)
                continue
            if run is None:
                continue  # The entry was trimmed.
            for index, entry in enumerate(run.payloads):
                found = stored_sequence_id(entry)
                if found is not None:
                    known.found(*found)
                if index % _REPLAY_SLICE_ENTRIES == 0 and clock.monotonic_ms() >= slice_ends_ms:
                    await asyncio.sleep(0)
                    slice_ends_ms = clock.monotonic_ms() + REPLAY_SLICE_MS
            entries += len(run.payloads)
            self.replayed_entries = entries
            position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        return entries

    def _behind(self, first: Position, last_entry_id: int, damage: StoreError) -> Position:
        """Return the position after unreadable entries, which are skipped."""
        last = Position(first.ledger_id, max(last_entry_id, first.entry_id))
        logs.error("deduplication.entries_skipped", topic=self._topic.name, first=first, last=last, error=str(damage))
        return Position(last.ledger_id, last.entry_id + 1)

    # --- producers ---------------------------------------------------------------------------------------------------

    async def settled(self, name: str) -> None:
        """Wait until earlier messages of the producer `name` are stored or have failed, so that its `last_sequence_id`
        is final. Raises ServiceNotReady if the topic is closed meanwhile.
        """
        await self._until(lambda: self._is_settled(name))
        if self._topic.is_fenced:
            raise ServiceNotReady(f"topic {self._topic.name} is being unloaded, try again")

    def _is_settled(self, name: str) -> bool:
        if self.known is None or self._topic.is_fenced:
            return True
        return not self._is_holding and self.known.is_settled(name)

    def last_sequence_id(self, name: str) -> int:
        """Return the highest durable sequence id of the producer; NO_SEQUENCE_ID if there is none, or while
        deduplication is off.
        """
        return NO_SEQUENCE_ID if self.known is None else self.known.last_sequence_id(name)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            changed = asyncio.Event()
            self.waiting.append(changed)
            await changed.wait()

    def _tell(self) -> None:
        waiting, self.waiting = self.waiting, []
        for changed in waiting:
            changed.set()

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(self, known: Deduplication, producer: Producer, run: SendRun) -> None:
        for part in known.judge(producer.name, producer, run):
            of_part = run if part.indexes is None else rows(run, part.indexes)
            if part.verdict is Verdict.NEW:
                self._append(known, producer, of_part, part.highest)
            elif part.verdict is Verdict.DUPLICATE:
                known.dropped(producer.name, of_part)
                in_flight = known.last_accepted(producer.name)
                if in_flight is None:
                    _answer(producer, of_part)
                else:
                    in_flight.behind.append(of_part)
            elif part.verdict is Verdict.UNKNOWN:
                self._refuse(producer, of_part, _BEING_STORED)
            else:
                self._refuse(producer, of_part, _BEHIND_FAILURE)

    def _append(self, known: Deduplication, producer: Producer, run: SendRun, highest: int | None) -> None:
        if known.has_failed(producer.name, producer):  # A part of the same run has failed.
            self._refuse(producer, run, _BEHIND_FAILURE)
            return
        accepted = known.offered(producer.name, producer, highest)
        if self._append_to_ledger(producer, run, accepted):
            known.accepted(accepted)
        else:
            known.refused(accepted)

    def _refuse(self, producer: Producer, run: SendRun, reason: str) -> None:
        error = PersistenceError(f"[{self._topic.name}][{producer.name}] {reason}")
        self._topic.refused(producer.name, producer.peer.address, run, error)
        producer.peer.send_errors(run.producer_id, run.sequence_ids, error, run.size_bytes)

    def stored(self, producer: Producer, accepted: Accepted, entries: int) -> None:
        """Record that the messages `accepted` of a producer are durable, and that their receipts are sent. `entries`:
        number of their entries.
        """
        known = self.known
        if known is not None:
            known.stored(accepted)
            self._entries_behind += entries
            if self._entries_behind >= self._topic.runtime.config.broker_deduplication_entries_interval:
                self._snapshot_soon()
        _answered(producer, accepted)

    def failed(self, producer: Producer, accepted: Accepted) -> None:
        if self.known is not None:
            self.known.failed(accepted)
        _answered(producer, accepted)

    def landed(self) -> None:
        """Wake the requests in `waiting`, which wait until earlier messages are stored or have failed; each checks its
        condition again. Must be called after each receipt and each error of a message, if `waiting` is not empty.
        """
        if self.waiting:
            self._tell()

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot_soon(self) -> None:
        if not self._is_snapshot_due and self.status is DeduplicationStatus.ENABLED:
            self._is_snapshot_due = True
            broker_context = self._topic.broker_context
            wait_ms = self._snapshot_at_ms + SNAPSHOT_PAUSE_MS - broker_context.runtime.clock.monotonic_ms()
            broker_context.runtime.call_later(max(0.0, wait_ms) / 1000, self._snapshot_now)

    def _snapshot_now(self) -> None:
        self._topic.tasks.start(self._snapshot_in_background(), "snapshot of sequence ids")

    async def _snapshot_in_background(self) -> None:
        try:
            await self.snapshot()
        except StoreError as error:
            logs.error("deduplication.snapshot_failed", topic=self._topic.name, error=str(error))
        finally:
            self._is_snapshot_due = False

    async def snapshot(self) -> None:
        """Store the highest durable sequence id of each producer, so that the entries stored so far may be trimmed.
        Raises StoreError.
        """
        async with self._saving:
            known, cursor = self.known, self.cursor
            if known is None or cursor is None or self.status is not DeduplicationStatus.ENABLED:
                return
            if not self._entries_behind:
                return
            self._forget_inactive(known)
            self._snapshot_at_ms = self._topic.runtime.clock.monotonic_ms()
            entries, self._entries_behind = self._entries_behind, 0
            last = self._ledger.last_confirmed
            snapshot = {name: str(sequence_id) for name, sequence_id in known.snapshot().items()}
            try:
                await cursor.set_properties(snapshot)
                await cursor.expire_to(last)
            except StoreError:
                self._entries_behind += entries
                raise

    def _forget_inactive(self, known: Deduplication) -> None:
        topic, config = self._topic, self._topic.runtime.config
        forgotten = known.forget_inactive(
            self._attached,
            topic.runtime.clock.monotonic_ms(),
            config.broker_deduplication_producer_inactivity_timeout_minutes * _MS_PER_MINUTE,
            config.broker_deduplication_max_number_of_producers,
        )
        if forgotten:
            logs.info("deduplication.producers_forgotten", topic=topic.name, producers=forgotten)

    async def check(self) -> None:
        """Remove inactive producer names, and store a snapshot if it is due. Called periodically. Raises StoreError."""
        if self.known is None or self.status is not DeduplicationStatus.ENABLED:
            return
        self._forget_inactive(self.known)
        interval_s = self._topic.policies.deduplication_snapshot_interval_s or 0
        age_ms = self._topic.runtime.clock.monotonic_ms() - self._snapshot_at_ms
        if interval_s > 0 and age_ms >= interval_s * 1000:
            await self.snapshot()

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def fenced(self) -> None:
        self._tell()

    async def close(self) -> None:
        """Store a snapshot, so that the next load reads no entries. Never raises."""
        try:
            await self.snapshot()
        except StoreError as error:
            logs.error("deduplication.snapshot_failed", topic=self._topic.name, error=str(error))


def require_free_name(name: str) -> None:
    """Check that the subscription `name` is not reserved for the broker's own cursors. Raises ProducerBusy, as in
    Pulsar.
    """
    if name in (DEDUPLICATION_CURSOR, TRANSACTIONS_CURSOR) or name.startswith(_REPLICATOR_PREFIX):
        raise ProducerBusy("Subscription with reserved subscription name attempted")


def _answered(producer: Producer, accepted: Accepted) -> None:
    for run in accepted.behind:
        _answer(producer, run)


def _answer(producer: Producer, run: SendRun) -> None:
    producer.peer.send_receipts_not_stored(run, _NOT_STORED_ID)
