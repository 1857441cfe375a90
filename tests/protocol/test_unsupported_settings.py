"""Settings that are stored without effect: a request that sets one receives a warning, and the documentation lists all of them."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.admin.fake_broker import Served, served

from pybroker.admin.calls.unsupported_settings import TABLE
from pybroker.config import KEYS
from pybroker.model import policies
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.runtime import logs

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "pybroker"
V2 = "/admin/v2"
NAMESPACE = f"{V2}/namespaces/public/default"
TOPIC = f"{V2}/persistent/public/default/t"
ELSEWHERE = ["standalone", "elsewhere"]
COPIES = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}


async def with_elsewhere(http: Served) -> None:
    """Another cluster, which the tenant may use."""
    assert (await http.call("PUT", f"{V2}/clusters/elsewhere", {"serviceUrl": "http://h:8080"})).status == 200
    tenant = {"adminRoles": [], "allowedClusters": ELSEWHERE}
    assert (await http.call("POST", f"{V2}/tenants/public", tenant)).status == 204


def warnings_of(answer: Any) -> list[str]:
    return re.findall(r'299 pybroker "stored without effect: ([^"]*)"', answer.headers.get("warning", ""))


@pytest.mark.parametrize(
    ("method", "path", "body", "subject"),
    [
        ("POST", f"{NAMESPACE}/replication", ELSEWHERE, "replication to other clusters"),
        ("POST", f"{NAMESPACE}/allowedClusters", ELSEWHERE, "allowed clusters of a namespace"),
        (
            "POST",
            f"{NAMESPACE}/replicatorDispatchRate",
            {"dispatchThrottlingRateInMsg": 1},
            "dispatch rates to other clusters",
        ),
        ("PUT", f"{V2}/clusters/third", {"serviceUrl": "http://h:1"}, "documents of other clusters, and peers"),
        ("POST", f"{V2}/clusters/elsewhere", {"serviceUrl": "http://h:1"}, "documents of other clusters, and peers"),
        ("POST", f"{V2}/clusters/standalone/peers", ["elsewhere"], "documents of other clusters, and peers"),
        ("POST", f"{V2}/clusters/standalone/failureDomains/d", {"brokers": ["b"]}, "failure domains"),
        (
            "POST",
            f"{V2}/clusters/standalone/namespaceIsolationPolicies/p",
            {
                "namespaces": ["public/.*"],
                "primary": ["b"],
                "secondary": [],
                "auto_failover_policy": {
                    "policy_type": "min_available",
                    "parameters": {"min_limit": "1", "usage_threshold": "80"},
                },
            },
            "isolation policies",
        ),
        (
            "POST",
            f"{V2}/clusters/standalone/migrate?migrated=true",
            {"brokerServiceUrl": "pulsar://h:1"},
            "migration of clusters and namespaces",
        ),
        ("POST", f"{NAMESPACE}/migration", True, "migration of clusters and namespaces"),
        ("POST", f"{NAMESPACE}/antiAffinity", "group", "anti-affinity of namespaces"),
        (
            "POST",
            f"{NAMESPACE}/persistence/bookieAffinity",
            {"bookkeeperAffinityGroupPrimary": "a", "bookkeeperAffinityGroupSecondary": "b"},
            "affinity to bookies",
        ),
        ("POST", f"{V2}/resource-quotas", {"msgRateIn": 1.0}, "resource quotas of bundles"),
        (
            "POST",
            f"{NAMESPACE}/offloadPolicies",
            {"managedLedgerOffloadDriver": "filesystem"},
            "offload to other storage",
        ),
        ("PUT", f"{NAMESPACE}/offloadThreshold", 1, "offload to other storage"),
        ("PUT", f"{NAMESPACE}/offloadThresholdInSeconds", 1, "offload to other storage"),
        ("PUT", f"{NAMESPACE}/offloadDeletionLagMs", 1, "offload to other storage"),
        ("POST", f"{NAMESPACE}/persistence", COPIES, "copies on several storage nodes"),
        (
            "POST",
            f"{NAMESPACE}/permissions/r",
            ["produce", "functions"],
            "rights to functions, sources, sinks and packages",
        ),
        ("PUT", f"{V2}/namespaces/public/a", {"replication_clusters": ELSEWHERE}, "replication to other clusters"),
        ("PUT", f"{V2}/namespaces/public/b", {"persistence": COPIES}, "copies on several storage nodes"),
        ("PUT", f"{V2}/namespaces/public/c", {"latency_stats_sample_rate": {"standalone": 1}}, "samples of latency"),
        ("PUT", f"{V2}/namespaces/public/d", {"offload_threshold": 1}, "offload to other storage"),
        ("PUT", f"{V2}/namespaces/public/e", {"migrated": True}, "migration of clusters and namespaces"),
    ],
)
async def test_who_sets_what_nobody_carries_out_is_told(
    http: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: object, subject: str
) -> None:
    await with_elsewhere(http)
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(logs, "warning", lambda event, **fields: logged.append((event, fields["subject"])))
    answer = await http.call(method, path, body)
    assert answer.status in {200, 204}, answer
    assert warnings_of(answer) == [subject]
    assert logged == [("setting.without_effect", subject)]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{NAMESPACE}/replication", ["standalone"]),
        ("POST", f"{NAMESPACE}/allowedClusters", ["standalone"]),
        ("POST", f"{V2}/clusters/standalone", {"serviceUrl": "http://h:1"}),
        ("POST", f"{NAMESPACE}/migration", False),
        ("PUT", f"{NAMESPACE}/offloadThreshold", -1),
        (
            "POST",
            f"{NAMESPACE}/persistence",
            {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1},
        ),
        ("POST", f"{NAMESPACE}/permissions/r", ["produce", "consume"]),
        ("PUT", f"{V2}/namespaces/public/a", None),
        ("PUT", f"{V2}/namespaces/public/b", {"bundles": {"numBundles": 4}, "replication_clusters": ["standalone"]}),
        ("POST", f"{NAMESPACE}/messageTTL", 60),
        ("DELETE", f"{NAMESPACE}/removeOffloadPolicies", None),
    ],
)
async def test_who_asks_for_nothing_of_that_is_not_warned(http: Served, method: str, path: str, body: object) -> None:
    answer = await http.call(method, path, body)
    assert answer.status in {200, 204}, answer
    assert warnings_of(answer) == []


async def test_a_request_that_was_refused_warns_of_nothing(http: Served) -> None:
    answer = await http.call("POST", f"{NAMESPACE}/replication", ["nowhere"])
    assert answer.status >= 400
    assert warnings_of(answer) == []


async def test_every_call_of_the_table_is_served() -> None:
    async with served() as http:
        routes: Any = http.server.routes
        found = {(method, route.path) for route in routes for method in route.methods}
    assert [call for row in TABLE for call in row.calls if call not in found] == []


# --- the list is complete -----------------------------------------------------------------------------------------------

# Where policies are kept, shown, and worked out; reading them there is no use of them.
CARRIERS = ("admin", "model", "config")
# What one of those has its use from: the metrics page shows them, requests are answered with them, clients are let in by them.
USED_IN_ADMIN = frozenset({"allowed_topic_property_keys_for_metrics", "listenerName"})
# By design nothing has to be done for them: all gaps between acknowledgements are stored anyway (docs/reference/differences.md).
NEEDS_NOTHING = frozenset({"dispatcher_pause_on_ack_state"})
# Behind the policy of that name in `EffectivePolicies`, whose use counts.
MERGED = frozenset(
    name
    for document in (policies.NamespacePolicies, policies.TopicPolicies)
    for name in (field.name for field in msgspec.structs.fields(document))
    if re.search(rf"\b(topic|namespace)\.{name}\b", (SOURCE / "model" / "effective_policies.py").read_text())
)
SET_WITH_ANOTHER = frozenset({"clusterDispatchRate"})  # always together with topicDispatchRate, as in Pulsar, and shown


def read_names() -> set[str]:
    """Every attribute that is read anywhere but in the carriers, and what the policies' own documents read of themselves."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in CARRIERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found | {"subscription_dispatch_rate", "own_subscription_dispatch_rates"}  # read by the policies' own method


def test_every_policy_that_nothing_acts_on_is_in_the_table() -> None:
    members = {field.name for field in dataclasses.fields(EffectivePolicies)}
    structs = (
        policies.NamespacePolicies,
        policies.TopicPolicies,
        policies.LocalPolicies,
        policies.PersistencePolicies,
        policies.InactiveTopicPolicies,
        policies.DelayedDeliveryPolicies,
        policies.TenantInfo,
    )
    raw = {field.name for struct in structs for field in msgspec.structs.fields(struct)}
    unread = ((members | raw) - MERGED - SET_WITH_ANOTHER - USED_IN_ADMIN - NEEDS_NOTHING) - read_names()
    listed = {name for row in TABLE for name in row.fields}
    assert unread - listed == set()
    assert listed - (members | raw | {"shadowTopics"}) == set()


def test_what_is_listed_is_read_by_nobody() -> None:
    """A row goes when its subject comes to life."""
    names = {name for row in TABLE for name in row.fields}
    stored_only = {"persistence", "migrated"}  # copied between stored documents
    assert (names - stored_only) & read_names() == set()


# --- the documents ------------------------------------------------------------------------------------------------------


def section(path: Path) -> str:
    found = re.search(r"^## Not here yet$(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, path
    return found[1]


def test_the_differences_list_each_subject() -> None:
    text = section(ROOT / "docs" / "reference" / "differences.md")
    rows = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    assert [row.subject for row in TABLE if row.subject not in rows] == []


@pytest.mark.parametrize("document", ["README.md", "docs/reference/differences.md"])
def test_what_is_absent_is_said(document: str) -> None:
    text = section(ROOT / document).lower()
    for word in (
        "functions",
        "sources",
        "sinks",
        "packages",
        "replication",
        "offload",
        "shadow",
    ):
        assert word in text, word


def test_keys_without_effect_are_listed() -> None:
    unsupported = {key for key, info in KEYS.items() if not info.supported}
    table = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert [key for key in unsupported if f"| `{key}` |" not in table] == []
