"""Conversion of shared documents from the paths of metadata layout 2 to Apache Pulsar's, which layout 3 uses.

| Document | Layout 2 | Layout 3 |
|---|---|---|
| tenant | /admin/tenants/T | /admin/policies/T |
| local policies | without bundles | with the bundles of the policies |
| migration flag of a namespace | in the policies | in the local policies |
| failure domains | one map in …/failure-domains | …/failureDomain/NAME each |
| isolation policies | …/isolation-policies | …/namespaceIsolationPolicies |
| migration of a cluster | …/migration | …/policies |
| default quota | /admin/resource-quotas | /loadbalance/resource-quota/default |
| quota of a bundle | /admin/resource-quotas/T/NS/B | /loadbalance/resource-quota/T/NS/B |
| resource group | percent-encoded name | the name itself |
| partitioned topic | percent-encoded name | encoded as by Java's URLEncoder |
| topic policies | /admin/topic-policies | /pybroker/topic-policies |
| schema versions | /schemas | /pybroker/schemas |

Pure: `converted_documents` returns the changes to the values that it gets. The caller applies the changes in one
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from pybroker.metadata import metadata_paths
from pybroker.model.names import NamespaceName, TopicName

DOCUMENTS, SCHEMAS = "/admin/", "/schemas/"
"""All values that a conversion needs are below."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Conversion(NamedTuple):
    """Changes of a store: paths to remove, then values to write."""

    removed: list[str]
    written: dict[str, tuple[bytes, int]]
    """Value and version by path."""
    unreadable: list[str]
    """Paths of documents that stay as they are."""


def converted_documents(rows: Mapping[str, tuple[bytes, int]]) -> Conversion:
    """Return the changes that convert documents of layout 2 to layout 3. `rows`: value and version by path."""
    removed: list[str] = []
    written: dict[str, tuple[bytes, int]] = {}
    unreadable: list[str] = []
    for path, (value, version) in rows.items():
        try:
            moved = _moved(path, value)
        except (*_UNREADABLE, AttributeError):
            unreadable.append(path)
            continue
        if moved is not None:
            removed.append(path)
            written |= {new: (content, version) for new, content in moved}
    for path, local, policies in _local_policies(rows):
        if policies is None:
            removed.append(path)
            continue
        try:
            _, version = rows.get(path, (b"", -1))
            written[path] = _completed(local, policies), version + 1
        except (*_UNREADABLE, AttributeError, KeyError):
            unreadable.append(path)
    # A path that another document takes over is not removed.
    return Conversion([path for path in removed if path not in written], written, sorted(unreadable))


def _moved(path: str, value: bytes) -> list[tuple[str, bytes]] | None:
    """Return the new paths and values of a document; None if its path does not change. Raises DecodeError."""
    segments = path.split("/")[1:]
    match segments:
        case ["admin", "tenants", tenant]:
            return [(metadata_paths.tenant(tenant), value)]
        case ["admin", "topic-policies", *rest]:
            return [("/".join((metadata_paths.TOPIC_POLICIES, *rest)), value)]
        case ["schemas", *rest]:
            return [("/".join((metadata_paths.SCHEMAS, *rest)), value)]
        case ["admin", "resource-quotas"]:
            return [(metadata_paths.DEFAULT_RESOURCE_QUOTA, value)]
        case ["admin", "resource-quotas", *rest]:
            return [("/".join((metadata_paths.RESOURCE_QUOTAS, *rest)), value)]
        case ["admin", "clusters", cluster, "failure-domains"]:
            domains = msgspec.json.decode(value).items()
            return [
                (metadata_paths.failure_domain(cluster, name), msgspec.json.encode(domain)) for name, domain in domains
            ]
        case ["admin", "clusters", cluster, "isolation-policies"]:
            return [(metadata_paths.isolation_policies(cluster), value)]
        case ["admin", "clusters", cluster, "migration"]:
            return [(metadata_paths.migration(cluster), value)]
        case ["admin", "resourcegroups", segment]:
            return _renamed(path, metadata_paths.resource_group(unquote(segment)), value)
        case ["admin", "partitioned-topics", tenant, namespace, domain, segment]:
            topic = TopicName(domain, NamespaceName(tenant, namespace), unquote(segment))
            return _renamed(path, metadata_paths.partitioned_topic(topic), value)
    return None


def _renamed(path: str, new: str, value: bytes) -> list[tuple[str, bytes]] | None:
    return None if new == path else [(new, value)]


def _local_policies(rows: Mapping[str, tuple[bytes, int]]) -> Iterator[tuple[str, bytes, bytes | None]]:
    """Yield path and value of local policies that must change, and the policies of their namespace (None if it does not
    exist).
    """
    prefix, local_prefix = f"{metadata_paths.POLICIES}/", f"{metadata_paths.LOCAL_POLICIES}/"
    for path, (value, _) in rows.items():
        if path.startswith(local_prefix):
            policies = rows.get(prefix + path.removeprefix(local_prefix))
            yield path, value, None if policies is None else policies[0]
        elif path.startswith(prefix) and b'"migrated":true' in value:
            local_path = local_prefix + path.removeprefix(prefix)
            if local_path not in rows:
                yield local_path, b"{}", value


def _completed(local: bytes, policies: bytes) -> bytes:
    """Return local policies with bundles and migration flag of the policies. Raises DecodeError, KeyError."""
    document: dict[str, Any] = msgspec.json.decode(local)
    shared: dict[str, Any] = msgspec.json.decode(policies)
    document.setdefault("bundles", shared["bundles"])
    document.setdefault("migrated", shared.get("migrated", False))
    return msgspec.json.encode(document)
