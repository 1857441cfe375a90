"""Paths of the metadata store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.metadata import metadata_paths
from pybroker.model.names import NamespaceName, TopicName


def test_a_topic_with_odd_characters_in_its_name_is_one_path_segment_and_found_again() -> None:
    topic = TopicName.parse("persistent://t/ns/a%2Fb c%ü?#")
    path = metadata_paths.managed_ledger(topic)
    parent = metadata_paths.managed_ledgers(topic.namespace, "persistent")
    assert path.startswith(parent + "/")
    segment = path.removeprefix(parent + "/")
    assert "/" not in segment
    assert metadata_paths.topic_of_segment(topic.namespace, "persistent", segment) == topic


def test_the_partitions_and_cursors_of_a_topic_lie_where_their_parents_say() -> None:
    topic = TopicName.parse("non-persistent://t/ns/x")
    assert (
        metadata_paths.partitioned_topic(topic)
        == metadata_paths.partitioned_topics(topic.namespace, "non-persistent") + "/x"
    )
    assert metadata_paths.cursors(topic).startswith(metadata_paths.managed_ledger(topic) + "/")


def test_policies_lie_below_their_tenant() -> None:
    assert metadata_paths.policies(NamespaceName("t", "ns")) == metadata_paths.tenant("t") + "/ns"


def test_partitions_and_both_domains_share_the_path_of_their_schema_whose_versions_sort() -> None:
    topic = TopicName.parse("t/ns/a%2Fb")
    path = metadata_paths.schema(topic)
    assert path.startswith(metadata_paths.schemas(topic.namespace) + "/")
    assert (
        path
        == metadata_paths.schema(topic.partition(3))
        == metadata_paths.schema(TopicName.parse("non-persistent://t/ns/a%2Fb"))
    )
    assert path == f"{metadata_paths.SCHEMAS}/{metadata_paths.schema_name(topic)}"
    versions = [metadata_paths.schema_version(path, version) for version in (2, 10, 10**12)]
    assert versions == sorted(versions)


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("a b", "a+b"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("100%", "100%25"),
        ("tilde~star*", "tilde%7Estar*"),
        ("a+b", "a%2Bb"),
    ],
)
def test_partitioned_topics_have_the_paths_of_java_brokers(name: str, segment: str) -> None:
    topic = TopicName.parse(f"persistent://t/ns/{name}")
    assert metadata_paths.partitioned_topic(topic) == f"/admin/partitioned-topics/t/ns/persistent/{segment}"
    assert metadata_paths.partitioned_topic_of_segment(topic.namespace, "persistent", segment) == topic


@pytest.mark.parametrize("name", ["small", "a b", "größe", "50%", "50% off", "a+b", "...", "a%2", "%zz"])
def test_names_of_groups_and_domains_are_paths_as_they_are(name: str) -> None:
    assert metadata_paths.resource_group(name) == f"/admin/resourcegroups/{name}"
    assert metadata_paths.failure_domain("c", name) == f"/admin/clusters/c/failureDomain/{name}"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("%/.2Ff+\x00")))
def test_each_name_of_a_group_is_one_segment_and_found_again(name: str) -> None:
    parent, _, segment = metadata_paths.resource_group(name).rpartition("/")
    assert parent == metadata_paths.RESOURCE_GROUPS
    assert segment not in (".", "..")
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in segment)
    assert metadata_paths.name_of_segment(segment) == name


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1))
def test_each_partitioned_topic_is_found_again(name: str) -> None:
    topic = TopicName("persistent", NamespaceName("t", "ns"), name)
    parent, _, segment = metadata_paths.partitioned_topic(topic).rpartition("/")
    assert parent == metadata_paths.partitioned_topics(topic.namespace, "persistent")
    assert metadata_paths.partitioned_topic_of_segment(topic.namespace, "persistent", segment) == topic
