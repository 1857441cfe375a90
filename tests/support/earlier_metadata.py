"""Metadata databases as earlier versions left them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from pybroker.metadata.sqlite_table import row_checksum

_SUM_BITS = (1 << 62) - 1


def write_layout_2(path: Path, values: Mapping[str, bytes], commits: int = 7) -> None:
    """Create a database of layout 2 with `values`, each of version 3."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN")
    connection.execute(
        "CREATE TABLE metadata (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
        " checksum INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE totals (id INTEGER PRIMARY KEY CHECK (id = 1), commits INTEGER NOT NULL, row_count INTEGER NOT NULL,"
        " row_sum INTEGER NOT NULL)"
    )
    checksums = [row_checksum(name, value, 3) for name, value in values.items()]
    rows = [(*row, 3, checksum) for row, checksum in zip(values.items(), checksums, strict=True)]
    connection.executemany("INSERT INTO metadata VALUES (?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO totals VALUES (1, ?, ?, ?)", (commits, len(rows), sum(checksums) & _SUM_BITS))
    connection.execute("PRAGMA user_version = 2")
    connection.execute("COMMIT")
    connection.close()


BUNDLES = b'{"boundaries":["0x00000000","0x80000000","0xffffffff"],"numBundles":2}'
POLICIES = b'{"bundles":' + BUNDLES + b',"future":{"a":1},"migrated":false}'
MIGRATED = b'{"bundles":' + BUNDLES + b',"migrated":true}'
TENANT = b'{"adminRoles":["a"],"allowedClusters":["standalone"]}'
QUOTA = b'{"memory":1.0}'

EARLIER: dict[str, bytes] = {
    "/admin/clusters/standalone": b'{"serviceUrl":"http://h:1"}',
    "/admin/clusters/standalone/failure-domains": b'{"rack 1":{"brokers":["a"]},"r/2":{"brokers":["b"],"future":1}}',
    "/admin/clusters/standalone/isolation-policies": b'{"p":{"namespaces":["x"]}}',
    "/admin/clusters/standalone/migration": b'{"migrated":true}',
    "/admin/configuration": b'{"maxTenants":"7"}',
    "/admin/local-policies/t/gone": b'{"namespaceAntiAffinityGroup":"g"}',
    "/admin/local-policies/t/ns": b'{"namespaceAntiAffinityGroup":"g","future":2}',
    "/admin/partitioned-topics/t/ns/persistent/a%20b~%2Bc": b'{"partitions":3,"deleted":false}',
    "/admin/partitioned-topics/t/ns/persistent/plain": b'{"partitions":4,"deleted":false}',
    "/admin/policies/t/moved": MIGRATED,
    "/admin/policies/t/ns": POLICIES,
    "/admin/policies/t/plain": POLICIES,
    "/admin/resource-quotas": QUOTA,
    "/admin/resource-quotas/t/ns/0x00000000_0x80000000": QUOTA,
    "/admin/resourcegroups/gr%C3%B6%C3%9Fe%20L": b'{"publishRateInMsgs":1}',
    "/admin/resourcegroups/a%2Fb": b'{"publishRateInMsgs":2}',
    "/admin/tenants/t": TENANT,
    "/admin/tenants/unreadable": b"{",
    "/admin/topic-policies/t/ns/persistent/x%20y": b'{"maxProducerPerTopic":1}',
    "/counters/producer-name": b"",
    "/managed-ledgers/t/ns/persistent/a%20b": b"{}",
    "/schemas/t/ns/a%20b/00000000000000000000": b"{",
    "/schemas/t/ns/a%20b/00000000000000000001": b"\xff",
}
"""Every document that layout 3 stores elsewhere, and some that it does not."""
CONVERTED: dict[str, bytes] = {
    "/admin/clusters/standalone": b'{"serviceUrl":"http://h:1"}',
    "/admin/clusters/standalone/failureDomain/rack 1": b'{"brokers":["a"]}',
    "/admin/clusters/standalone/failureDomain/r%2F2": b'{"brokers":["b"],"future":1}',
    "/admin/clusters/standalone/namespaceIsolationPolicies": b'{"p":{"namespaces":["x"]}}',
    "/admin/clusters/standalone/policies": b'{"migrated":true}',
    "/admin/configuration": b'{"maxTenants":"7"}',
    "/admin/local-policies/t/moved": b'{"bundles":' + BUNDLES + b',"migrated":true}',
    "/admin/local-policies/t/ns": b'{"namespaceAntiAffinityGroup":"g","future":2,"bundles":'
    + BUNDLES
    + b',"migrated":false}',
    "/admin/partitioned-topics/t/ns/persistent/a+b%7E%2Bc": b'{"partitions":3,"deleted":false}',
    "/admin/partitioned-topics/t/ns/persistent/plain": b'{"partitions":4,"deleted":false}',
    "/admin/policies/t": TENANT,
    "/admin/policies/t/moved": MIGRATED,
    "/admin/policies/t/ns": POLICIES,
    "/admin/policies/t/plain": POLICIES,
    "/admin/policies/unreadable": b"{",
    "/admin/resourcegroups/größe L": b'{"publishRateInMsgs":1}',
    "/admin/resourcegroups/a%2Fb": b'{"publishRateInMsgs":2}',
    "/counters/producer-name": b"",
    "/loadbalance/resource-quota/default": QUOTA,
    "/loadbalance/resource-quota/t/ns/0x00000000_0x80000000": QUOTA,
    "/managed-ledgers/t/ns/persistent/a%20b": b"{}",
    "/pybroker/schemas/t/ns/a%20b/00000000000000000000": b"{",
    "/pybroker/schemas/t/ns/a%20b/00000000000000000001": b"\xff",
    "/pybroker/topic-policies/t/ns/persistent/x%20y": b'{"maxProducerPerTopic":1}',
}
