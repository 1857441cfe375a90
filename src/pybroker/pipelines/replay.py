"""`pybroker pipeline replay`: copies a range of a topic to another topic.

Entries are copied unchanged and in order, including batches, chunks and encrypted entries. The sequence id of each
entry is computed from its position, and the name of the producer from --id. If the target deduplicates, an interrupted
replay continues when it is started again, and no entry is stored twice. Otherwise a second run would store duplicates,
so --allow-duplicates is required. Keys, properties, event times and payloads stay; publish times are new unless
--keep-publish-time is set.

Exit codes: 0 success, 1 failure (start it again to continue), 2 wrong options.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from pybroker.client.client import Client
from pybroker.client.failures import ClientError
from pybroker.client.producing.entry_producer import EntryId, Producer, ProducerSettings, open_producer
from pybroker.client.rest import Refused, RestClient
from pybroker.errors import BrokerError, InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.pipelines.connecting import Connect
from pybroker.pipelines.topic_ranges import (
    EXIT_OK,
    WrongOptions,
    add_read_options,
    answered,
    lost_of,
    part_of,
    plans_of,
    ranges_of,
    say,
    source_options,
    watched,
    write_json,
)
from pybroker.reading.entry_source import DataLoss, ReadingFailed
from pybroker.reading.rest_topics import segments_of
from pybroker.reading.sources import open_source
from pybroker.reading.wire_schemas import topic_schema
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed
from pybroker.wire.stored_entry import split_entry

if TYPE_CHECKING:
    from pybroker.client.access import Access
    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.values.value_schema import SchemaInfo
    from pybroker.reading.entry_source import EntrySource
    from pybroker.reading.positions import EntryRange, TopicPlan
    from pybroker.reading.read_options import SourceOptions

ENTRY_BITS = 24
"""Bits of the entry id in a sequence id; the ledger id is above them. By default a broker stores 50,000 entries per ledger."""
_NOT_REPLAYED = ("replicated_from", "replicate_to", "txnid_least_bits", "txnid_most_bits")


@dataclass
class Replayed:
    """Counters of one replay."""

    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    skipped_as_done: int = 0
    """Entries that an earlier run with this id has written."""
    outside: int = 0
    """Entries with a publish time outside the range, because the clocks of clients differ."""


def sequence_id_of(ledger_id: int, entry_id: int) -> int:
    """Return the sequence id under which an entry is replayed: it increases along the topic and is the same in each
    run. Raises ReadingFailed if it does not fit into 63 bits.
    """
    if entry_id >> ENTRY_BITS or ledger_id >> (63 - ENTRY_BITS):
        raise ReadingFailed(
            f"entry {ledger_id}:{entry_id} cannot be replayed: replay supports only ledger ids below {1 << (63 - ENTRY_BITS)} "
            f"and entry ids below {1 << ENTRY_BITS}"
        )
    return ledger_id << ENTRY_BITS | entry_id


def rewritten(
    metadata: pb.MessageMetadata,
    payload: bytes,
    producer: str,
    sequence_id: int,
    schema_version: bytes,
    publish_time_ms: int,
) -> bytes:
    """Return an entry with another producer name, sequence id and schema version. `publish_time_ms` 0 keeps the publish
    time.
    """
    for name in _NOT_REPLAYED:
        metadata.ClearField(name)
    metadata.producer_name, metadata.sequence_id = producer, sequence_id
    metadata.ClearField("highest_sequence_id")
    metadata.ClearField("schema_version")
    if schema_version:
        metadata.schema_version = schema_version
    if publish_time_ms:
        metadata.publish_time = publish_time_ms
    return framed(metadata, payload)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_read_options(parser, many=False)
    parser.add_argument("--topic", required=True, metavar="T", help="topic to replay")
    group = parser.add_argument_group("target")
    group.add_argument(
        "--target", required=True, metavar="T", help="target topic, not partitioned or with as many partitions"
    )
    group.add_argument(
        "--target-service-url", metavar="URL", help="service URL of the target's broker (default: --service-url)"
    )
    group.add_argument("--target-admin-url", metavar="URL", help="admin URL of the target's broker (default: --url)")
    group.add_argument(
        "--id", metavar="NAME", help="id of this replay (default: derived from topic, target, --from and --to)"
    )
    group.add_argument("--allow-duplicates", action="store_true", help="replay even if the target does not deduplicate")
    group.add_argument("--allow-loss", action="store_true", help="continue although a part of the range is lost")
    group.add_argument(
        "--keep-publish-time", action="store_true", help="keep the original publish time, which TTL and retention use"
    )
    group.add_argument("--max-rate", type=float, default=0, metavar="N", help="messages per second; 0: no limit")
    group.add_argument("--dry-run", action="store_true", help="show the messages to replay, and write nothing")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, connect: Connect) -> int:
    return answered(lambda: _run(options, connect), parser)


def _run(options: argparse.Namespace, connect: Connect) -> int:
    part, where = part_of(options), source_options(options, connect, [options.topic])
    try:
        target = TopicName.parse(options.target)
    except InvalidTopicName as error:
        raise WrongOptions(str(error)) from None
    with closing(open_source(where)) as source:
        plans = plans_of(source, options.topic, part)
        lost = lost_of(plans)
        for sentence in lost:
            say(f"gone: {sentence}")
        if lost and not options.allow_loss:
            raise DataLoss(
                f"a part of the range of topic {options.topic} is lost: use --allow-loss to replay the remaining messages"
            )
        if options.dry_run:
            return _dry_run(plans, options)
        if not options.allow_duplicates:
            _require_deduplication(where, options.target_admin_url, target)
        window = tuple(end if isinstance(end, int) else None for end in (part.start, part.end))
        try:
            done = asyncio.run(_Replay(options, where.access, source, target, (window[0], window[1])).run(plans))
        except (ClientError, BrokerError) as error:
            raise ReadingFailed(
                f"the replay to topic {target} failed: {error}; run the same command again to continue"
            ) from error
    if options.json:
        write_json({"event": "end", **vars(done)})
    else:
        say(
            f"{done.messages:,} messages in {done.entries:,} entries replayed, {done.skipped_as_done:,} entries existed already"
        )
    return EXIT_OK


def _dry_run(plans: list[TopicPlan], options: argparse.Namespace) -> int:
    shown = [
        {
            "topic": plan.topic,
            "from": list(plan.start),
            "to": list(plan.end),
            "entries": sum(each.end_entry_id - each.first_entry_id for each in plan.ledgers),
            "bytes": sum(each.size_bytes for each in plan.ledgers),
        }
        for plan in plans
    ]
    if options.json:
        write_json({"event": "plan", "topics": shown})
    else:
        for each in shown:
            say(f"{each['topic']}: {each['entries']:,} entries, about {each['bytes']:,} bytes; nothing was written")
    return EXIT_OK


def _require_deduplication(where: SourceOptions, target_admin_url: str | None, target: TopicName) -> None:
    """Raise WrongOptions if a second run would store duplicates."""
    advice = "turn deduplication on (pulsar-admin topicPolicies set-deduplication-status TOPIC --enable), or use --allow-duplicates"
    url = target_admin_url or where.access.admin_url
    if not url:
        raise WrongOptions(
            f"the deduplication policy of topic {target} cannot be read without the HTTP address of the "
            f"broker: set --target-admin-url, or {advice}"
        )
    with closing(RestClient(replace(where.access, admin_url=url), where.patience_s)) as rest:
        try:
            answer = rest.json("GET", f"/admin/v2/persistent/{segments_of(target)}/deduplicationEnabled?applied=true")
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise WrongOptions(f"topic {target} does not exist: create the topic, and {advice}") from error
    if answer is not True:
        raise WrongOptions(
            f"topic {target} does not deduplicate messages, so a second run would duplicate them: {advice}"
        )


class _Replay:
    def __init__(
        self,
        options: argparse.Namespace,
        access: Access,
        source: EntrySource,
        target: TopicName,
        window: tuple[int | None, int | None],
    ) -> None:
        self.done = Replayed()
        self._options = options
        self._access = access
        self._source = source
        self._target = target
        self._window = window
        self._schemas: dict[bytes, bytes] = {}
        self._begun_s = time.monotonic()

    async def run(self, plans: list[TopicPlan]) -> Replayed:
        options = self._options
        url = options.target_service_url or self._access.service_url
        async with Client(replace(self._access, service_url=url)) as client:
            targets = await client.partitions(self._target, may_create=True)
            if len(targets) not in (1, len(plans)):
                counts = (
                    f"topic {self._target} has {len(targets)} partitions, and topic {options.topic} has {len(plans)}"
                )
                raise WrongOptions(f"{counts}: use a target with the same number of partitions, or without partitions")
            for index, plan in enumerate(plans):
                await self._partition(client, plan, targets[index] if len(targets) > 1 else targets[0])
        return self.done

    async def _partition(self, client: Client, plan: TopicPlan, target: TopicName) -> None:
        name = f"replay-{self._id()}-{TopicName.parse(plan.topic).partition_index}"
        # The name is exclusive: a second run with the same id is refused.
        producer = await open_producer(client, target, ProducerSettings(name, busy_patience_s=10))
        try:
            for piece in watched(ranges_of([plan]), plan.topic, is_silent=self._options.json):
                await self._range(client, producer, piece)
            await producer.flush()
        finally:
            await producer.close()

    def _id(self) -> str:
        options = self._options
        if options.id:
            return str(options.id)
        given = f"{options.topic}\n{options.target}\n{options.start}\n{options.end}"
        return hashlib.sha256(given.encode()).hexdigest()[:16]

    async def _range(self, client: Client, producer: Producer, piece: EntryRange) -> None:
        runs = iter(self._source.read(piece))
        while (run := await asyncio.to_thread(next, runs, None)) is not None:
            for entry_id, entry in _entries(run):
                await self._entry(client, producer, piece.topic, run.ledger_id, entry_id, entry)

    async def _entry(
        self, client: Client, producer: Producer, topic: str, ledger_id: int, entry_id: int, entry: bytes
    ) -> None:
        sequence_id = sequence_id_of(ledger_id, entry_id)
        if sequence_id <= producer.last_sequence_id:
            self.done.skipped_as_done += 1
            return
        metadata, payload = split_entry(entry)
        if metadata.HasField("marker_type"):
            return
        start, end = self._window
        if (start is not None and metadata.publish_time < start) or (end is not None and metadata.publish_time >= end):
            self.done.outside += 1
            return
        version = await self._schema_version(client, producer.topic, topic, metadata.schema_version)
        count = max(1, metadata.num_messages_in_batch)
        publish_time_ms = 0 if self._options.keep_publish_time else time.time_ns() // 1_000_000
        is_chunk = metadata.num_chunks_from_msg > 1
        data = rewritten(metadata, payload, producer.name, sequence_id, version, publish_time_ms)
        receipt = await producer.send(data, sequence_id, message_count=count, is_chunk=is_chunk)
        receipt.add_done_callback(_looked_at)  # the next send or `flush` raises a failure
        self.done.entries += 1
        self.done.messages += count
        self.done.size_bytes += len(data)
        if self._options.max_rate > 0:
            ahead_s = self.done.messages / self._options.max_rate - (time.monotonic() - self._begun_s)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)

    async def _schema_version(self, client: Client, target: TopicName, topic: str, version: bytes) -> bytes:
        if not version:
            return b""
        known = self._schemas.get(version)
        if known is None:
            info = await asyncio.to_thread(self._source.schema, str(TopicName.parse(topic).partitioned_name), version)
            if info is None:
                raise ReadingFailed(
                    f"the broker does not know schema version {int.from_bytes(version, 'big')} of topic {topic}"
                )
            known = self._schemas[version] = await _registered(client, target, info)
        return known


async def _registered(client: Client, target: TopicName, info: SchemaInfo) -> bytes:
    schema = topic_schema(info, "")
    if schema is None:
        return b""
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
    command.getOrCreateSchema.topic = str(target)
    command.getOrCreateSchema.schema.CopyFrom(schema.to_wire())

    async def ask() -> pb.BaseCommand:
        return await (await client.connection_for(target)).request(command)

    return (await client.retried(ask)).getOrCreateSchemaResponse.schema_version


def _entries(run: EntryRun) -> Iterator[tuple[int, bytes]]:
    view = memoryview(run.data).cast("B")
    places = zip(run.starts.tolist(), run.lengths.tolist(), strict=True)
    for index, (start, length) in enumerate(places):
        if run.hidden is None or not run.hidden[index]:
            yield run.first_entry_id + index, bytes(view[start : start + length])


def _looked_at(receipt: asyncio.Future[EntryId]) -> None:
    if not receipt.cancelled():
        receipt.exception()
