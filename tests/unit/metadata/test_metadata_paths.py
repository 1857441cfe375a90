"""Paths of the metadata store."""

from __future__ import annotations

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
