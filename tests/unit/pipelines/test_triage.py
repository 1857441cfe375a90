"""Dead letters in groups."""

from datetime import UTC, datetime

import pyarrow as pa

from pybroker.columns.decoder import schema_of
from pybroker.pipelines import dlq_triage
from pybroker.pipelines.dlq_triage import OTHERS, TOO_OFTEN, Triage


def rows(*properties: dict[str, str], key: bytes | None = None, error: str | None = None) -> pa.RecordBatch:
    letters = [
        {
            "value": b"v",
            "__key": key,
            "__schemaVersion": None,
            "__publishTime": datetime.fromtimestamp(index, UTC),
            "__ledgerId": 3,
            "__entryId": index,
            "__messageProperties": list(each.items()),
            "__error": error,
        }
        for index, each in enumerate(properties)
    ]
    return pa.RecordBatch.from_pylist(letters, schema_of(dlq_triage._COLUMNS))


def test_the_reason_is_what_the_application_said_else_what_is_wrong_with_the_payload() -> None:
    triage = Triage(None, 3)
    triage.add(rows({"exception": "boom\nat line 3"}, {"reason": "late"}, {}, {}), [None, "bad", "does not have", None])
    reasons = triage.by["reason"]
    assert set(reasons) == {"boom", "late", "payload cannot be read: does not have", TOO_OFTEN}


def test_groups_have_their_number_times_and_some_ids_with_their_origin() -> None:
    triage = Triage("why", 2)
    triage.add(
        rows(*[{"why": "x", "REAL_TOPIC": "t", "ORIGIN_MESSAGE_ID": f"1:{n}:-1:-1"} for n in range(5)], key=b"k"),
        [None] * 5,
    )
    document = triage.document(10)
    (group,) = document["byReason"]
    assert (group["reason"], group["messages"]) == ("x", 5)
    assert (group["firstPublishTime"].timestamp(), group["lastPublishTime"].timestamp()) == (0, 4)
    assert group["samples"] == ["3:0 from 1:0:-1:-1", "3:1 from 1:1:-1:-1"]
    assert document["byOrigin"][0]["origin"] == "t"
    assert document["byKey"][0]["key"] == "k"


def test_groups_are_bounded_in_number_and_reasons_in_length(monkeypatch: object) -> None:
    triage = Triage("why", 1)
    count = dlq_triage.MAX_GROUPS
    triage.add(rows(*[{"why": f"reason {n}"} for n in range(count + 50)]), [None] * (count + 50))
    assert len(triage.by["reason"]) == count + 1
    assert triage.by["reason"][OTHERS].messages == 50
    triage.add(rows({"why": "y" * 10_000}), [None])
    assert max(map(len, triage.by["reason"])) <= dlq_triage.MAX_TEXT
