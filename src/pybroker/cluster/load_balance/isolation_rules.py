"""The rules that decide which brokers may have a bundle, by isolation policies and anti-affinity groups as in Pulsar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pybroker.model.cluster_data import NamespaceIsolationData, matches_any


def permitted_hosts(namespace: str, hosts: Iterable[str], policies: Mapping[str, NamespaceIsolationData]) -> set[str]:
    """Return the hosts whose brokers may have bundles of `namespace`. `hosts` has one item for each broker.

    If an isolation policy contains the namespace, return the primary hosts of the policy, and its secondary hosts as
    well while fewer than `min_limit` primary *brokers* exist. Otherwise return the hosts that are primary in no policy.
    """
    found = list(hosts)
    policy = next((each for each in policies.values() if matches_any(namespace, each.namespaces)), None)
    if policy is None:
        reserved = [pattern for each in policies.values() for pattern in each.primary]
        return {host for host in found if not matches_any(host, reserved)}
    primary = [host for host in found if matches_any(host, policy.primary)]
    permitted = set(primary)
    if len(primary) < _min_limit(policy):
        permitted |= {host for host in found if matches_any(host, policy.secondary)}
    return permitted


def _min_limit(policy: NamespaceIsolationData) -> int:
    parameters = {} if policy.auto_failover_policy is None else policy.auto_failover_policy.parameters
    text = parameters.get("min_limit", "")
    return int(text) if text.isdecimal() else 1


def spread_by_group(
    broker_ids: Iterable[str], group_counts: Mapping[str, int], domain_of: Mapping[str, str]
) -> list[str]:
    """Return the brokers that keep the namespaces of an anti-affinity group apart: the brokers in the failure domains
    with the fewest namespaces of the group, and of these, the brokers with the fewest.

    `group_counts`: the number of the group's namespaces by broker. `domain_of`: the failure domain by broker. Brokers
    without a failure domain are returned only if none of `broker_ids` has one.
    """
    found = list(broker_ids)
    of_domains: Counter[str] = Counter()
    for broker_id, count in group_counts.items():
        if broker_id in domain_of:
            of_domains[domain_of[broker_id]] += count
    with_domain = [broker_id for broker_id in found if broker_id in domain_of]
    if with_domain:
        fewest = min(of_domains[domain_of[broker_id]] for broker_id in with_domain)
        found = [broker_id for broker_id in with_domain if of_domains[domain_of[broker_id]] == fewest]
    fewest = min((group_counts.get(broker_id, 0) for broker_id in found), default=0)
    return [broker_id for broker_id in found if group_counts.get(broker_id, 0) == fewest]
