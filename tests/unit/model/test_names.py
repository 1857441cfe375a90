"""Short and full names of topics, valid names, and partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES

from pybroker.errors import InvalidTopicName
from pybroker.model.names import MAX_NAME_LENGTH, MAX_TOPIC_LENGTH, NamespaceName, TopicName, is_valid_entity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("t", "persistent://public/default/t"),
        ("tenant/ns/t", "persistent://tenant/ns/t"),
        ("persistent://tenant/ns/t", "persistent://tenant/ns/t"),
        ("non-persistent://tenant/ns/t", "non-persistent://tenant/ns/t"),
        ("persistent://tenant/ns/mit Leerzeichen und ü", "persistent://tenant/ns/mit Leerzeichen und ü"),
        ("t-partition-0", "persistent://public/default/t-partition-0"),
    ],
)
def test_a_name_has_one_canonical_text(text: str, canonical: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == canonical
    assert TopicName.parse(canonical) == name
    assert hash(TopicName.parse(canonical)) == hash(name)


def test_the_parts_of_a_name_are_told_apart() -> None:
    name = TopicName.parse("non-persistent://tenant/ns/a:b")
    assert (name.domain, name.tenant, name.namespace, name.local_name) == (
        "non-persistent",
        "tenant",
        NamespaceName("tenant", "ns"),
        "a:b",
    )
    assert not name.is_persistent
    assert TopicName.parse("t").is_persistent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "a/b/c/d",
        "/ns/t",
        "tenant//t",
        "tenant/ns/",
        "://tenant/ns/t",
        "topic://tenant/ns/t",
        "Persistent://tenant/ns/t",
        "persistent://",
        "persistent://t",
        "persistent://tenant/ns",
        "persistent://tenant/ns/",
        "persistent://tenant/cluster/ns/t",
        "persistent://tenant/ns/t/",
        "persistent://ten ant/ns/t",
        "persistent://tenant/n$/t",
        "persistent://tenänt/ns/t",
        "persistent://tenant/ns/ t",
        "persistent://tenant/ns/t ",
        "persistent://tenant/ns/a\nb",
        "persistent://tenant/ns/a\x00b",
        "persistent://tenant/ns/a\x7fb",
        "persistent://tenant/ns/" + "x" * (MAX_TOPIC_LENGTH + 1),
    ],
)
def test_what_is_no_topic_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(text)


@EXAMPLES
@given(st.one_of(st.text(max_size=40), st.text("abc/:-. ü\n", max_size=30).map(lambda text: "persistent://" + text)))
def test_any_text_is_a_name_that_stays_itself_or_is_refused(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert TopicName.parse(str(name)) == name
    assert name.storage_path.count("/") == 3
    assert str(name.namespace) == f"{name.tenant}/{name.namespace.local_name}"


@pytest.mark.parametrize(
    ("local_name", "index", "whole"),
    [
        ("t", -1, "t"),
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-012", -1, "t-partition-012"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition-x", -1, "t-partition-x"),
        ("t-partition-1-x", -1, "t-partition-1-x"),
        ("-partition-1", -1, "-partition-1"),
        ("a-partition-1-partition-2", 2, "a-partition-1"),
    ],
)
def test_a_partition_knows_its_index_and_its_topic(local_name: str, index: int, whole: str) -> None:
    name = TopicName.parse(f"persistent://tenant/ns/{local_name}")
    assert name.partition_index == index
    assert name.partitioned_name == TopicName.parse(f"persistent://tenant/ns/{whole}")
    if index >= 0:
        assert name.partitioned_name.partition(index) == name


def test_different_topics_never_rest_at_the_same_path() -> None:
    texts = ["a%2Fb", "a%b", "a", "b", "a b", "a+b", "a%20b", "ü"]
    paths = {
        TopicName.parse(f"{domain}://tenant/ns/{text}").storage_path
        for domain in ("persistent", "non-persistent")
        for text in texts
    }
    assert len(paths) == 2 * len(texts)
    assert TopicName.parse("persistent://tenant/ns/a b").storage_path == "tenant/ns/persistent/a%20b"


def test_a_namespace_is_tenant_and_name() -> None:
    assert NamespaceName.parse("public/default") == NamespaceName("public", "default")
    assert str(NamespaceName("public", "default")) == "public/default"


@pytest.mark.parametrize("text", ["", "public", "public/", "/default", "a/b/c", "a b/c", "a/b\n", "a/ü"])
def test_what_is_no_namespace_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        NamespaceName.parse(text)


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("aZ09-=:._", True),
        ("", False),
        ("a/b", False),
        ("a\n", False),
        ("x" * MAX_NAME_LENGTH, True),
        ("x" * (MAX_NAME_LENGTH + 1), False),
    ],
)
def test_an_entity_has_letters_digits_and_few_marks(name: str, is_valid: bool) -> None:
    assert is_valid_entity(name) == is_valid


@pytest.mark.parametrize(
    ("digits", "index"), [("0", 0), ("2147483647", 2147483647), ("2147483648", -1), ("1" * 5000, -1)]
)
def test_a_number_that_no_client_can_hold_is_part_of_the_name(digits: str, index: int) -> None:
    name = TopicName.parse(f"t-partition-{digits}")
    assert name.partition_index == index
    assert (name.partitioned_name == name) == (index < 0)


@pytest.mark.parametrize(
    "text", ["/" * 1_000_000, "x" * 1_000_000, "a://" + "b/" * 1000, "x" * 9000, "public/" + "y" * 3000]
)
def test_a_refusal_is_short_however_long_the_name_is(text: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse(text)
    assert len(str(caught.value)) < 500
    with pytest.raises(InvalidTopicName) as caught:
        NamespaceName.parse(text)
    assert len(str(caught.value)) < 500
