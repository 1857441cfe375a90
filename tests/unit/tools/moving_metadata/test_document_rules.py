"""Findings of `pybroker metadata check`: none for sound documents, one for each defect."""

from __future__ import annotations

import json

import pytest
from tests.support.moved_documents import BUNDLES, MOVED, put_all

from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.model.policies import NamespacePolicies, encode, even_bundles
from pybroker.tools.moving_metadata.checking import check_documents
from pybroker.tools.moving_metadata.document_rules import Finding

SOUND = MOVED | {"/pybroker/schemas/t/n/x/00000000000000000001": b"{}", "/pybroker/layout": b"{}"}
POLICIES = NamespacePolicies(bundles=even_bundles(4), replication_clusters=["c1"])


async def found(documents: dict[str, bytes], cluster_name: str = "c1") -> list[Finding]:
    store = MemoryMetadataStore()
    await put_all(store, {path: value for path, value in (SOUND | documents).items() if value})
    return [finding async for finding in check_documents(store, cluster_name, lambda _: None)]


async def test_sound_documents_have_no_findings() -> None:
    topics = {f"/managed-ledgers/t/n/persistent/a%2Fb-partition-{index}": b"1" for index in range(3)}
    assert await found(topics) == []


def local(bundles: object) -> bytes:
    return json.dumps({"bundles": bundles}).encode()


@pytest.mark.parametrize(
    ("path", "value", "severity", "code", "text"),
    [
        ("/admin/policies/t/n", b"{", "problem", "unreadable", "brokers ignore it"),
        ("/admin/policies/t/n", b'{"bundles":5}', "problem", "unreadable", "brokers ignore it"),
        ("/admin/configuration", b"[" * 10_000, "problem", "unreadable", "brokers ignore it"),
        ("/admin/clusters/c1/other", b"{}", "note", "unknown-path", "does not know"),
        ("/admin/other/x", b"{}", "note", "unknown-path", "does not know"),
        ("/admin/local-policies/t/n", b"{}", "problem", "bundles", "a topic can have two owners"),
        ("/admin/local-policies/t/n", local({**BUNDLES, "numBundles": 5}), "problem", "bundles", "bundles are wrong"),
        (
            "/admin/local-policies/t/n",
            local({"boundaries": ["0x00000000", "0x40000000"]}),
            "problem",
            "bundles",
            "bundles are wrong",
        ),
        (
            "/admin/partitioned-topics/t/n/persistent/p",
            b'{"partitions":0}',
            "problem",
            "partitions",
            "has 0 partitions",
        ),
        (
            "/managed-ledgers/t/n/persistent/a%2Fb-partition-3",
            b"1",
            "problem",
            "partitions",
            "has 3 partitions: clients do not find",
        ),
        ("/managed-ledgers/t/n/persistent/a%2Fb", b"1", "problem", "partitions", "a topic and a partitioned topic"),
        ("/managed-ledgers/t/n/persistent/q-partition-0", b"1", "note", "partitions", "is not a partitioned topic"),
        ("/admin/policies/t", b'{"allowedClusters":["c9"]}', "problem", "cluster", "names the cluster c9"),
        (
            "/admin/policies/t/n",
            encode(NamespacePolicies(bundles=even_bundles(4), replication_clusters=["c8"])),
            "problem",
            "cluster",
            "names the cluster c8",
        ),
        (
            "/admin/policies/t/n",
            encode(NamespacePolicies(bundles=even_bundles(4), resource_group_name="g")),
            "note",
            "resource-group",
            "the resource group g",
        ),
        ("/admin/policies/u/n", encode(POLICIES), "problem", "tenant", "its tenant does not exist"),
        ("/admin/local-policies/t/gone", local(BUNDLES), "note", "namespace", "t/gone does not exist"),
        (
            "/pybroker/topic-policies/t/n/persistent/big",
            json.dumps({"x": "y" * 600_000}).encode(),
            "problem",
            "large",
            "600009 bytes",
        ),
    ],
)
async def test_each_defect_has_one_finding(path: str, value: bytes, severity: str, code: str, text: str) -> None:
    findings = await found({path: value})
    assert [(finding.severity, finding.code) for finding in findings] == [(severity, code)]
    assert text in findings[0].text
    assert findings[0].path.startswith(path) or path.startswith(findings[0].path)


async def test_other_cluster_name_is_a_problem() -> None:
    findings = await found({}, "c3")
    assert [finding.code for finding in findings] == ["cluster"]
    assert "clusterName is c3, and the store has c1, c2" in findings[0].text
