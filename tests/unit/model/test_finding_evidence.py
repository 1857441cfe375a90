"""Evidence of findings as tables and facts."""

from typing import Any

from pybroker.model.finding_evidence import evidence_shown, keys_text


def test_list_of_hashes_becomes_a_table_without_empty_columns() -> None:
    hashes: list[dict[str, Any]] = [
        {"hash": 7, "waitingEntries": 2, "keys": [{"key": "a"}, {"keyBase64": "/w=="}], "moreKeys": 3},
        {"hash": 8, "waitingEntries": 1200, "hasMore": True},
    ]
    shown = evidence_shown({"hashes": hashes, "moreHashes": 5})
    assert shown == {
        "table": {
            "columns": [
                {"title": "KEYS", "kind": "text"},
                {"title": "HASH", "kind": "text"},
                {"title": "WAITING", "kind": "number"},
            ],
            "rows": [["a, 0xff, …", "7", 2], [None, "8", "1,200+"]],
            "more": 5,
        },
        "facts": [],
    }


def test_table_has_at_most_ten_rows_and_counts_the_others() -> None:
    table = evidence_shown({"consumers": [{"name": f"c{number}"} for number in range(13)], "moreConsumers": 4})["table"]
    assert [row[0] for row in table["rows"]] == [f"c{number}" for number in range(10)]
    assert table["more"] == 7


def test_single_values_become_facts_with_units() -> None:
    consumer = {"name": "c", "id": 3, "address": "/127.0.0.1:1"}
    evidence = {
        "waitingEntries": 3,
        "limitBytes": 5,
        "silentAfterMs": 60_000,
        "nextDueAt": 1_795_406_400_000,
        "hash": 41_234,
        "isCommitted": False,
        "consumer": consumer,
        "messageIds": [f"1:{number}" for number in range(12)],
        "parts": {"reads": 5},
        "key": "brokerMemoryLimitMB",
        "nothing": [],
    }
    assert [(each["title"], each["kind"], each["value"]) for each in evidence_shown(evidence)["facts"]] == [
        ("waiting entries", "number", 3),
        ("limit bytes", "bytes", 5),
        ("silent after", "duration", 60_000),
        ("next due at", "time", 1_795_406_400_000),
        ("hash", "text", "41234"),
        ("is committed", "text", "no"),
        ("consumer", "text", "c (id 3, /127.0.0.1:1)"),
        ("message ids", "text", "1:0, 1:1, 1:2, 1:3, 1:4, 1:5, 1:6, 1:7, 1:8, 1:9 and 2 more"),
        ("parts", "text", "reads 5"),
        ("configuration key", "text", "brokerMemoryLimitMB"),
    ]


def test_cut_key_ends_with_an_ellipsis() -> None:
    assert keys_text({"keys": [{"key": "abc", "sizeBytes": 900}]}) == "abc…"
    assert keys_text({}) is None
