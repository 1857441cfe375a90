"""Bulk reads: ranges of a ledger's entries, sent as blocks of segment files with positions and checksums.

A thread sends entries in the ledger's file unchanged; entries in memory are converted to blocks, a few MiB per
response. Each response contains the entry id at which the next request continues, and a Content-Length, so that a
reader detects truncation. Only durable entries are sent.

Limits: `maxConcurrentBulkReads` concurrent responses, each with one slice in memory, and the namespace's rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pybroker.admin.calls.call import STREAMED_KEY, ClientGone
from pybroker.admin.http.file_sending import FILE_SENDER_KEY
from pybroker.errors import AdminError, StoreError
from pybroker.memory.broker_memory import Holding
from pybroker.model.position import Position
from pybroker.storage_format.segment_layout import MAX_BLOCK_ENTRIES, encode_block, split_into_blocks
from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.permits import NoPermit, Permits
from pybroker.waiting.token_bucket import TokenBucket

if TYPE_CHECKING:
    from pybroker.admin.http.file_sending import FileSender
    from pybroker.broker.topic.topic import Topic
    from pybroker.config import BrokerConfig
    from pybroker.ledgers.ledger_store import EntryRun, LedgerFile, LedgerFiles, LedgerStore, StoredBlocks
    from pybroker.memory.broker_memory import Memory
    from pybroker.model.names import NamespaceName
    from pybroker.runtime.clock import Clock

SLICE_BYTES = 1 << 20
"""Slice of a file in memory for TLS."""
KERNEL_SLICE_BYTES = 4 << 20
"""Slice of a file that the kernel sends between two checks of the rate."""
MEMORY_ANSWER_BYTES = 4 << 20
"""Entries from memory in one response, plus at most one entry."""
RETRY_AFTER_S = 1
MEDIA_TYPE = "application/vnd.pybroker.blocks"
NEXT_ENTRY_HEADER = "x-pybroker-next-entry"
RATE_PERIOD_MS = 1000
MAX_IDLE_BUCKETS = 1000
"""Namespaces with a remembered rate. A removed one regains at most one period's allowance."""


class BulkReads:
    """State and limits of all bulk reads of a broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self._clock = clock
        self.permits = Permits(config.max_concurrent_bulk_reads, config.max_pending_bulk_reads)
        self._buckets: dict[NamespaceName, TokenBucket] = {}
        self.bytes_sent = 0
        self.entries_sent = 0  # of complete responses
        self.throttled = 0
        self.refused = 0

    def figures(self) -> dict[str, float]:
        """Return counters by name: running and waiting bulk reads, and totals of sent bytes and entries, of delays by
        the rate limit, and of rejected reads.
        """
        return {
            "bulk_reads": self.permits.taken,
            "bulk_reads_waiting": self.permits.waiting,
            "bulk_read_bytes": self.bytes_sent,
            "bulk_read_entries": self.entries_sent,
            "bulk_read_throttled": self.throttled,
            "bulk_read_refused": self.refused,
        }

    @property
    def write_timeout_s(self) -> float:
        """Seconds after which the connection of a client that reads nothing is closed."""
        return self._config.http_write_timeout_ms / 1000

    @asynccontextmanager
    async def permit(self, holder: Holder) -> AsyncIterator[None]:
        """Hold a permit to send a response within this context; holders (roles or addresses) get fair shares. Raises
        AdminError 429 if no permit becomes free within `bulkReadPendingTimeoutMs`, or if too many reads wait.
        """
        try:
            async with self.permits.held(holder, self._config.bulk_read_pending_timeout_ms / 1000):
                yield
        except NoPermit as error:
            self.refused += 1
            raise AdminError(
                429,
                (
                    "The broker cannot begin more bulk reads now (limits: maxConcurrentBulkReads, maxPendingBulkReads and "
                    f"bulkReadPendingTimeoutMs): {error}"
                ),
                RETRY_AFTER_S,
            ) from error

    @asynccontextmanager
    async def room_in_memory(self) -> AsyncIterator[None]:
        """Within this context, hold memory for a response that is built in memory, instead of being sent directly from a
        ledger file. Raises AdminError 503 if no memory becomes free within `bulkReadPendingTimeoutMs`.
        """
        room = Holding(self._memory, self._memory.views)
        timeout_s = self._config.bulk_read_pending_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await room.wait(self, 2 * MEMORY_ANSWER_BYTES)
        except TimeoutError as error:
            self.refused += 1
            raise AdminError(
                503,
                "The broker has no memory for another bulk read (httpMaxViewedMessageBytes, "
                f"brokerMemoryLimitMB); the request has waited for {timeout_s:g} s. Send the request again "
                "later.",
                RETRY_AFTER_S,
            ) from error
        try:
            yield
        finally:
            room.close()

    async def pass_bytes(self, namespace: NamespaceName, size_bytes: int) -> None:
        """Wait until the rate limit for bulk reads of `namespace` permits `size_bytes`."""
        rate = self._config.bulk_read_throttling_rate_per_namespace_in_byte
        if rate <= 0:
            return
        now_ms = self._clock.monotonic_ms()
        bucket = self._buckets.get(namespace)
        if bucket is None or bucket.units != rate:
            if len(self._buckets) >= MAX_IDLE_BUCKETS:
                self._buckets.pop(next(iter(self._buckets)))
            bucket = self._buckets[namespace] = TokenBucket(rate, RATE_PERIOD_MS, now_ms)
        while bucket.available(self._clock.monotonic_ms()) <= 0:
            self.throttled += 1
            await asyncio.sleep(bucket.wait_ms() / 1000)
        bucket.spend(size_bytes)


class BlocksResponse(Response):
    """Response with blocks of the entries from `first_entry_id` up to, but not including, `end_entry_id`; it may end
    earlier.
    """

    def __init__(
        self,
        reads: BulkReads,
        topic: Topic,
        store: LedgerStore,
        ledger_id: int,
        first_entry_id: int,
        end_entry_id: int,
        holder: Holder,
    ) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._holder = holder
        self._reads = reads
        self._topic = topic
        self._store = store
        self._ledger_id = ledger_id
        self._first_entry_id = first_entry_id
        self._end_entry_id = end_entry_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._reads.permit(self._holder):
            files, stored = self._store.files, None
            if files is not None:
                stored = await files.stored_blocks(self._ledger_id, self._first_entry_id, self._end_entry_id)
            if files is not None and stored is not None:
                await self._begin(send, stored.size_bytes, stored.end_entry_id)
                if scope["method"] == "HEAD":
                    await send({"type": "http.response.body", "body": b""})
                else:
                    await self._send_stored(scope, send, files, stored)
                    self._reads.entries_sent += stored.end_entry_id - stored.first_entry_id
            else:
                async with self._reads.room_in_memory():
                    await self._send_from_memory(send)

    async def _send_from_memory(self, send: Send) -> None:
        run = await self._entries_in_memory()
        body = await asyncio.to_thread(blocks_of, run)
        await self._reads.pass_bytes(self._topic.name.namespace, len(body))
        await self._begin(send, len(body), run.first_entry_id + len(run.payloads))
        await send({"type": "http.response.body", "body": body})
        self._reads.bytes_sent += len(body)
        self._reads.entries_sent += len(run.payloads)

    async def _begin(self, send: Send, size_bytes: int, next_entry_id: int) -> None:
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(size_bytes).encode()),
            (NEXT_ENTRY_HEADER.encode(), str(next_entry_id).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers, STREAMED_KEY: True})

    async def _send_stored(self, scope: Scope, send: Send, files: LedgerFiles, stored: StoredBlocks) -> None:
        sender: FileSender | None = scope["state"].get(FILE_SENDER_KEY)
        try:
            if sender is None:
                await self._send_copies(send, files, stored)
            else:
                await self._send_by_kernel(sender, files, stored)
                await send({"type": "http.response.body", "body": b""})
        except StoreError as error:
            raise ClientGone from error  # trimmed meanwhile: the reader detects the truncated response and retries

    async def _send_by_kernel(self, sender: FileSender, files: LedgerFiles, stored: StoredBlocks) -> None:
        async with sender.sending(self._reads.write_timeout_s) as writer:
            for offset, length in _slices(stored, KERNEL_SLICE_BYTES):
                await self._reads.pass_bytes(self._topic.name.namespace, length)
                await files.with_file(self._ledger_id, partial(writer.send, offset, length))
                sender.sent(length)
                self._reads.bytes_sent += length

    async def _send_copies(self, send: Send, files: LedgerFiles, stored: StoredBlocks) -> None:
        for offset, length in _slices(stored, SLICE_BYTES):
            await self._reads.pass_bytes(self._topic.name.namespace, length)
            data = await files.with_file(self._ledger_id, partial(_read, offset, length))
            has_more = offset + length < stored.end_offset
            await send({"type": "http.response.body", "body": data, "more_body": has_more})
            self._reads.bytes_sent += length

    async def _entries_in_memory(self) -> EntryRun:
        count = self._end_entry_id - self._first_entry_id
        position = Position(self._ledger_id, self._first_entry_id)
        return await self._topic.ledger.read(position, min(count, MAX_MEMORY_ENTRIES), MEMORY_ANSWER_BYTES)


MAX_MEMORY_ENTRIES = 8 * MAX_BLOCK_ENTRIES


def _slices(stored: StoredBlocks, slice_bytes: int) -> Iterator[tuple[int, int]]:
    for offset in range(stored.offset, stored.end_offset, slice_bytes):
        yield offset, min(slice_bytes, stored.end_offset - offset)


def _read(offset: int, length: int, file: LedgerFile) -> bytes:
    """Read a part of the file. Missing bytes are replaced by zeros, so that the reader's checksum fails."""
    return file.read_at(length, offset).ljust(length, b"\0")


def blocks_of(run: EntryRun) -> bytes:
    pieces: list[bytes | memoryview] = []
    for start, end in split_into_blocks(run.payloads):
        first_entry_id = run.first_entry_id + start
        pieces += encode_block(run.ledger_id, first_entry_id, run.payloads[start:end], run.message_counts[start:end])
    return b"".join(pieces)
