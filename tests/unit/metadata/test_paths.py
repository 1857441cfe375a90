"""Where each fact lives."""

from __future__ import annotations

from pybroker.metadata import paths
from pybroker.model.names import NamespaceName, TopicName


def test_a_topic_with_odd_characters_in_its_name_is_one_path_segment_and_found_again() -> None:
    topic = TopicName.parse("persistent://t/ns/a%2Fb c%ü?#")
    path = paths.managed_ledger(topic)
    parent = paths.managed_ledgers(topic.namespace, "persistent")
    assert path.startswith(parent + "/")
    segment = path.removeprefix(parent + "/")
    assert "/" not in segment
    assert paths.topic_of_segment(topic.namespace, "persistent", segment) == topic


def test_the_partitions_and_cursors_of_a_topic_lie_where_their_parents_say() -> None:
    topic = TopicName.parse("non-persistent://t/ns/x")
    assert paths.partitioned_topic(topic) == paths.partitioned_topics(topic.namespace, "non-persistent") + "/x"
    assert paths.cursors(topic).startswith(paths.managed_ledger(topic) + "/")


def test_policies_lie_below_their_tenant() -> None:
    assert paths.policies(NamespaceName("t", "ns")) == paths.tenant_policies("t") + "/ns"


def test_partitions_and_both_domains_share_the_path_of_their_schema_whose_versions_sort() -> None:
    topic = TopicName.parse("t/ns/a%2Fb")
    path = paths.schema(topic)
    assert path.startswith(paths.schemas(topic.namespace) + "/")
    assert path == paths.schema(topic.partition(3)) == paths.schema(TopicName.parse("non-persistent://t/ns/a%2Fb"))
    assert path == f"{paths.SCHEMAS}/{paths.schema_name(topic)}"
    versions = [paths.schema_version(path, version) for version in (2, 10, 10**12)]
    assert versions == sorted(versions)
