from __future__ import annotations

import pytest

from pybroker.broker.explain.ownership import TopicBundle
from pybroker.model.findings import Code, Finding
from pybroker.model.names import TopicName

BUNDLE = TopicBundle(TopicName.parse("a/b/c"), "a/b/0x00000000_0xffffffff", "h:1")
FINDINGS = [
    (BUNDLE.not_served("the session is lost."), Code.BUNDLE_NOT_SERVED, "not serve now: the session is lost.", True),
    (BUNDLE.unloading(), Code.BUNDLE_UNLOADING, "being unloaded", True),
    (BUNDLE.without_owner("policies exclude h:1"), Code.BUNDLE_WITHOUT_OWNER, "no owner: policies exclude h:1.", True),
    (BUNDLE.owner_not_answering("h:2", is_registered=True), Code.OWNER_NOT_ANSWERING, "h:2, does not respond.", True),
    (BUNDLE.owner_not_answering("h:2", is_registered=False), Code.OWNER_NOT_ANSWERING, "is not registered", True),
    (BUNDLE.owner_without_explain("h:2", "4.2.4"), Code.OWNER_WITHOUT_EXPLAIN, "Java broker h:2", False),
    (BUNDLE.owner_conflict("pulsar://h:2"), Code.BUNDLE_OWNER_CONFLICT, "names pulsar://h:2.", False),
    (BUNDLE.owner_conflict(""), Code.BUNDLE_OWNER_CONFLICT, "is missing.", False),
]


@pytest.mark.parametrize(("finding", "code", "text", "waits"), FINDINGS)
def test_finding_names_bundle_and_reason(finding: Finding, code: Code, text: str, waits: bool) -> None:
    assert (finding.code, finding.waits) == (code, waits)
    assert "a/b/0x00000000_0xffffffff" in finding.sentence
    assert text in finding.sentence
    assert finding.evidence["bundle"] == "a/b/0x00000000_0xffffffff"
