"""The validated options of a read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pybroker.client.access import Access
from pybroker.columns.bad_records import BadRecords, CryptoFailureAction, MissingFields
from pybroker.errors import InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.model.topic_patterns import InvalidPattern, TopicsPattern, UnsupportedPattern, pattern_in_namespace
from pybroker.spark import connection_options
from pybroker.spark.option_text import InvalidOptions, OptionValues
from pybroker.spark.reader.admission import UNLIMITED, Limits
from pybroker.spark.reader.offsets import EARLIEST, LATEST, Bounds, InvalidOffsets, parse_offsets, parse_times

TOPIC_OPTIONS = ("topic", "topics", "topicsPattern")
READ_MODES = ("auto", "segment", "bulk", "broker")
VALUE_MODES = ("auto", "raw")
BAD_RECORDS = tuple(each.value for each in BadRecords)
MISSING_FIELDS = tuple(each.value for each in MissingFields)
CRYPTO_FAILURE_ACTIONS = tuple(each.value for each in CryptoFailureAction)
KEYS = (
    *TOPIC_OPTIONS,
    "allowDifferentTopicSchemas",
    "badRecords",
    "batchBytes",
    "cryptoPrivateKeyFile",
    "dataDirectory",
    "endingOffsets",
    "endingTime",
    "failOnDataLoss",
    "includeColumns",
    "isolation",
    "maxBytesPerTrigger",
    "maxMessagesPerTrigger",
    "minPartitions",
    "missingFields",
    "pollTimeoutMs",
    "predefinedSubscription",
    "pushFilters",
    "readCompacted",
    "readMode",
    "splitBytes",
    "startingOffsets",
    "startingTime",
    "subscriptionPrefix",
    "valueMode",
    "waitingForNonExistedTopic",
)
READER_KEYS = tuple(
    "pulsar.reader." + name
    for name in ("cryptoFailureAction", "readerName", "receiverQueueSize", "subscriptionRolePrefix")
)
DEFAULT_POLL_TIMEOUT_MS = 120_000
DEFAULT_SPLIT_BYTES = 64 << 20
MIN_SPLIT_BYTES = 64 << 10
DEFAULT_BATCH_BYTES = 4 << 20
MAX_BATCH_BYTES = 512 << 20
MAX_TOPICS = 100_000
ALL_COLUMNS = "*"


@dataclass(frozen=True)
class TopicChoice:
    """The topics to read: a list of names, or a pattern in a namespace."""

    topics: tuple[str, ...] = ()
    namespace: str = ""
    pattern: str = ""

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.topics)

    def matches(self, topic: str) -> bool:
        return TopicsPattern.parse(self.pattern).matches(topic)


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read. Can be pickled; `repr` shows no secret."""

    access: Access
    choice: TopicChoice
    starting: Bounds | None
    """None: the beginning for a batch, the end for a stream."""
    ending: Bounds
    has_ending_offsets: bool
    limits: Limits
    fail_on_data_loss: bool
    progress_subscription: str | None
    progress_prefix: str | None
    waits_for_topic: bool
    allows_different_schemas: bool
    split_bytes: int
    min_partitions: int
    read_mode: str
    data_directory: str | None
    columns: tuple[str, ...]
    value_mode: str
    bad_records: str
    missing_fields: str
    batch_bytes: int
    push_filters: bool
    crypto_failure_action: str
    crypto_private_key_file: str | None

    def subscription_of(self, topic: str) -> str | None:
        """Return the name of the durable subscription whose cursor shows the progress of the query on `topic`; None if
        no such subscription is configured.
        """
        if self.progress_subscription is not None:
            return self.progress_subscription
        if self.progress_prefix is None:
            return None
        return f"{self.progress_prefix}-{TopicName.parse(topic).local_name}"


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    known = (*KEYS, *READER_KEYS, *connection_options.KEYS)
    values = OptionValues(options, known, "reading from pulsar")
    poll_timeout_ms = values.number("pollTimeoutMs", DEFAULT_POLL_TIMEOUT_MS, 1)
    try:
        choice = _topic_choice(values)
        starting = _bounds(values, "startingOffsets", "startingTime", is_end=False)
        ending = _bounds(values, "endingOffsets", "endingTime", is_end=True)
    except InvalidOffsets as error:
        raise InvalidOptions(f"option {error}") from error
    if ending is not None and ending.otherwise == EARLIEST:
        raise InvalidOptions(
            "option endingOffsets cannot be earliest, because no message is before the beginning of a topic"
        )
    if values.flag("readCompacted", False):
        raise InvalidOptions("option readCompacted=true is not supported: remove it to read all messages of a topic")
    if values.choice("isolation", ("committed", "uncommitted"), "committed") == "uncommitted":
        raise InvalidOptions("option isolation=uncommitted is not supported: remove it to read committed messages")
    subscription, prefix = values.text("predefinedSubscription"), values.text("subscriptionPrefix")
    if subscription is not None and prefix is not None:
        raise InvalidOptions(
            "options predefinedSubscription and subscriptionPrefix exclude each other: remove one of them"
        )
    return ReadOptions(
        access=connection_options.access_of(values, poll_timeout_ms),
        choice=choice,
        starting=starting,
        ending=ending or Bounds(LATEST),
        has_ending_offsets="endingOffsets" in values,
        limits=Limits(
            values.size("maxBytesPerTrigger", 0) or UNLIMITED,
            values.number("maxMessagesPerTrigger", 0) or UNLIMITED,
        ),
        fail_on_data_loss=values.flag("failOnDataLoss", True),
        progress_subscription=subscription,
        progress_prefix=prefix,
        waits_for_topic=values.flag("waitingForNonExistedTopic", False),
        allows_different_schemas=values.flag("allowDifferentTopicSchemas", False),
        split_bytes=values.size("splitBytes", DEFAULT_SPLIT_BYTES, MIN_SPLIT_BYTES),
        min_partitions=values.number("minPartitions", 0),
        read_mode=values.choice("readMode", READ_MODES, "auto"),
        data_directory=values.text("dataDirectory"),
        columns=_columns(values),
        value_mode=values.choice("valueMode", VALUE_MODES, "auto"),
        bad_records=values.choice("badRecords", BAD_RECORDS, "fail"),
        missing_fields=values.choice("missingFields", MISSING_FIELDS, "fail"),
        batch_bytes=_batch_bytes(values),
        push_filters=values.flag("pushFilters", False),
        crypto_failure_action=values.choice("pulsar.reader.cryptoFailureAction", CRYPTO_FAILURE_ACTIONS, "FAIL"),
        crypto_private_key_file=values.text("cryptoPrivateKeyFile"),
    )


def _topic_choice(values: OptionValues) -> TopicChoice:
    given = [name for name in TOPIC_OPTIONS if values.text(name) is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none is set"
        raise InvalidOptions(f"exactly one of the options topic, topics and topicsPattern is needed; {found}")
    text = values.text(given[0]) or ""
    if given[0] == "topicsPattern":
        return _pattern(text)
    names = [text] if given[0] == "topic" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidOptions("option topics contains no topic: set it to one or more topic names")
    if len(names) > MAX_TOPICS:
        raise InvalidOptions(
            f"option topics contains {len(names)} topics, but one query can read at most {MAX_TOPICS}: use several queries"
        )
    return TopicChoice(tuple(dict.fromkeys(_topic_name(given[0], name) for name in names)))


def _topic_name(option: str, name: str) -> str:
    try:
        topic = TopicName.parse(name)
    except InvalidTopicName as error:
        raise InvalidOptions(f"option {option}: {error}") from error
    if not topic.is_persistent:
        raise InvalidOptions(
            f"option {option}: the topic {topic} is not persistent, so its messages are not stored: use a "
            "persistent topic"
        )
    return str(topic)


def _pattern(text: str) -> TopicChoice:
    """Parse a topics pattern. Only the local name is a regular expression. A text without `/` belongs to `public/default`."""
    name = text.removeprefix("persistent://")
    try:
        namespace, pattern = pattern_in_namespace(name if "/" in name else f"public/default/{name}")
    except (InvalidTopicName, InvalidPattern, UnsupportedPattern) as error:
        expected = "persistent://TENANT/NAMESPACE/EXPRESSION, where only the topic's own name is a pattern"
        raise InvalidOptions(f"option topicsPattern: {error}; expected {expected}") from error
    return TopicChoice(namespace=str(namespace), pattern=pattern)


def _bounds(values: OptionValues, offsets_option: str, time_option: str, is_end: bool) -> Bounds | None:
    offsets, times = values.text(offsets_option), values.text(time_option)
    if offsets is not None and times is not None:
        raise InvalidOptions(f"options {offsets_option} and {time_option} exclude each other: remove one of them")
    if offsets is not None:
        return parse_offsets(offsets_option, offsets, is_end)
    return parse_times(time_option, times, is_end) if times is not None else None


def _columns(values: OptionValues) -> tuple[str, ...]:
    text = values.text("includeColumns")
    if text is None:
        return (ALL_COLUMNS,)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise values.wrong("includeColumns", "names of metadata columns, each once; * stands for the default columns")
    return tuple(names)


def _batch_bytes(values: OptionValues) -> int:
    size_bytes = values.size("batchBytes", DEFAULT_BATCH_BYTES, 1)
    if size_bytes > MAX_BATCH_BYTES:
        raise values.wrong("batchBytes", f"at most {MAX_BATCH_BYTES} bytes")
    return size_bytes
