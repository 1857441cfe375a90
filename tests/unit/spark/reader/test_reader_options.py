"""Options say what to do, wrong ones say what to write, and no secret is ever shown."""

import pickle
from typing import Any

import pytest

from pybroker.reading.positions import Place
from pybroker.spark.option_text import OF_OTHER_SOURCES, InvalidOptions
from pybroker.spark.reader.admission import UNLIMITED
from pybroker.spark.reader.offsets import EARLIEST, LATEST, BoundKind
from pybroker.spark.reader.reader_options import ReadOptions, parse_read_options
from pybroker.spark.writer.sink_options import parse_write_options

URL = "pulsar://localhost:6650"


def parse(**options: str) -> ReadOptions:
    """With a broker and a topic unless the options name others; `__` in a keyword is a dot."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    if not {"topics", "topicsPattern", "topicspattern"} & set(given):
        given = {"topic": "t", **given}
    return parse_read_options({"service.url": URL, **given})


def refusal(**options: str) -> str:
    with pytest.raises(InvalidOptions) as refused:
        parse(**options)
    return str(refused.value)


def test_the_defaults_are_those_of_the_scala_connector() -> None:
    options = parse()
    assert options.choice.topics == ("persistent://public/default/t",)
    assert (options.starting, options.ending.otherwise) == (None, LATEST)
    assert (options.limits.size_bytes, options.limits.message_count) == (UNLIMITED, UNLIMITED)
    assert options.fail_on_data_loss  # as its documentation says, not as its code does
    assert not options.waits_for_topic
    assert not options.allows_different_schemas
    assert options.access.operation_timeout_s == 120
    assert options.subscription_of("persistent://public/default/t") is None


def test_keys_come_in_any_case() -> None:
    options = parse(MAXBYTESPERTRIGGER="10k", failondataloss="FALSE", startingOFFSETS="latest")
    assert (options.limits.size_bytes, options.fail_on_data_loss) == (10240, False)
    assert options.starting is not None
    assert options.starting.otherwise == LATEST


def test_an_unknown_key_names_the_nearest() -> None:
    assert "did you mean startingOffsets?" in refusal(startingOffset="earliest")
    assert "pulsar.client.authParams" in refusal(pulsar__client__authParam="hush")
    assert "docs/how-to/spark.md" in refusal(zzz="1")
    assert "option topic" in refusal(path="x")


def test_table_of_a_catalog_is_refused_with_what_works_instead() -> None:
    assert "CREATE TEMPORARY VIEW" in refusal(provider="pulsar")


def test_option_of_another_source_names_the_one_with_the_same_meaning() -> None:
    for key, same in OF_OTHER_SOURCES.items():
        assert f"use {same} instead" in refusal(**{key: "1"})
    assert "'maxOffsetsPerTrigger': use maxMessagesPerTrigger" in refusal(maxOffsetsPerTrigger="1000")
    with pytest.raises(InvalidOptions, match=r"use service\.url instead"):
        parse_write_options({"kafka.bootstrap.servers": "localhost:9092"}, is_stream=False)


def test_topics_are_named_in_exactly_one_way() -> None:
    assert parse(topics="a, tenant/ns/b,a").choice.topics == (
        "persistent://public/default/a",
        "persistent://tenant/ns/b",
    )
    with pytest.raises(InvalidOptions, match="none is set"):
        parse_read_options({"service.url": URL})
    assert "topic and topics are set" in refusal(topic="a", topics="b")
    assert "is not persistent" in refusal(topic="non-persistent://public/default/a")
    assert "option topic" in refusal(topic="a/b")
    assert refusal(topics=" , ")


@pytest.mark.parametrize("pattern", ["persistent://public/default/orders-.*", "public/default/orders-.*", "orders-.*"])
def test_a_pattern_is_one_of_a_namespaces_topics(pattern: str) -> None:
    choice = parse(topicsPattern=pattern).choice
    assert choice.namespace == "public/default"
    assert choice.matches("persistent://public/default/orders-1")
    assert choice.matches("persistent://public/default/orders-1-partition-3")
    assert not choice.matches("persistent://public/default/no-orders-1")


def test_a_dot_in_a_namespace_is_no_pattern_and_alternatives_stay_inside() -> None:
    choice = parse(topicsPattern="a.b/c.d/x|y/z").choice
    assert choice.matches("persistent://a.b/c.d/y/z")
    assert not choice.matches("persistent://aXb/c.d/x")


@pytest.mark.parametrize("pattern", ["a(", "ten*ant/ns/x", "a/b", r"(?=x)y"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    assert "TENANT/NAMESPACE/EXPRESSION" in refusal(topicsPattern=pattern)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("failOnDataLoss", "yes"),
        ("maxBytesPerTrigger", "10 apples"),
        ("maxBytesPerTrigger", "-1"),
        ("maxMessagesPerTrigger", "1.5"),
        ("minPartitions", "9" * 30),
        ("splitBytes", "1k"),
        ("batchBytes", "1t"),
        ("readMode", "fast"),
        ("valueMode", "parsed"),
        ("badRecords", "skip"),
        ("includeColumns", "a,a"),
        ("startingOffsets", "{"),
        ("startingOffsets", "yesterday"),
        ("startingTime", "2026-01-01T00:00:00"),
        ("endingTime", "-5"),
        ("endingOffsets", "earliest"),
        ("readCompacted", "true"),
        ("isolation", "uncommitted"),
        ("pollTimeoutMs", "0"),
        ("service__url", "localhost:6650:1"),
        ("service__url", "http://localhost:8080"),
        ("admin__url", "pulsar://localhost:6650"),
    ],
)
def test_a_wrong_value_is_refused_with_the_options_name(option: str, value: str) -> None:
    assert option.replace("__", ".") in refusal(**{option: value})


def test_sizes_have_units() -> None:
    for text in ["64m", "64M", "64mb", "64MiB", "65536k", str(64 << 20)]:
        assert parse(splitBytes=text).split_bytes == 64 << 20, text


def test_bounds_are_given_once() -> None:
    assert "exclude each other" in refusal(startingOffsets="earliest", startingTime="5")
    options = parse(startingTime="5", endingTime="2026-01-31T00:00:00Z")
    assert options.starting is not None
    assert options.starting.otherwise.time_ms == 5
    assert options.ending.otherwise.kind is BoundKind.TIME
    assert parse(startingOffsets="earliest").starting.otherwise == EARLIEST  # type: ignore[union-attr]


def test_an_offset_of_one_topic_leaves_the_others_at_their_beginning() -> None:
    text = '{"v":1,"t":{"a":{"l":3,"e":4,"b":2}}}'
    starting = parse(topics="a,b", startingOffsets=text).starting
    assert starting is not None
    assert starting.of("persistent://public/default/a").place == Place(3, 4)
    assert starting.of("persistent://public/default/a").batch_index == 2
    assert starting.of("persistent://public/default/b") == EARLIEST


def test_progress_is_shown_on_one_subscription_or_one_for_each_topic() -> None:
    topic = "persistent://public/default/a-partition-1"
    assert parse(predefinedSubscription="s").subscription_of(topic) == "s"
    assert parse(subscriptionPrefix="spark").subscription_of(topic) == "spark-a-partition-1"
    assert "exclude each other" in refusal(predefinedSubscription="s", subscriptionPrefix="p")


SECRETS: list[dict[str, Any]] = [
    {"pulsar.client.authPluginClassName": "token", "pulsar.client.authParams": "token:hush-hush"},
    {
        "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationBasic",
        "pulsar.client.authParams": '{"userId": "joe", "password": "hush-hush"}',
    },
]


@pytest.mark.parametrize("credentials", SECRETS)
def test_no_secret_is_in_what_is_shown_of_options(credentials: dict[str, str]) -> None:
    options = parse_read_options({"service.url": URL, "topic": "t", **credentials})
    assert "hush-hush" not in repr(options)
    assert b"hush-hush" in options.access.auth_data()
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "wrong",
    [
        {"pulsar.client.authParams": "hush-hush"},
        {"pulsar.client.authPluginClassName": "basic", "pulsar.client.authParams": '{"password": "hush-hush"'},
        {"pulsar.client.authPluginClassName": "athenz", "pulsar.client.authParams": "hush-hush"},
        {"pulsar.client.authPluginClassName": "token"},
        {"service.url": "pulsar://joe:hush-hush@localhost:6650"},
        {"service.url": "pulsar://joe:hush-hush@[::1:6650"},
        {"admin.url": "http://joe:hush-hush@localhost"},
        {"pulsar.client.useKeyStoreTls": "true", "pulsar.client.tlsTrustStorePassword": "hush-hush"},
        {"pulsar.client.authPluginClassName": "tls", "pulsar.client.authParams": "hush-hush"},
    ],
)
def test_no_error_repeats_a_secret(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidOptions) as refused:
        parse_read_options({"service.url": URL, "topic": "t", **wrong})
    assert "hush-hush" not in str(refused.value)


def test_tls_is_told_by_files() -> None:
    options = parse(
        service__url="pulsar+ssl://a:6651,b:6651",
        pulsar__client__tlsTrustCertsFilePath="/ca.pem",
        pulsar__client__tlsHostnameVerificationEnable="false",
        pulsar__client__authPluginClassName="AuthenticationTls",
        pulsar__client__authParams="tlsCertFile:/me.pem,tlsKeyFile:/me-key.pem",
    )
    access = options.access
    assert (access.tls_certificate_file, access.tls_key_file) == ("/me.pem", "/me-key.pem")
    assert (access.tls_trust_certs_file, access.tls_verify_hostname) == ("/ca.pem", False)


def test_what_only_the_java_client_needs_is_accepted() -> None:
    assert parse(pulsar__client__numIoThreads="4", pulsar__reader__receiverQueueSize="1000")
