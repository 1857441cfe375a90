"""The validated options of a write."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pybroker.client.access import Access
from pybroker.errors import InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.spark import connection_options
from pybroker.spark.option_text import InvalidOptions, OptionValues
from pybroker.wire import pulsar_api_pb2 as pb

AT_LEAST_ONCE = "at-least-once"
EFFECTIVELY_ONCE = "effectively-once"
EXACTLY_ONCE = "exactly-once"
DELIVERIES = (AT_LEAST_ONCE, EFFECTIVELY_ONCE, EXACTLY_ONCE)
COMPRESSIONS = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}
JAVA_STRING_HASH = "JavaStringHash"
MURMUR3 = "Murmur3_32Hash"
SCHEMA_TYPES = ("auto", "AVRO", "JSON", "KEY_VALUE", "RAW")
BY_KEY = "key"
_BATCHES = ("default", BY_KEY)
_PRODUCER = "pulsar.producer."
_OWN = ("compressionType", "batchingMaxMessages", "batchingMaxBytes", "batchBy", "hashingScheme", "sendTimeoutMs")
# Options of the Java client's producers that have no effect here: batch delays, queues, threads.
_ACCEPTED = (
    "batchingEnabled",
    "batchingMaxPublishDelayMicros",
    "batchingPartitionSwitchFrequencyByPublishDelay",
    "blockIfQueueFull",
    "maxPendingMessages",
    "maxPendingMessagesAcrossPartitions",
    "messageRoutingMode",
)
_ALSO = ("checkpointLocation", "waitingForNonExistedTopic")
KEYS = (
    "topic",
    "delivery",
    "sinkId",
    "jobId",
    "takeOver",
    "schemaType",
    "transactionTimeoutMs",
    *_OWN,
    *(_PRODUCER + name for name in (*_OWN, *_ACCEPTED)),
    *_ALSO,
)
DEFAULT_SEND_TIMEOUT_MS = 60_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 600_000
"""Longer than any batch takes. It also limits how long the open transaction of a dead driver delays readers."""
MAX_BATCH_MESSAGES = 100_000
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. Can be pickled; `repr` shows no secret."""

    access: Access
    topic: str | None
    """Full name; None: the column `__topic` names the topic of each row."""
    delivery: str
    sink_id: str
    """Owner of the sequence ids or of the transactions; empty for at-least-once."""
    takes_over: bool
    """Whether this query takes the sink id over from another query."""
    schema_type: str
    compression: pb.CompressionType
    batch_messages: int
    batch_bytes: int
    batches_by_key: bool
    hashing: str
    send_timeout_s: float
    transaction_timeout_s: float
    """Exactly once: timeout of a task's transaction, from its first row to the end of the batch."""


def parse_write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    values = OptionValues(options, (*KEYS, *connection_options.KEYS), "writing to pulsar")
    delivery = values.choice("delivery", DELIVERIES, AT_LEAST_ONCE)
    if delivery == EFFECTIVELY_ONCE and _topic(values) is None:
        raise InvalidOptions(
            "delivery=effectively-once writes to one topic: use option topic instead of a column __topic"
        )
    access = connection_options.access_of(values)
    if delivery == EXACTLY_ONCE and not access.admin_url:
        raise InvalidOptions(
            "delivery=exactly-once commits all tasks of a batch over HTTP: set option admin.url, such as http://host:8080"
        )
    return WriteOptions(
        access=access,
        topic=_topic(values),
        delivery=delivery,
        sink_id="" if delivery == AT_LEAST_ONCE else _sink_id(values, delivery, is_stream=is_stream),
        takes_over=values.flag("takeOver", False),
        schema_type=values.choice("schemaType", SCHEMA_TYPES, "auto"),
        compression=COMPRESSIONS[values.choice(_name(values, "compressionType"), tuple(COMPRESSIONS), "none")],
        batch_messages=_up_to(values, "batchingMaxMessages", 1000, MAX_BATCH_MESSAGES),
        batch_bytes=values.size(_name(values, "batchingMaxBytes"), 128 * 1024, 1),
        batches_by_key=values.choice(_name(values, "batchBy"), _BATCHES, "default") == BY_KEY,
        hashing=values.choice(_name(values, "hashingScheme"), (JAVA_STRING_HASH, MURMUR3), JAVA_STRING_HASH),
        send_timeout_s=values.number(_name(values, "sendTimeoutMs"), DEFAULT_SEND_TIMEOUT_MS, 1) / 1000,
        transaction_timeout_s=values.number("transactionTimeoutMs", DEFAULT_TRANSACTION_TIMEOUT_MS, 1) / 1000,
    )


def _name(values: OptionValues, name: str) -> str:
    return _PRODUCER + name if _PRODUCER + name in values else name


def _up_to(values: OptionValues, name: str, default: int, most: int) -> int:
    used = _name(values, name)
    number = values.number(used, default, 1)
    if number > most:
        raise values.wrong(used, f"an integer from 1 to {most}")
    return number


def _topic(values: OptionValues) -> str | None:
    text = values.text("topic")
    if text is None:
        return None
    try:
        return str(TopicName.parse(text))
    except InvalidTopicName as error:
        raise InvalidOptions(f"option topic: {error}") from error


def _sink_id(values: OptionValues, delivery: str, *, is_stream: bool) -> str:
    option = "sinkId" if is_stream else "jobId"
    given = values.text(option) or values.text("sinkId")
    if given is not None:
        if not _ID.fullmatch(given):
            raise values.wrong(option, "up to 128 letters, digits and _.:-")
        return given
    checkpoint = values.text("checkpointLocation")
    if is_stream and checkpoint is not None:
        return "checkpoint-" + hashlib.sha256(checkpoint.rstrip("/").encode()).hexdigest()[:16]
    raise InvalidOptions(
        f"option sinkId is missing: with delivery={delivery} set a unique name for this query, the same after each restart"
        if is_stream
        else f"option jobId is missing: with delivery={delivery} set a unique name for this write, the same when it is repeated"
    )
