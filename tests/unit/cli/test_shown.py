"""What commands make of a broker's answers: lists of topics, rates between two looks."""

import io
from typing import Any

import pytest

from pybroker.cli.commands.delivery_lists import LISTINGS, write_items
from pybroker.cli.commands.hashes import write_holes
from pybroker.cli.commands.stats import RatesBetween
from pybroker.cli.commands.topics import ListedTopic, listed
from pybroker.cli.output import Output
from pybroker.model.names import TopicName

NOW_MS = 1_795_406_400_000


def name(text: str) -> TopicName:
    return TopicName.parse(text)


def test_partitions_are_one_line_with_their_number() -> None:
    names = [f"persistent://public/default/p-partition-{index}" for index in (0, 2)]
    names += ["persistent://public/default/a", "persistent://public/default/stray-partition-1"]
    partitioned = ["persistent://public/default/p", "persistent://public/default/none-yet"]
    assert listed(names, partitioned) == [
        ListedTopic(name("a"), 0),
        ListedTopic(name("none-yet"), 0),
        ListedTopic(name("p"), 3),
        ListedTopic(name("stray-partition-1"), 0),
    ]


def stats(messages_in: int, messages_out: int) -> dict[str, Any]:
    sub = {"msgOutCounter": messages_out, "bytesOutCounter": 0, "msgRateOut": 1.0}
    return {"msgInCounter": messages_in, "bytesInCounter": 0, "msgRateIn": 1.0, "subscriptions": {"s": sub}}


def test_rates_are_those_since_the_last_look() -> None:
    rates, topic = RatesBetween(), name("t")
    first, second, restarted = stats(100, 50), stats(300, 60), stats(5, 1)
    rates.look({topic: first}, 10.0)
    rates.look({topic: second}, 12.0)
    rates.look({topic: restarted}, 14.0)
    assert first["msgRateIn"] == 1.0  # there is nothing to compare it with
    assert second["msgRateIn"] == 100.0
    assert second["subscriptions"]["s"]["msgRateOut"] == 5.0
    assert restarted["msgRateIn"] == 1.0  # counters that have begun anew say nothing


CONSUMER = {"name": "x", "id": 1, "address": "/127.0.0.1:1"}
UNACKED = {
    "messageId": "1:2:3",
    "keyBase64": "/w==",
    "hash": 41234,
    "consumer": "c",
    "consumerId": 1,
    "deliveredAt": NOW_MS,
    "ageMs": 61_000,
    "deliveryCount": 2,
    "size": 2048,
    "publishTime": NOW_MS - 125_000,
    "properties": {"a": "b"},
    "encrypted": True,
}
DRAINING = {
    "hash": 5,
    "keys": ["a"],
    "keysBase64": ["/w=="],
    "oldConsumer": CONSUMER,
    "newConsumer": None,
    "since": NOW_MS,
    "unackedMessages": 3,
    "messageIds": ["1:1"],
    "blockedAttempts": 9,
}
WAITING = {
    "hash": 5,
    "reason": "waiting",
    "consumer": CONSUMER,
    "because": {**CONSUMER, "name": ""},
    "entries": 3,
    "since": NOW_MS,
    "setAsideFrom": None,
}


@pytest.mark.parametrize(
    ("list_name", "item", "wanted"),
    [
        (
            "unacked",
            UNACKED,
            "1:2:3    0xff  41234  c         1m 1s           2  2.0 KiB  2m 5s ago  a=b; encrypted",
        ),
        (
            "delayed",
            {"messageId": "1:2", "deliverAt": NOW_MS + 600_000, "changed": True},
            "1:2      -    in 10m    2026-11-23T04:10:00.000Z  changed by an administrator",
        ),
        (
            "draining",
            DRAINING,
            "5     a, 0xff  x     -   0ms ago        3  1:1 ...         9",
        ),
        ("waiting", WAITING, "5     waiting  x         /127.0.0.1:1        3  0ms ago  -"),
    ],
)
def test_each_list_shows_an_item_in_a_line(list_name: str, item: dict[str, Any], wanted: str) -> None:
    stream = io.StringIO()
    assert write_items(Output(stream), LISTINGS[list_name], iter([item]), NOW_MS) == 1
    assert stream.getvalue().splitlines()[1] == wanted


def test_a_list_with_nothing_in_it_says_so() -> None:
    stream = io.StringIO()
    assert write_items(Output(stream), LISTINGS["unacked"], iter(()), NOW_MS) == 0
    assert stream.getvalue() == "No unacknowledged messages.\n"


def test_holes_are_shown_with_what_is_kept_and_why() -> None:
    document = {
        "markDeletePosition": "5:16",
        "oldestUnacked": {"messageId": "5:17", "publishTime": NOW_MS, "ageMs": 90_500},
        "acknowledgedBehind": [{"from": "5:18", "to": "5:40", "entries": 23}],
        "more": 2,
        "held": {
            "ledgers": 1,
            "bytes": 2048,
            "reasons": [{"kind": "subscription", "name": "s", "ledgers": 1, "bytes": 2048, "firstLedger": 5}],
            "moreReasons": 0,
        },
    }
    stream = io.StringIO()
    write_holes(Output(stream), document)
    assert stream.getvalue().splitlines() == [
        "mark-delete position   5:16",
        "oldest unacknowledged  5:17",
        "published              2026-11-23T04:00:00.000Z",
        "age                    1m 30s",
        "retained ledgers       1",
        "retained bytes         2.0 KiB",
        "",
        "ACKNOWLEDGED FROM  TO    ENTRIES",
        "5:18               5:40       23",
        "and 2 more",
        "",
        "RETAINED FOR  NAME  LEDGERS  SIZE     FIRST LEDGER",
        "subscription  s           1  2.0 KiB  5",
    ]
