from __future__ import annotations

from pybroker.broker.explain.ownership import explain_not_served
from pybroker.model.findings import Code
from pybroker.model.names import TopicName


def test_explain_names_bundle_without_serving_owner() -> None:
    finding = explain_not_served(TopicName.parse("a/b/c"), "a/b/0x00000000_0xffffffff", "h:1", "it is being unloaded")
    assert finding.code is Code.BUNDLE_NOT_SERVED
    assert finding.waits
    assert "a/b/0x00000000_0xffffffff" in finding.sentence
    assert "it is being unloaded" in finding.sentence
