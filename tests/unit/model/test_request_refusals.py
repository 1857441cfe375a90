"""All refusals are counted, and one of each command and cause is logged per interval."""

from pybroker.model.request_refusals import LOG_INTERVAL_S, MAX_CAUSES, OTHER, Refusals


def test_one_refusal_per_command_cause_and_interval_is_logged() -> None:
    refusals = Refusals()
    assert refusals.add("SEND", "NotAllowedError", 3, now_s=0.0) == 3
    assert refusals.add("SEND", "NotAllowedError", 1, now_s=1.0) == 0
    assert refusals.add("SEND", "ChecksumError", 1, now_s=1.0) == 1
    assert refusals.add("LOOKUP", "NotAllowedError", 1, now_s=1.0) == 1
    assert refusals.add("SEND", "NotAllowedError", 4, now_s=LOG_INTERVAL_S - 1) == 0
    assert refusals.add("SEND", "NotAllowedError", 1, now_s=LOG_INTERVAL_S) == 6
    assert list(refusals.totals()) == [
        ("SEND", "NotAllowedError", 9),
        ("SEND", "ChecksumError", 1),
        ("LOOKUP", "NotAllowedError", 1),
    ]


def test_number_of_causes_is_bounded_and_no_refusal_is_lost() -> None:
    refusals = Refusals()
    for index in range(MAX_CAUSES + 10):
        refusals.add("SEND", f"cause-{index}", 1, now_s=0.0)
    totals = list(refusals.totals())
    assert len(totals) == MAX_CAUSES + 1
    assert totals[-1] == (OTHER, OTHER, 10)
