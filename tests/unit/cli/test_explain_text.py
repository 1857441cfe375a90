"""The text of `pybroker explain`: pure, from a document to lines of a width."""

import re
import shlex
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.cli.explain_text import ExplainText, Line
from pybroker.cli.text_tables import columns_of
from pybroker.cli.which_broker import SameBroker
from pybroker.model.findings import Action, Code, Finding, Severity, shell_command

NOW_MS = 1_795_406_400_000
WHERE = SameBroker(options=" --profile prod")


def lines_of(document: dict[str, Any], width: int = 80) -> list[str]:
    return [line.text for line in ExplainText(width, NOW_MS, WHERE).document(document)]


def hashes(count: int, key: str = "customer-{}", name: str = "holder", to: str = "late-2") -> list[dict[str, Any]]:
    return [
        {
            "hash": 100 + number,
            "waitingEntries": 3,
            "keys": [{"key": key.replace("{}", str(number))}],
            "from": {"name": name, "id": 1, "address": "/127.0.0.1:1"},
            "to": {"name": to, "id": 2, "address": "/127.0.0.1:2"},
            "unackedMessages": 2,
            "oldestDelivered": NOW_MS - 61_000,
        }
        for number in range(count)
    ]


def document(finding: Finding, topic: str = "t", subscription: str = "s", key: str = "k") -> dict[str, Any]:
    return {
        "topic": topic,
        "subscription": subscription,
        "subject": {"kind": "key", "key": key, "hash": 5, "consumer": {"name": key, "id": 1}},
        "headline": {"text": f"Messages of key {key} are blocked", "since": NOW_MS - 5000},
        "waiting": True,
        "findings": [finding.as_json()],
    }


BLOCKED = Finding(
    Code.KEY_DRAINS,
    "Keys of 12 hashes are blocked.",
    since_ms=NOW_MS - 5000,
    evidence={"hashes": hashes(10), "moreHashes": 2, "limitBytes": 5 << 20, "silentAfterMs": 61_000},
    actions=[
        Action(Severity.IRREVERSIBLE, "Skip all", "POST", "/x", "pybroker skip t s --all"),
        Action(Severity.LOOK, "Look", "GET", "/x", "pybroker draining t s"),
    ],
    more_command="pybroker draining t s",
)


def test_finding_has_headline_sentence_table_why_and_numbered_actions() -> None:
    assert lines_of(document(BLOCKED)) == [
        "Messages of key k are blocked for 5.0s (since 2026-11-23T03:59:55.000Z)",
        "t / s",
        "key k (hash 5, consumer k)",
        "",
        "Keys of 12 hashes are blocked.",
        "  [key-drains] blocks messages for 5.0s (since 2026-11-23T03:59:55.000Z)",
        "",
        "  KEYS        HASH  HELD BY  UNACKED  OLDEST  NEXT CONSUMER  WAITING",
        *(
            f"  customer-{number}  10{number}   holder         2  1m 1s   late-2               3"
            for number in range(10)
        ),
        "  and 2 more, all of them with:",
        "    pybroker --profile prod draining t s",
        "",
        "  limit bytes   5.0 MiB",
        "  silent after  1m 1s",
        "",
        "  Why: A key moved to another consumer, which must wait until the previous",
        '  consumer has acknowledged its messages of the key. See "Find out why messages',
        '  wait" in the how-to guides.',
        "",
        "  What to do: Make the previous consumer acknowledge its messages of these keys.",
        "  If that consumer cannot, disconnect it: other consumers then receive the",
        "  messages.",
        "  1. Look. Changes nothing.",
        "     pybroker --profile prod draining t s",
        "  2. Irreversible: skip all. Cannot be undone.",
        "     pybroker --profile prod skip t s --all",
    ]


def test_table_is_cut_to_a_narrow_terminal() -> None:
    long = Finding(Code.KEY_DRAINS, "S.", evidence={"hashes": hashes(3, "k" * 90, "holder-" * 20, "日本" * 40)})
    for width in (40, 60, 80, 160):
        lines = lines_of(document(long), width)
        assert max(map(columns_of, lines)) <= width
        assert any("…" in line for line in lines)


def test_document_of_an_older_broker_shows_its_evidence() -> None:
    finding = {
        "code": "no-permits",
        "waits": True,
        "sentence": "It is full.",
        "evidence": {"unacked": 1000},
        "actions": [],
    }
    lines = lines_of({"topic": "t", "subject": {}, "waiting": True, "findings": [finding]})
    assert lines == ["Messages wait", "t", "", "It is full.", "  [no-permits] blocks messages", "", "  unacked  1,000"]


def test_subscription_without_findings_is_not_stuck() -> None:
    subject = {"kind": "subscription", "type": "Shared"}
    assert lines_of({"topic": "t", "subscription": "s", "subject": subject, "waiting": False, "findings": []}) == [
        "Nothing is stuck",
        "t / s",
    ]


@pytest.mark.parametrize(
    ("owner", "line"),
    [
        ({"bundle": "a/b/0x00000000_0x40000000", "broker": "h:8080"}, "bundle a/b/0x00000000_0x40000000, owner h:8080"),
        ({"bundle": "a/b/0x00000000_0x40000000", "broker": None}, "bundle a/b/0x00000000_0x40000000"),
    ],
)
def test_cluster_shows_bundle_and_owner_after_the_topic(owner: dict[str, Any], line: str) -> None:
    found = lines_of({"topic": "t", "subject": {"kind": "topic"}, "waiting": False, "findings": [], "owner": owner})
    assert found[1:3] == ["t", line]


def test_topic_lists_each_subscription_with_its_first_finding() -> None:
    short = {"code": "no-consumers", "waits": True, "sentence": "No consumer.", "since": NOW_MS - 2000}
    listed = [
        {"subscription": "a", "waiting": False, "findings": []},
        {"subscription": "--b", "waiting": True, "findings": [short, short]},
    ]
    topic = {"topic": "t", "subject": {"kind": "topic"}, "waiting": True, "findings": []}
    assert lines_of({**topic, "subscriptions": listed, "moreSubscriptions": 7})[2:] == [
        "",
        "SUBSCRIPTION  STATE  FOR   FINDING",
        "a             ok     -     -",
        "--b           stuck  2.0s  No consumer. (and 1 more)",
        "and 7 more subscriptions: run explain with the name of a subscription",
        "Details of one subscription:",
        "    pybroker --profile prod explain -- t --b",
    ]
    assert lines_of({**topic, "subscriptions": [], "moreSubscriptions": 0})[-1] == "The topic has no subscriptions."


def test_stuck_topics_are_listed_with_a_command_for_each() -> None:
    finding = {"sentence": "No consumer.", "since": NOW_MS - 2000}
    topics = [
        {"topic": "t1", "subscription": "s", "finding": finding, "standing": 3},
        {"topic": "t2", "subscription": None, "finding": {**finding, "since": None}, "standing": 0},
    ]
    text = ExplainText(80, NOW_MS, WHERE)
    assert [line.text for line in text.stuck({"topics": topics, "matching": 5})] == [
        "5 topics are stuck on this broker",
        "",
        "t1 / s, for 2.0s",
        "  No consumer. 2 more subscriptions are stuck.",
        "    pybroker --profile prod explain t1 s",
        "",
        "t2",
        "  No consumer.",
        "    pybroker --profile prod explain t2",
        "",
        "3 more: use --limit 5",
    ]
    assert [line.text for line in text.stuck({"topics": [], "matching": 0})] == ["Nothing is stuck on this broker."]


def test_stuck_topics_of_cluster_name_their_brokers_and_missing_brokers() -> None:
    finding = {"sentence": "No consumer.", "since": None, "code": "no-consumers", "waits": True}
    topics = [{"topic": "t1", "subscription": "s", "finding": finding, "standing": 1, "broker": "b1:8080"}]
    brokers = [{"id": "b1:8080", "problem": ""}, {"id": "b2:8080", "problem": "does not respond"}]
    text = ExplainText(80, NOW_MS, WHERE)
    found = {"topics": topics, "matching": 1, "brokers": brokers}
    assert [line.text for line in text.stuck(found)] == [
        "1 topic is stuck in this cluster",
        "Broker b2:8080 does not respond: its stuck topics are missing here.",
        "",
        "t1 / s",
        "  broker b1:8080",
        "  No consumer.",
        "    pybroker --profile prod explain t1 s",
    ]
    of_broker = {"sentence": "Three bookies are unusable.", "code": "c", "waits": True, "broker": "b1:8080"}
    lines = [line.text for line in text.stuck({**found, "topics": [], "matching": 0, "broker": [of_broker]})]
    assert "Broker b1:8080: Three bookies are unusable." in lines
    assert "Nothing is stuck on the brokers that answered." in lines
    (line,) = text.stuck({"topics": [], "matching": 0, "brokers": brokers[:1]})
    assert line.text == "Nothing is stuck in this cluster."


HOSTILE = st.text(
    st.one_of(st.sampled_from("\x1b[2J\r\n\t\x00\x9b\u202e\u2028\u200b\ud800 日é'\"$`\\"), st.characters()),
    max_size=200,
)


def assert_safe(lines: list[Line], width: int) -> None:
    for line in lines:
        assert line.text.isprintable(), line
        assert not any(unicodedata.category(each).startswith("C") for each in line.text), line
        if not line.is_command:
            assert columns_of(line.text) <= max(40, width), line


@given(HOSTILE, HOSTILE, HOSTILE, st.integers(20, 200))
def test_hostile_names_neither_control_the_terminal_nor_exceed_the_width(
    name: str, key: str, topic: str, width: int
) -> None:
    consumer = {"name": name, "id": 1, "address": topic, "unackedMessages": 3, "heldSince": NOW_MS - 5}
    command = shell_command(["pybroker", "explain", name.encode("utf-8", "replace").decode(), "-k", "v"])
    for evidence in (
        {"hashes": hashes(10, key, name, topic), "moreHashes": 10_000},
        {"consumers": [consumer], name: key, "of": [key, name], "transaction": {name: key}},
        {"consumer": consumer, "key": key, "nextDueAt": NOW_MS + 5},
    ):
        finding = Finding(
            Code.NO_PERMITS,
            f"Consumer {name} waits for {key}.",
            since_ms=NOW_MS - 1,
            evidence=evidence,
            actions=[Action(Severity.DISRUPTIVE, f"Disconnect {name}", "POST", "/x", command)],
            more_command=command,
        )
        text = ExplainText(width, NOW_MS, WHERE)
        assert_safe(text.document(document(finding, topic, name, key)), width)
        short = finding.as_short_json()
        one = {"topic": topic, "subject": {"kind": "topic"}, "waiting": True, "findings": []}
        listed = [{"subscription": name, "waiting": True, "findings": [short]}]
        assert_safe(text.document({**one, "subscriptions": listed, "moreSubscriptions": 2}), width)
        stuck = [{"topic": topic, "subscription": name, "finding": short, "standing": 2}]
        assert_safe(text.stuck({"topics": stuck, "matching": 9}), width)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), min_size=1))
def test_suggested_command_has_exactly_its_words_in_a_shell(words: list[str]) -> None:
    command = shell_command(words)
    assert command.isprintable()
    if all(word.isprintable() for word in words):
        assert shlex.split(command) == words


@pytest.mark.parametrize("code", Code)
def test_every_code_says_why_and_what_to_do_in_sentences(code: Code) -> None:
    for text in (code.meaning, code.advice):
        assert re.fullmatch(r"[A-Z].*\.", text)
        assert not re.search(r"\b(who|whoever|somebody|nobody|anybody|what)\b", text, re.IGNORECASE), text
