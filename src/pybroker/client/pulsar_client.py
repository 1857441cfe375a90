"""The public client: producers, consumers, readers and transactions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pybroker.client.access import Access, Secret
from pybroker.client.client import Client, TopicSchema
from pybroker.client.client_transactions import DEFAULT_TIMEOUT_S, Coordinators, Transaction
from pybroker.client.consuming.message_consumer import MessageConsumer, open_message_consumer
from pybroker.client.consuming.partition_consumer import Receiving, SubType
from pybroker.client.message import EARLIEST, LATEST, MessageId
from pybroker.client.producing.message_producer import MessageProducer, Publishing, open_message_producer
from pybroker.client.transactional_sinks import Sink
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

Known = TypeVar("Known")
_KINDS = {
    "exclusive": SubType.Exclusive,
    "shared": SubType.Shared,
    "failover": SubType.Failover,
    "key_shared": SubType.Key_Shared,
}
_CODECS = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}
_MODES = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}


class PulsarClient(Client):
    """The client of a cluster. An asynchronous context manager for use on one event loop, in one process."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._coordinators = Coordinators(self)

    async def producer(
        self,
        topic: str,
        *,
        name: str = "",
        access_mode: str = "shared",
        compression: str = "none",
        schema: TopicSchema | None = None,
        batching: bool = True,
        batch_delay_s: float = Publishing.batch_delay_s,
        max_batch_messages: int = Publishing.max_batch_messages,
        max_batch_bytes: int = Publishing.max_batch_bytes,
        batch_by_key: bool = False,
        chunking: bool = False,
        hashes_by_murmur: bool = False,
        send_timeout_s: float = Publishing.send_timeout_s,
    ) -> MessageProducer:
        """Create a producer on `topic` and all its partitions. `Publishing` documents the options.

        `access_mode`: shared, exclusive, wait_for_exclusive or exclusive_with_fencing. `compression`: none, lz4, zlib,
        zstd or snappy. Raises ValueError for other values, the broker's error, ConnectionLost or RequestTimedOut.
        """
        settings = Publishing(
            name=name,
            access_mode=_one_of("access_mode", access_mode, _MODES),
            schema=schema,
            compression=_one_of("compression", compression, _CODECS),
            is_batching=batching,
            batch_delay_s=batch_delay_s,
            max_batch_messages=max_batch_messages,
            max_batch_bytes=max_batch_bytes,
            batch_by_key=batch_by_key,
            is_chunking=chunking,
            hashes_by_murmur=hashes_by_murmur,
            send_timeout_s=send_timeout_s,
        )
        return await open_message_producer(self, TopicName.parse(topic), settings)

    async def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        kind: str = "exclusive",
        name: str = "",
        from_earliest: bool = False,
        read_compacted: bool = False,
        priority_level: int = 0,
        key_ranges: Sequence[tuple[int, int]] = (),
        allows_out_of_order: bool = False,
        schema: TopicSchema | None = None,
        properties: Mapping[str, str] | None = None,
        queue_messages: int = Receiving.queue_messages,
        nack_delay_s: float = Receiving.nack_delay_s,
        keeps_batch_bits: bool = False,
    ) -> MessageConsumer:
        """Create a consumer on a durable subscription. `Receiving` documents the options.

        `kind`: exclusive, shared, failover or key_shared. Raises ValueError for other values, the broker's error,
        ConnectionLost or RequestTimedOut.
        """
        settings = Receiving(
            subscription,
            _one_of("kind", kind, _KINDS),
            name=name,
            is_from_earliest=from_earliest,
            read_compacted=read_compacted,
            priority_level=priority_level,
            key_ranges=tuple(key_ranges),
            is_out_of_order_allowed=allows_out_of_order,
            schema=schema,
            properties=dict(properties or {}),
            queue_messages=queue_messages,
            nack_delay_s=nack_delay_s,
            keeps_batch_bits=keeps_batch_bits,
        )
        names = [topics] if isinstance(topics, str) else topics
        return await open_message_consumer(self, [TopicName.parse(each) for each in names], settings)

    async def reader(
        self, topic: str, start: MessageId = EARLIEST, *, read_compacted: bool = False, queue_messages: int = 1000
    ) -> MessageConsumer:
        """Create a reader that begins at `start`, inclusive. Its messages need no acknowledgements."""
        settings = Receiving(
            f"reader-{secrets.token_hex(5)}",
            start=start,
            is_from_earliest=start != LATEST,
            read_compacted=read_compacted,
            queue_messages=queue_messages,
        )
        return await open_message_consumer(self, [TopicName.parse(topic)], settings)

    async def transaction(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Transaction:
        """Begin a transaction, which the coordinator aborts after `timeout_s` seconds."""
        return await self._coordinators.begin(timeout_s)

    def sink(self, name: str, *, writer: str = "", run: str = "", takes_over: bool = False) -> Sink:
        """Return a sink, which commits numbered batches exactly once. A batch is written in one or several
        transactions. Needs `admin_url`. `Sink` documents the options.
        """
        return Sink(self, self._coordinators, name, writer=writer, run=run, takes_over=takes_over)


def connect(
    service_url: str,
    *,
    admin_url: str | None = None,
    token: str | None = None,
    tls_trust_certs_file: str | None = None,
    operation_timeout_s: float = Access.operation_timeout_s,
) -> PulsarClient:
    """Create a client of the cluster at `service_url` (`pulsar://host:port` or `pulsar+ssl://...`). The client connects
    at its first request.

    Only sinks need `admin_url` (`http://host:port`). For other authentication methods create a `PulsarClient` with an
    `Access`.
    """
    access = Access(
        service_url,
        admin_url,
        token=None if token is None else Secret(text=token),
        tls_trust_certs_file=tls_trust_certs_file,
        operation_timeout_s=operation_timeout_s,
    )
    return PulsarClient(access)


def _one_of(option: str, given: str, known: Mapping[str, Known]) -> Known:
    if given not in known:
        raise ValueError(f"{option}={given!r} is invalid: use one of {', '.join(known)}")
    return known[given]
