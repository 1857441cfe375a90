"""The headline of an explanation."""

from typing import Any

import pytest

from pybroker.admin.explain.headline import headline
from pybroker.model.findings import Code, Finding

WAITS = [Finding(Code.NO_CONSUMERS, "S.", since_ms=20), Finding(Code.NO_PERMITS, "S.", since_ms=10)]
INFORMS = [Finding(Code.DELAYED, "S.", waits=False, since_ms=5)]


@pytest.mark.parametrize(
    ("subject", "blocked", "fine"),
    [
        ({"kind": "topic"}, "Topic t is stuck", "Topic t is not stuck"),
        ({"kind": "subscription"}, "Subscription s is stuck", "Subscription s is not stuck"),
        ({"kind": "key", "key": "k"}, "Messages of key k are blocked", "Messages of key k are not blocked"),
        (
            {"kind": "key", "keyBase64": "/w=="},
            "Messages of key 0xff are blocked",
            "Messages of key 0xff are not blocked",
        ),
        ({"kind": "message", "messageId": "1:2"}, "Message 1:2 is blocked", "Message 1:2 is not blocked"),
        ({"kind": "consumer", "consumer": "c"}, "Consumer c is stuck", "Consumer c is not stuck"),
        ({"kind": "producer", "producer": "p"}, "Producer p is blocked", "Producer p is not blocked"),
    ],
)
def test_headline_names_the_subject_its_state_and_the_earliest_time(
    subject: dict[str, Any], blocked: str, fine: str
) -> None:
    document = {"topic": "t", "subscription": "s", "subject": subject, "waiting": True}
    assert headline(document, [*WAITS, *INFORMS]) == {"text": blocked, "since": 10}
    assert headline(document | {"waiting": False}, INFORMS) == {"text": fine, "since": None}


def test_headline_of_a_topic_counts_its_stuck_subscriptions() -> None:
    short = {"code": "x", "waits": True, "sentence": "S.", "since": 7}
    stuck, fine = (
        {"subscription": "a", "waiting": True, "findings": [short]},
        {"subscription": "b", "waiting": False, "findings": []},
    )
    document = {"topic": "t", "subject": {"kind": "topic"}, "waiting": True, "subscriptions": [stuck, fine]}
    assert headline(document, INFORMS) == {"text": "1 subscription is stuck on topic t", "since": 7}
    assert headline(document | {"subscriptions": [stuck, stuck]}, [])["text"] == "2 subscriptions are stuck on topic t"
    assert headline(document, WAITS)["text"] == "Topic t is stuck"


def test_long_key_is_cut() -> None:
    document = {"topic": "t", "subscription": "s", "subject": {"kind": "key", "key": "k" * 500}, "waiting": True}
    assert len(headline(document, [])["text"]) < 100
